"""Brings a lab up: its directory, then its daemons in order, then waits until nodes are idle."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..evidence.run_directory import write_atomically
from . import accounting, lab_state, packages, slurm_config, teardown
from . import memory_limits as memory
from .addresses import (
    LOOPBACK,
    Control,
    address_of_host,
    control_here,
    listening,
    reserved,
    why_not_here,
    with_hosts,
)
from .daemons import Daemons, munged_command
from .isolation import Isolation, can_isolate
from .lab_claim import claim
from .lab_paths import LabDir
from .lab_settings import Lab, LabError, LabSettings, LabStartError, check_settings
from .lab_state import LabRecord
from .memory_limits import can_limit
from .slurm_config import NodePlan, Plan

Say = Callable[[str], None]
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Site:
    """Where the daemons run: on this host, or each node in namespaces of its own.

    `enter` holds for each node the words before a command that is to run there.
    """

    control: Control
    control_port: int
    accounting_port: int
    nodes: tuple[NodePlan, ...]
    enter: tuple[tuple[str, ...], ...]


def can_run(accounting: bool = False, isolated: bool = False, memory: bool = False) -> str | None:
    """Why no such lab can be had on this machine; None where one can."""
    missing = packages.missing_packages(accounting, isolated)
    if missing:
        words = " --accounting" * accounting + " --isolated" * isolated
        return (
            f"{', '.join(missing)} not installed; `clustersmoke lab install{words}` as root on "
            "Debian or Ubuntu installs what a lab needs"
        )
    limits = can_limit() if memory else None
    return limits or (can_isolate() if isolated else why_not_here())


def bring_up(settings: LabSettings, say: Say) -> Lab:
    """Start a lab and wait until every node is idle.

    Raises UsageProblems for settings that make no sense, LabError where this machine or name
    cannot have one, LabStartError where it did not start; then nothing of it is left but logs.
    """
    check_settings(settings)
    reason = can_run(settings.accounting, settings.isolated, settings.memory)
    if reason:
        raise LabError(f"no lab can be started here: {reason}")
    began = time.monotonic()
    root = claim(settings, say)
    try:
        lab = _start(settings, root, say)
    except LabStartError as error:
        kept = teardown.end_lab(lab_state.read(settings.name, root), keep_logs=True)
        # The log that the error names has moved.
        raise LabStartError(str(error).replace(str(root / "log"), str(kept))) from None
    except BaseException:
        say(f"lab {settings.name}: stopped; ending what was started")
        teardown.end_lab(lab_state.read(settings.name, root))
        raise
    say(f"  {len(lab.nodes)} nodes idle: ready after {time.monotonic() - began:.1f} s")
    return lab


def _start(settings: LabSettings, root: Path, say: Say) -> Lab:
    record = lab_state.read(settings.name, root)
    files = record.files
    files.make()
    daemons = Daemons(files, record.token, lab_state.Journal(files.journal), PATIENCE_S)
    version = _version()
    kind = f"{settings.nodes} nodes of {settings.gpus_per_node} fake GPUs"
    say(f"lab {settings.name}: Slurm {version}, {kind}, in {root}")
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(_site(settings, record, daemons))
        plan = _plan(settings, files, site, version)
        write_files(plan)
        if settings.memory:
            memory.make(files, record.token)
        _start_slurm(plan, site, daemons, say)
    lab = Lab(
        settings.name,
        files.slurm_conf,
        tuple(node.name for node in site.nodes),
        settings.gpus_per_node,
        settings.accounting,
        settings.isolated,
    )
    lab_state.write_state(lab_state.read(settings.name, root), lab, version)
    return lab


@contextlib.contextmanager
def _site(settings: LabSettings, record: LabRecord, daemons: Daemons) -> Iterator[Site]:
    """Choose addresses and ports; inside the block nobody else can."""
    with contextlib.ExitStack() as stack:
        if settings.isolated:
            isolation = Isolation(record, daemons)
            address, nodes = stack.enter_context(isolation.network(settings.nodes))
            control = Control(address, with_hosts(record.files))
            enter = isolation.enter(nodes)
        else:
            control = control_here(record.files)
            nodes = _nodes_here(
                stack.enter_context(reserved(control.address, settings.nodes)), control
            )
            enter = (control.enter,) * settings.nodes
        slurmctld, slurmdbd = stack.enter_context(reserved(control.address, 2))
        yield Site(control, slurmctld, slurmdbd, nodes, enter)


def _nodes_here(ports: Iterable[int], control: Control) -> tuple[NodePlan, ...]:
    host = os.uname().nodename.partition(".")[0]
    return tuple(
        NodePlan(f"node{index}", host, control.address, port) for index, port in enumerate(ports)
    )


def _plan(settings: LabSettings, files: LabDir, site: Site, version: str) -> Plan:
    return Plan(
        files=files,
        cluster=re.sub(r"\W", "_", settings.name),
        user=_user(),
        control_host=os.uname().nodename.partition(".")[0],
        control_address=site.control.address,
        control_port=site.control_port,
        nodes=site.nodes,
        cpus_per_node=settings.cpus_per_node,
        gpus_per_node=settings.gpus_per_node,
        slurm_version=_numbers(version),
        accounting_port=site.accounting_port if settings.accounting else None,
        memory=settings.memory,
        # All addresses of a node of its own are private. In the host, srun may listen on one only
        # where that is the one from which nodes call back.
        daemons_bound=not settings.isolated,
        clients_bound=not settings.isolated and address_of_host() == LOOPBACK,
    )


def write_files(plan: Plan) -> None:
    """Write the configuration, the key that munge signs with, and the fake devices."""
    files = plan.files
    write_atomically(files.slurm_conf, slurm_config.slurm_conf(plan, plan.clients_bound))
    write_atomically(plan.daemons_conf, slurm_config.slurm_conf(plan, plan.daemons_bound))
    write_atomically(files.gres_conf, slurm_config.gres_conf(plan))
    write_atomically(files.cgroup_conf, slurm_config.cgroup_conf(plan))
    write_atomically(files.plugstack_conf, "")
    if plan.accounting_port is not None:
        write_atomically(files.slurmdbd_conf, slurm_config.slurmdbd_conf(plan))
    files.munge_key.touch(mode=0o600)
    files.munge_key.write_bytes(secrets.token_bytes(128))
    for index in range(plan.gpus_per_node):
        # slurmd wants a character device there; a link to one needs no right to make devices.
        (files.devices / f"nvidia{index}").symlink_to("/dev/null")


def _start_slurm(plan: Plan, site: Site, daemons: Daemons, say: Say) -> None:
    """Start the daemons, each when what it asks first is there."""
    files = plan.files
    if plan.accounting_port is not None:
        accounting.start_database(files, plan.user, daemons)
    daemons.start("munged", munged_command(files, packages.program("munged")))
    daemons.wait("munged", files.munge_socket.is_socket, "open its socket")
    if plan.accounting_port is not None:
        accounting.start_slurmdbd(plan, site.control.enter, daemons)
        say(f"  slurmdbd listens on {plan.control_address}:{plan.accounting_port}")
    slurmctld = [packages.program("slurmctld"), "-D", "-f", str(plan.daemons_conf)]
    daemons.start("slurmctld", [*site.control.enter, *slurmctld])
    _wait_for_port("slurmctld", plan.control_address, plan.control_port, daemons)
    say(f"  slurmctld listens on {plan.control_address}:{plan.control_port}")
    slurmd = packages.program("slurmd")
    for node, enter in zip(plan.nodes, site.enter, strict=True):
        command = [*enter, slurmd, "-D", "-N", node.name, "-f", str(plan.daemons_conf)]
        daemons.start(f"slurmd-{node.name}", command)
    for node in plan.nodes:
        _wait_for_port(f"slurmd-{node.name}", node.address, node.port, daemons)
    _wait_for_nodes(plan, daemons)


def _wait_for_port(role: str, address: str, port: int, daemons: Daemons) -> None:
    daemons.wait(role, lambda: listening(address, port), f"listen on {address}:{port}")


def _wait_for_nodes(plan: Plan, daemons: Daemons) -> None:
    from ..jobs.slurm_records import parse_node_states  # loads pydantic

    sinfo = [packages.program("sinfo"), "-h", "-N", "-o", "%N %T"]
    waiting = {node.name for node in plan.nodes}

    def all_idle() -> bool:
        answer = daemons.attempt(sinfo)
        if answer.returncode == 0:
            states = parse_node_states(answer.stdout)
            waiting.difference_update(name for name, status in states if status == "idle")
        return not waiting

    first = plan.nodes[0].name
    daemons.wait(f"slurmd-{first}", all_idle, "register")


def _user() -> str:
    """Who we are, whatever USER says: daemons compare it with the process's owner."""

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise LabError(
            f"user {os.geteuid()} has no name on this machine, and Slurm needs one; add a line for "
            "it to /etc/passwd"
        ) from None


def _version() -> str:
    answer = subprocess.run(
        [packages.program("slurmctld"), "-V"], capture_output=True, text=True, errors="replace"
    )
    words = answer.stdout.split()
    if answer.returncode or not words:
        raise LabStartError(f"`slurmctld -V` failed: {answer.stderr.strip() or 'no answer'}")
    return words[-1]


def _numbers(version: str) -> tuple[int, int]:
    """The year and month of a Slurm version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise LabStartError(f"`slurmctld -V` tells no version that is known: {version!r}")
    return int(match[1]), int(match[2])
