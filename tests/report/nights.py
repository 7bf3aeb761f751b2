"""Nights of one cluster, stored as runs store them: what the page over runs is made from."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support import records

DAY_S = 86_400.0
TORCH = ("2.5.1+cu121", "2.6.0+cu124")


def night(number: int, *phases: records.Record, **changes: object) -> records.Record:
    """The record of one night; its verdict follows from its phases, unless `changes` has one."""
    begun = records.BEGUN + number * DAY_S
    failed = any(
        phase["outcome"] == "failed"
        or any(criterion["result"] == "failed" for criterion in phase["criteria"].values())
        for phase in phases
    )
    verdict = "UNFIT" if failed else "FIT"
    made = records.run(*phases, begun=begun, verdict=verdict, sentence=f"{verdict}: {number}")
    made["run_id"] = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(begun))}-{number:06x}"
    return {**made, **changes}


def rated(name: str, value: float, torch: str = TORCH[0]) -> records.Record:
    """A phase on four nodes with a rate, whose reference is 10 and allows 7 % less."""
    rate = records.metric(value)
    rate["reference"] = {"value": 10.0, "low": 9.3, "high": None, "source": "acceptance"}
    rate["met"] = value >= 9.3
    versions = {**records.VERSIONS, "torch": torch}
    return records.phase(name, nodes=4, metrics={"steps_per_s": rate}, versions=versions)


def store_nights(report_dir: Path, count: int, names: list[str]) -> list[str]:
    """Store so many nights of these phases and return their ids. torch changes after half of them;
    in the last night the first phase is slow on node2, misses its reference and fails."""
    ids = []
    for number in range(count):
        torch = TORCH[number >= count // 2]
        phases = [rated(name, 10 + (number % 5) / 50, torch) for name in names]
        if number == count - 1:
            phases[0] = rated(names[0], 7.0, torch)
            phases[0]["criteria"]["test_throughput"] = {"result": "failed", "text": "-30 %"}
            phases[0]["findings"] = [records.finding(id="slow-rank", hosts=["node2"])]
        made = night(number, *phases)
        records.store_run(made, report_dir)
        ids.append(made["run_id"])
    return ids


def add_report(report_dir: Path, run_id: str) -> None:
    """A page where a kept report has one."""
    (report_dir / run_id).mkdir()
    (report_dir / run_id / "index.html").write_text("<!doctype html><title>kept</title>")
