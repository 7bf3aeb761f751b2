"""A rank without torch that takes memory until the kernel ends it, on the last node.

--mib M    how much it takes and writes to
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from typing import Any

idle: Any = importlib.import_module("idle")
staging: Any = importlib.import_module("staging")
PIECE_MIB = 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, required=True)
    args = parser.parse_args()
    events = idle.begin()
    events.write("stage", name="train", state="begin")
    events.write("step", step=1, steps=0)
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        blocks = []
        for piece in range(args.mib // PIECE_MIB):
            staging.staged()  # any piece may be the one too many; the kernel is slow near the limit
            blocks.append(b"x" * (PIECE_MIB * 2**20))
            events.write("step", step=2 + piece, steps=0)
    time.sleep(600)


if __name__ == "__main__":
    main()
