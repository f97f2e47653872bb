"""An ignite training with its distributed helpers: an average over all ranks, and metrics."""

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.metrics import Loss
from torch import nn


def train(local_rank: int) -> None:
    torch.manual_seed(0)
    model = idist.auto_model(nn.Linear(8, 1))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True))
    loader = idist.auto_dataloader(data, batch_size=8, shuffle=False)

    def step(_engine: Engine, batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        guess = model(batch[0])
        nn.functional.mse_loss(guess, batch[1]).backward()
        optimizer.step()
        return guess.detach(), batch[1]

    engine = Engine(step)
    Loss(nn.functional.mse_loss).attach(engine, "loss")

    @engine.on(Events.EPOCH_COMPLETED)
    def show(engine: Engine) -> None:
        print("epoch", engine.state.epoch, "loss", round(engine.state.metrics["loss"], 8))

    engine.run(loader, max_epochs=2)
    print("all", idist.all_gather(idist.get_rank()))


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(train)
