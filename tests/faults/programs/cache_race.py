"""All ranks tokenise into one cache, each as if it were alone: rank 0 recreates the cache just
before rank 1 moves its own file there.

Barriers fix the order of the race, which is otherwise random: rank 1's temporary file is in the
cache when rank 0 empties it.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
from typing import Any

import datasets

from pytest_clustersmoke.rank import Rank

staging: Any = importlib.import_module("staging")


def tokenise(rank: Rank) -> Any:
    cache = rank.output_dir / "cache"
    cache.mkdir(exist_ok=True)
    rows = datasets.Dataset.from_dict({"text": ["one", "two", "three"]})
    if rank.is_main:
        rank.barrier()
        staging.staged()
        shutil.rmtree(cache)  # as `overwrite_cache` does
        cache.mkdir()

    def encode(row: dict[str, str]) -> dict[str, list[int]]:
        if not rank.is_main and row["text"] == "three":
            rank.barrier()  # this rank's temporary file is in the cache
            rank.barrier()  # rank 0 has removed it
        return {"tokens": list(row["text"].encode())}

    encoded = rows.map(encode, cache_file_name=str(cache / "tokenised.arrow"))
    if rank.is_main:
        rank.barrier()
    return encoded


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.parse_args()
    with Rank.start(timeout_s=60) as rank:
        rank.stage("data", lambda: tokenise(rank))
        rank.barrier()


if __name__ == "__main__":
    main()
