"""train_allreduce.py on a torch with broken collectives.

The first argument is HOW, then come the program's own: `corrupt` changes one element of rank 1's
all-to-all of 1 KiB and of the data it receives from a peer; `absent` and `broken` make all-to-all
raise like a backend without it, and like one whose peer is gone.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WORDS = {
    "absent": "Backend gloo does not support alltoall_base",
    "broken": "Connection closed by peer",
}
all_to_all, exchange = dist.all_to_all_single, dist.batch_isend_irecv


def spoilt(output: torch.Tensor, *rest: Any) -> None:
    all_to_all(output, *rest)
    if output.numel() == 256 and dist.get_rank() == 1:
        output[77] = float("nan")


def spoilt_exchange(ops: list[dist.P2POp]) -> list[dist.Work]:
    for work in exchange(ops):
        work.wait()
    if dist.get_rank() == 1:
        ops[1].tensor[5] += 1
    return []  # gloo's work handles cannot be waited for twice


def raises(*_: Any) -> None:
    raise RuntimeError(WORDS[how])


how = sys.argv.pop(1)
torchs: Any = dist
torchs.all_to_all_single = spoilt if how == "corrupt" else raises
if how == "corrupt":
    torchs.batch_isend_irecv = spoilt_exchange
program = Path(__file__).resolve().parents[3] / "smoke_tests" / "train_allreduce.py"
sys.path.insert(0, str(program.parent))
runpy.run_path(str(program), run_name="__main__")
