"""At the end of an epoch rank 0 sends the learning rate before it joins the mean of the losses; the others do it after.

ranks: 3
kind: order-swap
look at: 0
ends: hangs
"""

import torch
import torch.distributed as dist


def mean_over_ranks(value):
    total = torch.tensor([value])
    dist.all_reduce(total)  # GUILTY
    return total.item() / dist.get_world_size()


def share_rate(rate):
    box = torch.tensor([rate])
    dist.broadcast(box, src=0)  # GUILTY
    return box.item()


def finish_epoch(epoch, loss, rate):
    if dist.get_rank() == 0:
        rate = share_rate(rate * 0.5)
        loss = mean_over_ranks(loss)
        print(f"epoch {epoch}: loss {loss:.3f}, next rate {rate}")
    else:
        loss = mean_over_ranks(loss)
        rate = share_rate(rate)
    return rate


dist.init_process_group("gloo")
rate = 0.1
for epoch in range(3):
    local_loss = 1.0 / (epoch + 1) + 0.1 * dist.get_rank()
    rate = finish_epoch(epoch, local_loss, rate)
dist.destroy_process_group()
