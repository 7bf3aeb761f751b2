"""The JSON Schema of cluster.yaml, for editors.

Generated from the models, plus what pydantic does not know: sbatch's options, metrics with their
units, and names. To write the file that ships, run
`python -m pytest_clustersmoke.config.profile_schema`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .expectations import VERSION_NAMES
from .metrics import METRICS
from .profile import CRITERIA_KINDS, STAGE_LIMITS_S, Profile
from .sbatch_options import OFFERED, OWNED

SCHEMA_PATH = Path(__file__).parents[1] / "cluster.schema.json"


def generate() -> dict[str, Any]:
    """The schema of a whole file."""
    profile = Profile.model_json_schema(ref_template="#/$defs/{model}")
    models = profile.pop("$defs")
    models["Profile"] = profile
    for model in models.values():
        _remove_noise(model)
    _add_names(models)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "cluster.yaml of pytest-clustersmoke",
        "type": "object",
        "required": ["clusters"],
        "additionalProperties": False,
        "patternProperties": {"^x-": {"description": "anything; a place for anchors"}},
        "properties": {
            "clusters": {
                "type": "object",
                "description": "profiles by their names",
                "minProperties": 1,
                "propertyNames": {"pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*$"},
                "additionalProperties": {"$ref": "#/$defs/Profile"},
            }
        },
        "$defs": dict(sorted(models.items())),
    }


def text() -> str:
    """The text of the schema file."""
    return json.dumps(generate(), indent=2) + "\n"


def _remove_noise(model: dict[str, Any]) -> None:
    """Remove titles of keys and empty defaults, which editors would only show as noise."""
    for value in model["properties"].values():
        value.pop("title", None)
        # Before 2.9, pydantic wrapped references like this; use one form for all versions.
        value.update(*value.pop("allOf", ()))
        if value.get("default") in (None, "", [], {}) or isinstance(value.get("default"), dict):
            value.pop("default", None)


def _add_names(models: dict[str, Any]) -> None:
    profile, phase = models["Profile"]["properties"], models["PhaseSettings"]["properties"]
    owned = {form for name in OWNED for form in (name, name.replace("_", "-"))}
    models["Option"] = dict(profile["slurm"]["additionalProperties"])
    models["SlurmOptions"] = {
        "type": "object",
        "description": profile["slurm"]["description"],
        "propertyNames": {"not": {"enum": sorted(owned)}},
        "properties": {key: {"$ref": "#/$defs/Option"} for key in OFFERED},
        "additionalProperties": {"$ref": "#/$defs/Option"},
    }
    for model in (profile, phase):
        model["slurm"] = {"$ref": "#/$defs/SlurmOptions"}
        model["stage_limits_s"]["propertyNames"] = {"enum": list(STAGE_LIMITS_S)}
    settings = profile["phases"]["additionalProperties"]
    profile["phases"]["additionalProperties"] = {"anyOf": [settings, {"type": "null"}]}
    host = profile["hosts"]["items"]
    profile["hosts"]["items"] = {"anyOf": [host, {"type": "string"}]}
    profile["require"]["items"] = {"enum": list(CRITERIA_KINDS)}
    versions = models["Expectation"]["properties"]["versions"]
    versions["propertyNames"] = {"enum": list(VERSION_NAMES)}
    models["Reference"]["anyOf"] = [{"required": ["lower"]}, {"required": ["upper"]}]
    both = [{"required": ["phase"]}, {"required": ["criterion"]}]
    models["Known"]["oneOf"] = [
        {"required": ["node"], "not": {"anyOf": both}},
        {"required": ["phase", "criterion"], "not": {"required": ["node"]}},
    ]
    profile["references"]["additionalProperties"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {
                "description": kind.meaning,
                "allOf": [
                    {"$ref": "#/$defs/Reference"},
                    {"properties": {"unit": {"const": kind.unit}}},
                ],
            }
            for name, kind in METRICS.items()
        },
    }


if __name__ == "__main__":
    SCHEMA_PATH.write_text(text(), encoding="utf-8")
