"""`clustersmoke sensitivity`, and the sensitivity that the judge of slow ranks must reach."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.cli.sensitivity_command import (
    GPU_NODES,
    GPUS_AND_RUNS,
    NODES,
    RANKS,
    RUN_SPREADS,
    SPREADS,
    Cells,
    simulate_gpu_nodes,
    simulate_gpus,
    simulate_nodes,
    simulate_pairs,
    simulate_ranks,
    wilson_interval,
)

TRIALS, FEWER_TRIALS = 2000, 1000
FEWEST_RIGHT, MOST_WRONG = 0.95, 0.005


def test_table_has_a_row_for_each_size_and_spread(capsys: pytest.CaptureFixture[str]) -> None:
    """Two tables of each study, of what is slow and of anything else; the same seed prints the
    same."""
    arguments = ["sensitivity", "--trials", "3", "--seed", "7"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    sizes = len(RANKS) + len(GPU_NODES) + 2 * len(NODES)
    rows = sizes * len(SPREADS) + len(GPUS_AND_RUNS) * len(RUN_SPREADS)
    assert len(text.splitlines()) == 2 * (rows + 5 * 3)
    assert "100.0 (43.8-100.0)" in text  # three of three
    assert main(arguments) == 0 and capsys.readouterr().out == text


@pytest.mark.parametrize("trials", ["0", "-1", "many"])
def test_unusable_number_of_trials_is_refused(trials: str) -> None:
    """Exit status 2."""
    with pytest.raises(SystemExit) as ended:
        main(["sensitivity", "--trials", trials])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("ranks", "slow_down"), [(8, 0.15), pytest.param(64, 0.10, marks=pytest.mark.slow)]
)
def test_slow_rank_is_named_among_peers_that_differ_by_one_percent(
    ranks: int, slow_down: float
) -> None:
    """The lower limit of the probability reaches 95 %."""
    cell = simulate_ranks(ranks, 0.01, TRIALS, seed=0)[slow_down]
    assert wilson_interval(cell.right, TRIALS)[0] >= FEWEST_RIGHT


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(
    "ranks", [*RANKS[:2], *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in RANKS[2:])]
)
def test_other_ranks_are_hardly_ever_named(ranks: int, spread: float) -> None:
    """With each slow-down and with none, the upper limit of the probability is at most 0.5 %."""
    cells = simulate_ranks(ranks, spread, TRIALS, seed=0)
    assert max(wilson_interval(cell.wrong, TRIALS)[1] for cell in cells.values()) <= MOST_WRONG


@pytest.mark.parametrize("nodes", [5, pytest.param(8, marks=pytest.mark.slow)])
def test_node_of_slow_gpus_is_named(nodes: int) -> None:
    """15 % slower, where healthy GPUs differ by 1 %; and no other node."""
    cells = simulate_gpu_nodes(nodes, 0.01, FEWER_TRIALS, seed=0)
    assert wilson_interval(cells[0.15].right, FEWER_TRIALS)[0] >= FEWEST_RIGHT
    worst = max(cell.wrong for cell in cells.values())
    assert wilson_interval(worst, FEWER_TRIALS)[1] <= MOST_WRONG


@pytest.mark.parametrize("simulate", [simulate_pairs, simulate_nodes])
@pytest.mark.parametrize(
    ("nodes", "spread"), [(4, 0.01), (4, 0.03), pytest.param(8, 0.03, marks=pytest.mark.slow)]
)
def test_other_pairs_are_hardly_ever_named(
    simulate: Callable[[int, float, int, int], Cells], nodes: int, spread: float
) -> None:
    """Although pairs that share a node are slow together."""
    cells = simulate(nodes, spread, TRIALS, 0)
    worst = max(cell.wrong for cell in cells.values())
    assert wilson_interval(worst, TRIALS)[1] <= MOST_WRONG


@pytest.mark.parametrize("simulate", [simulate_pairs, simulate_nodes])
def test_slow_pair_and_slow_node_are_named(
    simulate: Callable[[int, float, int, int], Cells],
) -> None:
    """40 % slower, among eight nodes that differ by 1 %."""
    assert simulate(8, 0.01, 500, 0)[0.40].right == 500


@pytest.mark.parametrize(
    ("gpus", "runs"), [(1, 8), (8, 8), (8, 60), pytest.param(512, 8, marks=pytest.mark.slow)]
)
def test_gpu_that_became_slower_is_named(gpus: int, runs: int) -> None:
    """5 % against its own past, with the noise that passes of 1 % leave; and no other GPU."""
    cells = simulate_gpus(gpus, runs, 0.003, FEWER_TRIALS, seed=0)
    assert wilson_interval(cells[0.05].right, FEWER_TRIALS)[0] >= FEWEST_RIGHT
    worst = max(cell.wrong for cell in cells.values())
    assert wilson_interval(worst, FEWER_TRIALS)[1] <= MOST_WRONG


@pytest.mark.parametrize(
    "spread",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in RUN_SPREADS[:-1]), RUN_SPREADS[-1]],
)
def test_noise_from_run_to_run_names_no_gpu(spread: float) -> None:
    """Of 64 healthy GPUs."""
    cell = simulate_gpus(64, 8, spread, FEWER_TRIALS, seed=0)[0.0]
    assert wilson_interval(cell.wrong, FEWER_TRIALS)[1] <= MOST_WRONG


def test_wilson_interval_is_the_published_one() -> None:
    """0 of 2,000 bounds the rate at 0.19 %; 10 of 20 lies between 30 and 70 %."""
    assert wilson_interval(0, 2000) == pytest.approx((0, 0.001917), abs=1e-5)
    assert wilson_interval(10, 20) == pytest.approx((0.299, 0.701), abs=1e-3)
