"""A training program in several configurations, whose memory is predicted by a rehearsal and measured on a GPU.

    python memory_configurations.py NAME      as one rank: the variables that torchrun sets are set

It needs nothing but torch. It knows nothing of rehearsals, nor of how it is measured.
"""

import os
import sys
from dataclasses import asdict, dataclass, replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 3


@dataclass(frozen=True)
class Configuration:
    world_size: int = 1
    wrapper: str = "none"  # none, ddp, fsdp
    layers: int = 12
    width: int = 1024
    heads: int = 16
    vocabulary: int = 32000
    batch: int = 8
    length: int = 1024
    attention: str = "sdpa"  # sdpa, masked, grouped, matrix
    autocast: bool = False
    dtype: torch.dtype = torch.float32
    checkpoints: bool = False
    optimizer: str = "adamw"  # adamw, adamw-fused, adamw-loop, sgd
    clip: bool = False
    micro_batches: int = 1
    bucket_view: bool = False


def described(made: Configuration) -> dict[str, str]:
    """Kept with what was predicted and measured, so that neither is of another configuration of the same name."""
    return {name: str(value) for name, value in asdict(made).items()}


_BASE = Configuration()
_AUTOCAST = replace(_BASE, autocast=True, batch=16)
_ATTENTION = replace(_BASE, batch=4, length=4096, vocabulary=1024)  # most of its memory is that of attention
_FSDP = replace(_BASE, wrapper="fsdp", batch=16, layers=24)
CONFIGURATIONS = {
    "plain, float32": _BASE,
    "plain, float32, SGD with momentum": replace(_BASE, optimizer="sgd"),
    "plain, float32, AdamW one by one": replace(_BASE, optimizer="adamw-loop", batch=1, length=256),
    "plain, float32, AdamW foreach": replace(_BASE, batch=1, length=256),
    "plain, float32, AdamW fused": replace(_BASE, optimizer="adamw-fused", batch=1, length=256),
    "plain, float32, attention by matrix products": replace(_BASE, attention="matrix", batch=4),
    "plain, bfloat16": replace(_BASE, dtype=torch.bfloat16, batch=16),
    "autocast": _AUTOCAST,
    "autocast, activation checkpointing": replace(_AUTOCAST, checkpoints=True, layers=24),
    "autocast, 4 micro-batches, clipped": replace(_AUTOCAST, batch=4, micro_batches=4, clip=True),
    "autocast, long sequence": replace(_AUTOCAST, batch=1, length=16384, checkpoints=True),
    "float32, attention with a mask": replace(_ATTENTION, attention="masked", batch=2),
    "autocast, attention with a mask": replace(_ATTENTION, attention="masked", autocast=True),
    "autocast, attention with grouped heads": replace(_ATTENTION, attention="grouped", autocast=True),
    "DDP": replace(_AUTOCAST, wrapper="ddp"),
    "DDP, one rank of 8, buckets as gradients": replace(_AUTOCAST, wrapper="ddp", world_size=8, bucket_view=True),
    "FSDP2, world of 1": _FSDP,
    "FSDP2, one rank of 8": replace(_FSDP, world_size=8),
    "FSDP2, one rank of 64": replace(_FSDP, world_size=64),
    "FSDP2, one rank of 8, checkpointing, fused, clipped": replace(
        _FSDP, world_size=8, checkpoints=True, optimizer="adamw-fused", clip=True
    ),
}


class Attention(nn.Module):
    def __init__(self, made: Configuration) -> None:
        super().__init__()
        self.heads, self.kind = made.heads, made.attention
        self.to_all = nn.Linear(made.width, 3 * made.width)
        self.out = nn.Linear(made.width, made.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.to_all(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = self.mix(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def mix(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        attend = functional.scaled_dot_product_attention
        if self.kind == "sdpa":
            return attend(query, key, value, is_causal=True)
        if self.kind == "masked":
            length = query.shape[-2]
            return attend(query, key, value, torch.ones(length, length, dtype=torch.bool, device="cuda").tril())
        if self.kind == "grouped":  # 4 heads of queries share one of keys and values
            return attend(query, key[:, ::4], value[:, ::4], is_causal=True, enable_gqa=True)
        scores = query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5
        return scores.softmax(-1) @ value


class Block(nn.Module):
    def __init__(self, made: Configuration) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(made.width), nn.LayerNorm(made.width)
        self.attention = Attention(made)
        self.mlp = nn.Sequential(
            nn.Linear(made.width, 4 * made.width), nn.GELU(), nn.Linear(4 * made.width, made.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Model(nn.Module):
    def __init__(self, made: Configuration) -> None:
        super().__init__()
        self.embedding = nn.Embedding(made.vocabulary, made.width)
        self.blocks = nn.ModuleList(Block(made) for _ in range(made.layers))
        self.norm = nn.LayerNorm(made.width)
        self.out = nn.Linear(made.width, made.vocabulary, bias=False)
        self.checkpoints = made.checkpoints

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.out(self.norm(x))


def build(made: Configuration) -> nn.Module:
    if made.wrapper == "fsdp":
        return build_sharded(made)
    with torch.device("cuda"):
        model: nn.Module = Model(made)
    model = model.to(made.dtype)
    if made.wrapper == "ddp":
        local_rank = int(os.environ["LOCAL_RANK"])
        return DistributedDataParallel(model, device_ids=[local_rank], gradient_as_bucket_view=made.bucket_view)
    return model


def build_sharded(made: Configuration) -> nn.Module:
    with torch.device("meta"):
        model = Model(made)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return model


def build_optimizer(made: Configuration, model: nn.Module) -> torch.optim.Optimizer:
    if made.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    options = {"adamw": {}, "adamw-fused": {"fused": True}, "adamw-loop": {"foreach": False}}[made.optimizer]
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **options)


def train(made: Configuration, steps: int = STEPS) -> None:
    torch.manual_seed(0)
    model = build(made)
    optimizer = build_optimizer(made, model)
    for _ in range(steps):
        for _ in range(made.micro_batches):
            tokens = torch.randint(0, made.vocabulary, (made.batch, made.length), device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=made.autocast):
                logits = model(tokens)
                loss = functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            loss.backward()
        if made.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    made = CONFIGURATIONS[sys.argv[1]]
    if made.wrapper != "none":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
    train(made)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
