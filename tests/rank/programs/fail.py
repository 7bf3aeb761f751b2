"""Rank 1 raises while rank 0 waits for it in a collective."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_clustersmoke.rank import Rank


def main() -> None:
    with Rank.start(timeout_s=300) as rank:
        if rank.rank == 1:
            raise RuntimeError("this rank has had enough")
        dist.all_reduce(torch.ones(3))


if __name__ == "__main__":
    main()
