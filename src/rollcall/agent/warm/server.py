"""Keeps torch and the recorder imported until a run needs an agent.

`rollcall warm` starts it; with ROLLCALL_WARM=1, a run starts it when it ends.
The server forks an agent for a run only if a cold start would give the same agent: a child of the launcher and a child
of the server inherit the same, the run imports the same modules in advance, and no loaded file has changed. Otherwise
the server says what differs, and the run starts cold.
"""

import socket
from pathlib import Path
from typing import Any, NoReturn

from rollcall.agent import main as agent_main
from rollcall.agent.fast_import import begin as fast_import
from rollcall.agent.fast_import import preload
from rollcall.agent.warm import run
from rollcall.linux import process_title, warm_servers
from rollcall.protocol.plan import Program
from rollcall.worker import warm_server
from rollcall.worker.fork_safety import folder_of


def main() -> NoReturn:
    warm_server.main(AgentServer)


class AgentServer(warm_server.WarmServer):
    kind = warm_servers.RUNS

    def __init__(self, wanted: dict[str, Any]) -> None:
        state, start_options = wanted["state"], wanted["start_options"]
        self._start_options: dict[str, Any] = start_options
        self._late = _late(start_options, state["cwd"])
        self._chose_threads = fast_import.choose_threads()
        fast_import.import_torch()
        agent_main.import_once(
            self._late, start_options["record"], start_options["preload"], _program_folder(start_options, state)
        )
        self._title_bytes = process_title.room()
        super().__init__(state, wanted["idle_s"])

    def use(self, connection: socket.socket, message: dict[str, Any], fds: list[int]) -> NoReturn:
        expected = agent_main.Imported(tuple(self._start_options["preload"]), self._late, self._start_options["record"])
        run.supervise(connection, message, fds, self.said, expected, self._chose_threads)

    def difference(self, message: dict[str, Any]) -> str:
        state, start_options = message["state"], message["start_options"]
        if start_options["preload"] != self._start_options["preload"]:
            return "--preload"
        program_folder = _program_folder(start_options, state)
        if start_options["preload"] and program_folder != _program_folder(self._start_options, self.state):
            return "the folder of the program, where --preload looks for modules"
        if start_options["record"] != self._start_options["record"]:
            return "--no-record"
        if (late := _late(start_options, state["cwd"])) != self._late:
            return f"the program, which {'needs' if late else 'does not need'} {', '.join(late or self._late)}"
        return "the length of the command" if message["title_bytes"] > self._title_bytes else ""

    def imports(self) -> list[str]:
        return [*self._late, *self._start_options["preload"]]


def _program_folder(start_options: dict[str, Any], state: dict[str, Any]) -> Path:
    return folder_of(_program(start_options), state["cwd"])


def _late(start_options: dict[str, Any], cwd: str) -> tuple[str, ...]:
    return preload.of_torch(_program(start_options), cwd)


def _program(start_options: dict[str, Any]) -> Program:
    return Program(start_options["kind"], start_options["script"])
