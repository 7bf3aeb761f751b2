"""Opens history.db in the report directory for reading or writing, or explains why it cannot.

The database has a rollback journal, and a lock file next to it for writers: other machines may
write into the report directory, and not all network file systems pass SQLite's own locks between
machines.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ...text import sanitize_line
from ..whole_files import shared_mode
from .history_schema import VERSION, migrate, read_version

NAME = "history.db"
# How long a writer waits for others; a write takes milliseconds. After an interrupt the wait is
# shorter, since somebody is waiting for the prompt.
PATIENCE_S, HURRIED_S = 20.0, 5.0
READ_PATIENCE_S = 2.0
PRIVATE_MODE = 0o600  # for the user alone
MAX_HOLDER = 500
_DAMAGED = ("not a database", "malformed", "decode")


class HistoryUnusable(Exception):
    """The history cannot be read or written. The message says in one line what is wrong and what
    to do.

    The file is left unchanged. A run continues without its history.
    """


@contextmanager
def open_for_reading(report_dir: Path) -> Iterator[sqlite3.Connection | None]:
    """A read-only connection with a consistent view of the database; None if it does not exist yet.

    Raises HistoryUnusable, also for errors of the database inside the `with`, such as rows with
    values of the wrong type.
    """
    path = report_dir / NAME
    if not _exists(path):
        yield None
        return
    try:
        with closing(_connect(path, READ_PATIENCE_S)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            yield connection if _check_version(connection, path) else None
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise HistoryUnusable(_explain(path, "read", str(error))) from error


def _exists(path: Path) -> bool:
    """Whether the file exists. Raises HistoryUnusable if the file system does not say: missing
    permissions, a stale handle, a server that is gone."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or str(error)
        raise HistoryUnusable(_explain(path, "read", why)) from error
    return True


@contextmanager
def open_for_writing(
    report_dir: Path, patience_s: float = PATIENCE_S, private: bool = False
) -> Iterator[sqlite3.Connection]:
    """A connection with one transaction: everything in the `with` is stored, or nothing. Creates
    the database if it does not exist, and migrates it to the current version. Waits up to
    `patience_s` for other writers. `private`: from now on only the user can read it. Raises
    HistoryUnusable."""
    path = report_dir / NAME
    give_up = time.monotonic() + patience_s
    try:
        report_dir.mkdir(parents=True, exist_ok=True)
        with _lock_file(path, patience_s):
            is_new = not path.exists()
            if is_new:  # before SQLite does: the journal inherits its permissions
                path.touch(PRIVATE_MODE)
            _set_mode(path, private, is_new)
            left_s = max(0.0, give_up - time.monotonic())
            with closing(_connect(path, left_s)) as connection:
                _begin(connection, path)
                yield connection
                connection.execute("COMMIT")  # without it everything is rolled back
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise HistoryUnusable(_explain(path, "written", str(error))) from error
    except OSError as error:
        raise HistoryUnusable(_explain(path, "written", error.strerror or str(error))) from error


def _set_mode(path: Path, private: bool, is_new: bool) -> None:
    """Let others read the database, or write it if they share the directory; only the user if it
    is private, and from then on."""
    if private:
        path.chmod(PRIVATE_MODE)
    elif is_new or not is_private(path):
        with suppress(PermissionError):  # it is another user's, who shares it
            path.chmod(shared_mode(path.parent))


def close_to_others(report_dir: Path) -> bool:
    """Let only the user read the database, if it exists; False if it is another user's. Raises
    HistoryUnusable."""
    path = report_dir / NAME
    try:
        if _exists(path):
            path.chmod(PRIVATE_MODE)
    except PermissionError:
        return False
    except OSError as error:
        raise HistoryUnusable(_explain(path, "written", error.strerror or str(error))) from error
    return True


def is_private(path: Path) -> bool:
    """Whether only the user can read a database. Raises OSError."""
    return path.stat().st_mode & 0o077 == 0


def _begin(connection: sqlite3.Connection, path: Path) -> None:
    """Begin a transaction, on the current version of the schema."""
    _check_version(connection, path)
    # Earlier versions used WAL mode on local disks. It stays while another process reads.
    with suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = delete")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("BEGIN IMMEDIATE")
    migrate(connection)


def _connect(path: Path, patience_s: float) -> sqlite3.Connection:
    """Connect in write mode even for reading, since only then SQLite can roll back what a killed
    writer left. Without write permission SQLite opens the file read-only."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=patience_s, isolation_level=None)


def _check_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version, 0 for an empty file. Raises HistoryUnusable if it is foreign or too new, and
    sqlite3.Error."""
    version = read_version(connection)
    if version is None:
        raise HistoryUnusable(
            f"{path} is a database, but not a clustersmoke history; it was left unchanged; "
            "move it away, or choose another report directory"
        )
    if version > VERSION:
        raise HistoryUnusable(
            f"{path} has schema version {version}; expected {VERSION} or older; it was left "
            "unchanged; update pytest-clustersmoke, or choose another report directory"
        )
    return version


@contextmanager
def _lock_file(path: Path, patience_s: float) -> Iterator[None]:
    from filelock import SoftFileLock, Timeout

    mode = shared_mode(path.parent)
    lock = SoftFileLock(path.with_name(f"{NAME}.lock"), timeout=patience_s, mode=mode)
    try:
        lock.acquire(poll_interval=0.05)
    except Timeout as error:
        raise HistoryUnusable(
            f"nothing was added to the history: {lock.lock_file} was held for "
            f"{patience_s:g} s by {_describe_holder(Path(lock.lock_file))}; "
            "delete the lock file if that process is gone"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _describe_holder(lock: Path) -> str:
    """`process 4711 on node3`, from the lock file: pid and host, a line each."""
    try:
        lines = lock.read_bytes()[:MAX_HOLDER].decode(errors="replace").splitlines()
    except OSError:
        lines = []
    if len(lines) < 2:
        return "an unknown process"
    return f"process {sanitize_line(lines[0])} on {sanitize_line(lines[1])}"


def _explain(path: Path, done: str, why: str) -> str:
    why = sanitize_line(why)  # it may quote the file's content
    if any(word in why for word in _DAMAGED):
        return (
            f"{path} is damaged, or not a database ({why}); it was left unchanged; move it away, "
            "and the next run starts a new history"
        )
    lost = "; nothing was added to the history" if done == "written" else ""
    return f"{path} cannot be {done} ({why}){lost}"
