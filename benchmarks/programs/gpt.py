"""A model of GPT-2 small's size."""

import torch
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, VOCABULARY, LENGTH = 12, 12, 768, 50_304, 1024


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        parts = self.qkv(self.norm_1(hidden)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        hidden = hidden + self.projection(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return hidden + self.down(functional.gelu(self.up(self.norm_2(hidden)), approximate="tanh"))


class Gpt(nn.Module):
    """124 million parameters, as GPT-2 small: the last layer shares its weights with the first."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(self.norm(hidden), self.tokens.weight).flatten(0, 1)
