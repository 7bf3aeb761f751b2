"""The first code of ours in a job: checks whose files it is about to load, then lets submitit load
the call of `run_node`.

    python -m pytest_clustersmoke.node.job_entry RUN_DIRECTORY PLACE TOKEN

`PLACE` is the phase's directory, relative to the run's; TOKEN names the submission, and the file
with its call. Whoever may write in the directory above the run's can rename that, and put another
in its place, with a call of their own. So the run's directory is opened without following a link,
must belong to this user and be closed to others, and the call is read through that descriptor.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

# Before the reason why a job loads nothing, in its log; diagnosis looks for it.
REFUSAL = "clustersmoke refuses to load this job: "
MISSING = "is not visible on this node"  # the run's directory, in that reason


class NotOurs(Exception):
    """The run's directory is not the one that the controller created; the text says why."""


def open_run(root: Path) -> Path:
    """The run's directory by a descriptor of this process, which stays that of the same directory
    whatever its name points to later. Raises NotOurs."""
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        why = f"cannot be opened as a directory ({error.strerror})"
        raise NotOurs(f"{root} {why if os.path.lexists(root) else MISSING}") from error
    info = os.fstat(descriptor)
    if info.st_uid != os.getuid():
        raise NotOurs(f"{root} belongs to user {info.st_uid}, and this job to {os.getuid()}")
    if (mode := stat.S_IMODE(info.st_mode)) & 0o077:
        raise NotOurs(f"{root} is open to other users (mode {mode:o}, expected 700)")
    return Path(f"/proc/self/fd/{descriptor}")


def main(arguments: Sequence[str]) -> None:
    from ..evidence.run_directory import PhaseDir  # the screen of a node has no time for it

    run, place, token = arguments
    try:
        folder = PhaseDir(open_run(Path(run)) / place).submitit
    except NotOurs as error:
        sys.exit(f"{REFUSAL}{error}")
    with _without_numpy():
        from submitit.core.job_environment import JobEnvironment
        from submitit.core.submission import process_job

    os.environ["SUBMITIT_FOLDER"] = str(folder)
    # submitit looks for the call under the job's id, which nobody knew when it was written.
    _point_to_call(JobEnvironment().paths.submitted_pickle, f"{token}.pkl")
    process_job(folder)


@contextlib.contextmanager
def _without_numpy() -> Iterator[None]:
    """Have no import find numpy, which submitit loads where it is installed, for calls that need
    it. Ours is plain data, and numpy would cost each node its import and a thread for each core."""
    if "numpy" in sys.modules:
        yield
        return
    sys.modules["numpy"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["numpy"]


def _point_to_call(link: Path, call: str) -> None:
    """Have the job's id lead to the call of its own submission, also where an earlier job had the
    same id. Every node of the job does so."""
    if link.is_symlink() and str(link.readlink()) == call:
        return
    draft = link.with_name(f".{link.name}.{os.urandom(4).hex()}")
    draft.symlink_to(call)
    draft.replace(link)


def run_and_leave(arguments: Sequence[str]) -> NoReturn:
    """Run `main`, and end this process without the interpreter's own end, which takes all modules
    down one by one: that costs more than the end of the ranks, and jobs may end by the hundred.
    What a node writes is written before its call returns, and it starts no thread that must end."""
    status = 0
    try:
        main(arguments)
    except SystemExit:
        raise
    except BaseException:
        import traceback  # it takes time, and a node rarely needs it

        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk: a log ends there
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    run_and_leave(sys.argv[1:])
