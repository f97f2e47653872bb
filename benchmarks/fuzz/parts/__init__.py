"""What programs are composed of. Each part is a function that writes some lines which are correct by themselves.

collectives     metrics, settings, gathers, exchanges of tokens, objects
async_work      handles in lists, polling, futures, prefetching
groups          halves, pairs, meshes, threads with a group of their own
point_to_point  rings, chains of stages, halos, parameter servers
training        DDP, FSDP2, tensor and pipeline parallel, sharded optimizers, data loaders
"""

from benchmarks.fuzz.parts import async_work, collectives, groups, point_to_point, training

LIGHT = (*collectives.PARTS, *async_work.PARTS, *groups.PARTS, *point_to_point.PARTS)
HEAVY = training.PARTS
