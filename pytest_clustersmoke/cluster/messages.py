"""pydantic's errors in the words of the file: what is there, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pytest_clustersmoke.cluster.checks import Fault
from pytest_clustersmoke.cluster.fields import MISFIT
from pytest_clustersmoke.cluster.schema import section_model
from pytest_clustersmoke.errors import near

_LONGEST_SHOWN = 60

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def faults(error: ValidationError) -> Iterator[Fault]:
    """One fault for each error, at its route inside the profile."""
    for details in error.errors(include_url=False):
        yield _fault(details)


def _fault(error: ErrorDetails) -> Fault:
    kind, route = error["type"], tuple(part for part in error["loc"] if part != "[key]")
    if kind == "extra_forbidden":
        return _unknown_key(route)
    if kind == "missing":
        return _missing_key(route)
    context = error.get("ctx", {})
    expected, todo = _EXPECTED.get(kind, ""), ""
    if kind == MISFIT:
        expected, todo = str(context["expected"]), str(context["todo"])
    elif kind == "literal_error":
        expected, todo = _one_of(str(context["expected"]), error["input"])
    elif kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        expected = f"a number {words} {context[key]:g}"
    elif not expected:
        # A kind of error that no key of ours has today; pydantic's words are better than none.
        expected = error["msg"]
    return Fault(route, f"{{at}}{_last(route)} {_shown(error['input'])}", expected, todo)


def _last(route: tuple[Any, ...]) -> str:
    last = route[-1] if route else ""
    return f"[{last}]" if isinstance(last, int) else f".{last}" if last else ""


def _unknown_key(route: tuple[Any, ...]) -> Fault:
    key = str(route[-1])
    model = section_model(route[:-1])
    known = list(model.model_fields) if model else []
    listed = ", ".join(f"`{name}`" for name in known)
    return Fault(route, f"unknown key `{key}` in {{at}}", f"one of {listed}", near(key, known))


def _missing_key(route: tuple[Any, ...]) -> Fault:
    key = str(route[-1])
    model = section_model(route[:-1])
    meaning = model.model_fields[key].description if model else None
    return Fault(route, f"{{at}} has no `{key}`", meaning or "")


def _one_of(expected: str, value: Any) -> tuple[str, str]:
    words = [word.strip("' ") for word in expected.replace(" or ", ", ").split(",")]
    listed = ", ".join(f"`{word}`" for word in words)
    return f"one of {listed}", near(value, words) if isinstance(value, str) else ""


def _shown(value: Any) -> str:
    """A value as the file has it, where it is short; else its kind."""
    if value is None:
        return "is empty"
    if isinstance(value, bool):
        return f"is `{str(value).lower()}`"
    if isinstance(value, tuple):
        return "is a list"
    if isinstance(value, dict):
        return "is a mapping"
    text = " ".join(str(value).split())
    if not text:
        return "is blank"
    if len(text) > _LONGEST_SHOWN:
        text = f"{text[:_LONGEST_SHOWN]}..."
    return f"is `{text}`"
