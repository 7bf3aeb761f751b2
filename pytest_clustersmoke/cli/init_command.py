"""`clustersmoke init [DIRECTORY]`: writes the files of a new cluster, ready for a dry run."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .subcommand import add

if TYPE_CHECKING:
    from .cluster_draft import ClusterDraft, Wishes

DESCRIPTION = """\
Writes cluster.yaml, smoke_tests/ and, if pytest has no settings yet, pytest.ini for a new cluster,
from what its Slurm reports about partitions, nodes, GPUs, limits and accounts; run it on a login
node. With --hosts, from what these hosts have, each of which is asked over ssh. Without either, the
profile runs on this machine. Guessed values are marked "check this" in
cluster.yaml, with the reason.
"""
EXAMPLES = """\
examples:
  clustersmoke init                        here, named after Slurm's cluster
  clustersmoke init --cluster mine --partition gpu --shared-dir /scratch/me/runs ~/acceptance
  clustersmoke init --hosts n1,n2 --shared-dir /nfs/me/runs /nfs/me/acceptance

exit status: 0 written, 2 nothing written, with all problems
"""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
CONFIG = "cluster.yaml"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    init = add(
        subparsers,
        "init",
        "write cluster.yaml and the suite for a new cluster",
        DESCRIPTION,
        EXAMPLES,
    )
    init.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="DIRECTORY",
        help="directory for the files (default: here); the nodes of a cluster must see it",
    )
    init.add_argument(
        "--cluster", metavar="NAME", help="the profile's name (default: Slurm's, hosts, or local)"
    )
    init.add_argument(
        "--partition",
        metavar="P",
        help="the partition for the jobs (default: Slurm's default partition, if it has GPUs)",
    )
    init.add_argument(
        "--hosts",
        metavar="LIST",
        help="write a profile with `backend: ssh` for these hosts: [USER@]HOST[:PORT],...",
    )
    init.add_argument(
        "--ssh-config",
        type=_path,
        metavar="FILE",
        help="with --hosts: what ssh reads in place of ~/.ssh/config",
    )
    init.add_argument(
        "--shared-dir",
        type=_path,
        metavar="PATH",
        help="directory for the runs, which every node must see (default: below a scratch "
        "directory that the shell names, or DIRECTORY/runs)",
    )
    init.add_argument("--force", action="store_true", help="replace existing files")
    init.set_defaults(run=_run_command)


def _path(text: str) -> Path:
    """The absolute path, with `~` and `~user` expanded."""
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        home = Path(text).parts[0]
        raise argparse.ArgumentTypeError(f"no home directory `{home}`") from None


def _run_command(parsed: argparse.Namespace) -> int:
    from . import suite_files
    from .cluster_draft import Wishes

    directory = parsed.directory.absolute()
    wishes = Wishes(
        directory,
        name=parsed.cluster,
        partition=parsed.partition,
        hosts=parsed.hosts,
        ssh_config=parsed.ssh_config,
        shared_dir=parsed.shared_dir,
    )
    draft = _make_draft(wishes)
    text = draft.render()
    _check_profile(text, draft.name)
    own_ini = not suite_files.has_settings(directory)
    files = suite_files.suite_files()
    if own_ini:
        files["pytest.ini"] = suite_files.PYTEST_INI.encode()
    files[CONFIG] = text.encode()  # written last: its presence means that the set is complete
    written = suite_files.write_files(directory, files, parsed.force)
    sys.stdout.write(
        "\n".join([*_summary_lines(draft), *_next_steps(draft, directory, written, own_ini)]) + "\n"
    )
    return 0


def _make_draft(wishes: Wishes) -> ClusterDraft:
    """The draft to write. Raises UsageProblems with everything wrong with the options."""
    from ..preflight.access import check_path
    from ..text import Problem, UsageProblems
    from .cluster_draft import draft_local, draft_slurm, draft_ssh, host_keys
    from .host_survey import survey_hosts
    from .partition_survey import NoSlurm, choose_partition, survey_cluster

    problems = check_path(wishes.directory, "DIRECTORY", "choose another")
    if wishes.shared_dir is not None:
        problems += check_path(wishes.shared_dir, "--shared-dir", "choose another")
    if wishes.name is not None and not NAME.fullmatch(wishes.name):
        text = f"`{wishes.name}` is not the name of a profile"
        problems.append(Problem(text, "--cluster", "letters, digits, `_` and `-`"))
    if wishes.ssh_config is not None and wishes.hosts is None:
        problems.append(Problem("this option needs --hosts", "--ssh-config", todo="omit it"))
    if wishes.hosts is not None and wishes.partition is not None:
        text = "--partition and --hosts exclude each other"
        problems.append(Problem(text, "--partition", todo="omit it, or --hosts"))
    if wishes.hosts is not None:
        if problems:
            raise UsageProblems(problems)
        keys = host_keys(wishes, os.environ)
        return draft_ssh(wishes, survey_hosts(keys, os.environ), os.environ)
    try:
        survey = survey_cluster(os.environ)
        choice = choose_partition(survey, wishes.partition)
        draft = draft_slurm(wishes, survey, choice, os.environ)
    except NoSlurm as error:
        # A user who names a partition or a Slurm does not want a profile for this machine.
        text, todo = f"Slurm is not available: {error}", "to get a profile for this machine"
        if wishes.partition is not None:
            todo = f"omit it {todo}, or run this on a login node"
            problems.append(Problem(text, "--partition", todo=todo))
        elif error.installed and os.environ.get("SLURM_CONF"):
            todo = f"try again when it answers, or unset SLURM_CONF {todo}"
            problems.append(Problem(text, "SLURM_CONF", todo=todo))
        draft = draft_local(wishes, str(error))
    except UsageProblems as refused:
        problems += refused.problems
    if problems:
        raise UsageProblems(problems)
    return draft


def _check_profile(text: str, name: str) -> None:
    """Raise UsageProblems if pytest would refuse this file."""
    from ..config.cluster_file import load_cluster_file
    from ..text import Problem, UsageProblems

    with tempfile.TemporaryDirectory(prefix="clustersmoke-init-") as folder:
        path = Path(folder) / CONFIG
        path.write_text(text, encoding="utf-8")
        try:
            load_cluster_file(path, os.environ).profile(name)
        except UsageProblems as refused:
            raise UsageProblems(
                Problem(
                    f"the values found make no valid profile: {problem.what}",
                    "",
                    problem.expected,
                    problem.todo,
                )
                for problem in refused.problems
            ) from None


def _summary_lines(draft: ClusterDraft) -> list[str]:
    left_out = [f"  {phase.name}: {phase.left_out}" for phase in draft.phases if phase.left_out]
    guesses = [f"  {key}: {why}" for key, why in draft.guesses.items()]
    return [
        *("found:", *(f"  {line}" for line in draft.found)),
        *(["guessed (see `check this` in cluster.yaml):", *guesses] if guesses else []),
        f"phases: {', '.join(phase.name for phase in draft.phases if not phase.left_out)}",
        *(["left out:", *left_out] if left_out else []),
    ]


def _next_steps(
    draft: ClusterDraft, directory: Path, written: list[str], own_ini: bool
) -> list[str]:
    suite = sum("/" in name for name in written)
    names = [name for name in written if "/" not in name]
    names += [f"smoke_tests/ ({suite} files)"] if suite else []
    pytest = f"  pytest {'' if own_ini else 'smoke_tests '}--cluster {draft.name}"
    return [
        f"wrote {', '.join(names) or 'nothing new'} in {directory}",
        "next:",
        *([f"  cd {shlex.quote(str(directory))}"] if directory != Path.cwd() else []),
        f"{pytest} --cluster-dry-run    # submits nothing",
        pytest,
        "  to run every night: docs/how-to/run-every-night.md of pytest-clustersmoke",
    ]
