"""The rendezvous of hosts that were started by hand, one `rollcall run` on each: they agree through a store.

Each host has its own launcher, which begins attempts and counts restarts as in other runs. An attempt that fails on one
host fails on all hosts, so all launchers count the same. Through the store they agree on what none of them knows alone:
which hosts there are, in which order, and where the ranks meet.
"""

import json
import os
import time
from dataclasses import asdict, replace

from rollcall.agent.dispatcher import Dispatcher
from rollcall.agent.host_questions import HostQuestions
from rollcall.agent.monitoring.hang_report import HangReport
from rollcall.agent.rendezvous.by_launcher import LauncherRendezvous
from rollcall.agent.rendezvous.store import StoreRendezvous
from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import Begin, Note, Standstill
from rollcall.protocol.plan import REJOINS, ByHand, Plan
from rollcall.protocol.timing import HANG_REPORTS_S

_STANDSTILL, _HANG_REPORT = "standstill", "hang-report"  # what agents tell each other
_POLL_S = 0.1


class ByHandRendezvous(LauncherRendezvous):
    def __init__(
        self, channel: Channel, dispatcher: Dispatcher, questions: HostQuestions, plan: Plan, by_hand: ByHand
    ) -> None:
        super().__init__(channel, dispatcher, questions)
        self._rejoins = REJOINS in os.environ
        self._agreement = StoreRendezvous(
            nnodes=by_hand.nnodes,
            node_rank=by_hand.node_rank,
            slots=plan.slots,
            addr=plan.master_addr,
            port=plan.master_port,
            run_id=plan.run_id,
            timeout_s=plan.join_timeout_s,
            first_attempt=plan.first_attempt,
            rejoins=self._rejoins,
            tell=lambda text: channel.send(Note(text)),
        )
        self._failure = ""  # of the last attempt, here
        self._told: Standstill | None = None  # in this attempt

    @property
    def attempt_of_world(self) -> int:
        return self._agreement.attempt

    def _agree(self, begin: Begin) -> Begin:
        self._failure, self._told = "", None
        info = self._agreement.next_rendezvous()
        master = info.bootstrap_store_info
        assert master is not None, "our own handler always has one"
        slots = self._agreement.slots_of_all()
        return replace(
            begin,
            node_rank=info.rank,
            nnodes=info.world_size,
            first_rank=sum(slots[: info.rank]),
            world_size=sum(slots),
            master_addr=master.master_addr,
            master_port=master.master_port,
        )

    def num_nodes_waiting(self) -> int:
        return super().num_nodes_waiting() or self._agreement.num_nodes_waiting()

    def all_done(self, wait_s: float) -> bool:
        """The launcher hears that all is done only when it is, on all hosts."""
        return self._agreement.all_done() and super().all_done(wait_s)

    def announce_failure(self, sentence: str) -> None:
        self._failure = sentence
        self._agreement.announce_failure(sentence, final=False)

    def announce_stop(self, sentence: str) -> None:
        # If a scheduler starts a stopped host again, the others continue with it.
        self._agreement.announce_failure(sentence, final=not self._rejoins)

    def failed_elsewhere(self) -> str:
        return "" if self._failure else self._agreement.failure_of_attempt()

    def standstill_of_all(self, mine: Standstill) -> Standstill:
        """No launcher leads all hosts, so their agents tell each other."""
        if mine != self._told:
            self._told = mine
            self._agreement.publish(_HANG_REPORT, "")  # the last one is of another standstill
            self._agreement.publish(_STANDSTILL, json.dumps(asdict(mine)))
        if not mine.is_still:
            return mine
        texts = self._agreement.published(_STANDSTILL)
        others = [Standstill(**json.loads(text)) if text else Standstill(False, False) for text in texts]
        return Standstill.of_all([mine, *others])

    def reports_of_others(self, mine: HangReport) -> list[HangReport]:
        """All launchers notice a standstill within a moment, and have their agents report. One that does not answer is
        left out."""
        self._agreement.publish(_HANG_REPORT, json.dumps(asdict(mine)))
        deadline = time.monotonic() + HANG_REPORTS_S
        while not all(texts := self._agreement.published(_HANG_REPORT)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return [HangReport(**json.loads(text)) for text in texts if text]

    def leave(self) -> None:
        if self._failure:  # and no other attempt follows here, so none can elsewhere
            self._agreement.announce_failure(self._failure, final=True)
        self._agreement.leave()
