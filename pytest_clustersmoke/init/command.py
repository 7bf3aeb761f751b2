"""`clustersmoke init [DIRECTORY]`: the files of a new cluster, ready for a dry run."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..subcommand import add

if TYPE_CHECKING:
    from ..errors import Problem
    from .draft import Draft, Wishes

DESCRIPTION = """\
Writes cluster.yaml, smoke_tests/ and, where pytest has no settings yet, pytest.ini for a new
cluster, by what its Slurm says of partitions, nodes, GPUs, limits and accounts; run it on a login
node. Where there is no Slurm, the profile runs on this machine. What was guessed is marked "check
this" in cluster.yaml, with the reason.
"""
EXAMPLES = """\
examples:
  clustersmoke init                        here, with Slurm's name of the cluster
  clustersmoke init --cluster mine --partition gpu --shared-dir /scratch/me/runs ~/acceptance

exit status: 0 written, 2 nothing written, with all that stands in the way
"""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
CONFIG = "cluster.yaml"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    init = add(
        subparsers, "init", "cluster.yaml and the suite for a new cluster", DESCRIPTION, EXAMPLES
    )
    init.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="DIRECTORY",
        help="where the files go (default: here); on a cluster a directory that its nodes see",
    )
    init.add_argument(
        "--cluster", metavar="NAME", help="the profile's name (default: Slurm's, or local)"
    )
    init.add_argument(
        "--partition",
        metavar="P",
        help="the partition that jobs go to (default: Slurm's default one, if it has GPUs)",
    )
    init.add_argument(
        "--shared-dir",
        type=Path,
        metavar="PATH",
        help="where runs go, which every node must see (default: a scratch directory that the "
        "shell names, else DIRECTORY/runs)",
    )
    init.add_argument("--force", action="store_true", help="replace files that are there")
    init.set_defaults(run=_run)


def _run(words: argparse.Namespace) -> int:
    from . import suite
    from .draft import Wishes
    from .entries import render
    from .write import write

    directory = words.directory.absolute()
    shared, problems = _home_told(words.shared_dir)
    draft = _draft(Wishes(directory, words.cluster, words.partition, shared), problems)
    own_ini = not suite.has_settings(directory)
    files = suite.files()
    if own_ini:
        files["pytest.ini"] = suite.PYTEST_INI.encode()
    text = "\n".join(render(draft.file(_head(draft)))) + "\n"
    files[CONFIG] = text.encode()  # the last one: with it the set is whole
    written = write(directory, files, words.force, lambda staged: _check(staged, draft))
    _tell(draft, directory, written, own_ini)
    return 0


def _home_told(path: Path | None) -> tuple[Path | None, list[Problem]]:
    """The absolute path that is meant, `~` and `~user` read; what is wrong with it."""
    from ..errors import Problem

    if path is None:
        return None, []
    try:
        return path.expanduser().absolute(), []
    except RuntimeError:
        what = f"there is no home directory `{path.parts[0]}`"
        return None, [Problem(what, "--shared-dir", "a path whose `~` is that of a user here")]


def _draft(wishes: Wishes, problems: list[Problem]) -> Draft:
    """What is to be written. Raises UsageProblems with all that is wrong with what was asked."""
    from ..errors import Problem, UsageProblems
    from ..rundir import check_path
    from . import draft
    from .ask import NoSlurm, ask
    from .pick import pick

    problems += check_path(wishes.directory, "DIRECTORY", "choose another")
    if wishes.shared_dir is not None:
        problems += check_path(wishes.shared_dir, "--shared-dir", "choose another")
    if wishes.name is not None and not NAME.fullmatch(wishes.name):
        what = f"`{wishes.name}` is no name of a profile"
        problems.append(Problem(what, "--cluster", "letters, digits, `_` and `-`"))
    try:
        answers = ask(os.environ, _user())
    except NoSlurm as why:
        # Somebody who names a Slurm means it: a profile of this machine would be no answer.
        if wishes.partition is not None:
            todo = "leave it away for a profile of this machine, or run this on a login node"
            problems.append(Problem(f"Slurm cannot be asked: {why}", "--partition", todo=todo))
        elif why.silent and os.environ.get("SLURM_CONF"):
            todo = "try again when it answers, or unset SLURM_CONF for a profile of this machine"
            problems.append(Problem(f"Slurm cannot be asked: {why}", "SLURM_CONF", todo=todo))
        if problems:
            raise UsageProblems(problems) from None
        return draft.local(wishes, str(why))
    try:
        picked = pick(answers, wishes.partition)
    except UsageProblems as found:
        problems += found.problems
    if problems:
        raise UsageProblems(problems)
    return draft.slurm(wishes, answers, picked, os.environ)


def _user() -> str:
    """The user's name; empty where this machine knows none (a container)."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def _head(draft: Draft) -> str:
    from .entries import MARK

    return (
        f"The cluster that phases run on, as `clustersmoke init` found it. What it guessed is "
        f'marked "{MARK}", with the reason. Before anything is submitted: pytest --cluster '
        f"{draft.name} --cluster-dry-run."
    )


def _check(staged: Path, draft: Draft) -> None:
    """What is to be written is what pytest will read, or nothing is written."""
    from ..cluster import load
    from ..errors import Problem, UsageProblems

    try:
        load(staged / CONFIG, os.environ).profile(draft.name)
    except UsageProblems as found:
        raise UsageProblems(
            Problem(
                f"what was found makes no profile: {one.what}",
                expected=one.expected,
                todo=one.todo,
            )
            for one in found.problems
        ) from None


def _tell(draft: Draft, directory: Path, written: list[str], own_ini: bool) -> None:
    from .entries import guesses

    out = ["found:", *(f"  {line}" for line in draft.found)]
    open_ = list(guesses(draft.entries))
    if open_:
        out += ["guessed (see `check this` in cluster.yaml):"]
        out += [f"  {name}: {why}" for name, why in open_]
    left = [one for one in draft.phases if one.left_out]
    listed = [one.name for one in draft.phases if not one.left_out]
    out.append(f"phases: {', '.join(listed)}")
    if left:
        out += ["left out:", *(f"  {one.name}: {one.left_out}" for one in left)]
    suite_files = sum("/" in name for name in written)
    names = [name for name in written if "/" not in name]
    parts = [*names, *([f"smoke_tests/ ({suite_files} files)"] if suite_files else [])]
    out.append(f"wrote {', '.join(parts) or 'nothing, all of it was there'} in {directory}")
    out.append("next:")
    if directory != Path.cwd():
        out.append(f"  cd {shlex.quote(str(directory))}")
    paths = "" if own_ini else "smoke_tests "
    out.append(f"  pytest {paths}--cluster {draft.name} --cluster-dry-run    # submits nothing")
    out.append(f"  pytest {paths}--cluster {draft.name}")
    out.append("  every night: docs/nightly.md of pytest-clustersmoke")
    sys.stdout.write("\n".join(out) + "\n")
