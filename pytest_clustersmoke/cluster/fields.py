"""Kinds of values in cluster.yaml that pydantic does not know: paths, tolerances, options.

A value that does not fit raises `misfit`, with what was expected in the words of the file.
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

# The type of an error that carries `expected` (and `todo`) in its context.
MISFIT = "misfit"

Scalar = str | int | float | bool
_SCALAR_SCHEMA = {"type": ["string", "number", "boolean", "null"]}
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PERCENT = re.compile(r"([-+]?\d+(?:\.\d+)?) *%")


def misfit(expected: str, todo: str = "") -> PydanticCustomError:
    return PydanticCustomError(MISFIT, "{expected} {todo}", {"expected": expected, "todo": todo})


def is_open(text: str, info: ValidationInfo) -> bool:
    """Whether the text's variables are still to be filled in, so that its form is not known."""
    return "$" in text and not (info.context or {}).get("expanded")


def _path(value: Any, info: ValidationInfo) -> Path | str:
    if not isinstance(value, str):
        raise misfit("an absolute path")
    if not is_open(value, info):
        _check_path(value)
    return Path(value)


def _path_text(value: Any, info: ValidationInfo) -> str:
    return str(_path(value, info))


def _check_path(value: str) -> None:
    if not value.startswith(("/", "~/")) and value != "~":
        raise misfit("an absolute path")
    if "%" in value or not value.isprintable():
        # sbatch fills in %j and the like in the paths of a job's files.
        raise misfit("a path without `%` and control characters, which sbatch would misread")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise misfit("text", "put it in quotes" if value is not None else "")
    if not value.strip():
        raise misfit("text that is not blank")
    return value


def _line(value: Any) -> str:
    text = _text(value)
    if not text.isprintable():
        raise misfit("one line of text")
    return text


def _variable_value(value: Any) -> str:
    # Numbers come as the text that was written: see `schema.is_text`.
    if not isinstance(value, str):
        raise misfit("text", 'write "" for an empty value' if value is None else "")
    if "\n" in value or "\0" in value:
        raise misfit("one line of text")
    return value


def _option(value: Any) -> str | int | bool:
    if value is None:
        return False
    if isinstance(value, str) and ("\n" in value or not value.strip()):
        raise misfit("one line of text that is not blank")
    if not isinstance(value, str | int):
        raise misfit("text, a whole number, or true or false (false drops the option)")
    return value


def _argument(value: Any) -> Scalar | None:
    if value is not None and not isinstance(value, Scalar):
        raise misfit("text, a number, true, false or null")
    if isinstance(value, str) and ("\n" in value or "\0" in value):
        raise misfit("one line of text")
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
        raise misfit("above -100 % and at most 0 %: how far below the value is still met")
    return share


def _upper(value: Any) -> float:
    share = _percent(value)
    if share < 0:
        raise misfit("at least 0 %: how far above the value is still met")
    return share


def day_of(value: Any) -> date | None:
    """The day that a text names as `2026-12-31`; None where it names none."""
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        return None


def _day(value: Any) -> date:
    day = day_of(value)
    if day is None:
        raise misfit("a day of the calendar such as `2026-12-31`")
    return day


def _nothing_is_empty(value: Any) -> Any:
    """`mlp_1gpu:` with nothing behind it lists the phase and sets nothing."""
    return {} if value is None else value


_TEXT_SCHEMA = WithJsonSchema({"type": "string"})
_PERCENT_SCHEMA = WithJsonSchema({"type": "string", "pattern": r"^[-+]?\d+(\.\d+)? *%$"})

AbsolutePath = Annotated[Path, PlainValidator(_path), _TEXT_SCHEMA]
PathText = Annotated[str, PlainValidator(_path_text), _TEXT_SCHEMA]
Text = Annotated[str, PlainValidator(_text), _TEXT_SCHEMA]
Line = Annotated[str, PlainValidator(_line), _TEXT_SCHEMA]
VariableValue = Annotated[
    str, PlainValidator(_variable_value), WithJsonSchema({"type": ["string", "number", "boolean"]})
]
Version = Annotated[str, PlainValidator(_line), WithJsonSchema({"type": ["string", "number"]})]
Option = Annotated[
    str | int | bool,
    PlainValidator(_option),
    WithJsonSchema({"type": ["string", "integer", "boolean", "null"]}),
]
Argument = Annotated[Scalar | None, PlainValidator(_argument), WithJsonSchema(_SCALAR_SCHEMA)]
Lower = Annotated[float, PlainValidator(_lower), _PERCENT_SCHEMA]
Upper = Annotated[float, PlainValidator(_upper), _PERCENT_SCHEMA]
Day = Annotated[
    date,
    PlainValidator(_day),
    WithJsonSchema({"type": "string", "format": "date", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}),
]
Count = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NothingIsEmpty = BeforeValidator(_nothing_is_empty)
