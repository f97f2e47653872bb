"""One real rank of `rollcall rehearse --check`: the same script on gloo, where "cuda" means the CPU.

Run as `python -m rollcall.rehearse.real_rank STEPS FOLDER SCRIPT [ARGS…]` by `rollcall run`. Files that the script
writes go to the folder.
"""

import functools
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # before our torch.cuda: it looks there for what a real one has
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from rollcall.rehearse import randomness
from rollcall.rehearse.rank import device, files, patches, saving, steps
from rollcall.rehearse.settings import GPUS

_CPU = torch.device("cpu")
_AUTOCAST_DTYPE = torch.float16  # of a GPU, if the program names none


class CudaIsCpu(TorchFunctionMode):
    """Names the CPU wherever the script names a CUDA device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        named = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        if _is_index(named.get("device")):
            named["device"] = _CPU
        if func in _TO and any(map(_is_index, args)):
            args = tuple(_CPU if _is_index(value) else value for value in args)
        given = args, named
        if func is not torch.device and any(map(_is_cuda, pytree.tree_leaves(given))):
            given = pytree.tree_map(lambda value: _CPU if _is_cuda(value) else value, given)
        return func(*given[0], **given[1])


_TO = (torch.Tensor.to, torch._C._nn._parse_to)  # both take a device by its number


def _is_index(value: Any) -> bool:
    return type(value) is int


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.startswith("cuda")


def _use_gloo() -> None:
    """Makes a gloo group, whatever backend is asked for. Arguments that name a device are left out."""

    def replaced(original: Any, place: int) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name in ("device_id", "pg_options", "backend_options"):
                kwargs.pop(name, None)
            if len(args) > place:
                args = (*args[:place], "gloo", *args[place + 1 :])
            else:
                kwargs["backend"] = "gloo"
            return original(*args, **kwargs)

        return call

    modules: tuple[Any, ...] = (dist, distributed_c10d)
    for module in modules:
        module.init_process_group = replaced(module.init_process_group, 0)
        module.is_nccl_available = lambda: True
    # A mesh over all ranks takes the group of the program, if its backend is that of the device.
    meshes: Any = device_mesh
    meshes.get_backend = modules[0].get_backend = lambda group=None: "nccl"
    meshes.init_process_group = modules[0].init_process_group  # of a program that has no group before its mesh
    modules[1]._new_group_with_tag = replaced(distributed_c10d._new_group_with_tag, 2)


def _use_cpu_in_modules() -> None:
    mesh_class: Any = device_mesh.DeviceMesh
    ddp_class: Any = DistributedDataParallel
    mesh_init, ddp_init, load = mesh_class.__init__, ddp_class.__init__, torch.load

    def init_mesh(mesh: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        mesh_init(mesh, "cpu", *args, **kwargs)

    def init_ddp(ddp: Any, module: Any, *_: Any, **kwargs: Any) -> None:
        for name in ("device_ids", "output_device"):
            kwargs.pop(name, None)
        ddp_init(ddp, module, **kwargs)

    autocast_class: Any = torch.autocast
    autocast_init = autocast_class.__init__

    def init_autocast(autocast: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        default = _AUTOCAST_DTYPE if device_type == "cuda" else None
        autocast_init(autocast, "cpu", dtype or default, *args, **kwargs)

    autocast_class.__init__ = init_autocast
    tensor_class: Any = torch.Tensor
    tensor_class.record_stream = lambda tensor, stream: None  # the mode above never sees it: torch refuses the stream
    mesh_class.__init__ = init_mesh
    ddp_class.__init__ = init_ddp

    def load_to_cpu(f: Any, *_: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            with open(f, "rb") as file:
                f = file.name  # where it lies, if a rank has written it
        return load(f, **{**kwargs, "map_location": "cpu"})

    torch.load = load_to_cpu
    setattr(torch, "save", saving.save_from_python(torch.save))  # noqa: B010  (typing: a replaced function)


def main() -> None:
    count, folder, script, *args = sys.argv[1:]
    device.install(GPUS["h200"], dist.get_world_size() if dist.is_initialized() else 8)
    _use_gloo()
    _use_cpu_in_modules()
    steps.stop_after(int(count))
    patches.replace_compile()
    patches.replace_generators()
    patches.replace_memory_pinning()
    randomness.seed(int(os.environ["RANK"]))
    files.install_shared(Path(folder), tempfile.gettempdir())
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with CudaIsCpu():
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
