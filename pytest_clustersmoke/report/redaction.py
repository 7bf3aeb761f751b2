"""What `limits.publish: names` keeps out of a report: the user, paths, UUIDs and serial numbers.

Names of nodes, phases, GPUs and programs stay. What is left out stays in the run directory, which
is the user's own, and in history.db, which is then readable by the user alone. A history.db of
another user does not get it either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from ..evidence.node_observation import NodeObservation
from ..evidence.run_record import RunRecord
from ..evidence.run_request import user_name
from ..evidence.telemetry import parse_text, to_json_value
from .record_schema import SCHEMA_PATH

USER, PATH, UUID, SERIAL = "<user>", "<path>", "<uuid>", "<serial>"
_UUID = re.compile(r"\b(?:(?:GPU|MIG|DPU)-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.I)
# At least two names; not in a URL, nor after a relative path. Those of the kernel are the same
# everywhere.
_PATH = re.compile(
    r"(?<![\w./<>])~?/(?!(?:dev|proc|sys)/)[^\s/\"'`<>|:;,()\[\]{}*?=]+/[^\s\"'`<>|:;,()\[\]{}]*"
)
_SERIAL = re.compile(r"(\bserial(?:[ _-]?(?:number|no))?[ :=#]{1,3})(?=[\w-]*\d)[\w-]{4,}", re.I)
_GUID = re.compile(r"\b(GUID |NIC-)[0-9a-f]{16}\b")  # of a network card
# Keys of facts and figures whose values are UUIDs or serial numbers, in whatever form.
_HIDDEN_KEYS = re.compile(r"(?:^|_)(?:uuid|serial(?:_number)?)$", re.I)
_OF_FIGURES = {"node", "device", "name", "value", "unit", "higher_is_better"}
# Names that say nothing about anybody.
_NOBODY = ("", "root")


def choose_redactor(about: Mapping[str, Any]) -> Redactor | None:
    """What a run's report must go through, by its run.json; None if all may be published."""
    if about.get("publish") != "names":
        return None
    return Redactor(parse_text(about.get("user")) or user_name())


@cache
def _read_schema() -> tuple[frozenset[str], frozenset[str]]:
    """The keys of the record's own models, and the words that their values are chosen from."""
    keys, words = set[str](), set[str]()

    def add(schema: Any) -> None:
        if isinstance(schema, dict):
            keys.update(schema.get("properties", ()))
            words.update(schema.get("enum", ()))
        for inner in schema.values() if isinstance(schema, dict) else schema:
            if isinstance(inner, dict | list):
                add(inner)

    add(json.loads(SCHEMA_PATH.read_text()))
    return frozenset(keys), frozenset(words)


class Redactor:
    """Replaces what must not be published, in any text or JSON."""

    def __init__(self, user: str) -> None:
        self._user = (
            None if user in _NOBODY else re.compile(rf"(?<![\w-]){re.escape(user)}(?![\w-])")
        )

    def hide(self, text: str) -> str:
        """The text without it."""
        text = _SERIAL.sub(rf"\1{SERIAL}", _UUID.sub(UUID, _PATH.sub(PATH, text)))
        text = _GUID.sub(rf"\1{SERIAL}", text)
        return self._user.sub(USER, text) if self._user else text

    def hide_json(self, value: Any) -> Any:
        """A JSON value without it; a hidden value of a key that asks for one is null. The record's
        own words stay, whatever the user's name is."""
        keys, words = _read_schema()
        if isinstance(value, str):
            return value if value in words else self.hide(value)
        if isinstance(value, list | tuple):
            return [self.hide_json(item) for item in value]
        if isinstance(value, Mapping):
            hidden: dict[str, Any] = {}
            for key, item in value.items():
                name = key if key in keys else self.hide(key)
                while name in hidden:  # two paths, say
                    name += "'"
                hidden[name] = None if _HIDDEN_KEYS.search(key) else self.hide_json(item)
            if value.keys() >= _OF_FIGURES:  # a network card is named by its serial number
                hidden["device"] = ""
            return hidden
        return value

    def hide_record(self, record: RunRecord) -> RunRecord:
        """The record as it may be published. A GPU without its UUID has no name."""
        value = self.hide_json(to_json_value(record.as_json()))
        for phase in value["phases"]:
            for rank in phase["ranks"]:
                if UUID in rank.get("gpu", ""):
                    rank["gpu"] = ""
        for node in value.get("named_nodes", ()):
            node["device"] = ""
        return RunRecord.model_validate(value)

    def hide_observation(self, seen: NodeObservation) -> NodeObservation:
        """What was seen of a node, as it may be published."""
        return replace(seen, reason=self.hide(seen.reason), boot_id="", parts={})

    def hide_xml(self, element: Element) -> None:
        """Change all texts and attributes of an element and of those in it."""
        for inner in element.iter():
            inner.text = self.hide(inner.text) if inner.text else inner.text
            for name, value in inner.attrib.items():
                inner.attrib[name] = self.hide(value)

    def copy_journal(self, source: Path, target: Path) -> None:
        """Copy a journal, of which each line is JSON. Raises OSError."""
        lines = []
        for line in source.read_text(errors="replace").splitlines():
            try:
                lines.append(json.dumps(self.hide_json(json.loads(line))))
            except ValueError:
                lines.append(self.hide(line))
        target.write_text("".join(f"{line}\n" for line in lines))
