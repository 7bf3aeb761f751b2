"""This rank's entries in torch's flight recorder, as JSON of one shape for all versions of torch.

torch 2.2 to 2.5 record only NCCL's collectives; 2.6 and later also record gloo's, in a recorder of
their own. The members of each process group are added from Python, because gloo's groups do not
record them.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
from typing import Any

# Innermost frames kept per call; the frames of a Trainer's loop above them say little.
FRAMES = 20
# Of gloo's recorder, since torch 2.6, and of NCCL's, where torch was built with it.
DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")


def flight_recorder_json(lines: bool = True) -> str:
    """This rank's entries, on request with the source lines of their calls. There are none if this
    torch has no recorder, or was never loaded."""
    record: dict[str, Any] = {"entries": []}
    for name in DUMPS:
        dump = _read_recorder(name, lines)
        # torch 2.2 returns the bare entries.
        part = dump if isinstance(dump, dict) else {"entries": dump or []}
        if part.get("entries") or len(record) == 1:  # else only a header, of an unused recorder
            record |= part | {"entries": [*record["entries"], *part.get("entries", ())]}
    record["entries"] = [_shorten_frames(entry) for entry in record["entries"]]
    record["groups"] = _group_members()
    return json.dumps(record, default=str)


def _read_recorder(name: str, lines: bool) -> Any:
    dump: Any = getattr(sys.modules.get("torch._C._distributed_c10d"), name, None)
    if dump is None:
        return None
    # Only the pickled form has the source lines. Its bytes come from this process.
    if lines:
        return pickle.loads(dump())
    try:
        return pickle.loads(dump(includeCollectives=True, includeStackTraces=False))
    except TypeError:  # torch 2.2 and 2.3 do not have these arguments
        return pickle.loads(dump())


def _shorten_frames(entry: Any) -> Any:
    if not isinstance(entry, dict) or not isinstance(entry.get("frames"), list):
        return entry
    return entry | {"frames": entry["frames"][:FRAMES]}


def _group_members() -> dict[str, list[int]]:
    """Maps the name of each process group of this process to its global ranks."""
    groups: dict[str, list[int]] = {}
    module = sys.modules.get("torch.distributed.distributed_c10d")
    # This is torch's own bookkeeping: the program may change it meanwhile, and another version may
    # name it differently. Without it the diagnosis sees only members that have recorded calls.
    with contextlib.suppress(Exception):
        world: Any = module._world  # type: ignore[union-attr]
        for group, ranks in dict(world.pg_group_ranks).items():
            name = world.pg_names.get(group)
            if name is not None:
                groups[str(name)] = sorted(ranks)
    return groups
