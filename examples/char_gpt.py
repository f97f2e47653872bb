"""rollcall train examples/char_gpt.py:recipe --lr 3e-3 --batch-size 64 --epochs 30          (one core of a laptop)

A GPT that learns to write like Shakespeare's sonnets, character by character. The same file on more:

    rollcall train examples/char_gpt.py:recipe -n 2 --lr 3e-3 --epochs 30
    rollcall train examples/char_gpt.py:recipe --hosts alpha:4,beta:4 --strategy hsdp --precision bf16 --lr 3e-3

Then let it write: python examples/char_gpt.py snapshots
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import rollcall

# 1. The text: 18 sonnets. Each character is a token.
TEXT = Path(__file__).with_name("sonnets.txt").read_text()
CHARACTERS = sorted(set(TEXT))
TOKENS = torch.tensor([CHARACTERS.index(character) for character in TEXT])
LENGTH = 64  # characters that the model sees at once

# 2. The data: windows of the text, and the same one character later. The last tenth of the text is for tests.
WINDOWS = TOKENS.unfold(0, LENGTH + 1, 8)
TEST_WINDOWS = len(WINDOWS) // 10


def dataset(windows: torch.Tensor) -> TensorDataset:
    return TensorDataset(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


# 3. The model: embeddings, blocks of attention and a small network, and a score for each next character.
WIDTH, HEADS, LAYERS = 96, 4, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.dropout = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        query, key, value = self.qkv(self.norm_1(hidden)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.dropout(self.projection(mixed.transpose(1, 2).reshape(batch, length, WIDTH)))
        return hidden + self.dropout(self.down(functional.gelu(self.up(self.norm_2(hidden)))))


class CharGpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(len(CHARACTERS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(CHARACTERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.characters(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


# 4. The recipe: built on meta, so that no rank ever holds more than its part.
def recipe(options) -> rollcall.Recipe:
    with torch.device("meta"):
        model = CharGpt()
    return rollcall.Recipe(
        model,
        lambda model: torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.1),
        dataset(WINDOWS[:-TEST_WINDOWS]),
        dataset(WINDOWS[-TEST_WINDOWS:]),
        loss=loss,
        options={"clip_norm": 1.0, "callbacks": [rollcall.Throughput()]},
    )


# 5. Let it write, one character after the other.
@torch.no_grad()
def write(model: CharGpt, begin: str, characters: int = 400) -> str:
    tokens = torch.tensor([[CHARACTERS.index(character) for character in begin]])
    for _ in range(characters):
        scores = model(tokens[:, -LENGTH:])[:, -1] / 0.8
        tokens = torch.cat([tokens, torch.multinomial(scores.softmax(1), 1)], 1)
    return "".join(CHARACTERS[token] for token in tokens[0])


if __name__ == "__main__":
    with rollcall.init() as world:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else "snapshots")
        newest = max(folder.glob("step-*"))
        model = rollcall.wrap(CharGpt(), world, "none", weights=newest)
        print(write(model.eval(), "When "))
