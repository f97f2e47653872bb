"""Both leaders use the group of leaders.

ranks: 4
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


def sum_over_nodes(x, node, leaders, is_leader):
    first = dist.get_global_rank(node, 0)
    dist.reduce(x, dst=first, group=node)
    if is_leader:
        dist.all_reduce(x, group=leaders)
    dist.broadcast(x, src=first, group=node)


dist.init_process_group("gloo")
rank = dist.get_rank()
nodes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
leaders = dist.new_group([0, 2])
x = torch.ones(4)
sum_over_nodes(x, nodes[rank // 2], leaders, rank % 2 == 0)
print(x.sum().item())
dist.destroy_process_group()
