"""The gradient probe passes where gradients are reduced, and fails where they are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.rank.conftest import Run


def verdicts(run: Run, rank: int) -> dict[str, bool]:
    facts = [record["values"] for record in run.events(rank).named("fact")]
    return {values["fault"]: values["synced"] for values in facts if "fault" in values}


def test_the_probe_fails_for_every_way_ddp_can_miss_a_reduction(
    torchrun: Callable[..., Run],
) -> None:
    """Under DDP the probe is in sync when healthy, dropout included, and in no faulty case."""
    run = torchrun("probe_ddp.py", ranks=2)
    assert run.status == 0, run.output
    broken = ("bypassed", "no_sync", "summed", "one_left_out")
    for rank in (0, 1):
        assert verdicts(run, rank) == {"none": True} | dict.fromkeys(broken, False)
    probes = list(run.events().named("gradients"))
    assert all(probe["parameters"] == probe["compared"] == 4 for probe in probes)
    assert all(probe["sensitive"] for probe in probes)
    assert probes[-1]["worst"] == "3.bias"  # the one parameter that was left out is named


@pytest.mark.parametrize("stage", [1, 2])
def test_the_probe_fails_where_zero_does_not_reduce(
    torchrun: Callable[..., Run], stage: int
) -> None:
    """Under ZeRO the probe sees removed and summing reductions; a reload sees a lost optimizer."""
    run = torchrun("probe_zero.py", "--stage", str(stage), ranks=2)
    assert run.status == 0, run.output
    for rank in (0, 1):
        assert verdicts(run, rank) == {"none": True, "removed": False, "summed": False}
        reload = run.only("reload", rank)
        assert not reload["equal"]
        assert all(name.startswith("optimizer.") for name in reload["mismatched"])
