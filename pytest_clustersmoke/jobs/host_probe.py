"""What a host is asked before the first job: one script, and its answers as records.

Each answer is a line that starts with `csm-`, so other output, such as that of `setup`, is ignored.
The nodes' own Python reports its versions.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.run_directory import PhaseDir
from ..node.installed_packages import PACKAGES
from . import batch_script
from .host_script import JOB_VARIABLE, NodeTag

PROGRAMS = ("bash", "setsid", "timeout", "grep", "sed", "stat")
COUNTS = ("gpus", "cores", "memory")
NUMBER = re.compile(r"[0-9]{1,15}")
OWN_PACKAGE = "pytest-clustersmoke"
CLOCK_SCRIPT = "date +'csm-time %s.%N'"
PYTHON = """
import importlib.metadata, json, platform, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except Exception:
        return None
found = {name: version(name) for name in %r}
print("csm-python", json.dumps({"executable": sys.executable, "python": platform.python_version(),
    "packages": {name: value for name, value in found.items() if value}}))
"""


@dataclass(frozen=True)
class HostFacts:
    """What a host answered; None or empty where it did not.

    `sees`: the token that it read from the run directory; `machine`: its boot and its network
    namespace; `nodes`: those of jobs that its machine still runs; `models`: the GPUs by the
    driver's names; `memory`, in MiB; `last_line`: the last line that Python's start printed.
    """

    sees: str = ""
    machine: str = ""
    models: tuple[str, ...] = ()
    cores: int = 0
    memory: int = 0
    lacks: tuple[str, ...] = ()
    nodes: tuple[NodeTag, ...] = ()
    gpus: int | None = None
    python: Mapping[str, Any] = field(default_factory=dict)
    last_line: str = ""

    @property
    def package(self) -> str:
        """The version of this package there; empty if it is not installed."""
        packages = self.python.get("packages")
        return str(packages.get(OWN_PACKAGE, "")) if isinstance(packages, dict) else ""


def parse_clock(lines: list[str]) -> float | None:
    """The host's time in Unix seconds."""
    for line in lines:
        if line.startswith("csm-time "):
            try:
                return float(line.split()[1].removesuffix(".%N").removesuffix(".N"))
            except ValueError:
                return None
    return None


def probe_script(profile: Profile, phase: Phase | None, folder: PhaseDir, token: Path) -> str:
    """A script that reads `token`, copies it to a file in the host's `folder` and reports what the
    host has. Python runs in the environment of `phase`, or of the profile alone."""
    python = batch_script.node_python(profile)
    code = shlex.quote(PYTHON % (list(dict.fromkeys((OWN_PACKAGE, *PACKAGES))),))
    lines = [
        *batch_script.strict_setup_lines(profile.setup, shlex.quote(str(folder.setup_failed))),
        *(batch_script.environment_lines(phase) if phase else ()),
        f"exec {python} -c {code}",
    ]
    seen, own = shlex.quote(str(token)), shlex.quote(str(folder.seen))
    script = [
        f"token=$(cat {seen})",
        'echo "csm-sees $token"',
        f'( umask 077; echo "$token" > {own} )',
        'echo "csm-machine $(cat /proc/sys/kernel/random/boot_id) $(readlink /proc/self/ns/net)"',
        f"for name in {' '.join(PROGRAMS)}; do",
        '  command -v "$name" >/dev/null 2>&1 || echo "csm-lacks $name"',
        "done",
        f"for file in $(grep -lsz '^{JOB_VARIABLE}=' /proc/[0-9]*/environ); do",
        f"  echo \"csm-node $(tr '\\0' '\\n' < $file | sed -n 's/^{JOB_VARIABLE}=//p')\"",
        "done",
        "if command -v nvidia-smi >/dev/null 2>&1; then",
        "  echo \"csm-gpus $(nvidia-smi -L | grep -c '^GPU ')\"",
        "  nvidia-smi -L | sed -n 's/^GPU [0-9]*: \\(.*\\) (UUID: .*/csm-model \\1/p'",
        "fi",
        'echo "csm-cores $(nproc)"',
        "sed -n 's/^MemTotal: *\\([0-9]*\\) kB/csm-memory \\1/p' /proc/meminfo",
        f"bash -c {shlex.quote(chr(10).join(lines))}",
    ]
    return "\n".join(script)


def parse_facts(lines: list[str]) -> HostFacts:
    """Untrusted text: what does not have the known form counts as missing."""
    fields: dict[str, list[str]] = {}
    for line in lines:
        key, _, rest = line.partition(" ")
        if key.startswith("csm-"):
            fields.setdefault(key, []).append(rest.strip())
    gpus, cores, kib = ((fields.get(f"csm-{key}") or [""])[-1] for key in COUNTS)
    others = [line for line in lines if line.strip() and not line.startswith("csm-")]
    return HostFacts(
        sees=(fields.get("csm-sees") or [""])[0],
        machine=(fields.get("csm-machine") or [""])[0],
        lacks=tuple(fields.get("csm-lacks", ())),
        nodes=tuple(dict.fromkeys(filter(None, map(NodeTag.parse, fields.get("csm-node", ()))))),
        models=tuple(fields.get("csm-model", ())),
        cores=int(cores) if NUMBER.fullmatch(cores) else 0,
        memory=int(kib) // 1024 if NUMBER.fullmatch(kib) else 0,
        gpus=int(gpus) if NUMBER.fullmatch(gpus) else None,
        python=_parse_object((fields.get("csm-python") or [""])[-1]),
        last_line=others[-1] if others else "",
    )


def _parse_object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
