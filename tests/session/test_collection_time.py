"""The time that the plugin adds to a collection by plain pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import BARE, TRAIN

PLAIN_LIMIT_S, CLUSTER_LIMIT_S = 0.10, 0.25
PAIRS = 25
# CPU time of a plain collection on an idle machine, to which the limits apply; a slower or shared
# machine is allowed more in proportion.
IDLE_S = 0.25

CLUSTER = """\
clusters:
  one: {backend: local, shared_dir: /nowhere, hardware: {gpu: any, gpus_per_node: 1},
    phases: {small: }}
"""


def cpu_seconds(folder: Path, *words: str) -> float:
    """The CPU time of one collection; unlike wall time it is the same on a busy machine."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *BARE]
    # Compiled once, as in an installed package.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before = os.times()
    subprocess.run([*command, *words], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


@pytest.mark.parametrize(
    ("words", "limit_s"), [((), PLAIN_LIMIT_S), (("--cluster", "one"), CLUSTER_LIMIT_S)]
)
def test_collection_time(tmp_path: Path, words: tuple[str, ...], limit_s: float) -> None:
    """The lowest added time of several interleaved pairs is within the limit."""
    tmp_path.joinpath("pytest.ini").write_text("[pytest]\nmarkers = phase\n")
    tmp_path.joinpath("cluster.yaml").write_text(CLUSTER)
    tmp_path.joinpath("test_small.py").write_text(
        "import pytest\n"
        f"@pytest.mark.phase('small', script={str(TRAIN)!r})\n"
        "class TestSmall:\n"
        "    def test_a(self, request): pass\n"
    )
    cpu_seconds(tmp_path, *words)
    plain, ours = [], []
    for _ in range(PAIRS):
        plain.append(cpu_seconds(tmp_path, "-p", "no:clustersmoke"))
        ours.append(cpu_seconds(tmp_path, *words))
        allowed_s = limit_s * max(1.0, min(plain) / IDLE_S)
        if min(ours) - min(plain) <= allowed_s:
            return
    pytest.fail(f"{min(ours) - min(plain):.2f} s over plain pytest, {allowed_s:.2f} s allowed")
