"""A rank without torch that leaves what a real one left when its hardware failed, and ends like it.

--name NAME    a record of recorded.yaml; the last rank replays it, the others go on until ended
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import yaml

idle: Any = importlib.import_module("idle")
staging: Any = importlib.import_module("staging")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    name = parser.parse_args().name
    records = yaml.safe_load((Path(__file__).parent / "recorded.yaml").read_text())
    record = next(record for record in records if record["name"] == name)
    events = idle.begin()
    events.write("stage", name="train", state="begin")
    events.write("step", step=1, steps=0)
    faulty = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if faulty:
        leave(record, events)
    for step in itertools.count(2):
        time.sleep(idle.MARK_EVERY_S)
        events.write("step", step=step, steps=0)


def leave(record: dict[str, Any], events: Any) -> None:
    """Write the record's texts, and end as it says."""
    if "nccl" in record:
        pattern = os.environ["NCCL_DEBUG_FILE"]
        named = pattern.replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))
        Path(named).parent.mkdir(parents=True, exist_ok=True)
        Path(named).write_text(record["nccl"])
    sys.stderr.write(record.get("stderr", ""))
    sys.stderr.flush()
    staging.staged()
    if "raises" in record:
        kind, message = record["raises"]
        raise_it(kind, message, events)
    if "signal" in record:
        signal.signal(getattr(signal, record["signal"]), signal.SIG_DFL)
        os.kill(os.getpid(), getattr(signal, record["signal"]))
    while True:
        time.sleep(60)


def raise_it(kind: str, message: str, events: Any) -> None:
    """Write what `Rank` writes about an exception that leaves its block."""
    error = type(kind, (RuntimeError,), {"__module__": "torch"})
    try:
        raise error(message)
    except RuntimeError as raised:
        words = "".join(traceback.format_exception(raised))
        events.write("error", type=kind, message=message, traceback=words)
        raise


if __name__ == "__main__":
    main()
