"""Notices that no rank of any host makes progress, collects their stacks, and explains why."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rollcall.coordinator.agents import Agent, Agents
from rollcall.coordinator.run_folder import RunFolder
from rollcall.protocol.messages import DumpStacks, StacksDumped, Standstill
from rollcall.protocol.plan import Plan
from rollcall.protocol.timing import LOOK_S

_STACKS_S = 15.0  # for all hosts to send the stacks of their ranks, and nccl's dumps
_MOVING = Standstill(is_still=False, is_waiting=False)


class Hangs:
    def __init__(self, plan: Plan, folder: RunFolder, agents: Agents) -> None:
        self._plan, self._folder, self._agents = plan, folder, agents
        self._standstills: dict[int, Standstill] = {}  # by node
        self._was_hang = False
        self._awaited: set[int] | None = None  # nodes whose stacks have not come yet, while a hang is looked at
        self._awaited_until_s = 0.0
        # Of hosts that were started by hand: rings that can be read here. Of all: ranks that compute and have none.
        self._elsewhere: list[str] = []
        self._computing: list[int] = []
        self.is_explained = False  # the hang that ended the run

    def note(self, agent: Agent, standstill: Standstill) -> None:
        self._standstills[agent.node] = standstill

    def note_stacks(self, agent: Agent, dumped: StacksDumped) -> None:
        self._elsewhere += dumped.elsewhere
        self._computing += dumped.computing
        if self._awaited is not None:
            self._awaited.discard(agent.node)

    def tick(self, attempt: int) -> bool:
        """Whether the run is to be ended: it hangs, this was said, and the user wants it so."""
        if self._awaited is not None:
            if self._awaited and time.monotonic() < self._awaited_until_s:
                return False
            self._awaited = None
            return self._explain_hang(attempt)
        nodes = [agent.node for agent in self._agents.all if agent.is_up]
        standstills = [self._standstills.get(node, _MOVING) for node in nodes]
        is_hang = Standstill.of_all(standstills).is_waiting
        if is_hang and not self._was_hang:
            self._ask_for_stacks(nodes)
        if self._was_hang and not is_hang:
            self._folder.note_attempt(attempt, hung=False)
            self._folder.save()
        self._was_hang = is_hang
        return False

    def _ask_for_stacks(self, nodes: list[int]) -> None:
        addresses = self._folder.addresses()
        for agent in self._agents.all:
            agent.send(DumpStacks({name: at for name, at in addresses.items() if name != agent.name}))
        self._elsewhere, self._computing = [], []
        limit_s = _STACKS_S + (LOOK_S if self._plan.by_hand else 0)
        self._awaited, self._awaited_until_s = set(nodes), time.monotonic() + limit_s

    def _explain_hang(self, attempt: int) -> bool:
        self._folder.note_attempt(attempt, hung=True)
        self._folder.save()
        with _with_rings_of(self._elsewhere, self._folder.path, attempt) as folder:
            is_left_alone = self.explain(folder, is_running=True) or bool(self._computing)
        self.is_explained = not is_left_alone and self._plan.on_hang == "stop"
        return self.is_explained

    def explain(self, folder: Path | None = None, is_running: bool = False) -> bool:
        """Print the verdict. Returns whether the run is to be left alone: the rank that all wait for computes."""
        from rollcall.explain.terminal import tell  # here: numpy is needed only when something went wrong

        return tell(folder or self._folder.path, self._plan.hang_after_s if is_running else None)


@contextlib.contextmanager
def _with_rings_of(elsewhere: list[str], folder: Path, attempt: int) -> Iterator[Path]:
    """The folder of the run as if the rings of other launchers were in it. They do not stay there: how those ranks end,
    only their own launcher knows."""
    if not elsewhere:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="rollcall-hang-") as temporary:
        view = Path(temporary) / folder.name
        here = Path("rings", f"attempt-{attempt}")
        for part in (Path(), here.parent, here):
            (view / part).mkdir()
            for path in (folder / part).iterdir():
                if path.relative_to(folder) not in (here.parent, here):
                    (view / part / path.name).symlink_to(path)
        for ring in map(Path, elsewhere):
            for path in (ring, ring.with_suffix(".stacks")):
                with contextlib.suppress(FileExistsError):
                    (view / here / path.name).symlink_to(path)
        yield view
