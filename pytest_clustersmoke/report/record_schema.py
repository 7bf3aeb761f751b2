"""The JSON Schema of report.json.

`python -m pytest_clustersmoke.report.record_schema` writes it to report.schema.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..evidence.run_record import SCHEMA, RunRecord

SCHEMA_PATH = Path(__file__).with_name("report.schema.json")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of report.json, the same from every version of pydantic."""
    made = RunRecord.model_json_schema(ref_template="#/$defs/{model}")
    for model in (made, *made["$defs"].values()):
        for field in model["properties"].values():
            _strip_noise(field)
    title = "report.json of pytest-clustersmoke"
    # A name, not an address: checking a report fetches nothing. It changes with the schema.
    name = f"urn:pytest-clustersmoke:report:{SCHEMA}"
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "$id": name, **made, "title": title}


def _strip_noise(field: dict[str, Any]) -> None:
    """Remove titles and defaults, and what differs between versions of pydantic."""
    for key in ("title", "default"):
        field.pop(key, None)
    field.update(*field.pop("allOf", ()))  # pydantic before 2.9 wraps references
    if field.get("additionalProperties") is True:
        del field["additionalProperties"]
    for inner in (field.get("additionalProperties"), field.get("items"), *field.get("anyOf", ())):
        if isinstance(inner, dict):
            _strip_noise(inner)


if __name__ == "__main__":
    SCHEMA_PATH.write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")
