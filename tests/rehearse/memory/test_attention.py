"""Which kernel of attention a GPU would run."""

import pytest
import torch

from rollcall.rehearse.memory.attention import CUDNN, EFFICIENT, FLASH, PLAIN, choose

H200, A100, V100 = (9, 0), (8, 0), (7, 0)
HALF, FULL = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("dtype", "heads", "has_mask", "card", "kernel"),
    [
        (HALF, 8, False, A100, FLASH),
        (HALF, 2, False, A100, FLASH),  # shared by queries
        (HALF, 8, True, A100, EFFICIENT),
        (HALF, 2, True, A100, PLAIN),
        (HALF, 8, True, H200, CUDNN),
        (HALF, 2, True, H200, CUDNN),
        (HALF, 8, False, V100, EFFICIENT),
        (FULL, 8, False, H200, EFFICIENT),
        (FULL, 8, True, H200, EFFICIENT),
        (FULL, 2, False, H200, PLAIN),
    ],
)
def test_mask_heads_and_dtype_decide(
    dtype: torch.dtype, heads: int, has_mask: bool, card: tuple[int, int], kernel: str
) -> None:
    query = torch.empty(2, 8, 16, 32, dtype=dtype)
    key = torch.empty(2, heads, 16, 32, dtype=dtype)
    mask = torch.ones(16, 16, dtype=torch.bool) if has_mask else None
    assert choose(query, key, key, mask, False, heads != 8, card) == kernel


def test_the_program_can_forbid_kernels() -> None:
    query = torch.empty(2, 8, 16, 32, dtype=HALF)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert choose(query, query, query, None, True, False, H200) == PLAIN
