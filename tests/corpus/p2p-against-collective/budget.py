"""The learner takes ten trajectories from each actor in turn. Actor 1 ends after nine, and goes on to the barrier.

ranks: 3
kind: p2p-against-collective
look at: 1
ends: hangs
"""

import torch
import torch.distributed as dist

BUDGET = 10


class Actor:
    def __init__(self, rank):
        self.used = 1 if rank == 1 else 0

    def run(self):
        while self.used < BUDGET:
            dist.send(torch.rand(5), dst=0)  # GUILTY
            self.used += 1


def learn(actors):
    total = torch.zeros(5)
    for _ in range(BUDGET):
        for actor in actors:
            rewards = torch.empty(5)
            dist.recv(rewards, src=actor)
            total += rewards
    return total


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print(learn(range(1, dist.get_world_size())).shape)
    else:
        Actor(dist.get_rank()).run()
    dist.barrier()  # GUILTY
    dist.destroy_process_group()


main()
