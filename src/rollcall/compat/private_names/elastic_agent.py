"""Used by agent/worker_group.py, which overrides these methods of torch's elastic agent."""

from rollcall.compat.patch import Patch

_AGENT = "torch.distributed.elastic.agent.server.api:SimpleElasticAgent"

PATCH = Patch(
    name="elastic_agent",
    purpose="starts and watches ranks by torch's elastic agent",
    lost_without="no run starts",
    uses=tuple(
        f"{_AGENT}.{method}"
        for method in (
            "_assign_worker_ranks",
            "_construct_event",
            "_exit_barrier",
            "_initialize_workers",
            "_monitor_workers",
            "_shutdown",
            "_start_workers",
            "_stop_workers",
        )
    ),
)
