"""Both ranks merge their running statistics in the same order.

ranks: 2
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


class RunningStats:
    """Statistics of a stream, merged over ranks by `merge`."""

    def __init__(self, saved):
        self.values = {name: torch.tensor(value) for name, value in saved.items()}

    def merge(self):
        merged = {}
        for name, value in sorted(self.values.items()):
            if name.startswith("peak"):
                parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, value)
                merged[name] = torch.stack(parts).amax(0)
            else:
                dist.all_reduce(value)
                merged[name] = value
        return merged


def restore(rank):
    if rank == 0:
        return {"count": [64.0, 32.0], "peak": [0.4, 0.9]}
    saved = {"peak": [0.8, 0.1]}
    saved.update({"count": [16.0, 8.0]})
    return saved


if __name__ == "__main__":
    dist.init_process_group("gloo")
    stats = RunningStats(restore(dist.get_rank()))
    print({name: value.tolist() for name, value in stats.merge().items()})
    dist.destroy_process_group()
