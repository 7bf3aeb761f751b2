"""Starts a lab's accounting: its own MariaDB, slurmdbd, and an account for the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import packages
from .addresses import is_listening
from .daemons import Daemons
from .lab_paths import LabDir
from .lab_settings import LabStartError
from .slurm_config import Plan

ACCOUNT = "lab"
# slurmdbd makes `normal` itself.
QOS = ("normal", "standby")
# Where distributions install the statements that make the database's system tables.
SYSTEM_TABLES = (
    Path("/usr/share/mysql/mysql_system_tables.sql"),
    Path("/usr/share/mariadb/mariadb_system_tables.sql"),
    Path("/usr/share/mariadb/mysql_system_tables.sql"),
)


def start_database(files: LabDir, user: str, daemons: Daemons) -> None:
    """Start a MariaDB on an empty directory, reachable only through its socket.

    `mariadb-install-db` takes seconds, mostly for help texts and grants. Only this user can reach
    the socket, so grants are skipped and `_make_tables` makes the system tables.
    """
    files.database.mkdir(mode=0o700)
    daemons.start("mariadbd", mariadbd_command(files, user, packages.program_path("mariadbd")))


def mariadbd_command(files: LabDir, user: str, program: str) -> list[str]:
    return [
        program,
        "--no-defaults",
        f"--user={user}",
        f"--datadir={files.database}",
        f"--socket={files.database_socket}",
        f"--pid-file={files.run}/mariadbd.pid",
        f"--tmpdir={files.database}",
        f"--log-error={files.log('mariadbd')}",
        "--skip-networking",
        "--skip-grant-tables",
        "--skip-log-bin",
        "--performance-schema=OFF",
        # Small and never synced to disk: its data does not outlive the lab.
        "--innodb-buffer-pool-size=16M",
        "--innodb-log-file-size=4M",
        "--innodb-data-file-path=ibdata1:2M:autoextend",
        "--innodb-temp-data-file-path=ibtmp1:2M:autoextend",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-flush-method=nosync",
        "--innodb-doublewrite=0",
        "--innodb-lock-wait-timeout=900",
        "--aria-log-file-size=8M",
        "--aria-pagecache-buffer-size=8M",
        "--key-buffer-size=1M",
        "--sync-frm=OFF",
        "--debug-no-sync",
    ]


def start_slurmdbd(plan: Plan, prefix: Sequence[str], daemons: Daemons) -> None:
    """Start slurmdbd on the database, and make the account that the user submits with."""
    files = plan.files
    daemons.wait("mariadbd", files.database_socket.is_socket, "open its socket")
    _make_tables(files, daemons)
    port = plan.accounting_port
    assert port is not None
    daemons.start(
        "slurmdbd",
        [*prefix, packages.program_path("slurmdbd"), "-D"],
        {"MYSQL_UNIX_PORT": str(files.database_socket)},
    )
    daemons.wait("slurmdbd", lambda: is_listening(plan.control_address, port), "listen")
    _make_accounts(plan, daemons)


def _make_tables(files: LabDir, daemons: Daemons) -> None:
    """Make MariaDB's system tables; slurmdbd stores its procedures in one of them."""
    available = [path for path in SYSTEM_TABLES if path.is_file()]
    if not available:
        raise LabStartError(
            "MariaDB's system tables were not found; expected one of "
            f"{', '.join(map(str, SYSTEM_TABLES))}; install Debian's mariadb-server"
        )
    statements = available[0].read_text(encoding="utf-8")
    daemons.run(
        [packages.program_path("mariadb"), "--no-defaults", f"--socket={files.database_socket}"],
        text=f"CREATE DATABASE mysql;\nUSE mysql;\n{statements}",
    )


def _make_accounts(plan: Plan, daemons: Daemons) -> None:
    sacctmgr = [packages.program_path("sacctmgr"), "-i"]
    names = ",".join(QOS)
    for command in (
        ["add", "cluster", plan.cluster],
        ["add", "qos", QOS[1]],
        ["add", "account", ACCOUNT, f"cluster={plan.cluster}", f"qos={names}"],
        [
            "add",
            "user",
            plan.user,
            f"account={ACCOUNT}",
            f"defaultaccount={ACCOUNT}",
            f"qos={names}",
            f"defaultqos={QOS[0]}",
            "adminlevel=None",
        ],
    ):
        daemons.run([*sacctmgr, *command])
