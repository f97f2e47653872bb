"""Looks at everything a program can see of its interpreter and writes it down.

Usage: inspect_everything.py OUT METHOD,…  with the ways in which data loaders start their workers
"""

import atexit
import builtins
import faulthandler
import gc
import inspect
import io
import json
import locale
import logging
import multiprocessing
import multiprocessing.resource_tracker
import os
import pickle
import platform
import random
import resource
import signal
import site
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings
from pathlib import Path

MODULES_AT_START = set(sys.modules)

import numpy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return i * i, os.getppid() == PARENT.get("pid", os.getppid()), torch.utils.data.get_worker_info().id


PARENT: dict[str, int] = {}


class Pickled:
    def __init__(self, value):
        self.value = value


def double(x):
    return 2 * x


def loaded(method):
    loader = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context=method)
    return sorted(int(v) for squares, _, _ in loader for v in squares)


def pool(method):
    with multiprocessing.get_context(method).Pool(2) as workers:
        return workers.map(double, [1, 2, 3])


def handlers():
    found = {}
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        found[signal.Signals(number).name if number in list(signal.Signals) else number] = getattr(
            handler, "__qualname__", str(handler)
        )
    return found


def stream(s):
    return {
        "class": type(s).__name__,
        "name": s.name,
        "encoding": s.encoding,
        "errors": s.errors,
        "newlines": repr(s.newlines),
        "line_buffering": s.line_buffering,
        "write_through": s.write_through,
        "mode": s.mode,
        "buffer": type(s.buffer).__name__,
        "fileno": s.fileno(),
        "isatty": s.isatty(),
        "is_original": s is getattr(sys, f"__{s.name.strip('<>')}__"),
    }


def child_output():
    code = "import sys, os; print(sys.argv, os.environ['RANK'], sys.stdout.write_through)"
    return subprocess.run([sys.executable, "-c", code, "x"], capture_output=True, text=True, check=True).stdout


def thread_facts():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(threading.current_thread().name))
    thread.start()
    thread.join()
    return {
        "main": threading.main_thread().name,
        "current_is_main": threading.current_thread() is threading.main_thread(),
        "active": threading.active_count(),
        "first": seen[0],
        "stack_size": threading.stack_size(),
    }


def open_fds():
    return sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))


def matmul_threads():
    before = len(os.listdir("/proc/self/task"))
    torch.ones(600, 600) @ torch.ones(600, 600)
    numpy.ones((600, 600)) @ numpy.ones((600, 600))
    return len(os.listdir("/proc/self/task")) - before


def main_module():
    main = sys.modules["__main__"]
    return {
        "is_globals": vars(main) is globals(),
        "names": sorted(n for n in vars(main) if n.startswith("__")),
        "file": main.__file__,
        "name": main.__name__,
        "package": main.__package__,
        "spec": str(main.__spec__),
        "cached": str(main.__cached__),
        "loader": type(main.__loader__).__name__,
        "loader_path": main.__loader__.path,
        "doc": main.__doc__,
        "builtins_is_module": main.__builtins__ is builtins,
        "annotations": main.__annotations__ == {"PARENT": dict[str, int]},
        "in_modules": sorted(
            n for n in sys.modules if "main" in n.lower() and n != "__main__" and not n.startswith("rollcall.")
        ),
    }


def process_facts():
    process = multiprocessing.current_process()
    return {
        "name": process.name,
        "daemon": process.daemon,
        "identity": process._identity,
        "parent": str(multiprocessing.parent_process()),
        "class": type(process).__name__,
        "start_method": multiprocessing.get_start_method(allow_none=True),
        "torch_start_method": torch.multiprocessing.get_start_method(allow_none=True),
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "children": len(multiprocessing.active_children()),
        "tracker": multiprocessing.resource_tracker._resource_tracker._fd,
    }


def inherited():
    """What the kernel hands down, beyond what Python shows of it."""
    from rollcall.linux import process_state

    return {name: value for name, value in process_state.current().items() if name not in ("environ", "cwd")}


def main():
    PARENT["pid"] = os.getpid()
    facts = {}
    facts["fds"] = open_fds()
    facts["argv"] = sys.argv
    facts["orig_argv"] = sys.orig_argv
    facts["executable"] = sys.executable
    facts["path"] = sys.path
    facts["flags"] = str(sys.flags)
    facts["xoptions"] = sys._xoptions
    facts["warnoptions"] = sys.warnoptions
    facts["filters"] = [str(f) for f in warnings.filters]
    facts["prefixes"] = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.platlibdir]
    facts["version"] = [sys.version, platform.python_implementation()]
    facts["recursion"] = sys.getrecursionlimit()
    facts["switch"] = sys.getswitchinterval()
    facts["trace"] = [sys.gettrace() is None, sys.getprofile() is None, tracemalloc.is_tracing()]
    facts["hooks"] = [
        sys.excepthook.__qualname__,
        sys.displayhook.__name__,
        sys.unraisablehook.__name__,
        threading.excepthook.__name__,
        sys.breakpointhook.__name__,
    ]
    facts["import_system"] = [str(f) for f in sys.meta_path] + [str(f) for f in sys.path_hooks]
    facts["dont_write_bytecode"] = [sys.dont_write_bytecode, sys.pycache_prefix]
    facts["interactive"] = [hasattr(sys, "ps1"), hasattr(sys, "last_traceback")]
    facts["gc"] = [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.garbage), len(gc.callbacks)]
    facts["faulthandler"] = faulthandler.is_enabled()
    facts["main"] = main_module()
    facts["streams"] = [stream(sys.stdin), stream(sys.stdout), stream(sys.stderr)]
    facts["stdin"] = sys.stdin.read()
    facts["fd_kinds"] = [stat.S_IFMT(os.fstat(0).st_mode)]
    facts["cwd"] = os.getcwd()
    facts["umask"] = os.umask(0o022)
    facts["session"] = [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()]
    facts["ids"] = [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()]
    facts["nice"] = os.nice(0)
    facts["affinity"] = sorted(os.sched_getaffinity(0))
    facts["limits"] = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT")}
    facts["signals"] = handlers()
    facts["blocked"] = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    facts["wakeup_fd"] = signal.set_wakeup_fd(-1)
    facts["alarm"] = [signal.alarm(0), signal.getitimer(signal.ITIMER_REAL)]
    facts["locale"] = [
        locale.getlocale(),
        locale.getpreferredencoding(),
        sys.getfilesystemencoding(),
        sys.getfilesystemencodeerrors(),
        sys.getdefaultencoding(),
        io.text_encoding(None),
    ]
    facts["time_zone"] = [time.tzname, time.timezone]
    facts["site"] = [site.getsitepackages(), site.getusersitepackages(), site.ENABLE_USER_SITE]
    facts["builtins"] = sorted(n for n in dir(builtins) if n != "_")
    facts["environ"] = dict(os.environ)
    facts["environ_in_c"] = sorted(subprocess.run(["env", "-0"], capture_output=True, text=True).stdout.split("\0"))
    facts["multiprocessing"] = process_facts()
    facts["threads"] = thread_facts()
    facts["logging"] = [
        logging.root.level,
        len(logging.root.handlers),
        logging.lastResort.level,
        sorted(n for n in logging.root.manager.loggerDict if n.split(".")[0] not in ("torch",)),
    ]
    facts["tempdir"] = tempfile.gettempdir()
    facts["random_is_own"] = random.getstate() != random.Random(0).getstate()
    facts["pickle"] = [pickle.loads(pickle.dumps(Pickled(3))).value, Pickled.__module__, double.__module__]
    facts["source"] = inspect.getsource(double)
    facts["child"] = child_output()
    facts["torch"] = {
        "threads": torch.get_num_threads(),
        "interop": torch.get_num_interop_threads(),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda": [torch.cuda.is_available(), torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
        "parallel": torch.__config__.parallel_info(),
        "matmul_threads": matmul_threads(),
    }
    facts["numpy_errors"] = numpy.geterr()
    # A worker that is not forked imports torch anew: on one rank that is enough.
    methods = sys.argv[2].split(",") if os.environ["RANK"] == "0" else ["fork"]
    facts["loaders"] = {method: loaded(method) for method in methods}
    facts["pool"] = pool("fork")
    dist.init_process_group("gloo")
    numbers = [None] * dist.get_world_size()
    dist.all_gather_object(numbers, (random.random(), numpy.random.random(), torch.rand(1).item(), os.getpid()))
    facts["ranks_differ"] = [len({n[i] for n in numbers}) == len(numbers) for i in range(4)]
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    facts["dist"] = [
        dist.get_rank(),
        dist.get_world_size(),
        dist.get_backend(),
        total.item(),
        dist.is_torchelastic_launched(),
    ]
    dist.destroy_process_group()
    # What may differ, and how the test knows it does not matter, is the test's business.
    facts["frames_below"] = len(inspect.stack()) - 2
    facts["modules_at_start"] = sorted(MODULES_AT_START)
    facts["inherited"] = inherited()
    facts["cmdline"] = Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")
    facts["parent_command"] = os.getppid()
    with open(f"{sys.argv[1]}.{os.environ['RANK']}", "w") as file:
        json.dump(facts, file, default=str)


class Farewell:
    """An object in the script's globals whose end can be seen."""

    def __del__(self):
        print("global deleted")


farewell = Farewell()
atexit.register(print, "atexit ran")

if __name__ == "__main__":
    main()
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread ended"))).start()
    print("script ended")
    sys.exit(7)
