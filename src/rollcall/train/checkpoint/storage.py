"""torch.distributed.checkpoint on files, without running code that a file contains.

Torch reads the metadata of a checkpoint, and every value that is not a tensor, with pickle, which runs any code that
the file names. Here the metadata may name only a short list of data classes, and values are read with `weights_only`.
"""

import dataclasses
import hashlib
import io
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.futures import Future

from rollcall.protocol.devices import cpu_count
from rollcall.train.checkpoint.manifest import Checksum
from rollcall.world import World

Values = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")
_MOST_THREADS = 4  # more would not write faster to one disk, and make many files
METADATA = ".metadata"  # the name that torch uses

# Data classes without code of their own, and the types of their fields.
_ALLOWED: dict[tuple[str, str], type] = {
    (each.__module__, each.__qualname__): each
    for each in (
        metadata.Metadata,
        metadata.MetadataIndex,
        metadata.TensorStorageMetadata,
        metadata.BytesStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.TensorProperties,
        metadata.StorageMeta,
        metadata._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
        torch.Size,
    )
}
# torch's own checkpoints name the folder that they were saved to. A pure path does nothing to files.
_ALLOWED |= {(module, "PosixPath"): PurePosixPath for module in ("pathlib", "pathlib._local")}


class UnsafeError(ValueError):
    """A file contains something that rollcall never writes into a snapshot."""


def write(values: Values, folder: Path, group: dist.ProcessGroup | None, threads: int = 1) -> dict[str, Checksum]:
    """Every rank of the group writes its part, and syncs it to the disk: as many files as there are threads.

    Returns the checksums of this rank's files, without `.metadata`.
    """
    writer = _Writer(folder, threads)
    with warnings.catch_warnings():
        # Without a group one rank writes alone, as intended.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", message="torch.distributed is unavailable")
        dcp.save(
            values,
            storage_writer=writer,
            planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=group,
            no_dist=group is None,
        )
    return writer.files.checksums


def read(values: Values, folder: Path, threads: int = 1) -> None:
    """Fill these values in place: tensors are read into the given tensors, others replace the value of their key.

    Each rank reads what it needs, without communication; its threads read different files.
    """
    planner = _SafePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    reader = _SafeReader(folder)
    found = reader.read_metadata()
    planner.set_up_planner(values, found, is_coordinator=True)
    reader.set_up_storage_reader(found, is_coordinator=True)
    plan = planner.finish_plan(planner.create_local_plan())
    by_file: dict[str, list[Any]] = {}
    for item in plan.items:
        by_file.setdefault(found.storage_data[item.storage_index].relative_path, []).append(item)
    parts = [dataclasses.replace(plan, items=items) for items in by_file.values()]
    for_each(lambda part: reader.read_data(part, planner).wait(), parts, threads)


def for_each(action: Callable[[T], R], values: Sequence[T], threads: int) -> list[R]:
    """The results in order. Without a second thread in this one: a debugger or a profiler then sees it."""
    if threads == 1 or len(values) < 2:
        return [action(value) for value in values]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(action, values))


def threads_of(world: World) -> int:
    """For writing and reading on this rank. A training on the CPU keeps its cores for itself."""
    if world.device.type == "cpu":
        return 1
    return max(1, min(_MOST_THREADS, cpu_count() // world.info.local_world_size))


def contents(folder: Path) -> Mapping[str, TensorStorageMetadata | None]:
    """What a snapshot contains, by name: shape and dtype of a tensor, None for another value."""
    found = _SafeReader(folder).read_metadata()
    return {
        name: entry if isinstance(entry, TensorStorageMetadata) else None
        for name, entry in found.state_dict_metadata.items()
    }


class _Writer(dcp.FileSystemWriter):
    """Has threads of its own: an error in one of torch's is lost, and with it the tensors that it was to write."""

    def __init__(self, folder: Path, threads: int) -> None:
        super().__init__(folder, sync_files=True, overwrite=False)
        self._threads = threads
        self.fs = self.files = _HashingFiles()

    def write_data(self, plan: Any, planner: Any) -> Any:
        written: Future[list[Any]] = Future()
        results = for_each(lambda part: self._write_part(part, planner), self._split(plan), self._threads)
        written.set_result([result for part in results for result in part])
        return written

    def _split(self, plan: Any) -> list[Any]:
        """A plan for each thread. The files of each have names of their own."""
        if self._threads == 1:
            return [plan]
        prefix = plan.storage_data.prefix
        return [
            dataclasses.replace(plan, items=items, storage_data=filesystem._StoragePrefix(f"{prefix}{number}_"))
            for number, items in enumerate(filesystem._split_by_size_and_type(self._threads, plan.items))
        ]

    def _write_part(self, plan: Any, planner: Any) -> list[Any]:
        try:
            return list(super().write_data(plan, planner).wait())
        except RuntimeError as error:
            # On a full disk torch's archive writer fails again while it handles the OSError, and hides it.
            raise _find_os_error(error) or error from None

    def storage_meta(self) -> metadata.StorageMeta:
        # Without the path of the draft, which will be renamed.
        return metadata.StorageMeta()


class _HashingFiles(filesystem.FileSystem):
    """Computes the checksum of each file from the data that are written, not from the file on the disk."""

    def __init__(self) -> None:
        self.checksums: dict[str, Checksum] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            if Path(path).suffix != filesystem.DEFAULT_SUFFIX:
                yield stream
                return
            hashing = _HashingStream(stream)
            yield hashing
            self.checksums[Path(path).name] = hashing.checksum()


class _HashingStream(io.RawIOBase):
    """A file that is only appended to."""

    def __init__(self, file: Any) -> None:
        self._file, self._digest, self._size_bytes = file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self._size_bytes += memoryview(data).nbytes
        return int(self._file.write(data))

    def tell(self) -> int:
        return self._size_bytes

    def fileno(self) -> int:
        return int(self._file.fileno())

    def flush(self) -> None:
        self._file.flush()

    def checksum(self) -> Checksum:
        return Checksum(size_bytes=self._size_bytes, sha256=self._digest.hexdigest())


def _find_os_error(error: BaseException | None) -> OSError | None:
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


class _SafeReader(dcp.FileSystemReader):
    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        with open(Path(self.path) / METADATA, "rb") as file:
            found = _SafeUnpickler(file).load()
        if not isinstance(found, Metadata):
            raise UnsafeError(f"it is a {type(found).__name__}")
        if found.storage_meta is None:
            found.storage_meta = metadata.StorageMeta()
        return found


class _SafePlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            self.state_dict[name] = torch.load(value, weights_only=True)
        except pickle.UnpicklingError:
            raise UnsafeError(f"its {name} names code, which no snapshot contains") from None


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is not None:
            return found
        if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype | torch.layout):
            return value
        if (module, name) == ("torch.serialization", "_get_layout"):
            return _get_layout
        raise UnsafeError(f"it names {module}.{name}, which no snapshot contains")


def _get_layout(name: str) -> torch.layout:
    if name != "torch.strided":
        raise UnsafeError(f"it names the layout {name}, which no snapshot contains")
    return torch.strided
