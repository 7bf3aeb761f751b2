"""Starts a lab: makes its directory, starts its daemons in order, waits until nodes are idle."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..evidence.run_directory import write_atomically
from ..text import plural
from . import accounting, lab_state, packages, slurm_config, teardown
from . import memory_limits as memory
from .addresses import (
    LOOPBACK,
    Control,
    choose_control_address,
    find_address_obstacle,
    is_listening,
    own_hosts_prefix,
    reserve_ports,
    resolve_own_name,
)
from .daemons import Daemons, munged_command
from .isolation import Isolation, find_isolation_obstacle
from .lab_claim import claim
from .lab_gpus import NodeGpus, divide_gpus
from .lab_paths import LabDir
from .lab_settings import Lab, LabError, LabSettings, LabStartError, check_settings
from .lab_state import LabRecord
from .memory_limits import find_memory_obstacle
from .slurm_config import NodePlan, Plan

Say = Callable[[str], None]
TIMEOUT_S = 60.0
# For each question that slurmctld is asked meanwhile.
ANSWER_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Site:
    """Where the daemons run: on this host, or each node in its own namespaces.

    `prefixes` has, for each node, the command prefix that runs a command on that node.
    """

    control: Control
    control_port: int
    accounting_port: int
    nodes: tuple[NodePlan, ...]
    prefixes: tuple[tuple[str, ...], ...]


def find_obstacle(
    accounting: bool = False, isolated: bool = False, memory: bool = False
) -> str | None:
    """Why this machine cannot run such a lab; None if it can."""
    missing = packages.missing_packages(accounting, isolated)
    if missing:
        options = " --accounting" * accounting + " --isolated" * isolated
        return (
            f"{', '.join(missing)} not installed; run `clustersmoke lab install{options}` as root "
            "on Debian or Ubuntu"
        )
    limits = find_memory_obstacle() if memory else None
    return limits or (find_isolation_obstacle() if isolated else find_address_obstacle())


def bring_up(settings: LabSettings, say: Say) -> Lab:
    """Start a lab and wait until every node is idle.

    Raises UsageProblems for invalid settings, LabError if this machine cannot run it or the
    name is taken, LabStartError if it did not start; then only its logs are left.
    """
    check_settings(settings)
    reason = find_obstacle(settings.accounting, settings.isolated, settings.memory)
    if reason:
        raise LabError(f"no lab can be started on this machine: {reason}")
    shares = divide_gpus(settings)
    began = time.monotonic()
    root = claim(settings, say)
    try:
        lab = _start(settings, shares, root, say)
    except LabStartError as error:
        kept = teardown.end_lab(lab_state.read_record(settings.name, root), keep_logs=True)
        # The log that the error names was moved.
        raise LabStartError(str(error).replace(str(root / "log"), str(kept))) from None
    except BaseException:
        say(f"lab {settings.name}: stopped; ending what was started")
        teardown.end_lab(lab_state.read_record(settings.name, root))
        raise
    say(f"  {plural(len(lab.nodes), 'node')} idle: ready after {time.monotonic() - began:.1f} s")
    return lab


def _start(settings: LabSettings, shares: NodeGpus, root: Path, say: Say) -> Lab:
    record = lab_state.read_record(settings.name, root)
    files = record.files
    files.make()
    daemons = Daemons(files, record.token, lab_state.Journal(files.journal), TIMEOUT_S)
    version = _read_version()
    nodes, gpus = plural(settings.nodes, "node"), plural(shares.per_node, f"{settings.gpus} GPU")
    say(f"lab {settings.name}: Slurm {version}, {nodes} with {gpus} each, in {root}")
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(_reserve_site(settings, record, daemons))
        plan = _make_plan(settings, shares, files, site, version)
        write_files(plan)
        if settings.memory:
            memory.make_group(files, record.token)
        _start_slurm(plan, site, daemons, say)
    lab = Lab(
        settings.name,
        files.slurm_conf,
        tuple(node.name for node in site.nodes),
        shares.per_node,
        settings.accounting,
        settings.isolated,
        settings.gpus,
    )
    lab_state.write_state(lab_state.read_record(settings.name, root), lab, version)
    return lab


@contextlib.contextmanager
def _reserve_site(settings: LabSettings, record: LabRecord, daemons: Daemons) -> Iterator[Site]:
    """Choose addresses and ports; inside the block no other process can take them."""
    with contextlib.ExitStack() as stack:
        if settings.isolated:
            isolation = Isolation(record, daemons)
            address, nodes = stack.enter_context(isolation.network(settings.nodes))
            control = Control(address, own_hosts_prefix(record.files))
            prefixes = isolation.join_nodes(nodes)
        else:
            control = choose_control_address(record.files)
            nodes = _plan_local_nodes(
                stack.enter_context(reserve_ports(control.address, settings.nodes)), control
            )
            prefixes = (control.prefix,) * settings.nodes
        slurmctld, slurmdbd = stack.enter_context(reserve_ports(control.address, 2))
        yield Site(control, slurmctld, slurmdbd, nodes, prefixes)


def _plan_local_nodes(ports: Iterable[int], control: Control) -> tuple[NodePlan, ...]:
    host = os.uname().nodename.partition(".")[0]
    return tuple(
        NodePlan(f"node{index}", host, control.address, port) for index, port in enumerate(ports)
    )


def _make_plan(
    settings: LabSettings, shares: NodeGpus, files: LabDir, site: Site, version: str
) -> Plan:
    uuids = shares.uuids or ((),) * len(site.nodes)
    return Plan(
        files=files,
        cluster=re.sub(r"\W", "_", settings.name),
        user=_user_name(),
        control_host=os.uname().nodename.partition(".")[0],
        control_address=site.control.address,
        control_port=site.control_port,
        nodes=tuple(replace(node, gpus=gpus) for node, gpus in zip(site.nodes, uuids, strict=True)),
        cpus_per_node=settings.cpus_per_node,
        gpus_per_node=shares.per_node,
        slurm_version=_parse_version(version),
        accounting_port=site.accounting_port if settings.accounting else None,
        memory=settings.memory,
        # Isolated nodes have only private addresses. On the host, srun may listen on a single
        # address only if that is the one that nodes call back to.
        daemons_bound=not settings.isolated,
        clients_bound=not settings.isolated and resolve_own_name() == LOOPBACK,
    )


def write_files(plan: Plan) -> None:
    """Write the configuration files, the munge key and what stands in for devices."""
    files = plan.files
    write_atomically(files.slurm_conf, slurm_config.render_slurm_conf(plan, plan.clients_bound))
    write_atomically(plan.daemons_conf, slurm_config.render_slurm_conf(plan, plan.daemons_bound))
    write_atomically(files.gres_conf, slurm_config.render_gres_conf(plan))
    write_atomically(files.cgroup_conf, slurm_config.render_cgroup_conf(plan))
    write_atomically(files.plugstack_conf, "")
    if plan.real_gpus:
        write_atomically(files.task_prolog, slurm_config.render_task_prolog(plan))
        files.task_prolog.chmod(0o755)
    if plan.accounting_port is not None:
        write_atomically(files.slurmdbd_conf, slurm_config.render_slurmdbd_conf(plan))
    files.munge_key.touch(mode=0o600)
    files.munge_key.write_bytes(secrets.token_bytes(128))
    for index in range(plan.gpus_per_node):
        # slurmd requires a character device; a link to one can be made without root.
        (files.devices / f"nvidia{index}").symlink_to("/dev/null")


def _start_slurm(plan: Plan, site: Site, daemons: Daemons, say: Say) -> None:
    """Start the daemons, each once the one it depends on is ready."""
    files = plan.files
    if plan.accounting_port is not None:
        accounting.start_database(files, plan.user, daemons)
    daemons.start("munged", munged_command(files, packages.program_path("munged")))
    daemons.wait("munged", files.munge_socket.is_socket, "open its socket")
    if plan.accounting_port is not None:
        accounting.start_slurmdbd(plan, site.control.prefix, daemons)
        say(f"  slurmdbd listens on {plan.control_address}:{plan.accounting_port}")
    slurmctld = [packages.program_path("slurmctld"), "-D", "-f", str(plan.daemons_conf)]
    daemons.start("slurmctld", [*site.control.prefix, *slurmctld])
    _wait_for_port("slurmctld", plan.control_address, plan.control_port, daemons)
    say(f"  slurmctld listens on {plan.control_address}:{plan.control_port}")
    slurmd = packages.program_path("slurmd")
    for node, prefix in zip(plan.nodes, site.prefixes, strict=True):
        command = [*prefix, slurmd, "-D", "-N", node.name, "-f", str(plan.daemons_conf)]
        daemons.start(f"slurmd-{node.name}", command)
    for node in plan.nodes:
        _wait_for_port(f"slurmd-{node.name}", node.address, node.port, daemons)
    _wait_for_nodes(plan, daemons)


def _wait_for_port(role: str, address: str, port: int, daemons: Daemons) -> None:
    daemons.wait(role, lambda: is_listening(address, port), f"listen on {address}:{port}")


def _wait_for_nodes(plan: Plan, daemons: Daemons) -> None:
    from ..jobs.slurm_client import SlurmClient, SlurmUnavailable  # loads pydantic

    client = SlurmClient(daemons.environ, ANSWER_TIMEOUT_S)
    waiting = {node.name for node in plan.nodes}

    def all_idle() -> bool:
        with contextlib.suppress(SlurmUnavailable):  # not yet
            states = client.node_states()
            waiting.difference_update(name for name in states if states[name] == "idle")
        return not waiting

    first = plan.nodes[0].name
    daemons.wait(f"slurmd-{first}", all_idle, "register")


def _user_name() -> str:
    """The name of the effective user: the daemons compare it with the owner of the process."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise LabError(
            f"user id {os.geteuid()} has no user name on this machine, which Slurm requires; add "
            "it to /etc/passwd"
        ) from None


def _read_version() -> str:
    answer = subprocess.run(
        [packages.program_path("slurmctld"), "-V"], capture_output=True, text=True, errors="replace"
    )
    output = answer.stdout.split()
    if answer.returncode or not output:
        raise LabStartError(f"`slurmctld -V` failed: {answer.stderr.strip() or 'no error message'}")
    return output[-1]


def _parse_version(version: str) -> tuple[int, int]:
    """The year and month of a Slurm version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise LabStartError(
            f"`slurmctld -V` printed {version!r}; expected a version such as 22.05.8"
        )
    return int(match[1]), int(match[2])
