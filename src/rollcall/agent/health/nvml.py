"""GPUs as NVML, NVIDIA's management library, reports them. Only this module calls NVML, by ctypes."""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

LIBRARY = "ROLLCALL_NVML"  # a variable that names another file than the driver's
_UNCORRECTED, _VOLATILE, _SM, _TEMPERATURE, _SLOWDOWN = 1, 0, 1, 0, 1  # NVML's numbers
_TEXT_BYTES = 96
# Why a GPU runs slower than it could, of those reasons that mean trouble. An idle GPU, and one at its power limit, are
# as they should be.
THROTTLED = {0x08: "hardware slowdown", 0x20: "too hot", 0x40: "too hot (hardware)", 0x80: "power brake"}


class NvmlError(Exception):
    """NVML does not answer, or not to this question."""


class _Utilisation(ctypes.Structure):
    _fields_: ClassVar = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Event(ctypes.Structure):
    _fields_: ClassVar = [
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Process(ctypes.Structure):
    _fields_: ClassVar = [
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Nvml:
    """An open connection to the driver."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        try:
            self._library = ctypes.CDLL(environ.get(LIBRARY, "libnvidia-ml.so.1"))
        except OSError as error:
            raise NvmlError(str(error)) from error
        self._call("nvmlInit_v2")
        self._events: ctypes.c_void_p | None = None  # where Xid errors are noted, once somebody asks for them

    def gpus(self) -> Iterator[dict[str, Any]]:
        """The facts of each GPU. Facts that a GPU does not report are missing; a GPU that answers nothing is lost."""
        return self._each(self._known)

    def sample(self) -> list[dict[str, Any]]:
        """What each GPU does at the moment, with fewer questions: it is asked every second."""
        xids = self._new_xids()

        def ask(handle: ctypes.c_void_p) -> dict[str, Any]:
            return {**self._moment(handle), "xids": xids.get(handle.value, [])}

        return list(self._each(ask))

    def _each(self, ask: Callable[[ctypes.c_void_p], dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for index in range(self._number("nvmlDeviceGetCount_v2", kind=ctypes.c_uint)):
            try:
                yield {"index": index, **ask(self._handle(index))}
            except NvmlError as error:
                yield {"index": index, "lost": str(error)}

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def versions(self) -> dict[str, str]:
        cuda = self._number("nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int)
        return {"driver": self._text("nvmlSystemGetDriverVersion"), "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"}

    def _known(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        questions: dict[str, Callable[[], Any]] = {
            "name": lambda: self._text("nvmlDeviceGetName", handle),
            "uncorrected_errors": lambda: self._number(
                "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE, kind=ctypes.c_ulonglong
            ),
            "throttled": lambda: self._throttled(handle),
            "sm_mhz": lambda: self._number("nvmlDeviceGetClockInfo", handle, _SM),
            "most_sm_mhz": lambda: self._number("nvmlDeviceGetMaxClockInfo", handle, _SM),
            "power_limit_w": lambda: self._number("nvmlDeviceGetEnforcedPowerLimit", handle) / 1000,
            "default_power_limit_w": lambda: self._number("nvmlDeviceGetPowerManagementDefaultLimit", handle) / 1000,
            "temperature_c": lambda: self._number("nvmlDeviceGetTemperature", handle, _TEMPERATURE),
            "slowdown_c": lambda: self._number("nvmlDeviceGetTemperatureThreshold", handle, _SLOWDOWN),
            "processes": lambda: self._processes(handle),
        }
        known: dict[str, Any] = self._remapped(handle) | _answers(questions)
        return known if "name" in known else {"lost": "it does not answer"}

    def _moment(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        used, memory = _Utilisation(), _Memory()
        # The first question is answered by every GPU that is there: an error means that it is lost.
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        questions: dict[str, Callable[[], Any]] = {
            "utilisation": lambda: self._filled("nvmlDeviceGetUtilizationRates", handle, used).gpu,
            "sm_mhz": lambda: self._number("nvmlDeviceGetClockInfo", handle, _SM),
            "throttled": lambda: self._throttled(handle),
            "uncorrected_errors": lambda: self._number(
                "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE, kind=ctypes.c_ulonglong
            ),
            "pids": lambda: self._pids(handle),
        }
        return {"memory_bytes": memory.used, **_answers(questions)}

    def _new_xids(self) -> dict[int | None, list[int]]:
        """By handle: Xid errors since the last look. The first look has the driver note them."""
        found: dict[int | None, list[int]] = {}
        try:
            if self._events is None:
                self._events = self._noting_xids()
            for _ in range(_MOST_EVENTS):
                event = _Event()
                self._call("nvmlEventSetWait_v2", self._events, ctypes.byref(event), ctypes.c_uint(0))
                if event.kind == _XID:
                    found.setdefault(event.device, []).append(event.data)
        except NvmlError:  # there are no further events, or this driver reports none
            pass
        return found

    def _noting_xids(self) -> ctypes.c_void_p:
        events = ctypes.c_void_p()
        self._call("nvmlEventSetCreate", ctypes.byref(events))
        for index in range(self._number("nvmlDeviceGetCount_v2")):
            with contextlib.suppress(NvmlError):  # an older GPU, or one that is lost
                self._call("nvmlDeviceRegisterEvents", self._handle(index), ctypes.c_ulonglong(_XID), events)
        return events

    def _throttled(self, handle: ctypes.c_void_p) -> list[str]:
        reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", handle, kind=ctypes.c_ulonglong)
        return [text for bit, text in THROTTLED.items() if reasons & bit]

    def _remapped(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        """Rows of memory that were replaced for errors."""
        found = [ctypes.c_uint() for _ in range(4)]
        try:
            self._call("nvmlDeviceGetRemappedRows", handle, *map(ctypes.byref, found))
        except NvmlError:
            return {}
        _, uncorrected, is_pending, has_failed = (each.value for each in found)
        return {"remapped_rows": uncorrected, "remap_pending": bool(is_pending), "remap_failed": bool(has_failed)}

    def _processes(self, handle: ctypes.c_void_p) -> int:
        """How many use the GPU. Asked for none of them, NVML says that there is no room, and how many there are."""
        count = ctypes.c_uint(0)
        function = self._function("nvmlDeviceGetComputeRunningProcesses_v3")
        code = function(handle, ctypes.byref(count), None)
        if code not in (0, _NO_ROOM):
            raise NvmlError(f"error {code}")
        return count.value

    def _pids(self, handle: ctypes.c_void_p) -> list[int]:
        """Returns the processes that use the GPU. In a container these are numbers of the host, which mean nothing
        there."""
        count, found = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), found)
        return sorted(each.pid for each in found[: count.value])

    def _filled(self, name: str, handle: ctypes.c_void_p, structure: Any) -> Any:
        self._call(name, handle, ctypes.byref(structure))
        return structure

    def _number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int:
        found = kind()
        self._call(name, *arguments, ctypes.byref(found))
        return int(found.value)

    def _text(self, name: str, *arguments: Any) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def _call(self, name: str, *arguments: Any) -> None:
        if code := self._function(name)(*arguments):
            raise NvmlError(_ERRORS.get(code, f"error {code}"))

    def _function(self, name: str) -> Any:
        try:
            return getattr(self._library, name)
        except AttributeError as error:
            raise NvmlError(f"this driver has no {name}") from error


_NO_ROOM = 7
_XID = 8  # the kind of event
_MOST_EVENTS, _MOST_PROCESSES = 64, 64  # in one look
_ERRORS = {15: "it has fallen off the bus", 9: "the driver is not loaded", 999: "unknown error"}


def _answers(questions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Returns the answers; questions that this GPU, or its driver, does not answer are left out."""
    found = {}
    for name, ask in questions.items():
        with contextlib.suppress(NvmlError):
            found[name] = ask()
    return found


def facts() -> dict[str, Any]:
    """Empty where there is no NVIDIA driver."""
    try:
        nvml = Nvml()
        return {"gpus": list(nvml.gpus()), **nvml.versions()}
    except NvmlError:
        return {}
