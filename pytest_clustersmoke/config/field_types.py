"""Value types of cluster.yaml that pydantic does not provide: paths, tolerances, names.

A value that does not fit raises `misfit`, which says what was expected. The validators' context
holds the whole profile as written, so that a rule between two keys is checked at one of them even
if other parts of the profile are wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from ..text import near, quote_names
from .sweep import ARGUMENT, ARGUMENT_FORM
from .yaml_source import Route

# The type of pydantic error that carries `what`, `expected` and `todo` in its context.
MISFIT = "misfit"
# Errors of several keys: route below the validated value, error, and the key's value.
Misfits = list[tuple[Route, PydanticCustomError, Any]]

Scalar = str | int | float | bool
_SCALAR_SCHEMA = {"type": ["string", "number", "boolean", "null"]}
# Names of profiles and phases.
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"
NAME_FORM = "letters, digits, `_` and `-`"
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PERCENT = re.compile(r"([-+]?\d+(?:\.\d+)?) *%")
# Set by torchrun or by the launcher for each rank or process.
_LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "NODE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NCCL_DEBUG_FILE",
)


class Section(BaseModel):
    """A mapping of cluster.yaml with a fixed set of keys."""

    # Inner models are built once, as part of the profile that holds them.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def misfit(expected: str, todo: str = "", what: str = "{key} {is}") -> PydanticCustomError:
    """An error for a user. In `what`, `{key}` is the value's full name, `{at}` the name of its
    section, and `{is}` says what the value is."""
    return PydanticCustomError(MISFIT, "misfit", {"what": what, "expected": expected, "todo": todo})


def raise_misfits(misfits: Misfits) -> None:
    """Raise all of them at once, if there are any."""
    details = [
        InitErrorDetails(type=error, loc=route, input=value) for route, error, value in misfits
    ]
    if details:
        raise ValidationError.from_exception_data("cluster.yaml", details)


def validation_context(profile: Any, expanded: bool) -> dict[str, Any]:
    """The context that lets validators see the rest of the profile."""
    return {"profile": profile, "expanded": expanded}


def profile_value(info: ValidationInfo, *route: str) -> Any:
    """The value of another key of the profile as written; None if it is absent."""
    value = (info.context or {}).get("profile")
    for key in route:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def has_variables(text: str, info: ValidationInfo) -> bool:
    """Whether the text still contains variables, so that its final form is unknown."""
    return "$" in text and not (info.context or {}).get("expanded")


def one_of(kind: str, known: Iterable[str]) -> AfterValidator:
    """A validator for a name from a fixed set; `kind` says what the names are."""
    words = tuple(known)

    def check(word: str) -> str:
        if word not in words:
            what = f"unknown {kind} `{word}` in {{at}}"
            raise misfit(f"one of {quote_names(words)}", near(word, words), what)
        return word

    return AfterValidator(check)


def valid_name(thing: str, pattern: str, form: str) -> AfterValidator:
    """A validator for a name that users choose."""

    def check(name: str) -> str:
        if not re.fullmatch(pattern, name):
            raise misfit(form, what=f"`{name}` in {{at}} is not a valid name for {thing}")
        return name

    return AfterValidator(check)


def _check_listed_phase(name: str, info: ValidationInfo) -> str:
    phases = profile_value(info, "phases")
    if isinstance(phases, dict) and phases and name not in phases:
        what = f"`{name}` in {{at}} is not listed under `phases`"
        raise misfit(f"one of {quote_names(phases)}", near(name, phases), what)
    return name


def _check_not_reserved(name: str) -> str:
    if name in _LAUNCHER_VARIABLES:
        what = f"`{name}` in {{at}} is reserved: the tool sets it for each process"
        raise misfit("", "remove it", what)
    return name


def _path(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str):
        raise misfit("an absolute path")
    if not has_variables(value, info):
        _check_path(value)
    return Path(value)


def _path_text(value: Any, info: ValidationInfo) -> str:
    return str(_path(value, info))


def _check_path(value: str) -> None:
    if not value.startswith(("/", "~/")) and value != "~":
        raise misfit("an absolute path")
    if "%" in value or not value.isprintable():
        # sbatch expands %j and similar in the paths of a job's files.
        raise misfit("a path without `%` or control characters, which sbatch would misread")


def _text(value: str) -> str:
    if not value.strip():
        raise misfit("text that is not blank")
    return value


def _line(value: str) -> str:
    if not _text(value).isprintable():
        raise misfit("one line of text")
    return value


def _variable_value(value: Any) -> str:
    # Numbers arrive as the text that was written: see `profile.is_text`.
    if not isinstance(value, str):
        raise misfit("text", 'write "" for an empty value' if value is None else "")
    if "\n" in value or "\0" in value:
        raise misfit("one line of text")
    return value


def _argument(value: Any) -> Scalar | None:
    if value is not None and not isinstance(value, Scalar):
        raise misfit("text, a number, true, false or null")
    if isinstance(value, str) and ("\n" in value or "\0" in value):
        raise misfit("one line of text")
    if isinstance(value, float) and not math.isfinite(value):
        raise misfit("a finite number")
    return value


def _resume(value: Any) -> Any:
    if not isinstance(value, int) or value < 0:
        raise misfit("a number of steps, 0, true or false")
    return value


def _after(value: Any) -> Any:
    if not isinstance(value, str) or (value and re.fullmatch(NAME, value) is None):
        raise misfit(f'the name of a phase ({NAME_FORM}), or "" for none')
    return value


def _percent(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise misfit(f"a percentage such as `-10 %` (is {value:g} a fraction or a percentage?)")
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise misfit("a percentage such as `-10 %`")
    return float(match[1]) / 100


def _lower(value: Any) -> float:
    share = _percent(value)
    if not -1 < share <= 0:
        raise misfit(
            "more than -100 % and at most 0 %: how far a measurement may fall below the value"
        )
    return share


def _upper(value: Any) -> float:
    share = _percent(value)
    if share < 0:
        raise misfit("at least 0 %: how far a measurement may exceed the value")
    return share


def _day(value: Any) -> date:
    try:
        if isinstance(value, str) and _DAY.fullmatch(value):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise misfit("a calendar date such as `2026-12-31`")


def _write_day(day: date) -> str:
    """Not `date.isoformat` itself: pydantic 2.6 cannot read the annotations of a method in C."""
    return day.isoformat()


def _none_to_empty(value: Any) -> Any:
    """`mlp_1gpu:` without a value lists the phase and sets nothing."""
    return {} if value is None else value


_TEXT_SCHEMA = WithJsonSchema({"type": "string"})
_PERCENT_SCHEMA = WithJsonSchema({"type": "string", "pattern": r"^[-+]?\d+(\.\d+)? *%$"})

AbsolutePath = Annotated[Path, PlainValidator(_path), _TEXT_SCHEMA]
PathText = Annotated[str, PlainValidator(_path_text), _TEXT_SCHEMA]
Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[str, AfterValidator(_line)]
PhaseName = Annotated[str, valid_name("a phase", NAME, NAME_FORM)]
ListedPhase = Annotated[str, AfterValidator(_check_listed_phase)]
_VARIABLE_FORM = "letters, digits and `_`, not starting with a digit"
VariableName = Annotated[
    str,
    valid_name("a variable", r"[A-Za-z_][A-Za-z0-9_]*", _VARIABLE_FORM),
    AfterValidator(_check_not_reserved),
]
VariableValue = Annotated[
    str, PlainValidator(_variable_value), WithJsonSchema({"type": ["string", "number", "boolean"]})
]
Version = Annotated[Line, WithJsonSchema({"type": ["string", "number"]})]
ArgumentName = Annotated[str, valid_name("an argument", ARGUMENT, ARGUMENT_FORM)]
Argument = Annotated[Scalar | None, PlainValidator(_argument), WithJsonSchema(_SCALAR_SCHEMA)]
SweptValue = Annotated[
    Scalar, PlainValidator(_argument), WithJsonSchema({"type": ["string", "number", "boolean"]})
]
Lower = Annotated[float, PlainValidator(_lower), _PERCENT_SCHEMA]
Upper = Annotated[float, PlainValidator(_upper), _PERCENT_SCHEMA]
Day = Annotated[
    date,
    PlainValidator(_day),
    PlainSerializer(_write_day, when_used="json"),  # PlainValidator's own warns of the text
    WithJsonSchema({"type": "string", "format": "date", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}),
]
Count = Annotated[int, Field(gt=0)]
# Their validators run before the union, whose errors would name each of its branches.
Resume = Annotated[Count | Literal[0] | bool, BeforeValidator(_resume)]
After = Annotated[PhaseName | Literal[""], BeforeValidator(_after)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NoneToEmpty = BeforeValidator(_none_to_empty)
