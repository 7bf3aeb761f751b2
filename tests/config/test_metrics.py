"""Bounds on metrics: what meets them, what does not, and the words for both."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_clustersmoke.config.metrics import compare, show
from pytest_clustersmoke.config.profile import Reference


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
def test_bounds(value: float, bounds: dict[str, float], met: bool) -> None:
    """A bound that is absent cannot be missed; the bound itself is met."""
    assert compare("steps_per_s", value, reference(**bounds)).met is met


def test_the_words_of_a_comparison() -> None:
    """Value, unit, difference, reference, what is allowed and where the reference is from."""
    assert compare("steps_per_s", 80, reference(lower=-0.1)).text == (
        "steps_per_s is 80.00 steps/s: -20.0 % against the reference 100.0 steps/s "
        "(allowed: at least 90.00; source: a test)"
    )


def test_no_reference_is_neither_met_nor_missed() -> None:
    """Without a reference the value is told, and nothing is judged."""
    told = compare("steps_per_s", 80, None)
    assert told.met is None and told.text == "steps_per_s is 80.00 steps/s; no reference"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("against", [None, reference(lower=-0.1)])
def test_what_is_no_number_is_missed(value: float, against: Any) -> None:
    """NaN and infinity meet nothing, with a reference and without one."""
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
def test_numbers_as_people_read_them(value: float, text: str) -> None:
    """Four significant digits; no exponent in the usual range."""
    assert show(value) == text


@given(st.floats(-1e300, 1e300))
def test_a_shown_number_is_the_number(value: float) -> None:
    """What is shown is within a thousandth of the value."""
    assert float(show(value).replace(",", "")) == pytest.approx(value, rel=1e-3, abs=1e-300)
