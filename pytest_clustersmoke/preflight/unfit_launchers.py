"""Find launchers that cannot start a phase's ranks here, and those that need SSH between nodes.

SSH is not needed: the scheduler starts one task on each node, and the phase's launcher starts the
ranks there. Many clusters do not allow it (Gilbreth HPC Training Guide, section 4.3).
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from pathlib import Path

from ..config.phase import Phase
from ..config.profile import Profile
from ..text import Problem

SSH_LAUNCHERS = frozenset({"deepspeed", "pdsh", "mpirun", "mpiexec"})
HOST_FILES = frozenset({"hostfile", "host_file", "hostsfile"})
# DeepSpeed's --launcher (deepspeed/launcher/constants.py).
REMOTE = frozenset({"pdsh", "openmpi", "mpich", "impi", "mvapich", "ssh"})
# Calls that start another program: of subprocess, os and asyncio.
STARTERS = frozenset(
    {"run", "Popen", "call", "check_call", "check_output", "getoutput", "system", "popen"}
    | {"execv", "execve", "execvp", "execlp", "spawnv", "spawnvp"}
    | {"create_subprocess_exec", "create_subprocess_shell"}
)
EXPECTED = "a program that torchrun runs on each node (`srun` reaches the nodes without SSH)"


def find_launchers(profile: Profile, phases: list[Phase]) -> Iterator[Problem]:
    """Find launchers in `python`, `setup`, and the phases' arguments and scripts."""
    if profile.python and (word := _program_of(_split(profile.python))) in SSH_LAUNCHERS:
        yield Problem(
            f"`python` is the launcher `{word}`",
            profile.where("python"),
            "the shell command for Python on the nodes",
        )
    for index, line in enumerate(profile.setup):
        words = _split(line)
        if _program_of(words) == "deepspeed" and not _stays_on_its_node(words):
            yield Problem(
                "a setup line starts the launcher `deepspeed`, which reaches other nodes over SSH",
                profile.where("setup", index),
                EXPECTED,
                "remove it: `setup` runs before the job's work, on its first node",
            )
    for phase in phases:
        yield from _check_launcher(phase, profile)
        yield from _check_arguments(phase)
    for phase in {phase.script: phase for phase in phases}.values():
        yield from _check_script(phase)


def _check_launcher(phase: Phase, profile: Profile) -> Iterator[Problem]:
    """The launcher that the phase's marker, the profile or --cluster-set names."""
    nodes, ranks, launcher = phase.nodes.value, phase.gpus_per_node.value, phase.launcher
    container = [name for name in phase.slurm if name.startswith("container")]
    if not container and len(_split(profile.python or "")) > 1:
        container = ["`python`"]
    misfits = (  # launcher, whether it cannot start the phase, why, what was expected, what to do
        (
            "srun",
            profile.backend != "slurm",
            f", but the backend of `{profile.name}` is `{profile.backend}`",
            "a cluster with Slurm, whose `srun` starts the ranks",
            "use `torchrun` here",
        ),
        (
            "srun",
            bool(container),
            f", and its job runs in a container ({', '.join(container)})",
            "a job outside of containers, where `srun` can start a step of the job",
            "use `torchrun`, which starts the ranks inside the container",
        ),
        (
            "deepspeed",
            nodes > 1,
            f" and {nodes} nodes, and that launcher reaches other nodes over SSH",
            "one node",
            "use `torchrun` or `srun`: DeepSpeed's engine works the same under them",
        ),
        (
            "none",
            ranks > 1,
            f", which starts one process on each node, but {ranks} GPUs per node",
            "gpus_per_node: 1",
            "use a launcher that starts a rank for each GPU, such as `torchrun`",
        ),
    )
    for name, is_misfit, why, expected, todo in misfits:
        if launcher.value == name and is_misfit:
            what = f"phase `{phase.name}` has `launcher: {name}`{why}"
            yield Problem(what, launcher.source, expected, todo)


def _check_arguments(phase: Phase) -> Iterator[Problem]:
    for name, argument in phase.args.items():
        remote = name == "launcher" and str(argument.value).lower() in REMOTE
        if (name in HOST_FILES and argument.value) or remote:
            yield Problem(
                f"phase `{phase.name}` has the argument {name}={argument.value}, for a launcher "
                "that reaches other nodes over SSH",
                argument.source,
                EXPECTED,
                "remove the argument",
            )


def _check_script(phase: Phase) -> Iterator[Problem]:
    for line, launcher in _find_started_launchers(phase.script):
        yield Problem(
            f"the script of phase `{phase.name}` starts the launcher `{launcher}` once for each "
            "rank, and that launcher reaches other nodes over SSH",
            f"{phase.script}:{line}",
            EXPECTED,
            "train in the script itself: torchrun starts it once for each rank",
        )


def _find_started_launchers(script: Path) -> list[tuple[int, str]]:
    """Line and launcher of each call that starts one; empty if the script is not Python."""
    try:
        text = script.read_text(errors="replace")
        if not any(word in text for word in SSH_LAUNCHERS):  # a search is faster than parsing
            return []
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    started = [(call.lineno, _words_of(call)) for call in calls if _callee_of(call) in STARTERS]
    return sorted(
        (line, _program_of(words))
        for line, words in started
        if _program_of(words) in SSH_LAUNCHERS and not _stays_on_its_node(words)
    )


def _callee_of(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _words_of(call: ast.Call) -> list[str]:
    """The words of the command that a call starts, as far as the source has them literally; none
    if it does not name the program."""
    nodes = call.args
    if nodes and isinstance(nodes[0], ast.List | ast.Tuple):
        nodes = nodes[0].elts
    if not nodes or not isinstance(nodes[0], ast.Constant):
        return []
    words = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
    return _split(words[0]) + words[1:]


def _stays_on_its_node(words: list[str]) -> bool:
    """Whether `deepspeed` starts ranks on its own node alone: it has no hosts and no SSH then."""
    options = {word.partition("=")[0].replace("-", "_") for word in words}
    hosts = {"__hostfile", "_H", "__include", "_i", "__num_nodes", "__launcher"}
    return _program_of(words) == "deepspeed" and "__num_gpus" in options and not options & hosts


def _program_of(words: list[str]) -> str:
    """The program that a command starts; empty if that is unknown."""
    words = [word for word in words if "=" not in word.split("/", 1)[0]]
    return words[0].rsplit("/", 1)[-1] if words else ""


def _split(line: str) -> list[str]:
    """The words of a shell line; none if it cannot be split."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []
