"""Two models play against each other, each wrapped in DDP, and all ranks update them in the same order.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Player:
    def __init__(self, model):
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def improve(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Game:
    def __init__(self):
        self.maker = Player(nn.Linear(4, 10))
        self.judge = Player(nn.Linear(10, 1))

    def teach_judge(self, real):
        made = self.maker.model.module(torch.randn(len(real), 4)).detach()
        score = self.judge.model(torch.cat([real, made]))
        truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(made), 1)])
        self.judge.improve(nn.functional.binary_cross_entropy_with_logits(score, truth))

    def teach_maker(self, count):
        score = self.judge.model.module(self.maker.model(torch.randn(count, 4)))
        self.maker.improve(nn.functional.softplus(-score).mean())

    def play(self, real, maker_first):
        if maker_first:
            self.teach_maker(len(real))
            self.teach_judge(real)
        else:
            self.teach_judge(real)
            self.teach_maker(len(real))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    game = Game()
    for step in range(4):
        game.play(torch.randn(6, 10), maker_first=step % 2 == 1)
    print(f"rank {dist.get_rank()}: {game.maker.model.module.weight.norm():.3f}")
    dist.destroy_process_group()
