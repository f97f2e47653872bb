"""Nodes that are started one by one, in as many terminals, with the origin's flags: each runs its ranks, once."""

import functools
import json
import os
from typing import Any

from rollcall.addresses import interface_of
from rollcall.errors import UsageError, say
from rollcall.functions.api import raise_first
from rollcall.functions.pool import Answer
from rollcall.lab.experiment import Arm, Experiment, load
from rollcall.lab.runner import node_rendezvous, worlds
from rollcall.lab.runner.node import Node
from rollcall.lab.runner.rank_world import meet

_MEET_S = 10.0  # for the ranks of all nodes to start and to find each other


def run(experiment: Experiment, node: Node, arm: str | None, extras: dict[str, Any]) -> int:
    """This node's ranks, once."""
    if node.world_size < experiment.least_ranks:
        raise UsageError(
            f"{experiment.name} needs {experiment.least_ranks} ranks or more, and the flags give {node.world_size}:"
            f" use a larger --nproc_per_node"
        )
    for name in extras:
        if not experiment.takes(name):
            raise UsageError(f"--{name} is not for {experiment.name}: leave it out")
    chosen = experiment.arm(arm) if arm is not None else experiment.arms[0] if experiment.arms else None
    with node_rendezvous.meet(experiment.name, node, {**extras, "arm": arm}) as (agreed, own_address):
        interface = interface_of(own_address) if own_address and node.nnodes > 1 else None
        env = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
        on_rank = functools.partial(_on_rank, experiment.name, agreed, chosen, extras)
        limit_s = chosen.limit_s + _MEET_S if chosen else None
        answers = worlds.call(on_rank, node.nproc_per_node, env, limit_s)
        if chosen and chosen.may_fail and any(answer.failed or answer.exit_code is None for answer in answers):
            _tell_end(experiment, chosen, answers)
            return 0
        raise_first(answers, limit_s)
        return max(int(answer.value) for answer in answers)


def _tell_end(experiment: Experiment, arm: Arm, answers: list[Answer]) -> None:
    """Of an arm that is meant to come to no good end: that it did."""
    failed = [answer for answer in answers if answer.failed]
    for answer in failed:
        say(f"{arm.name}: on rank {answer.rank} of this node {worlds.first_line(answer.error)}")
    hung = [answer for answer in answers if answer.exit_code is None]
    if hung and not failed:
        again = f"rollcall run -n {len(answers)} --on-hang stop --hang-after 2 -m {experiment.module}"
        say(
            f"{arm.name}: {len(hung)} of {len(answers)} ranks of this node hung, and were ended; who waits for whom"
            f" says {again} --arm '{arm.name}'"
        )


def _on_rank(name: str, node: Node, arm: Arm | None, extras: dict[str, Any], local_rank: int) -> int:
    """On a rank: say who this is, as the origin's programs do, and do the experiment once."""
    os.environ.update(node.env(local_rank))
    from rollcall.lab.runner import terminal

    experiment = load(name)
    with meet(node.backend, node.init_method) as world:
        world.logger.info(world.info.model_dump_json(indent=4))
        if experiment.once is not None:
            experiment.once(world, **extras)
            return 0
        if arm is not None:
            if world.is_first:
                world.logger.info(f"{arm.name}: {arm.about}")
            world.logger.info(f"{arm.name}: {json.dumps(experiment.measure(world, arm.name, 1))}")
            return 0
        from rollcall.lab.runner.in_world import gather

        values = gather(world, experiment.measure(world, 1, **extras))
        if values is None:
            return 0
        verdict = experiment.judge(values)
        terminal.say_sentence(verdict)
        return verdict.exit_code
