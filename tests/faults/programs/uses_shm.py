"""A rank without torch that shares memory as data loaders do: it fills a segment in /dev/shm.

--mib M    the segment's size
"""

from __future__ import annotations

import argparse
import importlib
import mmap
import os
import tempfile
import time
from typing import Any

idle: Any = importlib.import_module("idle")
staging: Any = importlib.import_module("staging")
PAGE = b"x" * mmap.PAGESIZE


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, required=True)
    size = parser.parse_args().mib * 2**20
    events = idle.begin()
    events.write("stage", name="train", state="begin")
    events.write("step", step=1, steps=0)
    staging.staged()
    with tempfile.TemporaryFile(dir="/dev/shm") as segment:
        os.ftruncate(segment.fileno(), size)  # takes no memory yet, so that it does not fail
        with mmap.mmap(segment.fileno(), size) as shared:
            for start in range(0, size, mmap.PAGESIZE):
                shared[start : start + mmap.PAGESIZE] = PAGE
    time.sleep(600)


if __name__ == "__main__":
    main()
