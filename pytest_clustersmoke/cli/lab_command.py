"""`clustersmoke lab`: up, status, env, down, install."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..lab import lab_state, packages, teardown
from ..lab.bringup import bring_up
from ..lab.daemons import clean_environment
from ..lab.lab_gpus import FAKE_PER_NODE
from ..lab.lab_settings import DEFAULT_NAME, LabError, LabSettings
from ..lab.lab_state import LabRecord
from ..text import plural

SINFO_TIMEOUT_S = 3.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    lab = subparsers.add_parser(
        "lab",
        help="run a real Slurm on this machine, with fake or real GPUs",
        description="A real Slurm on this machine: a controller, nodes with fake or real GPUs, two "
        "partitions. It listens on loopback only (isolated nodes on a network of their own), and "
        "leaves nothing behind.",
    )
    actions = lab.add_subparsers(metavar="ACTION", required=True)
    _add_up(actions)
    status = actions.add_parser(
        "status", help="list the labs and their nodes; exit status 1 if none is up"
    )
    status.set_defaults(run=_status)
    env = actions.add_parser("env", help="print the line that makes a shell use a lab")
    env.add_argument("--name", help="which lab, if several run")
    env.set_defaults(run=_env)
    down = actions.add_parser("down", help="end a lab: everything it started, and nothing else")
    which = down.add_mutually_exclusive_group()
    which.add_argument("--name", help="which lab, if there are several")
    which.add_argument("--all", action="store_true", help="every lab of this user")
    down.add_argument("--keep-logs", action="store_true", help="keep the daemons' logs")
    down.set_defaults(run=_down)
    install = actions.add_parser(
        "install", help="install the packages that a lab needs (root, Debian)"
    )
    install.add_argument("--accounting", action="store_true", help="also those for --accounting")
    install.add_argument("--isolated", action="store_true", help="also those for --isolated")
    install.set_defaults(run=_install)


def _add_up(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    defaults = LabSettings()
    up = actions.add_parser("up", help="start a lab, and wait until its nodes are idle")
    up.add_argument(
        "--nodes",
        type=int,
        default=defaults.nodes,
        metavar="N",
        help="number of nodes (default: %(default)s)",
    )
    up.add_argument(
        "--gpus",
        choices=("fake", "real"),
        default=defaults.gpus,
        help="fake GPUs, or this machine's own, each for one node only (default: %(default)s)",
    )
    up.add_argument(
        "--gpus-per-node",
        type=int,
        metavar="N",
        help=f"GPUs per node (default: {FAKE_PER_NODE} fake ones, or an equal share of the real)",
    )
    up.add_argument(
        "--cpus-per-node",
        type=int,
        default=defaults.cpus_per_node,
        metavar="N",
        help="CPUs that each node claims to have (default: %(default)s)",
    )
    up.add_argument(
        "--accounting",
        action="store_true",
        help="run slurmdbd and a private MariaDB: sacct works, accounts and QOS are enforced",
    )
    up.add_argument(
        "--isolated",
        action="store_true",
        help="give each node its own host name, address, /tmp and /dev/shm",
    )
    up.add_argument(
        "--memory",
        action="store_true",
        help="limit jobs to the memory they ask for (--mem): the kernel kills jobs that take more",
    )
    up.add_argument("--name", default=DEFAULT_NAME, help="name of the lab (default: %(default)s)")
    up.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="new directory for its files (default: "
        "${XDG_STATE_HOME:-~/.local/state}/clustersmoke/labs/NAME)",
    )
    up.set_defaults(run=_up)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _up(parsed: argparse.Namespace) -> int:
    lab = bring_up(
        LabSettings(
            name=parsed.name,
            nodes=parsed.nodes,
            gpus=parsed.gpus,
            gpus_per_node=parsed.gpus_per_node,
            cpus_per_node=parsed.cpus_per_node,
            accounting=parsed.accounting,
            isolated=parsed.isolated,
            memory=parsed.memory,
            directory=parsed.dir,
        ),
        _say,
    )
    option = "" if lab.name == DEFAULT_NAME else f" --name {lab.name}"
    _say(f'For this shell: eval "$(clustersmoke lab env{option})"')
    if lab.gpus == "fake":
        _say("For the suite:  pytest --cluster lab")
    else:  # the profile `lab` trains on the CPU
        _say("For the suite:  clustersmoke init, which writes a profile of these nodes")
    _say(f"To end it:      clustersmoke lab down{option}")
    return 0


def _status(_: argparse.Namespace) -> int:
    records = lab_state.records()
    if not records:
        print("no labs; start one with `clustersmoke lab up`")
    for record in records:
        _print_record(record)
    return 0 if any(record.status == lab_state.UP for record in records) else 1


def _print_record(record: LabRecord) -> None:
    lab = record.lab()
    kinds = ", with accounting" * lab.accounting + ", isolated" * lab.isolated
    print(f"{record.name}: {record.status}{kinds}")
    if record.status == lab_state.ELSEWHERE:
        print(f"  host        {record.host}")
        return
    if record.state:
        print(f"  SLURM_CONF  {lab.slurm_conf}")
    if record.status in (lab_state.UP, lab_state.PARTLY):
        gone = [process.role for process in record.daemons if not process.alive]
        if gone:
            print(f"  ended       {', '.join(gone)}")
        print(f"  nodes       {_nodes(record)}")
    if record.status in (lab_state.PARTLY, lab_state.DOWN):
        print(f"  to clear    clustersmoke lab down --name {record.name}")


def _nodes(record: LabRecord) -> str:
    """The current states of the nodes, from the controller."""
    from ..jobs.slurm_client import SlurmClient, SlurmUnavailable  # loads pydantic

    client = SlurmClient(clean_environment(record.files.slurm_conf), SINFO_TIMEOUT_S)
    try:
        states = client.node_states()
    except SlurmUnavailable as error:
        return str(error)
    lab = record.lab()
    gpus = plural(lab.gpus_per_node, f"{lab.gpus} GPU")
    return ", ".join(f"{name} {state}" for name, state in states.items()) + f" ({gpus} each)"


def _env(parsed: argparse.Namespace) -> int:
    if parsed.name is None:
        lab = lab_state.find_lab({})
    else:
        named = [record for record in lab_state.list_running() if record.name == parsed.name]
        if not named:
            raise LabError(
                f"lab {parsed.name} is not running; `clustersmoke lab status` lists all labs"
            )
        lab = named[0].lab()
    print(lab_state.export_line(lab))
    return 0


def _down(parsed: argparse.Namespace) -> int:
    records = lab_state.records()
    if parsed.name is not None:
        chosen = [record for record in records if record.name == parsed.name]
        if not chosen:
            raise LabError(
                f"there is no lab `{parsed.name}`; `clustersmoke lab status` lists all labs"
            )
    elif parsed.all:
        chosen = [record for record in records if record.here]
    elif len(records) > 1:
        names = ", ".join(record.name for record in records)
        raise LabError(
            f"there are {len(records)} labs ({names}); choose one with --name, or all with --all"
        )
    else:
        chosen = records
    if not chosen:
        _say("no lab to end")
    for record in chosen:
        kept = teardown.end_lab(record, parsed.keep_logs)
        _say(f"lab {record.name}: ended{f'; its logs are in {kept}' if kept else ''}")
    return 0


def _install(parsed: argparse.Namespace) -> int:
    missing = packages.missing_packages(parsed.accounting, parsed.isolated)
    if not missing:
        _say("all packages that a lab needs are installed")
        return 0
    _say(f"missing: {', '.join(missing)}")
    packages.install(packages.wanted_packages(parsed.accounting, parsed.isolated), _say)
    still = packages.missing_packages(parsed.accounting, parsed.isolated)
    if still:
        raise LabError(f"apt-get succeeded, but {', '.join(still)} not found")
    _say("installed")
    return 0
