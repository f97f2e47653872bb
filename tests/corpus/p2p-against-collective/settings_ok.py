"""Rank 0 broadcasts the settings, and rank 1 takes part in the broadcast.

ranks: 2
kind: none
ends: ok
"""

import torch
import torch.distributed as dist

NAMES = ("lr", "momentum", "decay")


def publish(settings):
    packed = torch.tensor([settings[name] for name in NAMES])
    dist.broadcast(packed, src=0)


def subscribe():
    packed = torch.zeros(len(NAMES))
    dist.broadcast(packed, src=0)
    return dict(zip(NAMES, packed.tolist(), strict=True))


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        settings = {"lr": 0.1, "momentum": 0.9, "decay": 0.01}
        publish(settings)
    else:
        settings = subscribe()
    print(settings)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
