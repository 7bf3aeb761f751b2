"""The user's settings as the report keeps them: the lines of cluster.yaml that a finding quotes,
and the spec and the batch script of a job.

The report outlives that file, and others read it. So it has the lines around, without comments and
without what stands under `env` and `setup`, which may be secrets. Other files outside of a run are
never copied: a job may have named them. Variables that look like secrets stay in the run directory,
where the job reads them and this user alone can.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..evidence.finding import Evidence, first_around
from ..evidence.run_directory import PhaseDir, read_json, write_atomically
from ..evidence.variable_names import hide_assignments, hide_values

FOLDER = "settings"
SECRETS = {"env", "setup"}
HIDDEN = "# (left out: values of env and setup, and comments)"


def write_excerpt(shown: Evidence, root: Path, count: int) -> Evidence:
    """Write at most so many lines around this one of cluster.yaml to a file below `root`; returns
    the evidence with its name and line there. A file that cannot be read keeps its path."""
    source = Path(shown.file)
    try:
        lines = hide_secrets(source.read_text(encoding="utf-8"))
        first, name = 1, source.name.lstrip(".")
        if len(lines) > count:
            first, name = first_around(shown.line, count), f"{name}.line-{shown.line}.txt"
        text = "".join(f"{line}\n" for line in lines[first - 1 :][:count])
        write_atomically(root / FOLDER / name, text)
    except (OSError, ValueError):
        return shown
    return replace(shown, file=f"{FOLDER}/{name}", line=shown.line - first + 1)


def hide_secrets(text: str) -> list[str]:
    """The lines of a cluster.yaml, with a remark for each that may have a secret. Raises ValueError
    if it is not YAML."""
    import yaml

    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    hidden = {line for node in _find_secrets(root, False, set()) for line in _span(node)}
    return [
        HIDDEN
        if number in hidden or line.lstrip().startswith("#")
        else line.partition(" #")[0].rstrip()
        for number, line in enumerate(text.splitlines())  # which ends lines as YAML does
    ]


def _find_secrets(node: Any, is_secret: bool, seen: set[tuple[int, bool]]) -> Iterator[Any]:
    """The scalars below a key that has secrets; an anchor's, where it is written."""
    if node is None or (id(node), is_secret) in seen:
        return
    seen.add((id(node), is_secret))
    if isinstance(node.value, str):
        if is_secret:
            yield node
        return
    for item in node.value:
        key, value = item if isinstance(item, tuple) else (None, item)
        inside = is_secret or (key is not None and key.value in SECRETS)
        yield from _find_secrets(value, inside, seen)


def _span(node: Any) -> range:
    """The lines of a scalar, from 0."""
    return range(node.start_mark.line, node.end_mark.line + (node.end_mark.column > 0))


def hide_variables(source: Path) -> str | None:
    """A job's spec, batch script or failed setup line without the values of variables that may be
    secrets; None of any other file, and of a spec without such a value."""
    phase = PhaseDir(source.parent)
    if source.name == phase.spec.name:
        spec = read_json(source)
        hidden = None if spec is None else _hide_values(spec)
        return None if hidden == spec else json.dumps(hidden, indent=1) + "\n"
    if source.name in (phase.batch_script.name, phase.setup_failed.name):
        return hide_assignments(source.read_text(encoding="utf-8", errors="replace"))
    return None


def _hide_values(spec: dict[str, Any]) -> dict[str, Any]:
    """A job's spec without the values of variables and arguments that may be secrets."""
    tables = {name: spec[name] for name in ("env_set", "args") if isinstance(spec.get(name), dict)}
    return {**spec, **{name: hide_values(table) for name, table in tables.items()}}
