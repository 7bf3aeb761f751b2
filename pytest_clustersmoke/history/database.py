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

from .. import clean
from . import schema

if TYPE_CHECKING:
    import sqlite3

NAME = "history.db"
# A write takes milliseconds; so long a writer waits for others before it gives up.
# After an interrupt somebody waits for the prompt.
PATIENCE_S, HURRIED_S = 20.0, 5.0
BUSY_S = 2.0  # of these, so long inside SQLite at once
MODE = 0o644  # as all files of a report
MAX_HOLDER = 500
# What SQLite says of a database that somebody else is writing.
_BUSY = ("database is locked", "database table is locked", "locking protocol")
_DAMAGED = ("not a database", "malformed", "decode")

T = TypeVar("T")


class HistoryUnusable(Exception):
    """The history cannot be read or written: what, why, and what to do, in one line.

    The file is left as it is. A run goes on without its history.
    """


@contextmanager
def reading(report_dir: Path) -> Iterator[sqlite3.Connection | None]:
    """A connection that only reads, on one state of the database; None where there is none yet.

    Raises HistoryUnusable, also for what of the database goes wrong inside the `with`.
    """
    import sqlite3

    path = report_dir / NAME
    try:
        connection = _opened(path)
        if connection is None:
            yield None
            return
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where its schema is damaged
        raise HistoryUnusable(_words(path, "read", str(error))) from error


def _opened(path: Path) -> sqlite3.Connection | None:
    """None where there is no file; raises HistoryUnusable where the file system does not say: no
    right, a stale handle, a server that is gone."""
    try:
        path.stat()
        return _for_reading(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HistoryUnusable(_words(path, "read", error.strerror or str(error))) from error


def write(
    report_dir: Path, work: Callable[[sqlite3.Connection], T], patience_s: float | None = None
) -> T:
    """Do some work in one transaction, all of it or nothing; the database is made where there is
    none, and brought to today's version. Others are waited for so many seconds (PATIENCE_S).
    Raises HistoryUnusable."""
    import random
    import sqlite3

    path = report_dir / NAME
    patience_s = PATIENCE_S if patience_s is None else patience_s
    give_up = time.monotonic() + patience_s
    try:
        report_dir.mkdir(parents=True, exist_ok=True)
        shared = on_network(report_dir)
        with _alone(path, shared, patience_s):
            while True:
                try:
                    return _transaction(path, shared, work)
                except sqlite3.OperationalError as error:
                    if not str(error).startswith(_BUSY) or time.monotonic() > give_up:
                        raise
                time.sleep(random.uniform(0.01, 0.1))
    except (sqlite3.Error, UnicodeDecodeError) as error:
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
def _alone(path: Path, shared: bool, patience_s: float) -> Iterator[None]:
    """Hold the lock file, where other machines may write too."""
    if not shared:
        yield
        return
    from filelock import SoftFileLock, Timeout

    lock = SoftFileLock(path.with_name(f"{NAME}.lock"), timeout=patience_s, mode=MODE)
    try:
        lock.acquire(poll_interval=0.05)
    except Timeout as error:
        raise HistoryUnusable(
            f"this run is not in the history: {lock.lock_file} was held for {patience_s:g} s by "
            f"{_holder(Path(lock.lock_file))}; delete the file if that process is gone"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _holder(lock: Path) -> str:
    """`process 4711 of node3`, as the file says: it has the id and the host, a line each."""
    try:
        said = lock.read_bytes()[:MAX_HOLDER].decode(errors="replace").splitlines()
    except OSError:
        said = []
    words = [clean.line(line) for line in said[:2]]
    return f"process {words[0]} of {words[1]}" if len(words) == 2 else "a process it does not name"


def _words(path: Path, done: str, why: str) -> str:
    why = clean.line(why)  # it may quote what stands in the file
    if any(word in why for word in _DAMAGED):
        return (
            f"{path} is damaged, or no database ({why}); it was left as it is; move it away, "
            "and a new history begins with the next run"
        )
    lost = "; this run is not in the history" if done == "written" else ""
    return f"{path} cannot be {done} ({why}){lost}"
