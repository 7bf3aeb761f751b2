"""Metrics against their references, and numbers as they are shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_clustersmoke.config.expectations import Reference
from pytest_clustersmoke.config.metrics import compare, describe_distance, show


def reference(value: float = 100.0, **bounds: float) -> Reference:
    return Reference.model_construct(
        value=value,
        lower=bounds.get("lower"),
        upper=bounds.get("upper"),
        unit="steps/s",
        source="a test",
    )


@pytest.mark.parametrize(
    ("value", "bounds", "met"),
    [
        (90.0, {"lower": -0.1}, True),
        (89.9, {"lower": -0.1}, False),
        (1e9, {"lower": -0.1}, True),
        (110.0, {"upper": 0.1}, True),
        (110.2, {"upper": 0.1}, False),
        (0.1, {"upper": 0.1}, True),
    ],
)
def test_value_is_compared_with_its_bounds(
    value: float, bounds: dict[str, float], met: bool
) -> None:
    """A value on the bound passes; a missing bound cannot fail."""
    assert compare("steps_per_s", value, reference(**bounds)).met is met


def test_comparison_text_has_all_numbers() -> None:
    """Value, unit, difference, reference, allowed range and source of the reference."""
    assert compare("steps_per_s", 80, reference(lower=-0.1)).text == (
        "steps_per_s is 80.00 steps/s: 20.0 % below the reference 100.0 steps/s "
        "(allowed: at least 90.00; source: a test)"
    )


@pytest.mark.parametrize(
    ("value", "base", "words"),
    [
        (7.0, 10.0, "30.0 % below the reference 10.00"),
        (3.0, 1.5, "100.0 % above the reference 1.500"),
        (-9.0, -10.0, "10.0 % above the reference -10.00"),
        (0.5, 0.0, "0.5000 above the reference 0"),
        (2.0, 2.0, "the reference 2.000"),
    ],
)
def test_distance_says_how_far_and_on_which_side(value: float, base: float, words: str) -> None:
    """In percent, or as a number where the reference is zero."""
    assert describe_distance(value, base, "the reference") == words


def test_metric_without_a_unit_is_compared_without_one() -> None:
    """A loss is 3.000, not "3.000 1"."""
    text = compare("first_loss", 3.0, reference(lower=-0.1)).text
    assert text.startswith("first_loss is 3.000: 97.0 % below the reference 100.0 (allowed: ")


def test_value_without_reference_is_not_judged() -> None:
    """The value is reported; it neither passes nor fails."""
    comparison = compare("steps_per_s", 80, None)
    assert (
        comparison.met is None and comparison.text == "steps_per_s is 80.00 steps/s; no reference"
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("against", [None, reference(lower=-0.1)])
def test_value_that_is_not_finite_fails(value: float, against: Any) -> None:
    """NaN and infinity fail, with a reference and without one."""
    assert compare("steps_per_s", value, against).met is False


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.484, "0.4840"),
        (95.0, "95.00"),
        (3033.0, "3,033"),
        (123456.7, "123,457"),
        (1.5e7, "1.500e+07"),
        (1e-5, "1.000e-05"),
        (-2.5, "-2.500"),
        (math.nan, "nan"),
    ],
)
def test_numbers_are_shown_with_four_digits(value: float, text: str) -> None:
    """Four significant digits; no exponent in the usual range."""
    assert show(value) == text


@given(st.floats(-1e300, 1e300))
def test_shown_number_is_close_to_the_value(value: float) -> None:
    """The shown number is within a thousandth of the value."""
    assert float(show(value).replace(",", "")) == pytest.approx(value, rel=1e-3, abs=1e-300)
