"""history.db in the report directory: opened for reading or for writing, or refused in words.

On a local disk it is in WAL mode, in which readers and writers do not wait for each other. WAL
needs memory that all processes share, so where other machines may write too it has a rollback
journal, and since not all network file systems carry SQLite's locks between machines, a lock file
beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from . import schema

if TYPE_CHECKING:
    import sqlite3

NAME = "history.db"
# A write takes milliseconds; so long a writer waits for others before it gives up.
PATIENCE_S = 60.0
BUSY_S = 5.0  # of these, so long inside SQLite at once
MODE = 0o644  # as all files of a report
# What SQLite says of a database that somebody else is writing.
_BUSY = ("database is locked", "database table is locked", "locking protocol")
_DAMAGED = ("not a database", "malformed")

T = TypeVar("T")


class HistoryUnusable(Exception):
    """The history cannot be read or written: what, why, and what to do, in one line.

    The file is left as it is. A run goes on without its history.
    """


@contextmanager
def reading(report_dir: Path) -> Iterator[sqlite3.Connection | None]:
    """A connection that only reads, on one state of the database; None where there is none yet.

    Raises HistoryUnusable, also for what goes wrong inside the `with`.
    """
    import sqlite3

    path = report_dir / NAME
    try:
        if not path.exists():
            yield None
            return
        connection = _for_reading(path)
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise HistoryUnusable(_words(path, "read", str(error))) from error
    except PermissionError as error:
        raise HistoryUnusable(_words(path, "read", error.strerror or str(error))) from error


def write(report_dir: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """Do some work in one transaction, all of it or nothing; the database is made where there is
    none, and brought to today's version. Raises HistoryUnusable."""
    import random
    import sqlite3

    path = report_dir / NAME
    give_up = time.monotonic() + PATIENCE_S
    try:
        report_dir.mkdir(parents=True, exist_ok=True)
        shared = on_network(report_dir)
        with _alone(path, shared):
            while True:
                try:
                    return _transaction(path, shared, work)
                except sqlite3.OperationalError as error:
                    if not str(error).startswith(_BUSY) or time.monotonic() > give_up:
                        raise
                time.sleep(random.uniform(0.01, 0.1))
    except sqlite3.Error as error:
        raise HistoryUnusable(_words(path, "written", str(error))) from error
    except OSError as error:
        raise HistoryUnusable(_words(path, "written", error.strerror or str(error))) from error


def on_network(directory: Path) -> bool:
    """Whether other machines may write there: a network file system, a disk that this machine
    exports, or one of which nothing is known."""
    from ..preflight import mounts

    mount = mounts.mount_of(directory, mounts.read_mounts())
    local = mount is not None and mount.kind in mounts.LOCAL_DISK | mounts.PRIVATE
    return not local or mounts.exported(directory)


def _transaction(path: Path, shared: bool, work: Callable[[sqlite3.Connection], T]) -> T:
    # Made before SQLite does: its own files beside it take over these permissions.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, MODE))
        path.chmod(MODE)
    except FileExistsError:
        pass
    connection = _connect(path, "rw")
    try:
        _check_version(connection, path)
        _set_journal(connection, "delete" if shared else "wal")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN IMMEDIATE")
        try:
            _check_version(connection, path)  # somebody may have migrated it meanwhile
            schema.migrate(connection)
            done = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return done
    finally:
        connection.close()


def _set_journal(connection: sqlite3.Connection, mode: str) -> None:
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != mode:
        connection.execute(f"PRAGMA journal_mode = {mode}")


def _for_reading(path: Path) -> sqlite3.Connection:
    """A connection to the file; to a copy in memory where the file is of an older version."""
    import sqlite3

    # Only who may write can undo what a killed writer left, and tidy up WAL's files. Where
    # the file is not ours to write, SQLite opens it for reading.
    connection = _connect(path, "rw")
    try:
        connection.execute("PRAGMA query_only = ON")
        version = _check_version(connection, path)
    except sqlite3.OperationalError:
        connection.close()
        # In WAL mode a reader makes files beside it, which not everybody may. Where no writer has
        # any there the file is all of it.
        if path.with_name(f"{NAME}-wal").exists() or os.access(path.parent, os.W_OK):
            raise
        connection = _connect(path, "ro&immutable=1")
        version = _check_version(connection, path)
    except BaseException:
        connection.close()
        raise
    if version == schema.VERSION:
        return connection
    copy = sqlite3.connect(":memory:", isolation_level=None)
    connection.backup(copy)
    connection.close()
    schema.migrate(copy)
    return copy


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    import sqlite3

    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)


def _check_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version, where we can use it. Raises HistoryUnusable, and sqlite3.Error."""
    version = schema.version_of(connection)
    if version is None:
        raise HistoryUnusable(
            f"{path} is a database, but no history of clustersmoke; it was left as it is; "
            "move it away, or choose another report directory"
        )
    if version > schema.VERSION:
        raise HistoryUnusable(
            f"{path} is of version {version}, and this clustersmoke knows up to {schema.VERSION}; "
            "it was left as it is; update pytest-clustersmoke, or choose another report directory"
        )
    return version


@contextmanager
def _alone(path: Path, shared: bool) -> Iterator[None]:
    """Hold the lock file, where other machines may write too."""
    if not shared:
        yield
        return
    from filelock import SoftFileLock, Timeout

    lock = SoftFileLock(path.with_name(f"{NAME}.lock"), timeout=PATIENCE_S, mode=MODE)
    try:
        lock.acquire(poll_interval=0.05)
    except Timeout as error:
        raise HistoryUnusable(
            f"{lock.lock_file} has been there for more than {PATIENCE_S:.0f} s, so {path} was not "
            "written; delete it where the process and host that it names are gone"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _words(path: Path, done: str, why: str) -> str:
    if any(word in why for word in _DAMAGED):
        return (
            f"{path} is damaged, or no database ({why}); it was left as it is; move it away, "
            "and a new history begins with the next run"
        )
    lost = "; this run is not in the history" if done == "written" else ""
    return f"{path} cannot be {done} ({why}){lost}"
