"""torch.distributed.checkpoint on files, without running code that a file contains.

Torch reads the metadata of a checkpoint, and every value that is not a tensor, with pickle, which runs any code that
the file names. Here the metadata may name only a short list of data classes, and values are read with `weights_only`.
"""

import io
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

Values = dict[str, Any]
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


def write(values: Values, folder: Path, group: dist.ProcessGroup | None) -> None:
    """Every rank of the group writes its part, and syncs it to the disk."""
    with warnings.catch_warnings():
        # Without a group one rank writes alone, as intended.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        warnings.filterwarnings("ignore", message="torch.distributed is unavailable")
        dcp.save(
            values,
            storage_writer=_Writer(folder, sync_files=True, overwrite=False),
            planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=group,
            no_dist=group is None,
        )


def read(values: Values, folder: Path) -> None:
    """Fill these values in place: tensors are read into the given tensors, others replace the value of their key.

    Each rank reads what it needs, without communication.
    """
    planner = _SafePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    reader = _SafeReader(folder)
    found = reader.read_metadata()
    planner.set_up_planner(values, found, is_coordinator=True)
    reader.set_up_storage_reader(found, is_coordinator=True)
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()


def contents(folder: Path) -> Mapping[str, TensorStorageMetadata | None]:
    """What a snapshot contains, by name: shape and dtype of a tensor, None for another value."""
    found = _SafeReader(folder).read_metadata()
    return {
        name: entry if isinstance(entry, TensorStorageMetadata) else None
        for name, entry in found.state_dict_metadata.items()
    }


class _Writer(dcp.FileSystemWriter):
    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            # On a full disk torch's archive writer fails again while it handles the OSError, and hides it.
            raise _find_os_error(error) or error from None

    def storage_meta(self) -> metadata.StorageMeta:
        # Without the path of the draft, which will be renamed.
        return metadata.StorageMeta()


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
