"""Notices that no rank of any host makes progress, collects their stacks, explains why, and decides what to do."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollcall.coordinator.agents import Agent
from rollcall.coordinator.run_folder import RunFolder
from rollcall.protocol.messages import DumpStacks, StacksDumped, Standstill
from rollcall.protocol.plan import Plan
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.protocol.timing import HANG_REPORTS_S
from rollcall.runs import rings_of

if TYPE_CHECKING:
    from rollcall.explain.terminal import PrintedVerdict

Action = Literal["", "stop", "restart"]
_STACKS_S = 15.0  # for all hosts to send the stacks of their ranks, and nccl's dumps
_MOVING = Standstill(is_still=False, is_waiting=False)
_PLACE = ("kind", "ranks", "call", "sites", "where")  # of a verdict: two hangs that agree in these are the same


class Hangs:
    """`say` tells the user something, `found` hears of each hang, `now` is a clock in seconds."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        say: Callable[[str], None],
        found: Callable[[int, dict[str, Any]], None] = lambda _attempt, _verdict: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan, self._folder, self._say, self._found, self._now = plan, folder, say, found, now
        self._elsewhere: list[str] = []  # of hosts that were started by hand: rings that can be read here
        self._computing: list[int] = []  # of all hosts: ranks that compute and have no ring
        self.is_explained = False  # the hang that ended the run
        self.verdict: dict[str, Any] = {}  # of the newest hang
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget what was known of the ranks of the attempt before."""
        self._standstills: dict[int, Standstill] = {}  # by node
        self._was_hang = self._is_asleep = False
        self._look_again_s: float | None = None  # a rank was busy: when that is checked again
        self._awaited: set[int] | None = None  # nodes whose stacks have not come yet, while a hang is looked at
        self._awaited_until_s = 0.0

    def note(self, agent: Agent, standstill: Standstill) -> None:
        self._standstills[agent.node] = standstill

    def note_stacks(self, agent: Agent, dumped: StacksDumped) -> None:
        self._elsewhere += dumped.elsewhere
        self._computing += dumped.computing
        if self._awaited is not None:
            self._awaited.discard(agent.node)

    def tick(self, attempt: int, taking_part: Sequence[Agent], restarts_left: int) -> Action:
        """What to do with the attempt. If it hangs, the verdict is printed first."""
        if self._awaited is not None:
            if self._awaited and self._now() < self._awaited_until_s:
                return ""
            self._awaited = None
            return self._explain_hang(attempt, restarts_left)
        if not taking_part:  # no rank runs, or they are being ended
            return ""
        here = [agent for agent in taking_part if agent.is_up]
        still = Standstill.of_all([self._standstills.get(agent.node, _MOVING) for agent in here])
        is_hang, self._is_asleep = still.is_hang, still.is_asleep
        if is_hang and (not self._was_hang or self._is_due_again()):
            self._ask_for_stacks(here)
        if self._was_hang and not is_hang:
            self._look_again_s = None
            self._folder.note_attempt(attempt, hung=False)
            self._folder.save()
        self._was_hang = is_hang
        return ""

    def _is_due_again(self) -> bool:
        """A rank that computed at the last look may hang now, too."""
        return self._look_again_s is not None and self._now() >= self._look_again_s

    def _ask_for_stacks(self, agents: Sequence[Agent]) -> None:
        addresses = self._folder.addresses()
        for agent in agents:
            agent.send(DumpStacks({name: at for name, at in addresses.items() if name != agent.name}))
        self._elsewhere, self._computing = [], []
        limit_s = _STACKS_S + (HANG_REPORTS_S if self._plan.by_hand else 0)
        self._awaited, self._awaited_until_s = {agent.node for agent in agents}, self._now() + limit_s

    def _explain_hang(self, attempt: int, restarts_left: int) -> Action:
        self._folder.note_attempt(attempt, hung=True, asleep=self._is_asleep)
        self._folder.save()
        is_again = self._look_again_s is not None
        with _with_rings_of(self._elsewhere, self._folder.path, attempt) as folder:
            told = self.explain(folder, is_running=True, is_told_before=is_again)
        if told.is_left_alone or self._computing:
            self._look_again_s = None if self._plan.on_hang == "report" else self._now() + self._plan.hang_after_s
            return ""
        self.verdict = told.verdict
        action = self._decide(attempt, restarts_left)
        self._folder.note_attempt(attempt, verdict=self.verdict)
        self._folder.save()
        self._found(attempt, self.verdict)
        self.is_explained = action == "stop"
        return action

    def _decide(self, attempt: int, restarts_left: int) -> Action:
        """A restart helps if the cause is outside. A hang that comes again at the same op comes from the program."""
        if self._plan.on_hang != "restart":
            return "stop" if self._plan.on_hang == "stop" else ""
        for earlier, verdict in self._folder.verdicts(attempt).items():
            if is_same_hang(verdict, self.verdict):
                self._say(f"attempt {attempt} hangs as attempt {earlier} did, at the same op: the run ends, no restart")
                return "stop"
        if not restarts_left:
            self._say(f"the run hangs and no restart is left of --max-restarts {self._plan.max_restarts}: it ends")
            return "stop"
        return "restart"

    def explain(
        self, folder: Path | None = None, is_running: bool = False, is_told_before: bool = False
    ) -> "PrintedVerdict":
        """Print the verdict."""
        from rollcall.explain.terminal import tell  # here: numpy is needed only when something went wrong

        limit_s = self._plan.hang_after_s if is_running else None
        return tell(folder or self._folder.path, limit_s, is_told_before=is_told_before)


def is_same_hang(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the same ranks did the same in the same call, on the same lines."""
    return all(one.get(key) == other.get(key) for key in _PLACE)


def sentence(verdict: dict[str, Any]) -> str:
    """A verdict in one line."""
    ranks = verdict.get("ranks")
    return f"{verdict['kind']}{f' — look at {ranks_in_words(ranks)}' if ranks else ''}: {verdict['message']}"


@contextlib.contextmanager
def _with_rings_of(elsewhere: list[str], folder: Path, attempt: int) -> Iterator[Path]:
    """The folder of the run as if the rings of other launchers were in it. They are not kept there, since
    only their own launcher knows how those ranks end."""
    if not elsewhere:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="rollcall-hang-") as temporary:
        view = Path(temporary) / folder.name
        here = rings_of(Path(), attempt)
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
