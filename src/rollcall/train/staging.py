"""A copy of the state in memory of our own, so that training goes on while it is written.

What the next forward pass may change (batch norm's averages, random generators) is copied at once. Parameters and the
optimizer's tensors change in the optimizer's next step only: they are copied beside the next forward and backward
pass, and that step waits for the copy, if it comes so soon.
"""

import copy
import threading
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from rollcall.train.state import State
from rollcall.train.storage import Values


class Staging:
    """Buffers that every snapshot uses again: fresh memory costs more than the copy."""

    def __init__(self, device: torch.device) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied = threading.Event()
        self._copied.set()
        self._event: torch.cuda.Event | None = None

    def begin(self, state: State) -> "Draft":
        """Copy what cannot wait. The rest is copied by `Draft.finish`, in another thread."""
        values, waiting = {}, []
        for name, value in state.values.items():
            if not isinstance(value, torch.Tensor):
                values[name] = copy.deepcopy(value)
                continue
            values[name], buffer, source = self._place(name, value)
            if name in state.resting:
                waiting.append((buffer, source))
            else:
                buffer.copy_(source)
        self._copied.clear()
        if self._stream is not None:
            self._copy_beside(waiting)
            waiting = []
        return Draft(values, waiting, self)

    def wait(self, *_: Any) -> None:
        """Before the optimizer changes anything: let the copy be complete."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)  # the GPU waits, we need not
        elif not self._copied.is_set():
            self._copied.wait()

    def finish(self, waiting: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        try:
            with torch.no_grad():
                for buffer, source in waiting:
                    buffer.copy_(source)
            if self._event is not None:
                self._event.synchronize()
        finally:
            self._copied.set()

    def _place(self, name: str, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What stands for this value in the snapshot, the buffer behind it, and what to copy there."""
        source = value.to_local() if isinstance(value, DTensor) else value
        source = source.detach()
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != source.shape or buffer.dtype != source.dtype:
            pin = self._stream is not None and source.is_cuda
            buffer = self._buffers[name] = torch.empty(source.shape, dtype=source.dtype, pin_memory=pin)
        if isinstance(value, DTensor):
            # Not from_local, which would send the buffer back to the mesh's device.
            return DTensor(buffer, value._spec, requires_grad=False), buffer, source  # type: ignore[no-untyped-call]
        return buffer, buffer, source

    def _copy_beside(self, waiting: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """On a stream of its own: the GPU copies while it computes."""
        assert self._stream is not None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), torch.no_grad():
            for buffer, source in waiting:
                buffer.copy_(source, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(self._stream)


class Draft:
    """Values for a snapshot, whose copying another thread has yet to finish."""

    def __init__(self, values: Values, waiting: list[tuple[torch.Tensor, torch.Tensor]], staging: Staging) -> None:
        self.values, self._waiting, self._staging = values, waiting, staging

    def finish(self) -> Values:
        self._staging.finish(self._waiting)
        return self.values

    def what_is_not_finite(self) -> str | None:
        """The first of the model's tensors with a NaN or an infinity in it."""
        for name, value in self.values.items():
            if name.startswith("model.") and isinstance(value, torch.Tensor) and value.is_floating_point():
                local = value.to_local() if isinstance(value, DTensor) else value
                if not torch.isfinite(local).all():
                    return name.removeprefix("model.")
        return None
