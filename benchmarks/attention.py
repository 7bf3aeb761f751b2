"""How many of 20 backward passes of attention on a GPU give other gradients than the first.

    python -m benchmarks.attention

Counts them in bf16 for four shapes, first with the kernels that torch chooses, then in a fixed
order, as proven steps use it. Needs a CUDA GPU.
"""

from __future__ import annotations

import sys

import torch

from pytest_clustersmoke.rank.attention import fixed_attention

PASSES = 20
# (batch, heads, tokens, head size, with a mask: else causal)
Sizes = tuple[int, int, int, int, bool]
SIZES: tuple[Sizes, ...] = (
    (1, 32, 512, 128, False),
    (1, 32, 512, 128, True),
    (2, 32, 2048, 128, False),
    (2, 16, 2048, 64, True),
)


def compute_gradients(sizes: Sizes) -> list[torch.Tensor]:
    """The gradients of query, key and value, which are drawn alike each time."""
    *shape, size, masked = sizes
    drawn = torch.Generator("cuda").manual_seed(1)

    def draw() -> torch.Tensor:
        full = (*shape, size)
        return torch.randn(full, generator=drawn, device="cuda", dtype=torch.bfloat16)

    query, key, value = (draw().requires_grad_() for _ in range(3))
    mask = torch.zeros(shape[0], 1, shape[2], shape[2], device="cuda", dtype=torch.bfloat16)
    result = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask if masked else None, is_causal=not masked
    )
    return list(torch.autograd.grad(result.float().square().sum(), (query, key, value)))


def count_other_passes(sizes: Sizes) -> int:
    first, again = compute_gradients(sizes), [compute_gradients(sizes) for _ in range(PASSES)]
    return sum(not all(map(torch.equal, first, each)) for each in again)


def main() -> int:
    if not torch.cuda.is_available():
        print("attention: needs a CUDA GPU; torch sees none", file=sys.stderr)
        return 2
    print("batch heads tokens size masked  torch's own  fixed order")
    for sizes in SIZES:
        usual = count_other_passes(sizes)
        with fixed_attention(torch.nn.Linear(1, 1)):
            print(*sizes, usual, count_other_passes(sizes), sep="  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
