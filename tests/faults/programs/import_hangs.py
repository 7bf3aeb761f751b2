"""One rank hangs before it makes its Rank: in the import of a module.

--at-rank R
"""

from __future__ import annotations

import argparse
import importlib
import os
import threading
from typing import Any

from pytest_clustersmoke.rank import Rank

staging: Any = importlib.import_module("staging")


def load_settings(at_rank: int) -> None:
    if int(os.environ["RANK"]) == at_rank:
        staging.staged()
        threading.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--at-rank", type=int, required=True)
    args = parser.parse_args()
    load_settings(args.at_rank)
    with Rank.start():
        pass


if __name__ == "__main__":
    main()
