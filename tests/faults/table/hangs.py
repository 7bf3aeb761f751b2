"""Ranks that the others wait for, and ranks out of step with the others."""

from __future__ import annotations

from typing import Any

from tests.faults.table.model import HANG_WITHIN_S, SMALL, STEP_LIMIT_S, Fault

# Long enough for the other rank to import torch, even on a loaded machine.
INIT_LIMIT_S = 45


def _out_of_step(how: str, words: tuple[str, ...], **more: Any) -> Fault:
    """Rank 2 of four, on two nodes: three agree, so it is known which rank is wrong."""
    return Fault(
        f"collective_{how}",
        "out_of_step.py",
        "out of step",
        finding="collective-mismatch",
        rank=2,
        words=("rank 2 (local1) is out of step in group 0", *words),
        args={"how": how, "at_rank": 2},
        within_s=HANG_WITHIN_S,
        nodes=2,
        **more,
    )


def _loader(where: str, workers: int, words: tuple[str, ...], **more: Any) -> Fault:
    return Fault(
        f"data_loader_hangs_in_{where}",
        "loader_hangs.py",
        "hang",
        finding="hang",
        rank=1,
        words=("never reached all_reduce", "in which rank 0 waits", "loader_hangs.py:", *words),
        args={"at_rank": 1, "workers": workers},
        within_s=HANG_WITHIN_S,
        **more,
    )


HANGS = (
    _loader("rank", 0, ("in __getitem__",)),
    _loader("worker", 1, ("waiting for a worker of its DataLoader", "in __getitem__"), slow=True),
    # One of four, on two nodes.
    Fault(
        "hangs_on_two_nodes",
        "ends.py",
        "hang",
        finding="hang",
        rank=2,
        words=("rank 2 (local1) never reached", "ends.py:", "in hangs", "ranks 0-1, 3 wait"),
        args={**SMALL, "how": "hangs", "at_rank": 2},
        within_s=HANG_WITHIN_S,
        slow=True,
        nodes=2,
    ),
    # Before its Rank, a rank answers none of our signals; the other waits for it in group setup.
    Fault(
        "hangs_in_import",
        "import_hangs.py",
        "hang",
        finding="hang",
        rank=1,
        words=("import_hangs.py:", "in load_settings", "rank 0 waits in a collective"),
        args={"at_rank": 1},
        profile={"stage_limits_s": {"init": INIT_LIMIT_S, "train_step": STEP_LIMIT_S}},
        within_s=INIT_LIMIT_S + 15,
        slow=True,
    ),
    # The library's own timeout comes first: the ranks that raise are still victims.
    Fault(
        "hangs_past_the_groups_limit",
        "out_of_step.py",
        "hang",
        finding="hang",
        rank=1,
        words=("rank 1 (local0) never reached all_reduce", "in out_of_step", "a library timeout"),
        args={"how": "late", "at_rank": 1, "timeout_s": 3},
        profile={"stage_limits_s": {"train_step": 60}},
        within_s=HANG_WITHIN_S,
        slow=True,
    ),
    _out_of_step("skips", ("in share_scale", "a call was skipped, or two"), slow=True),
    _out_of_step(
        "shape", ("[800] Float", "[400] Float", "in reduce_gradients", "the sizes differ")
    ),
    _out_of_step("type", ("Double", "the types differ"), slow=True),
    _out_of_step("order", ("broadcast of [6] Float", "a call was skipped, or two"), slow=True),
    _out_of_step("other", ("all_gather", "the collectives differ"), slow=True),
    # Neither of two ranks that disagree has a majority.
    Fault(
        "collective_shape_of_two",
        "out_of_step.py",
        "out of step",
        finding="collective-mismatch",
        words=("ranks 0-1 (local0) are out of step with each other", "it is unknown which"),
        host="local0",
        args={"how": "shape", "at_rank": 1},
        within_s=HANG_WITHIN_S,
        slow=True,
    ),
)
