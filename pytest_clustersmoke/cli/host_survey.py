"""What the hosts of `clustersmoke init --hosts` have, asked over ssh."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config.cluster_file import load_cluster_file
from ..config.profile import Profile
from ..evidence.run_directory import RunDir
from ..jobs.host_probe import HostFacts
from ..jobs.ssh_backend import SshBackend
from ..preflight.host_check import HostCheck
from ..text import Problem, UsageProblems
from .partition_survey import NodeKind, gpu_words

OPTION = "--hosts"
# What is wrong with the interpreter is for a person to correct in cluster.yaml; another run's
# phase will have ended.
PYTHON_FAULTS = {
    "setup-line-failed",
    "python-missing-on-node",
    "package-missing-on-node",
    "versions-differ",
}
PASSING = {"host-in-use"}


@dataclass(frozen=True)
class HostSurvey:
    """What each host has at least; `found` describes each, and `python_faults` says what is wrong
    with the interpreter there."""

    kind: NodeKind
    found: list[str]
    python_faults: list[str]


def survey_hosts(keys: Mapping[str, Any], environ: Mapping[str, str]) -> HostSurvey:
    """Ask the hosts of a profile with these keys. Raises UsageProblems that name each one that
    cannot run phases, and OSError if the directory for the runs cannot be written."""
    profile = _read_profile(keys)
    backend = SshBackend(profile, environ)
    try:
        with _visible_folder(profile.shared_dir) as folder:
            facts, findings = HostCheck(profile, backend).survey(RunDir(folder))
    finally:
        backend.close()
    if faults := [each for each in findings if each.id not in PYTHON_FAULTS | PASSING]:
        raise UsageProblems(Problem(each.cause, OPTION, todo=each.fix) for each in faults)
    gpus = {name: _describe_gpus(each) for name, each in facts.items()}
    if len({*gpus.values()}) > 1:
        listed = ", ".join(f"{name} has {words}" for name, words in gpus.items())
        todo = "omit those that differ, or check whether a GPU is lost (nvidia-smi -L)"
        text = f"the hosts differ: {listed}"
        raise UsageProblems([Problem(text, OPTION, "hosts with the same GPUs", todo)])
    models = next(iter(facts.values())).models
    kind = NodeKind(
        models[0] if len({*models}) == 1 else "",
        len(models),
        cpus=min(each.cores for each in facts.values()),
        memory=min(each.memory for each in facts.values()),
        nodes=len(facts),
        hosts=frozenset(host.host for host in profile.hosts),
    )
    found = [
        f"{name}: {gpus[name]}, {each.cores} CPUs, {each.memory / 1024:.0f} GiB"
        for name, each in facts.items()
    ]
    mistakes = [f"{each.cause}; {each.fix}" for each in findings if each.id in PYTHON_FAULTS]
    return HostSurvey(kind, [*found, "every host sees the directory for the runs"], mistakes)


def _describe_gpus(facts: HostFacts) -> str:
    counts = Counter(sorted(facts.models))
    return " and ".join(gpu_words(model, count) for model, count in counts.items()) or "no GPU"


def parse_entry(text: str) -> str | dict[str, Any]:
    """An entry of `hosts`, from USER@HOST:PORT; an IPv6 address has no port."""
    user, _, rest = text.strip().rpartition("@")
    host, _, port = rest.partition(":")
    if not port.isdecimal():
        host, port = rest, ""
    own = {**({"port": int(port)} if port else {}), **({"user": user} if user else {})}
    return {"host": host, **own} if own else host


def _read_profile(keys: Mapping[str, Any]) -> Profile:
    """A profile to ask the hosts with. Raises UsageProblems if an entry of `hosts` is wrong."""
    hardware = {"gpu": "any", "device": "cpu", "gpus_per_node": 1}
    values = {**keys, "backend": "ssh", "hardware": hardware, "phases": {"any": None}}
    with tempfile.TemporaryDirectory(prefix="clustersmoke-init-") as folder:
        path = Path(folder) / "cluster.yaml"
        path.write_text(json.dumps({"clusters": {"hosts": values}}), encoding="utf-8")
        try:
            return load_cluster_file(path, {}).profile("hosts")
        except UsageProblems as refused:
            raise UsageProblems(
                replace(problem, where=OPTION, what=problem.what.replace("clusters.hosts.", ""))
                for problem in refused.problems
            ) from None


@contextlib.contextmanager
def _visible_folder(shared: Path) -> Iterator[Path]:
    """A directory below `shared`, which is made for it; nothing of it stays."""
    new = [path for path in (shared, *shared.parents) if not path.exists()]
    try:
        shared.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".clustersmoke-init-", dir=shared, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)
    finally:
        for path in new:
            with contextlib.suppress(OSError):
                path.rmdir()
