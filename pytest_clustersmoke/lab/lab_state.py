"""The journals and states of this user's labs; finds the lab to use."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..config.hostlist import expand_hostlist
from ..evidence.run_directory import read_json, write_json
from . import lab_paths
from .lab_paths import LabDir
from .lab_processes import Process, boot_id
from .lab_settings import Lab, LabError

# The role of `lab up` itself in the journal.
STARTER = "starter"
UP, PARTLY, STARTING, DOWN, ELSEWHERE = "up", "partly up", "starting", "down", "on another host"


@dataclass(frozen=True)
class LabRecord:
    """A lab as its journal records it: where it was started, and each process that it has started
    since then."""

    name: str
    files: LabDir
    token: str = ""
    host: str = ""
    boot: str = ""
    processes: tuple[Process, ...] = ()
    links: tuple[str, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def here(self) -> bool:
        """Whether the lab runs on this machine; a home directory may be shared."""
        return self.host in ("", platform.node())

    @property
    def daemons(self) -> list[Process]:
        return [process for process in self.processes if process.role != STARTER]

    @property
    def starter(self) -> Process | None:
        """The `lab up` that is still starting it; None if there is none."""
        for process in self.processes:
            if process.role == STARTER and not self.state and self.booted and process.alive:
                return process
        return None

    @property
    def booted(self) -> bool:
        """Whether the machine was not rebooted since: pids are meaningless after a reboot."""
        return self.here and self.boot == boot_id()

    @property
    def status(self) -> str:
        if not self.here:
            return ELSEWHERE
        if self.starter is not None:
            return STARTING
        alive = [process.alive for process in self.daemons] if self.booted else []
        if not any(alive):
            return DOWN
        return UP if all(alive) and self.state else PARTLY

    def lab(self) -> Lab:
        return Lab(
            name=self.name,
            slurm_conf=self.files.slurm_conf,
            nodes=tuple(self.state.get("nodes", ())),
            gpus_per_node=int(self.state.get("gpus_per_node", 0)),
            accounting=bool(self.state.get("accounting")),
            isolated=bool(self.state.get("isolated")),
            gpus=str(self.state.get("gpus", "fake")),
        )


class Journal:
    """Records each process and interface as it starts; each line is one JSON object."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str, token: str, run: Path) -> None:
        line = {"lab": name, "token": token, "run": str(run), "host": platform.node()}
        self._write({**line, "boot": boot_id()})

    def started(self, process: Process) -> None:
        self._write({"process": asdict(process)})

    def link(self, name: str) -> None:
        """Record a network interface of this machine that belongs to the lab."""
        self._write({"link": name})

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def read_record(name: str, root: Path) -> LabRecord:
    """Read a lab's directory; the last line of its journal may be cut short."""
    token = host = boot = ""
    run = root / "run"
    processes: list[Process] = []
    links: list[str] = []
    for line in _journal_lines(lab_paths.journal_of(root)):
        if "lab" in line:
            token, host, boot = str(line["token"]), str(line["host"]), str(line["boot"])
            run = Path(line["run"])
        elif "process" in line:
            processes.append(Process(**line["process"]))
        elif "link" in line:
            links.append(str(line["link"]))
    state = read_json(lab_paths.state_of(root)) or {}
    files = LabDir(root, run)
    return LabRecord(name, files, token, host, boot, tuple(processes), tuple(links), state)


def _journal_lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            lines.append(value)
    return lines


def records() -> list[LabRecord]:
    """Every lab of this user, sorted by name, in whatever state."""
    home = lab_paths.labs_home()
    if not home.is_dir():
        return []
    return [read_record(entry.name, entry.resolve()) for entry in sorted(home.iterdir())]


def write_state(record: LabRecord, lab: Lab, slurm_version: str) -> None:
    """Write lab.json; from then on the lab counts as up."""
    write_json(
        record.files.state,
        {
            "name": lab.name,
            "slurm_conf": str(lab.slurm_conf),
            "nodes": list(lab.nodes),
            "gpus": lab.gpus,
            "gpus_per_node": lab.gpus_per_node,
            "accounting": lab.accounting,
            "isolated": lab.isolated,
            "slurm": slurm_version,
            "processes": [asdict(process) for process in record.daemons],
        },
    )


def list_running() -> list[LabRecord]:
    """The labs that can be used, including one that lost a daemon after it was up."""
    return [record for record in records() if record.state and record.status in (UP, PARTLY)]


def find_lab(environ: Mapping[str, str]) -> Lab:
    """Find the lab to use: the one that SLURM_CONF names, otherwise the only one that runs.

    Raises LabError if none runs, several run, or SLURM_CONF names none.
    """
    named = environ.get("SLURM_CONF", "")
    if named:
        return _find_by_conf(Path(named))
    labs = list_running()
    if not labs:
        raise LabError("no lab is running; start one with `clustersmoke lab up`")
    if len(labs) > 1:
        names = ", ".join(record.name for record in labs)
        raise LabError(
            f"{len(labs)} labs are running ({names}); choose one with "
            f'`eval "$(clustersmoke lab env --name {labs[0].name})"`'
        )
    return labs[0].lab()


def _find_by_conf(conf: Path) -> Lab:
    real = Path(os.path.realpath(conf))
    candidates = [*records(), read_record(real.parent.name, real.parent)]
    for record in candidates:
        if record.state and record.files.root == real.parent:
            if record.status in (DOWN, ELSEWHERE):
                raise LabError(
                    f"SLURM_CONF is {conf}, but that lab is {record.status}; run `unset "
                    "SLURM_CONF`, then `clustersmoke lab up`"
                )
            return record.lab()
    return read_foreign_slurm(conf)


def read_foreign_slurm(conf: Path) -> Lab:
    """Describe a Slurm that is not a lab of ours, from its slurm.conf."""
    try:
        text = conf.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LabError(
            f"SLURM_CONF is {conf}, which cannot be read ({error.strerror}); run `unset "
            "SLURM_CONF`, then `clustersmoke lab up`"
        ) from error
    nodes: list[str] = []
    gpus: list[int] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        match = re.match(r"\s*NodeName=(\S+)", line, re.IGNORECASE)
        if match and match[1].upper() != "DEFAULT":
            nodes += expand_hostlist(match[1])
            gpus.append(_gpus(line))
    if not nodes:
        raise LabError(f"SLURM_CONF is {conf}, which names no nodes; run `unset SLURM_CONF`")
    accounting = re.search(r"(?im)^\s*AccountingStorageType=\S*slurmdbd", text) is not None
    return Lab(str(conf), conf, tuple(nodes), min(gpus), accounting, isolated=False)


def _gpus(line: str) -> int:
    """The GPUs of a node line in slurm.conf: `Gres=gpu:fake:2`, `gpu:2` or `gpu`."""
    gres = re.search(r"(?i)\bGres=(\S+)", line)
    total = 0
    for entry in gres[1].split(",") if gres else ():
        parts = re.sub(r"\(.*?\)", "", entry).split(":")
        if parts[0] == "gpu":
            total += int(parts[-1]) if parts[-1].isdigit() else 1
    return total


def export_line(lab: Lab) -> str:
    """The line that a shell evaluates to use the lab."""
    return f"export SLURM_CONF={shlex.quote(str(lab.slurm_conf))}"
