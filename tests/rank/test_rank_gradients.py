"""The gradient probe passes if gradients are reduced, and fails if they are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.rank.conftest import Run


def verdicts(run: Run, rank: int) -> dict[str, bool]:
    facts = [record["values"] for record in run.events(rank).named("fact")]
    return {values["fault"]: values["synced"] for values in facts if "fault" in values}


def test_probe_detects_every_missing_reduction_under_ddp(
    torchrun: Callable[..., Run],
) -> None:
    """A healthy run is in sync, dropout included; no faulty one is."""
    run = torchrun("probe_ddp.py", ranks=2)
    assert run.status == 0, run.output
    broken = ("bypassed", "no_sync", "summed", "one_left_out")
    for rank in (0, 1):
        assert verdicts(run, rank) == {"none": True} | dict.fromkeys(broken, False)
    probes = list(run.events().named("gradients"))
    assert all(probe["parameters"] == probe["compared"] == 4 for probe in probes)
    assert all(probe["sensitive"] for probe in probes)
    factors = dict(zip(("none", *broken), (probe["factor"] for probe in probes), strict=True))
    assert (factors["none"], factors["summed"]) == (pytest.approx(1), pytest.approx(2))
    assert factors["no_sync"] is factors["one_left_out"] is None
    assert probes[-1]["worst"] == "3.bias"  # the one parameter that was not reduced is named


@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_probe_detects_wrong_reductions_under_zero(
    torchrun: Callable[..., Run], stage: int
) -> None:
    """The probe detects removed and summing reductions; a reload detects a lost optimizer."""
    run = torchrun("probe_zero.py", "--stage", str(stage), ranks=2)
    assert run.status == 0, run.output
    for rank in (0, 1):
        assert verdicts(run, rank) == {"none": True, "removed": False, "summed": False}
        # DeepSpeed's engine would load it for Muon, in seconds of CPU time.
        assert not list(run.events(rank).named("fact"))[-1]["values"]["loaded_compiler"]
        reload = run.only("reload", rank)
        assert not reload["equal"]
        assert all(name.startswith("optimizer.") for name in reload["mismatched"])
