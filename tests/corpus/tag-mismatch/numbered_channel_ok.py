"""Messages carry running numbers, and all ranks start to count at zero.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


class Channel:
    """Numbered messages to or from one peer."""

    def __init__(self, peer: int, first: int = 0):
        self.peer, self.number = peer, first

    def put(self, tensor: torch.Tensor) -> None:
        dist.send(tensor, self.peer, tag=self.number)
        self.number += 1

    def get(self, *shape: int) -> torch.Tensor:
        tensor = torch.empty(shape)
        dist.recv(tensor, self.peer, tag=self.number)
        self.number += 1
        return tensor


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        channels = [Channel(1), Channel(2)]
        for step in range(3):
            for channel in channels:
                channel.put(torch.full((4,), float(step)))
    else:
        channel = Channel(peer=0, first=0)
        total = sum(channel.get(4).sum().item() for _ in range(3))
        print(f"rank {rank}: {total}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
