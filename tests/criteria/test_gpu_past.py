"""GPUs that became slower, judged by their own past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_clustersmoke.criteria.gpu_past import check_gpus, judge_gpus, own_steps
from pytest_clustersmoke.evidence.fingerprint import fingerprint_of
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.phase_result import PastRuns, PhaseResult
from tests.evidence.history.made import night
from tests.support.evidence import Evidence
from tests.support.records import Record, rank, store_run

OWN_S = (0.080, 0.083, 0.079, 0.082)  # healthy GPUs differ by some percent
TONIGHT = 1e12  # Unix seconds, after all runs


def ran(
    folder: Path,
    own_s: Sequence[float] = OWN_S,
    *,
    device: str = "cuda:0",
    uuids: Sequence[str | None] = ("GPU-0", "GPU-1", "GPU-2", "GPU-3"),
    fails: bool = True,
) -> PhaseResult:
    """A phase of four ranks that took these seconds for each pass of their own step."""
    evidence = Evidence(folder, ranks_per_node=len(own_s)).started()
    for number, seconds in enumerate(own_s):
        start = {"rank": number, "local_rank": number, "node": "n0", "host": "h0"}
        times = {"seconds": [seconds] * 10, "cpu_seconds": [seconds] * 10}
        evidence.rank(
            number,
            ("start", {**start, "device": device, "gpu_uuid": uuids[number]}),
            ("own_steps", {"parts": {"forward": times}}),
        )
    result = evidence.result()
    return replace(result, past=PastRuns("gilbreth", folder, fails, TONIGHT))


def good_nights(result: PhaseResult, count: int, names: Sequence[str], *, noise: float = 0) -> None:
    """Store good runs of the same setup, in which each GPU took the usual time."""
    who = fingerprint_of(result)
    assert result.past is not None
    for number in range(count):
        times = [own_s * (1 + noise * (number % 3 - 1)) for own_s in OWN_S]
        ranks = [
            {**rank(at, 4), "gpu": names[at], "own_step_s": seconds}
            for at, seconds in enumerate(times)
        ]
        setup: Record = {"hardware": who.hardware, "shape": who.shape, "versions": who.versions}
        store_run(night(number, phase=result.name, ranks=ranks, **setup), result.past.report_dir)


UUIDS = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")


def test_gpu_that_became_slower_is_named(tmp_path: Path) -> None:
    """5 % slower than it was, although another GPU has always been slower than that."""
    result = ran(tmp_path, (0.080, 0.083, 0.079 * 1.05, 0.082))
    good_nights(result, 8, UUIDS, noise=0.002)
    with pytest.raises(AssertionError) as failure:
        check_gpus(result)
    first, second = str(failure.value).splitlines()
    assert first == (
        "GPU-2 of rank 2 (n0, GPU 0) on h0 became slower: its own step takes 83 ms, 5.0% more than "
        "the median 79 ms of 8 good runs"
    )
    assert second == "a GPU whose own step takes 4% more time than it did is named"
    assert "gpu past" in result.judged


def test_gpu_as_fast_as_it_was_passes(tmp_path: Path) -> None:
    """The criterion says what it could have seen."""
    result = ran(tmp_path)
    good_nights(result, 8, UUIDS, noise=0.002)
    check_gpus(result)
    words = "would have named a GPU whose own step takes 4% more time than it did"
    assert result.sensitivity == [words]


@pytest.mark.parametrize("count", [0, 3, 7])
def test_too_few_runs_are_unmeasured(count: int, tmp_path: Path) -> None:
    """A new cluster has no past."""
    result = ran(tmp_path)
    good_nights(result, count, UUIDS)
    with pytest.raises(Unmeasured, match=f"{count} of 8 runs") as raised:
        check_gpus(result)
    assert raised.value.kind == "gpu past"


def test_new_gpu_is_left_out(tmp_path: Path) -> None:
    """The others are judged, and the message says how many."""
    result = ran(tmp_path, uuids=("GPU-0", "GPU-1", "GPU-2", "new"))
    good_nights(result, 8, UUIDS)
    check_gpus(result)
    assert result.sensitivity[0].endswith("than it did (3 of 4 have 8 good runs)")


def test_profile_that_only_warns_fails_nothing(tmp_path: Path) -> None:
    """`history_check: warn`, as for metrics."""
    result = ran(tmp_path, (0.080, 0.083, 0.095, 0.082), fails=False)
    good_nights(result, 8, UUIDS)
    with pytest.raises(Unmeasured, match=r"(?s)GPU-2 of rank 2 .* \(history_check: warn\)"):
        check_gpus(result)


def test_cpu_is_judged_by_a_factor(tmp_path: Path) -> None:
    """By host and local rank; 60 % more CPU time is what shared cores explain."""
    names = [f"h0/n0:{number}" for number in range(4)]
    for factor in (1.6, 2.1):
        result = ran(tmp_path / str(factor), (0.080 * factor, 0.083, 0.079, 0.082), device="cpu")
        good_nights(result, 8, names)
        if factor < 2:
            check_gpus(result)
            assert "takes 100% more CPU time than it did" in result.sensitivity[0]
        else:
            with pytest.raises(AssertionError, match=r"h0/n0:0 of rank 0 \(n0\) on h0 became"):
                check_gpus(result)


@pytest.mark.parametrize("uuid", [None, 7, ""])
def test_gpu_without_a_uuid_is_unmeasured(uuid: str | None, tmp_path: Path) -> None:
    """Its past cannot be found."""
    with pytest.raises(Unmeasured, match="no rank measured its own step"):
        check_gpus(ran(tmp_path, uuids=(uuid,) * 4))


def test_shared_gpu_is_left_out(tmp_path: Path) -> None:
    """Its time depends on the other rank."""
    assert list(own_steps(ran(tmp_path, uuids=("A", "A", "B", "C")))) == ["B", "C"]


def test_noise_of_the_past_widens_the_bound() -> None:
    """A GPU that always differed by 2 % from run to run is not blamed for 6 %."""
    quiet = {f"{gpu}": [1.0, 1.001, 0.999] * 4 for gpu in range(7)}
    noisy = {"noisy": [1.0, 1.04, 0.96, 1.02, 0.98, 1.03, 0.97, 1.01]}
    verdicts = judge_gpus(dict.fromkeys([*quiet, "noisy"], 1.06), quiet | noisy)
    assert not verdicts["noisy"].slow and verdicts["noisy"].visible > 0.06
    assert all(verdicts[gpu].slow for gpu in quiet)
    assert max(verdicts[gpu].visible for gpu in quiet) == pytest.approx(0.04)


def test_without_a_history_it_is_unmeasured(tmp_path: Path) -> None:
    """For example in a proof of the gates."""
    with pytest.raises(Unmeasured, match="there is no history to compare with"):
        check_gpus(replace(ran(tmp_path), past=None))
