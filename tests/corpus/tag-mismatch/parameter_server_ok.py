"""The worker labels its gradient as a gradient, and the server listens under that label.

ranks: 2
kind: none
ends: ok
"""

import torch
import torch.distributed as dist

WEIGHTS, GRADIENT = 10, 20
SERVER, WORKER = 0, 1


def serve(steps):
    weight, gradient = torch.zeros(6), torch.zeros(6)
    for _ in range(steps):
        dist.send(weight, dst=WORKER, tag=WEIGHTS)
        dist.recv(gradient, src=WORKER, tag=GRADIENT)
        weight -= 0.5 * gradient
    return weight


def work(steps):
    target, weight = torch.arange(6.0), torch.zeros(6)
    for _ in range(steps):
        dist.recv(weight, src=SERVER, tag=WEIGHTS)
        dist.send(weight - target, dst=SERVER, tag=GRADIENT)
    return weight


if __name__ == "__main__":
    dist.init_process_group("gloo")
    role = serve if dist.get_rank() == SERVER else work
    print(f"{role.__name__}: {role(steps=4).tolist()}")
    dist.destroy_process_group()
