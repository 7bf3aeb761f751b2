"""The JSON Schema of report.json, for whoever reads it with a program.

It is made from the types of model.py, whose comments become its descriptions. The file that ships
is what this module writes when it is run: `python -m pytest_clustersmoke.report.json_schema`.
"""

from __future__ import annotations

import ast
import io
import json
import tokenize
from pathlib import Path
from typing import Any

from pytest_clustersmoke.report import model

SCHEMA_PATH = Path(__file__).with_name("report.schema.json")
# A name, not an address: nothing is fetched to check a report. It changes with the schema.
SCHEMA_ID = f"urn:pytest-clustersmoke:report:{model.SCHEMA}"


def schema() -> dict[str, Any]:
    """The schema of a whole report.json; every object of ours is closed."""
    from pydantic import TypeAdapter

    made = TypeAdapter(model.RunRecord).json_schema(ref_template="#/$defs/{model}")
    records = made.pop("$defs")
    # pydantic puts a type that nothing refers to at the top.
    records.setdefault("RunRecord", {key: made[key] for key in ("properties", "required", "type")})
    said = _comments(Path(model.__file__).read_text(encoding="utf-8"))
    for name, record in records.items():
        _close(record)
        told, fields = said[name]
        record["title"] = name
        if told:
            record["description"] = told
        for key, value in record["properties"].items():
            if key in fields:
                _describe(record, key, value, fields[key])
    records["RunRecord"]["properties"]["schema"]["const"] = model.SCHEMA
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "report.json of pytest-clustersmoke",
        "description": _sentences(model.__doc__ or ""),
        "$ref": "#/$defs/RunRecord",
        "$defs": dict(sorted(records.items())),
    }


def text() -> str:
    """The schema as the file has it."""
    return json.dumps(schema(), indent=2) + "\n"


def _close(record: dict[str, Any]) -> None:
    """Refuse keys that are not known, and take out what differs between versions of pydantic."""
    record.pop("description", None)
    record["additionalProperties"] = False
    for value in record["properties"].values():
        _plain(value)


def _plain(value: Any) -> None:
    if isinstance(value, list):
        for inner in value:
            _plain(inner)
    elif isinstance(value, dict):
        value.pop("title", None)
        if value.get("additionalProperties") is True:
            del value["additionalProperties"]
        for inner in value.values():
            _plain(inner)


def _describe(record: dict[str, Any], key: str, value: dict[str, Any], told: str) -> None:
    record["properties"][key] = {"description": told, **value}


def _comments(source: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Of each class its docstring, and of its keys the comments on their lines."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    found = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = {}
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                lines = range(one.lineno, (one.end_lineno or one.lineno) + 1)
                told = " ".join(comments[line] for line in lines if line in comments)
                if told:
                    fields[one.target.id] = told
        found[node.name] = (_sentences(ast.get_docstring(node) or ""), fields)
    return found


def _sentences(docstring: str) -> str:
    return " ".join(docstring.split())


if __name__ == "__main__":
    SCHEMA_PATH.write_text(text(), encoding="utf-8")
