"""A small DDP training for GPUs, to be rehearsed: a sampler, a loader, a loss that is printed, a checkpoint."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    data = TensorDataset(torch.randn(8192, 64), torch.randn(8192, 1))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
    model = DistributedDataParallel(layers, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for inputs, wanted in loader:
        loss = torch.nn.functional.mse_loss(model(inputs.cuda()), wanted.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(loss.item())
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), "small.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
