"""Nodes that a user starts one by one, in as many terminals, with the flags of torch.distributed.launch: each runs its
ranks, once."""

import functools
import json
import os
from typing import Any

from rollcall.addresses import interface_env, interface_of
from rollcall.compat import torch_dns
from rollcall.errors import UsageError, say
from rollcall.functions.api import raise_first
from rollcall.functions.pool import FunctionResult
from rollcall.lab.experiment import Case, Experiment, load
from rollcall.lab.runner import node_rendezvous, on_rank, terminal, worlds
from rollcall.lab.runner.node import Node

_START_S = 10.0  # for the ranks of all nodes to start and to find each other


def run(experiment: Experiment, node: Node, case_name: str | None, options: dict[str, Any]) -> int:
    """Run this node's ranks once; the exit code."""
    if node.world_size < experiment.least_ranks:
        raise UsageError(
            f"{experiment.name} needs {experiment.least_ranks} ranks or more, and the flags give {node.world_size}:"
            f" use a larger --nproc_per_node"
        )
    experiment.check_options(options)
    case = experiment.case(case_name) if case_name is not None else experiment.cases[0] if experiment.cases else None
    torch_dns.have_torch_give_up()  # on looking up the names of its peers, which may take long
    with node_rendezvous.agree(experiment.name, node, {**options, "case": case_name}) as (agreed, own_address):
        interface = interface_of(own_address) if own_address and node.nnodes > 1 else None
        env = interface_env(interface, forced=True)
        function = functools.partial(_on_rank, experiment.name, agreed, case, options)
        limit_s = case.limit_s + _START_S if case else None
        answers = worlds.start_server().call(function, node.nproc_per_node, env=env, timeout_s=limit_s)
        if case and case.may_fail and any(answer.failed or answer.exit_code is None for answer in answers):
            _print_failure(experiment, case, answers)
            return 0
        raise_first(answers, limit_s)
        return max(int(answer.value) for answer in answers)


def _print_failure(experiment: Experiment, case: Case, answers: list[FunctionResult]) -> None:
    """Say how a case ended that is meant to fail or to hang."""
    failed = [answer for answer in answers if answer.failed]
    for answer in failed:
        say(f"{case.name}: on rank {answer.rank} of this node {worlds.first_line(answer.error)}")
    hung = [answer for answer in answers if answer.exit_code is None]
    if hung and not failed:
        command = f"rollcall run -n {len(answers)} --on-hang stop --hang-after 2 -m rollcall lab {experiment.name}"
        say(
            f"{case.name}: {len(hung)} of {len(answers)} ranks of this node hung and were ended; to see which rank"
            f" waits for which: {command} --case '{case.name}'"
        )


def _on_rank(name: str, node: Node, case: Case | None, options: dict[str, Any], local_rank: int) -> int:
    """Runs on a rank: logs who this is, and runs the experiment once."""
    os.environ.update(node.env(local_rank))
    experiment = load(name)
    with on_rank.join(node.backend, node.init_method) as world:
        world.logger.info(world.info.model_dump_json(indent=4))
        if experiment.once is not None:
            experiment.once(world, **options)
            return 0
        if case is not None:
            if world.is_first:
                world.logger.info(f"{case.name}: {case.about}")
            world.logger.info(f"{case.name}: {json.dumps(experiment.measure(world, case.name, 1))}")
            return 0
        values = on_rank.gather(world, experiment.measure(world, 1, **options))
        if values is None:
            return 0
        verdict = experiment.judge(values)
        terminal.print_sentence(verdict)
        return 1 if verdict.violations else 0
