"""Nodes that are started one by one, in as many terminals, with the origin's flags: each runs its ranks, once."""

import functools
import json
import os
from typing import Any

from rollcall.errors import UsageError
from rollcall.functions import raise_first
from rollcall.lab import door, worlds
from rollcall.lab.experiment import Experiment, load
from rollcall.lab.meeting import meet
from rollcall.lab.node import Node
from rollcall.launch.host.routes import interface_of


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
    if arm is not None:
        experiment.arm(arm)
    with door.meet(experiment.name, node) as (agreed, own_address):
        interface = interface_of(own_address) if own_address and node.nnodes > 1 else None
        env = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
        on_rank = functools.partial(_on_rank, experiment.name, agreed, arm, extras)
        answers = worlds.call(on_rank, node.nproc_per_node, env)
        raise_first(answers, None)
        return max(int(answer.value) for answer in answers)


def _on_rank(name: str, node: Node, arm: str | None, extras: dict[str, Any], local_rank: int) -> int:
    """On a rank: say who this is, as the origin's programs do, and do the experiment once."""
    os.environ.update(node.env(local_rank))
    from rollcall.lab import show

    experiment = load(name)
    with meet(node.backend, node.init_method) as world:
        world.logger.info(world.info.model_dump_json(indent=4))
        if experiment.once is not None:
            experiment.once(world, **extras)
            return 0
        if experiment.arms:
            chosen = experiment.arm(arm) if arm else experiment.arms[0]
            world.logger.info(f"{chosen.name}: {json.dumps(experiment.measure(world, chosen.name, 1))}")
            return 0
        from rollcall.lab.in_world import gather

        values = gather(world, experiment.measure(world, 1, **extras))
        if values is None:
            return 0
        verdict = experiment.judge(values)
        show.say_sentence(verdict)
        return verdict.exit_code
