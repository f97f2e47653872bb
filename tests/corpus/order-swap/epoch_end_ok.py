"""At the end of an epoch all ranks take the mean of the losses, then the learning rate from rank 0.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


def mean_over_ranks(value):
    total = torch.tensor([value])
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def share_rate(rate):
    box = torch.tensor([rate])
    dist.broadcast(box, src=0)
    return box.item()


def finish_epoch(epoch, loss, rate):
    if dist.get_rank() == 0:
        loss = mean_over_ranks(loss)
        rate = share_rate(rate * 0.5)
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
