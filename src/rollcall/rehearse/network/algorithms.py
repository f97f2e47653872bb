"""Which rank of a group sends how many bytes to which, by op. Places are those of the group: 0 to its size.

`size_bytes` is what a recorded op has: the tensors that the rank gives; of gather and scatter, one rank's part.
"""

from collections.abc import Callable, Iterator

Part = tuple[int, int, float]  # from, to, bytes
Algorithm = Callable[[float, int, int], Iterator[Part]]  # bytes, size of the group, root


def _around(each_bytes: float, size: int, way: int) -> Iterator[Part]:
    """Every rank sends this many bytes to its neighbour."""
    return ((place, (place + way) % size, each_bytes) for place in range(size))


def _to_all(size_bytes: float, size: int, _: int) -> Iterator[Part]:
    """Every rank has an equal part for every other one."""
    return ((one, other, size_bytes / size) for one in range(size) for other in range(size) if one != other)


def _to_root(size_bytes: float, size: int, root: int) -> Iterator[Part]:
    return ((place, root, size_bytes) for place in range(size) if place != root)


def _from_root(size_bytes: float, size: int, root: int) -> Iterator[Part]:
    return ((root, place, size_bytes) for place in range(size) if place != root)


def _gloo_all_reduce(size_bytes: float, size: int, _: int) -> Iterator[Part]:
    """A ring, against the order of ranks: the parts are reduced, then passed on to all."""
    return _around(2 * (size - 1) / size * size_bytes, size, -1)


def gloo_broadcast_rounds(size_bytes: float, size: int, root: int) -> Iterator[list[Part]]:
    """A binomial tree: in each round, all who have the data send it on, twice as far as in the round before."""
    far = 1
    while far < size:
        places = range(min(far, size - far))
        yield [((place + root) % size, (place + far + root) % size, size_bytes) for place in places]
        far *= 2


def _gloo_broadcast(size_bytes: float, size: int, root: int) -> Iterator[Part]:
    return (part for parts in gloo_broadcast_rounds(size_bytes, size, root) for part in parts)


def _gloo_reduce(size_bytes: float, size: int, root: int) -> Iterator[Part]:
    """The parts are reduced around a ring; then each rank sends its part to the root."""
    yield from _around((size - 1) / size * size_bytes, size, -1)
    yield from _to_root(size_bytes / size, size, root)


def gloo_late_parts(size_bytes: float, size: int, place: int) -> Iterator[Part]:
    """What the rank that comes last to an all_to_all gets only after it has sent its own part, from each rank up to
    half way round. Two ranks share one connection, on which data follows a request for it. For these ranks gloo sends
    first and then asks to receive: the others have asked already, so the data goes at once, and the request waits
    behind it. To the ranks on the other half gloo asks first, and both directions are used at a time."""
    return (((place + step) % size, place, size_bytes / size) for step in range(1, size // 2 + 1))


GLOO: dict[str, Algorithm] = {
    "all_reduce": _gloo_all_reduce,
    "broadcast": _gloo_broadcast,
    "reduce": _gloo_reduce,
    "all_gather": lambda size_bytes, size, _: _around((size - 1) * size_bytes, size, 1),
    # torch has gloo reduce the whole, of which each rank keeps its part.
    "reduce_scatter": _gloo_all_reduce,
    "gather": _to_root,
    "scatter": _from_root,
    "all_to_all": _to_all,
}


def _from_root_along(size_bytes: float, size: int, root: int) -> Iterator[Part]:
    """Along the ring, from the root to the rank before it."""
    return (((root + step) % size, (root + step + 1) % size, size_bytes) for step in range(size - 1))


def _to_root_along(size_bytes: float, size: int, root: int) -> Iterator[Part]:
    return _from_root_along(size_bytes, size, root + 1)


NCCL_RING: dict[str, Algorithm] = {
    "all_reduce": lambda size_bytes, size, _: _around(2 * (size - 1) / size * size_bytes, size, 1),
    "reduce_scatter": lambda size_bytes, size, _: _around((size - 1) / size * size_bytes, size, 1),
    "all_gather": lambda size_bytes, size, _: _around((size - 1) * size_bytes, size, 1),
    "broadcast": _from_root_along,
    "reduce": _to_root_along,
    "gather": _to_root,
    "scatter": _from_root,
    "all_to_all": _to_all,
}


def tree(size_bytes: float, hosts: int) -> Iterator[Part]:
    """The other algorithm of nccl for all_reduce, between hosts: two binary trees, each for half of the data."""
    for mirrored in (False, True):
        for place in range(1, hosts):
            parent = _parent(place, hosts)
            child, above = (_mirrored(each, hosts) if mirrored else each for each in (place, parent))
            yield child, above, size_bytes / 2
            yield above, child, size_bytes / 2


def _parent(place: int, hosts: int) -> int:
    lowest = place & -place
    above = (place ^ lowest) | (lowest << 1)
    return above if above < hosts else place ^ lowest


def _mirrored(place: int, hosts: int) -> int:
    """The second tree: shifted by one, or reversed if the number is even, so that no host is a leaf of both."""
    return (place + 1) % hosts if hosts % 2 else hosts - 1 - place
