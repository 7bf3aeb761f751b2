"""The parts of a batch script that both backends share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..rundir import PhaseDir

if TYPE_CHECKING:
    from ..phase import Phase


def environment(phase: Phase) -> list[str]:
    """The profile's variables; the node sets them again, since they may not survive srun."""
    lines = [f"unset {name}" for name in phase.env_unset]
    lines += [f"export {name}={shlex.quote(str(one.value))}" for name, one in phase.env_set.items()]
    return lines


def strict_setup(lines: Sequence[str], directory: PhaseDir) -> list[str]:
    """The set-up lines under `set -e`: the first that fails is written down and ends the job.

    /etc/profile comes first: under cron no shell has read it, and `module` is defined there.
    """
    if not lines:
        return []
    failed = shlex.quote(str(directory.setup_failed))
    return [
        "[ -r /etc/profile ] && . /etc/profile",
        f"""trap 'printf "%s\\t%s\\n" "$?" "$BASH_COMMAND" > {failed}' EXIT""",
        "set -e",
        *lines,
        "set +e",
        "trap - EXIT",
    ]
