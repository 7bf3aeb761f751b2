"""Turns a survey of a cluster into the values of its cluster.yaml, with reasons for guesses."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import socket
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Any

from ..config.marker import Needs
from ..preflight.precision import lacks_bf16
from ..text import plural
from .host_survey import HostSurvey, parse_entry
from .partition_survey import ClusterSurvey, NodeKind, PartitionChoice, gpu_words
from .suite_files import shipped_phases, shipped_profile

TEMPLATE = "cluster.yaml.j2"
WIDTH = 100
# Slurm's type of the lab's GPUs, which have no device.
FAKE_GPU = "fake"
# Ranks per node without GPUs, if there are enough cores.
CPU_RANKS = 2
DISK = "/tmp"
# Variables of a site's scratch directories; the first usable one is taken.
SCRATCH = ("SCRATCH", "WORK", "WORKDIR")
# Ranks that a phase of one whole node needs to communicate.
PAIR = 2
# Time limits of jobs in seconds, if the partition allows them.
ONE_NODE_S, SEVERAL_NODES_S = 1800, 3600
# The share of a node's memory for jobs; the rest is for the system.
MEMORY_SHARE = 0.9
_MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/@-]*")


@dataclass(frozen=True)
class DraftPhase:
    """A phase of the profile; `left_out` is the reason if it is left out, `remark` what it needs
    besides nodes and GPUs."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    left_out: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Wishes:
    """The options of the user, and the directory for the files."""

    directory: Path
    name: str | None = None
    partition: str | None = None
    hosts: str | None = None
    ssh_config: Path | None = None
    shared_dir: Path | None = None


@dataclass
class ClusterDraft:
    """A profile to write. `guesses` has the reason for each guessed key, by its full name and in
    the order of the file; `found` is what the survey found, as lines for the user."""

    name: str
    backend: str
    description: str
    found: list[str]
    phases: list[DraftPhase]
    lab: bool = False
    shared_dir: str = ""
    python: str = ""
    node_local: list[str] = field(default_factory=list)
    hardware: dict[str, Any] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    slurm: dict[str, Any] = field(default_factory=dict)
    hosts: list[Any] = field(default_factory=list)
    ssh: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)
    expect: dict[str, dict[str, Any]] = field(default_factory=dict)
    guesses: dict[str, str] = field(default_factory=dict)

    def guess(self, key: str, *reasons: str) -> None:
        """Record why a value is a guess, if there is a reason."""
        if why := "; ".join(filter(None, reasons)):
            self.guesses[key] = why

    def render(self) -> str:
        """The text of cluster.yaml."""
        import jinja2

        made = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        made.filters |= {"yaml": _flow, "comment": _comment}
        return made.get_template(TEMPLATE).render(vars(self))


def draft_local(wishes: Wishes, why: str) -> ClusterDraft:
    """A profile of this machine, if there is no Slurm."""
    shipped = shipped_profile("local")
    shared = wishes.shared_dir
    return ClusterDraft(
        name=wishes.name or "local",
        backend=shipped["backend"],
        description=shipped["description"],
        found=[f"no Slurm found ({why}): the profile runs on this machine"],
        phases=_small_phases(shipped["phases"], inf, CPU_RANKS),
        shared_dir=_plain(shared) if shared else shipped["shared_dir"],
        hardware=shipped["hardware"],
        small=shipped,
    )


def draft_slurm(
    wishes: Wishes, survey: ClusterSurvey, choice: PartitionChoice, environ: Mapping[str, str]
) -> ClusterDraft:
    """A profile of the cluster that was surveyed."""
    kind, partition = choice.kind, choice.partition
    lab = kind.gpu == FAKE_GPU
    small = shipped_profile("lab") if lab or not kind.gpus else {}
    ranks = kind.gpus or min(CPU_RANKS, max(1, kind.cpus))
    named = re.sub(r"[^A-Za-z0-9_-]+", "-", survey.config.cluster).strip("-_")
    where = f"Slurm cluster {survey.config.cluster}, partition {partition.name}"
    draft = ClusterDraft(
        name=wishes.name or named or "cluster",
        backend="slurm",
        description=_plain(f"{where}: {_node_words(kind)}"),
        found=_describe_survey(survey, choice, environ),
        phases=_small_phases(small["phases"], choice.max_nodes, ranks)
        if small
        else _phases(kind, choice.max_nodes, choice),
        lab=lab,
        setup=_module_lines(environ),
        limits=small["limits"] if lab else {},
        small=small,
    )
    _set_paths(draft, wishes, kind, environ)
    _describe_hardware(draft, choice, ranks)
    if draft.setup:
        draft.guess("setup", "the modules of the shell that ran init")
    _choose_options(draft, survey, choice)
    if not small:
        node = f"{kind.cpus} CPUs, {kind.memory / 1024:.0f} GiB, a tenth of which is left to the"
        why = f"each job gets CPUs and memory in proportion to its GPUs (a node has {node} system)"
        draft.guess("phases", why)
        _note_needs(draft)
        _expect_transports(draft)
    return draft


def host_keys(wishes: Wishes, environ: Mapping[str, str]) -> dict[str, Any]:
    """The keys of a profile by which its hosts can be asked."""
    config = wishes.ssh_config
    return {
        "shared_dir": _plain(_choose_run_directory(wishes, environ)[0]),
        "python": _plain(shlex.quote(sys.executable)),
        "setup": _module_lines(environ),
        "hosts": [parse_entry(_plain(entry)) for entry in (wishes.hosts or "").split(",")],
        "ssh": {"config": _plain(config)} if config else {},
    }


def draft_ssh(wishes: Wishes, survey: HostSurvey, environ: Mapping[str, str]) -> ClusterDraft:
    """A profile of the hosts that were surveyed."""
    kind = survey.kind
    small = {} if kind.gpus else shipped_profile("lab")
    ranks = kind.gpus or min(CPU_RANKS, max(1, kind.cpus))
    keys = host_keys(wishes, environ)
    draft = ClusterDraft(
        name=wishes.name or "hosts",
        backend="ssh",
        description=_plain(f"hosts without a scheduler: {_node_words(kind)}"),
        found=survey.found,
        phases=_small_phases(small["phases"], kind.nodes, ranks)
        if small
        else _phases(kind, kind.nodes),
        **{key: keys[key] for key in ("hosts", "ssh", "setup")},
        hardware={
            "gpu": _plain(kind.gpu or "any") if kind.gpus else "none",
            "device": "cuda" if kind.gpus else "cpu",
            "gpus_per_node": ranks,
        },
        small=small,
    )
    _set_paths(draft, wishes, kind, environ)
    draft.guess("python", draft.guesses.pop("python", ""), *survey.python_faults)
    if draft.setup:
        draft.guess("setup", "the modules of the shell that ran init")
    if not kind.gpus:
        draft.guess("hardware.gpus_per_node", "this is a number of CPU ranks: no GPU was found")
    if not small:
        _note_needs(draft)
        _expect_transports(draft)
    return draft


def _node_words(kind: NodeKind) -> str:
    return f"{plural(kind.nodes, 'node')} of {gpu_words(kind.gpu, kind.gpus)}"


def _describe_survey(
    survey: ClusterSurvey, choice: PartitionChoice, environ: Mapping[str, str]
) -> list[str]:
    config, kind, partition = survey.config, choice.kind, choice.partition
    limit = partition.max_time
    limit_text = f"{limit / 3600:g} h" if 0 < limit < inf else "none"
    conf, accounts = environ.get("SLURM_CONF"), ", ".join(survey.accounts)
    return [
        f"Slurm {config.version}, cluster {config.cluster}; partitions: "
        f"{', '.join(survey.partitions)}",
        *(
            [f"SLURM_CONF selects this cluster; set SLURM_CONF for pytest as well: {conf}"]
            if conf
            else []
        ),
        f"partition {partition.name}{' (the default)' * partition.default}: {_node_words(kind)}, "
        f"{kind.cpus} CPUs, {kind.memory / 1024:.0f} GiB; time limit of a job: {limit_text}",
        *([f"accounts: {accounts}"] if accounts else []),
        *([f"{choice.slices} GPU slices (MIG) are left out"] if choice.slices else []),
    ]


# Paths.


def _set_paths(
    draft: ClusterDraft, wishes: Wishes, kind: NodeKind, environ: Mapping[str, str]
) -> None:
    """The run directory, the interpreter, and what nodes do not share."""
    hostname = socket.gethostname()
    remote = not kind.hosts <= {hostname, hostname.split(".")[0], "localhost"}
    # Hosts were asked whether they do.
    shared = "every node must see it at the same path" if remote and not draft.hosts else ""
    runs, why = _choose_run_directory(wishes, environ)
    python = Path(sys.executable)
    draft.shared_dir, draft.python = _plain(runs), _plain(shlex.quote(str(python)))
    draft.guess("shared_dir", why, shared)
    if remote and not any(path.is_relative_to(DISK) for path in (runs, wishes.directory, python)):
        draft.node_local = [DISK]
        draft.guess("node_local", f"nodes usually have their own {DISK}")
    lacks = (
        ""
        if importlib.util.find_spec("torch")
        else "torch is missing: install pytest-clustersmoke[train] into it"
    )
    draft.guess("python", shared, lacks)


def _choose_run_directory(wishes: Wishes, environ: Mapping[str, str]) -> tuple[Path, str]:
    """The run directory, and why it is a guess (empty if the user chose it).

    It is below a scratch directory that the shell names, or next to the suite, which the nodes must
    see in any case.
    """
    if wishes.shared_dir is not None:
        return wishes.shared_dir, ""
    for name in SCRATCH:
        path = Path(environ.get(name, ""))
        if path.is_absolute() and os.access(path, os.W_OK | os.X_OK):
            return path / "clustersmoke" / "runs", f"taken from ${name} of this shell"
    return wishes.directory / "runs", "it is next to the suite"


def _module_lines(environ: Mapping[str, str]) -> list[str]:
    """Lines that load the modules of this shell, if it has any."""
    loaded = environ.get("LOADEDMODULES", "").split(":")
    names = [name for name in loaded if _MODULE.fullmatch(name)]
    return ["module purge", *(f"module load {name}" for name in names)] if names else []


# Resources of jobs.


def _describe_hardware(draft: ClusterDraft, choice: PartitionChoice, ranks: int) -> None:
    kind = choice.kind
    draft.hardware = {
        "gpu": "any" if not draft.small else kind.gpu if kind.gpus else "none",
        "device": "cpu" if draft.small else "cuda",
        "gpus_per_node": ranks,
        "nodes": kind.nodes,
    }
    if not draft.small:
        called = f"Slurm calls it {kind.gpu}" if kind.gpu else "Slurm does not name it"
        why = f"{called}; write the driver's name (`nvidia-smi -L` on a node) to have it checked"
        draft.guess("hardware.gpu", why)
    ranks_why = (
        choice.why_kind
        if kind.gpus
        else "this is a number of CPU ranks, since the nodes have no whole GPUs"
    )
    draft.guess("hardware.gpus_per_node", ranks_why)


def _choose_options(draft: ClusterDraft, survey: ClusterSurvey, choice: PartitionChoice) -> None:
    """Choose sbatch's options for every phase."""
    draft.slurm["partition"] = _plain(choice.partition.name)
    draft.guess("slurm.partition", choice.why)
    accounts = survey.accounts
    if len(accounts) > 1 or (accounts and "associations" in survey.config.enforced):
        draft.slurm["account"] = _plain(survey.default_account or accounts[0])
    if len(accounts) > 1:
        draft.guess("slurm.account", f"this user has the accounts {', '.join(accounts)}")
    if draft.small:
        draft.slurm["cpus_per_task"] = min(CPU_RANKS, max(1, choice.kind.cpus))
        draft.slurm["time"] = int(min(600, choice.partition.max_time) // 60) or 1


def _small_phases(
    shipped: Mapping[str, Mapping[str, Any]], nodes: float, ranks: int
) -> list[DraftPhase]:
    """The phases, small enough for two cores to train in seconds, on nodes with this many ranks."""
    phases = []
    marks = {marked.name: marked for marked in shipped_phases()}
    for name, values in shipped.items():
        settings, marked = dict(values), marks[name]
        needed = int(settings.get("nodes", marked.nodes))
        ranks_needed = int(settings.get("gpus_per_node", marked.gpus_per_node))
        if fewest := marked.needs.min_nodes:
            needed = settings["nodes"] = int(min(needed, max(nodes, fewest)))
        why = _too_few(needed, ranks_needed, nodes, ranks, "ranks") or _lacks_torch(marked.needs)
        phases.append(DraftPhase(name, settings, why))
    return phases


def _phases(kind: NodeKind, most: int, choice: PartitionChoice | None = None) -> list[DraftPhase]:
    """The phases in their documented sizes; with Slurm, jobs ask for CPUs, memory and time."""
    phases = []
    for marked in shipped_phases():
        nodes, gpus, needs = marked.nodes, marked.gpus_per_node, marked.needs
        if needs.min_nodes:
            nodes = int(max(needs.min_nodes, min(nodes, most)))
        if needs.whole_nodes:
            gpus = max(kind.gpus, 1 if nodes > 1 else PAIR)
        why = _too_few(nodes, gpus, most, kind.gpus, "GPUs")
        why = why or (lacks_bf16(kind.gpu) if needs.bf16 else "") or _lacks_torch(needs)
        settings: dict[str, Any] = {"nodes": nodes, "gpus_per_node": gpus}
        if choice is not None:
            settings["slurm"] = {**_share(kind, gpus), "time": _time(nodes, choice)}
        phases.append(DraftPhase(marked.name, settings, why, _describe_needs(needs)))
    return phases


def _note_needs(draft: ClusterDraft) -> None:
    """Record what somebody must provide for phases."""
    for phase in draft.phases:
        if phase.remark and not phase.left_out:
            draft.guess(f"phases.{phase.name}", phase.remark)


def _describe_needs(needs: Needs) -> str:
    """What somebody must provide on the nodes; empty if nothing."""
    if needs.extra:
        return f"its program needs pip install 'pytest-clustersmoke[{needs.extra}]' on the nodes"
    return f"it downloads {needs.downloads} to the node's $HF_HOME" if needs.downloads else ""


def _too_few(nodes: int, per_node: int, most: float, has: int, unit: str) -> str:
    """Why a phase does not fit; empty if it does."""
    if per_node > has:
        return f"needs {per_node} {unit} per node, nodes have {has}"
    return f"needs {nodes} nodes, a job can have {most:g}" if nodes > most else ""


def _lacks_torch(needs: Needs) -> str:
    """Why a phase does not run with the torch of this interpreter, which the profile names; empty
    if it does, or if there is none yet."""
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
    wanted, has = ([int(part) for part in re.findall(r"\d+", v)[:2]] for v in (needs.torch, found))
    return f"needs torch {needs.torch} or newer, this Python has {found}" if has < wanted else ""


def _share(kind: NodeKind, gpus: int) -> dict[str, Any]:
    """CPUs and memory in proportion to the GPUs used on a node."""
    part = gpus / kind.gpus
    share: dict[str, Any] = {"cpus_per_task": max(1, int(kind.cpus * part))}
    if memory := int(kind.memory * part * MEMORY_SHARE):
        share["mem"] = f"{memory // 1024}G" if memory >= 1024 else f"{memory}M"
    return share


def _time(nodes: int, choice: PartitionChoice) -> str:
    """The time limit in Slurm's own form."""
    seconds = SEVERAL_NODES_S if nodes > 1 else ONE_NODE_S
    minutes = max(1, int(min(seconds, choice.partition.max_time or inf) // 60))
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def _expect_transports(draft: ClusterDraft) -> None:
    """Expect any transport but the network inside nodes, and leave those between nodes for a
    person to write."""
    why = (
        "until it names the transports between nodes, a run is INCONCLUSIVE: [NET/IB*] for "
        "InfiniBand and RoCE, [NET/Socket] for TCP"
    )
    for phase in draft.phases:
        nodes, gpus = phase.settings["nodes"], phase.settings["gpus_per_node"]
        if phase.left_out or nodes * gpus < 2:
            continue
        expected = draft.expect[phase.name] = {}
        if gpus > 1:
            expected["intra_node"] = ["P2P/*", "SHM*"]
        if nodes > 1:
            expected["inter_node"] = []
            draft.guess(f"expect.{phase.name}.inter_node", why)
        else:
            expected["forbid"] = ["NET/*"]


# The file's form.


def _plain(value: object) -> str:
    """The value as text, escaped so that cluster.yaml expands no variable in it."""
    return str(value).replace("$", "$$")


def _flow(value: Any) -> str:
    """A value as YAML on one line, quoted if YAML would read it as something else."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, width=inf, sort_keys=False)
    return str(text).removesuffix("\n").removesuffix("\n...")


def _comment(text: str, indent: int) -> str:
    margin = f"{' ' * indent}# "
    wrapped = textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=margin)
    return "\n".join(wrapped)
