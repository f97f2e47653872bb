"""The kernel that torch would choose for scaled_dot_product_attention on a GPU: they differ in what they keep.

Without a GPU torch takes the plain one, which keeps the whole matrix of scores. The rules are those of torch's own
choice for CUDA. cuDNN's kernel keeps what flash attention keeps, and takes masks, too.
"""

from typing import Any

import torch

FLASH, CUDNN, EFFICIENT, PLAIN = "flash", "cudnn", "efficient", "plain"
_HALF = (torch.float16, torch.bfloat16)
_PREFER_CUDNN = (9, 10)  # Hopper and Blackwell
_AMPERE = 8
_WIDEST = 256  # of a head, for flash attention
_BIAS_UNIT = 16  # elements: rows of a mask are padded to this for the efficient kernel
aten = torch.ops.aten
_allowed: Any = torch.backends.cuda  # what the program has not forbidden; without types


def choose(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool,
    enable_gqa: bool, capability: tuple[int, int],
) -> str:  # fmt: skip
    if not query.dim() == key.dim() == value.dim() == 4 or 0 in (*query.shape, *key.shape):
        return PLAIN
    is_half, width = query.dtype in _HALF and capability[0] >= _AMPERE, query.size(-1)
    is_same_width = width == key.size(-1) == value.size(-1)
    has_same_heads = query.size(1) == key.size(1) == value.size(1)
    if is_half and is_same_width and width <= _WIDEST and (has_same_heads or enable_gqa):
        is_square = query.size(-2) == key.size(-2)
        if mask is None and _allowed.flash_sdp_enabled() and (is_square or not is_causal):
            return FLASH
        if _allowed.cudnn_sdp_enabled() and capability[0] in _PREFER_CUDNN and width % 8 == 0:
            return CUDNN
    unit = 16 // query.element_size()  # its loads are 16 bytes wide
    is_aligned = width % unit == 0 and value.size(-1) % unit == 0
    if (
        _allowed.mem_efficient_sdp_enabled()
        and has_same_heads
        and is_aligned
        and query.dtype in (*_HALF, torch.float32)
    ):
        return EFFICIENT
    return PLAIN


def run(
    kernel: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    dropout: float, is_causal: bool, scale: float | None,
) -> Any:  # fmt: skip
    width = query.size(-1)
    if kernel == FLASH:
        if width % 8:
            scale = width**-0.5 if scale is None else scale
            query, key, value = (torch.nn.functional.pad(each, (0, -width % 8)) for each in (query, key, value))
        result = aten._scaled_dot_product_flash_attention(query, key, value, dropout, is_causal, False, scale=scale)
        return result[0][..., :width] if width % 8 else result[0]
    needs_gradient = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    bias = None if mask is None else _bias(mask, query, key, kernel)
    if kernel == CUDNN:
        cudnn = aten._scaled_dot_product_cudnn_attention
        return cudnn(query, key, value, bias, needs_gradient, dropout, is_causal, False, scale=scale)[0]
    efficient = aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, bias, needs_gradient, dropout, is_causal, scale=scale)[0]


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor, kernel: str) -> torch.Tensor:
    """A mask of flags becomes numbers to add, one for each flag; it is not repeated for the heads."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    length = mask.size(-1)
    if kernel == EFFICIENT and length % _BIAS_UNIT and length > 1:
        mask = torch.nn.functional.pad(mask, (0, -length % _BIAS_UNIT))[..., :length]
    return mask.expand(query.size(0), query.size(1), query.size(-2), key.size(-2))
