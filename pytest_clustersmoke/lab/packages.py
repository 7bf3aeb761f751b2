"""The packages that a lab needs, and their installation on Debian."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from .lab_settings import LabError

# One program of each package, to see whether it is installed.
PLAIN = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurm-client": "sbatch",
    "munge": "munged",
}
ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadb-server": "mariadbd"}
ISOLATED = {"iproute2": "ip", "util-linux": "nsenter"}
LOCK_WAIT_S = 120  # another apt or dpkg may be at work
# Daemons are not on the PATH of every user.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def which(program: str) -> str | None:
    """The path of a program on the user's PATH or the system's; None if it is on neither."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    return shutil.which(program, path=path)


def program_path(name: str) -> str:
    """The path of a program that a lab requires. Raises LabError if it is not installed."""
    path = which(name)
    if path is None:
        raise LabError(f"`{name}` is not installed; run `clustersmoke lab install` as root")
    return path


def wanted_packages(accounting: bool, isolated: bool) -> list[str]:
    """The Debian packages that such a lab needs."""
    return [*PLAIN, *(ACCOUNTING if accounting else ()), *(ISOLATED if isolated else ())]


def missing_packages(accounting: bool, isolated: bool) -> list[str]:
    """The packages such a lab needs that this machine lacks."""
    programs = {**PLAIN, **ACCOUNTING, **ISOLATED}
    wanted = wanted_packages(accounting, isolated)
    return [package for package in wanted if which(programs[package]) is None]


def is_debian() -> bool:
    """Whether this is Debian or a derivative of it."""
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return False
    fields = dict(line.partition("=")[::2] for line in text.splitlines())
    families = (fields.get("ID", "") + " " + fields.get("ID_LIKE", "")).replace('"', "").split()
    return "debian" in families and shutil.which("apt-get") is not None


def install(packages: list[str], say: Callable[[str], None]) -> None:
    """Install Debian packages; print each command before it runs.

    Raises LabError if this user or machine cannot install, or apt-get fails.
    """
    todo = f"ask the administrator of this machine to install {' '.join(packages)}"
    if not is_debian():
        raise LabError(f"packages can be installed only with apt-get, on Debian or Ubuntu; {todo}")
    if os.geteuid() != 0:
        raise LabError(f"only root can install packages; {todo}")
    # Without RUNLEVEL=1 the packages would start system services on their usual ports.
    environ = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    if not any(Path("/var/lib/apt/lists").glob("*_Packages*")):
        _apt(["update"], environ, say)
    _apt(["install", "-y", "--no-install-recommends", *packages], environ, say)


def _apt(arguments: list[str], environ: dict[str, str], say: Callable[[str], None]) -> None:
    command = ["apt-get", "-o", f"DPkg::Lock::Timeout={LOCK_WAIT_S}", *arguments]
    setting = " ".join(f"{name}={value}" for name, value in environ.items())
    say(f"running: {setting} {shlex.join(command)}")
    say(f"it waits up to {LOCK_WAIT_S} s for another apt or dpkg that holds the lock")
    result = subprocess.run(
        command,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if result.returncode:
        tail = "\n".join("    " + line for line in result.stdout.splitlines()[-15:])
        raise LabError(f"`{shlex.join(command)}` failed (exit status {result.returncode}):\n{tail}")
