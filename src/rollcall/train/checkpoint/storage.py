"""torch.distributed.checkpoint on files, without its one weakness: nothing here ever unpickles code.

Torch reads the metadata of a checkpoint, and every value that is not a tensor, with pickle, which runs whatever the
file says. We let the metadata name a short list of plain classes, and read values as `weights_only`.
"""

import io
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

Values = dict[str, Any]
METADATA = ".metadata"  # torch's name for it

# Data classes without any code of their own, and what their fields consist of.
_PLAIN = {
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


class UnsafeError(ValueError):
    """A file asks for something that no snapshot of ours contains."""


def write(values: Values, folder: Path, group: dist.ProcessGroup | None) -> None:
    """Every rank of the group writes its part, synced to the disk. What all ranks have, one of them writes."""
    with warnings.catch_warnings():
        # Without a group we mean to be alone.
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
    """Fill these values in place: tensors into the tensors that are there, others under their keys.

    Each rank reads what it needs, without a word to the others.
    """
    planner = _SafePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    reader = _SafeReader(folder)
    known = reader.read_metadata()
    planner.set_up_planner(values, known, is_coordinator=True)
    reader.set_up_storage_reader(known, is_coordinator=True)
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()


def contents(folder: Path) -> Mapping[str, TensorStorageMetadata | None]:
    """What a snapshot holds: shape and dtype of every tensor, None for other values."""
    known = _SafeReader(folder).read_metadata()
    return {
        name: entry if isinstance(entry, TensorStorageMetadata) else None
        for name, entry in known.state_dict_metadata.items()
    }


class _Writer(dcp.FileSystemWriter):
    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            # On a full disk torch's writer of archives stumbles over its own position, and hides what the system said.
            raise _what_the_system_said(error) or error from None

    def storage_meta(self) -> metadata.StorageMeta:
        # Without the path under which it is written: that is not where it will be.
        return metadata.StorageMeta()


def _what_the_system_said(error: BaseException | None) -> OSError | None:
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


class _SafeReader(dcp.FileSystemReader):
    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        with open(Path(self.path) / METADATA, "rb") as file:
            known = _PlainUnpickler(file).load()
        if not isinstance(known, Metadata):
            raise UnsafeError(f"it is a {type(known).__name__}")
        if known.storage_meta is None:
            known.storage_meta = metadata.StorageMeta()
        return known


class _SafePlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            self.state_dict[name] = torch.load(value, weights_only=True)
        except pickle.UnpicklingError:
            raise UnsafeError(f"its {name} asks for code, which no snapshot contains") from None


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _PLAIN.get((module, name))
        if found is not None:
            return found
        if module == "torch" and isinstance(known := getattr(torch, name, None), torch.dtype | torch.layout):
            return known
        if (module, name) == ("torch.serialization", "_get_layout"):
            return _get_layout
        raise UnsafeError(f"it asks for {module}.{name}, which no snapshot contains")


def _get_layout(name: str) -> torch.layout:
    if name != "torch.strided":
        raise UnsafeError(f"it asks for the layout {name}, which no snapshot contains")
    return torch.strided
