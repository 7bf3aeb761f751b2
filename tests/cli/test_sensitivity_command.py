"""`clustersmoke sensitivity`, and the sensitivity that the judge of slow ranks must reach."""

from __future__ import annotations

import pytest

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.cli.sensitivity_command import (
    RANKS,
    SPREADS,
    simulate_ranks,
    wilson_interval,
)

TRIALS = 2000
FEWEST_RIGHT, MOST_WRONG = 0.95, 0.005


def test_table_has_a_row_for_each_size_and_spread(capsys: pytest.CaptureFixture[str]) -> None:
    """Two tables, of slow ranks that are named and of others; the same seed prints the same."""
    arguments = ["sensitivity", "--trials", "3", "--seed", "7"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 2 * (len(RANKS) * len(SPREADS) + 3)
    assert "100.0 (43.8-100.0)" in text  # three of three
    assert main(arguments) == 0 and capsys.readouterr().out == text


@pytest.mark.parametrize("trials", ["0", "-1", "many"])
def test_unusable_number_of_trials_is_refused(trials: str) -> None:
    """Exit status 2."""
    with pytest.raises(SystemExit) as ended:
        main(["sensitivity", "--trials", trials])
    assert ended.value.code == 2


@pytest.mark.parametrize(("ranks", "slow_down"), [(8, 0.15), (64, 0.10)])
def test_slow_rank_is_named_among_peers_that_differ_by_one_percent(
    ranks: int, slow_down: float
) -> None:
    """The lower limit of the probability reaches 95 %."""
    cell = simulate_ranks(ranks, 0.01, TRIALS, seed=0)[slow_down]
    assert wilson_interval(cell.right, TRIALS)[0] >= FEWEST_RIGHT


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("ranks", RANKS)
def test_other_ranks_are_hardly_ever_named(ranks: int, spread: float) -> None:
    """With each slow-down and with none, the upper limit of the probability is at most 0.5 %."""
    cells = simulate_ranks(ranks, spread, TRIALS, seed=0)
    assert max(wilson_interval(cell.wrong, TRIALS)[1] for cell in cells.values()) <= MOST_WRONG


def test_wilson_interval_is_the_published_one() -> None:
    """0 of 2,000 bounds the rate at 0.19 %; 10 of 20 lies between 30 and 70 %."""
    assert wilson_interval(0, 2000) == pytest.approx((0, 0.001917), abs=1e-5)
    assert wilson_interval(10, 20) == pytest.approx((0.299, 0.701), abs=1e-3)
