"""`--cluster-dry-run`: everything that would be submitted, and where each value came from."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..config.hosts import name_hosts
from ..config.marker import SIMPLE_KEYS
from ..config.phase import DEFAULT, Phase, Sourced
from ..config.profile import Profile
from ..evidence.run_directory import MAX_RERUNS, PhaseDir, RunDir
from ..evidence.variable_names import hide_assignments, hide_values
from ..jobs.backend import Submission, make_backend, make_spec
from ..node.launch_environment import defaults, launcher_environment
from ..node.launchers import describe
from ..preflight.variable_remarks import remark_on_plan
from ..text import Problem, shorten
from .phase_ledger import PhaseLedger

MOST_HOSTS = 4


def print_plan(
    phases: Iterable[Phase],
    profile: Profile,
    run_id: str,
    refused: Iterable[Problem] = (),
    here: bool = False,
    avoided: Iterable[str] = (),
) -> None:
    """Print each phase's batch script, environment, command line of its launcher and sources to
    stdout, after the reasons why a real run would be refused. `here`: as steps of an allocation;
    `avoided`: nodes that no job gets."""
    backend = make_backend(profile, os.environ, here and profile.backend == "slurm")
    run = RunDir(profile.shared_dir / run_id)
    ledger = PhaseLedger(run, profile.limits, backend.avoids, avoided)
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")  # paths and arguments may hold any character
    out.write(f"\ncluster {profile.name}: nothing is submitted\n")
    if profile.history_check == "confirm":
        out.write(
            f"history_check: confirm: up to {MAX_RERUNS} reruns of a phase with a lasting loss\n"
        )
    out.writelines(f"a run would be refused: {problem}\n" for problem in refused)
    for phase in phases:
        directory = ledger.directory(phase)
        job = Submission(phase, directory, avoid=ledger.avoided(phase.name))
        out.write(f"\n=== {phase.name} ({phase.where})\n")
        out.write(f"--- batch script\n{hide_assignments(backend.script(job))}\n")
        shown = _hide_secrets(phase)
        for title, lines in (
            ("environment of the node", _environment_lines(phase, profile, directory)),
            (_title_launch(phase), [_launch_line(shown, profile, directory)]),
            ("where each value came from", _source_lines(shown)),
        ):
            out.write(f"--- {title}\n")
            out.writelines(f"{line}\n" for line in lines)
    out.flush()


def _hide_secrets(phase: Phase) -> Phase:
    """The phase without arguments and options of sbatch that may be secrets."""

    def hide(settings: Mapping[str, Sourced]) -> dict[str, Sourced]:
        shown = hide_values({name: setting.value for name, setting in settings.items()})
        return {name: replace(each, value=shown[name]) for name, each in settings.items()}

    return replace(phase, args=hide(phase.args), slurm=hide(phase.slurm))


def _title_launch(phase: Phase) -> str:
    name = phase.launcher.value
    if name == "none":
        return "command line, on each node"
    return f"{name} line, on {'node 0' if name == 'srun' else 'each node'}"


def _launch_line(phase: Phase, profile: Profile, directory: PhaseDir) -> str:
    return describe(make_spec(phase, profile, directory), directory)


def _environment_lines(phase: Phase, profile: Profile, directory: PhaseDir) -> Iterator[str]:
    for name, setting in phase.env_unset.items():
        yield f"unset {name}    # {setting.source}"
    shown = hide_values({name: setting.value for name, setting in phase.env_set.items()})
    for name, value in shown.items():
        yield f"{name}={value}    # {phase.env_set[name].source}"
    configured = {name: str(setting.value) for name, setting in phase.env_set.items()}
    ours = launcher_environment(
        directory, profile.hardware.device, "$NODE_RANK", _describe_node_name(profile), configured
    )
    for name, value in ours.items():
        yield f"{name}={value}    # the launcher"
    for name, value in defaults(directory, "$NODE_RANK").items():
        if name not in phase.env_set:
            yield f"{name}={value}    # the launcher, unless already set"
    for remark in remark_on_plan(phase, profile, os.environ):
        yield str(remark)


def _describe_node_name(profile: Profile) -> str:
    """The node's name; hosts are only chosen when the phase starts."""
    if profile.backend == "ssh":
        names = list(name_hosts(profile.hosts))
        return f"{'one of ' * (len(names) > 1)}{shorten(names, MOST_HOSTS)}"
    return "local$NODE_RANK" if profile.backend == "local" else "$SLURMD_NODENAME"


def _source_lines(phase: Phase) -> Iterator[str]:
    rows: list[tuple[str, Any, str]] = [("script", phase.script, phase.where)]
    for name in SIMPLE_KEYS:
        setting: Sourced = getattr(phase, name)
        if setting.source == DEFAULT:  # many phases prove no step
            continue
        rows.append((name, setting.value, setting.source))
    if phase.trace is not None:
        rows.append(("trace", phase.trace, "--cluster-trace"))
    groups: Mapping[str, Mapping[str, Sourced]] = {
        "args": phase.args,
        "slurm": phase.slurm,
        "stage_limits_s": phase.stage_limits_s,
    }
    for group, values in groups.items():
        rows += [(f"{group}.{name}", value.value, value.source) for name, value in values.items()]
    width = max(len(name) for name, _, _ in rows)
    for name, value, source in rows:
        yield f"{name:<{width}}  {value}    # {source}"
