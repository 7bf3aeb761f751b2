"""The time stamps that programs write into logs."""

from __future__ import annotations

import pytest

from pytest_clustersmoke.diagnose.time_stamps import Time, last_time_in


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ("[2026-04-22 21:34:20] x", (4, 22, 21, 34, 20.0)),
        ("*** JOB 7 ON n CANCELLED AT 2026-01-02T03:04:05 DUE TO", (1, 2, 3, 4, 5.0)),
        ("2026-01-02T03:04:05.25Z stderr F x", (1, 2, 3, 4, 5.25)),
        ("[rank1]:[E626 06:24:44.5 ProcessGroupNCCL.cpp:616]", (6, 26, 6, 24, 44.5)),
        ("E0325 20:57:27.620000 2606 torch/x.py:869]", (3, 25, 20, 57, 27.62)),
        ("  time      : 2024-09-09_09:36:56", (9, 9, 9, 36, 56.0)),
        ("Nov 21 20:32:39 node7 kernel: NVRM", (11, 21, 20, 32, 39.0)),
        ("2026-13-01 10:00:00", None),
        ("no time 12:00", None),
    ],
)
def test_time_of_a_line(line: str, time: Time | None) -> None:
    """Every stamp that torch, NCCL, Slurm, Kubernetes and the kernel write."""
    assert last_time_in(line) == time
