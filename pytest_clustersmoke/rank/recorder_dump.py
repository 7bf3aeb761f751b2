"""What torch's flight recorder holds of this rank, as JSON of one shape for all versions of torch.

torch 2.2 to 2.5 record NCCL's collectives only; from 2.6 on gloo's, too. The members of each
process group are added from Python's side, since gloo's groups tell none.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
from typing import Any

# The innermost of a call's frames; those of a Trainer's loop above them say little.
FRAMES = 20
# `_nccl_` is the name before torch 2.6.
DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")


def flight_recorder_json(lines: bool = True) -> str:
    """This rank's entries, with the source lines of their calls if asked for; without entries
    where this torch has no recorder, or was never loaded."""
    found = _dumped(lines)
    # torch 2.2 gives the bare entries.
    record = dict(found) if isinstance(found, dict) else {"entries": found or []}
    record["entries"] = [_short(one) for one in record.get("entries", ())]
    record["groups"] = _groups()
    return json.dumps(record, default=str)


def _dumped(lines: bool) -> Any:
    c10d = sys.modules.get("torch._C._distributed_c10d")
    # The pickled form: only it has the source lines. Its bytes come from this process.
    for name in DUMPS:
        dump: Any = getattr(c10d, name, None)
        if dump is None:
            continue
        if lines:
            return pickle.loads(dump())
        try:
            return pickle.loads(dump(includeCollectives=True, includeStackTraces=False))
        except TypeError:  # torch 2.2 and 2.3 take no such words
            return pickle.loads(dump())
    return None


def _short(entry: Any) -> Any:
    if not isinstance(entry, dict) or not isinstance(entry.get("frames"), list):
        return entry
    return entry | {"frames": entry["frames"][:FRAMES]}


def _groups() -> dict[str, list[int]]:
    """Name -> global ranks of each process group of this process."""
    groups: dict[str, list[int]] = {}
    module = sys.modules.get("torch.distributed.distributed_c10d")
    # torch's own bookkeeping, which the program may change meanwhile, or another version may name
    # differently: without it the groups' members are those that have recorded calls.
    with contextlib.suppress(Exception):
        world: Any = module._world  # type: ignore[union-attr]
        for group, ranks in dict(world.pg_group_ranks).items():
            name = world.pg_names.get(group)
            if name is not None:
                groups[str(name)] = sorted(ranks)
    return groups
