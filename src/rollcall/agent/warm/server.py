"""Keeps torch and the recorder imported until a run needs an agent.

`rollcall warm` starts it, or a run that leaves one behind.
It gives a run its agent only if a cold start would give the same: what launcher and server would hand down to a child
is the same, the run imports the same modules in advance, and no file that is loaded has changed. Else it says what
differs, and the run starts without it.
"""

import socket
from pathlib import Path
from typing import Any, NoReturn

from rollcall.agent import main as agent_main
from rollcall.agent.fast_import import begin as fast_import
from rollcall.agent.fast_import import preload
from rollcall.agent.warm import run
from rollcall.linux import kept_servers, process_title
from rollcall.protocol.plan import Program
from rollcall.worker import kept_server
from rollcall.worker.fork_safety import folder_of


def main() -> NoReturn:
    kept_server.main(WarmServer)


class WarmServer(kept_server.KeptServer):
    kind = kept_servers.RUNS

    def __init__(self, wanted: dict[str, Any]) -> None:
        state, typed = wanted["state"], wanted["typed"]
        self._typed: dict[str, Any] = typed
        self._late = _late(typed, state["cwd"])
        self._chose_threads = fast_import.choose_threads()
        fast_import.import_torch()
        agent_main.import_once(self._late, typed["record"], typed["preload"], _program_folder(typed, state))
        self._title_bytes = process_title.room()
        super().__init__(state, wanted["idle_s"])

    def use(self, connection: socket.socket, message: dict[str, Any], fds: list[int]) -> NoReturn:
        expected = agent_main.Imported(tuple(self._typed["preload"]), self._late, self._typed["record"])
        run.supervise(connection, message, fds, self.said, expected, self._chose_threads)

    def difference(self, message: dict[str, Any]) -> str:
        state, typed = message["state"], message["typed"]
        if typed["preload"] != self._typed["preload"]:
            return "--preload"
        if typed["preload"] and _program_folder(typed, state) != _program_folder(self._typed, self.state):
            return "the folder of the program, where --preload looks for modules"
        if typed["record"] != self._typed["record"]:
            return "--no-record"
        if (late := _late(typed, state["cwd"])) != self._late:
            return f"the program, which {'needs' if late else 'does not need'} {', '.join(late or self._late)}"
        return "the length of the command" if message["title_bytes"] > self._title_bytes else ""

    def imports(self) -> list[str]:
        return [*self._late, *self._typed["preload"]]


def _program_folder(typed: dict[str, Any], state: dict[str, Any]) -> Path:
    return folder_of(_program(typed), state["cwd"])


def _late(typed: dict[str, Any], cwd: str) -> tuple[str, ...]:
    return preload.of_torch(_program(typed), cwd)


def _program(typed: dict[str, Any]) -> Program:
    return Program(typed["kind"], typed["script"])
