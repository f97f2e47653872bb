"""Rank 0 sends labels as 32-bit integers, and rank 1 reads them as such.

ranks: 2
kind: none
ends: ok
"""

import torch
import torch.distributed as dist

CLASSES = 4


def hand_out(images):
    labels = (images.sum(dim=1) > 0).to(torch.int32) + 1
    dist.send(images, dst=1)
    dist.send(labels, dst=1)


def take_in(count):
    images = torch.zeros(count, 8)
    labels = torch.zeros(count, dtype=torch.int32)
    dist.recv(images, src=0)
    dist.recv(labels, src=0)
    return images, labels


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(11)
    if dist.get_rank() == 0:
        hand_out(torch.randn(12, 8))
    else:
        _, labels = take_in(12)
        counts = torch.bincount(labels.long(), minlength=CLASSES)
        print(f"labels per class {counts.tolist()}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
