"""Turn pydantic's errors into problems: what is wrong, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..text import Problem, near, quote_names
from .expectations import Expectation, Reference
from .field_types import MISFIT, Scalar
from .hosts import Host, SshSettings
from .profile import (
    EnvBlock,
    EnvSettings,
    Hardware,
    IsolationBudget,
    Limits,
    PhaseSettings,
    Profile,
)
from .waivers import Known
from .yaml_source import Route

_LONGEST_SHOWN = 60

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "finite_number": "a finite number",
    "greater_than": "a number above {gt:g}",
    "less_than_equal": "a number of at most {le:g}",
    "greater_than_equal": "a number of at least {ge:g}",
}


def describe_errors(
    error: ValidationError, top: str, where: Callable[[Route], str]
) -> Iterator[Problem]:
    """One problem per error. `top` names the validated value; `where` gives the place of a key."""
    for details in error.errors(include_url=False):
        route = tuple(part for part in details["loc"] if part != "[key]")
        what, expected, todo = _describe(details, route)
        what = what.replace("{at}", _full_name(top, route[:-1])).replace(
            "{key}", _full_name(top, route)
        )
        yield Problem(
            what.replace("{is}", _describe_value(details["input"])), where(route), expected, todo
        )


def _full_name(top: str, route: Route) -> str:
    """A key's full name, as in `clusters.lab.slurm`; list positions are `[0]`."""
    return top + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in route)


def _describe(error: ErrorDetails, route: Route) -> tuple[str, str, str]:
    kind, context = error["type"], error.get("ctx", {})
    if kind == MISFIT:
        return context["what"], context["expected"], context["todo"]
    model = _section_model(route[:-1]) if route else None
    keys = model.model_fields if model else {}
    key = str(route[-1]) if route else ""
    if kind == "extra_forbidden":
        return f"unknown key `{key}` in {{at}}", f"one of {quote_names(keys)}", near(key, keys)
    if kind == "missing":
        return f"{{at}} has no `{key}`", f"`{key}` ({keys[key].description})", ""
    if kind == "too_short":
        return "{key} is empty", f"{keys[key].description}", ""
    if kind == "string_type":
        hint = "put it in quotes" if isinstance(error["input"], Scalar) else ""
        return "{key} {is}", "text", hint
    if kind == "literal_error":
        words = [word.strip("' ") for word in context["expected"].replace(" or ", ", ").split(",")]
        return "{key} {is}", f"one of {quote_names(words)}", near(str(error["input"]), words)
    if kind in _EXPECTED:
        return "{key} {is}", _EXPECTED[kind].format(**context), ""
    # No key has this kind of error today; pydantic's text is better than none.
    return "{key} {is}", error["msg"], ""


def _describe_value(value: Any) -> str:
    """`is` and a short value as written in the file, or the kind of a longer one."""
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


def _section_model(route: Route) -> type[BaseModel] | None:
    """The model at a route inside a profile; None if users choose the keys there."""
    if route == ():
        return Profile
    models: dict[tuple[str, int], type[BaseModel]] = {
        ("hardware", 1): Hardware,
        ("limits", 1): Limits,
        ("limits", 2): IsolationBudget,
        ("hosts", 2): Host,
        ("ssh", 1): SshSettings,
        ("env", 1): EnvSettings,
        ("env", 2): EnvBlock,
        ("phases", 2): PhaseSettings,
        ("phases", 3): EnvBlock,
        ("references", 3): Reference,
        ("expect", 2): Expectation,
        ("known", 2): Known,
    }
    return models.get((str(route[0]), len(route)))
