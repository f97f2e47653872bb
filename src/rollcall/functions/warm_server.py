"""Keeps torch imported until a program calls functions on ranks. Started by `rollcall warm`.

It is `python -m rollcall.functions`, as a cold start runs it, without the caller's folders on its path. A caller gets a
fork of it only if the caller's path leads to the same modules.
"""

import gc
import os
import socket
import sys
from typing import Any, NoReturn

from rollcall.compat import torch_dns
from rollcall.functions import module_path, worker
from rollcall.linux import fd_messages, warm_servers
from rollcall.worker import warm_server


def main() -> NoReturn:
    if not sys.flags.safe_path:
        sys.path.pop(0)
    warm_server.main(FunctionServer)


class FunctionServer(warm_server.WarmServer):
    kind = warm_servers.CALLS

    def __init__(self, wanted: dict[str, Any]) -> None:
        with module_path.noting_names() as self._names:
            worker.import_modules(worker.MODULES)
        torch_dns.have_torch_give_up()
        self._path = list(sys.path)
        gc.freeze()  # the garbage collector of a child would touch these objects, and so copy their pages
        super().__init__(wanted["state"], wanted["idle_s"])

    def difference(self, message: dict[str, Any]) -> str:
        return module_path.difference(self._names, self._path, self._path_of(message))

    def imports(self) -> list[str]:
        return []

    def use(self, connection: socket.socket, message: dict[str, Any], fds: list[int]) -> NoReturn:
        os.setsid()
        self._become(message, fds)
        fd_messages.send(connection, {"differs": "", "pid": os.getpid()}, [])
        connection.close()
        worker.import_modules(message["preload"])
        worker.serve_calls(fds[0])

    def _become(self, message: dict[str, Any], fds: list[int]) -> None:
        """Set what a process that the caller starts would have: files, environment, folder, path."""
        control_fd, out, err = fds
        for target, fd in ((1, out), (2, err)):
            os.dup2(fd, target)
            os.close(fd)
        os.write(2, self.said)
        sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
        path = self._path_of(message)
        os.environ.clear()
        os.environ.update({**message["env"], "PYTHONPATH": os.pathsep.join(message["path"])})
        os.chdir(message["state"]["cwd"])
        sys.path[:] = path
        sys.argv[1:] = [",".join((*worker.MODULES, *message["preload"])), str(control_fd)]

    def _path_of(self, message: dict[str, Any]) -> list[str]:
        """sys.path as `python -m` makes it: working folder, PYTHONPATH, Python's own; each folder once."""
        cwd = [] if sys.flags.safe_path else [message["state"]["cwd"]]
        return list(dict.fromkeys([*cwd, *message["path"], *self._path]))
