"""Histories that cannot be written or belong to another user, with real processes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.history import history_database as database
from pytest_clustersmoke.evidence.history.history_database import HistoryUnusable
from tests.evidence.history.made import in_process, nights, of_night, stored
from tests.support.records import phase, store_run


def test_an_empty_file_is_a_new_history(tmp_path: Path) -> None:
    """An empty file, as left by a crash during creation, becomes a history."""
    tmp_path.joinpath(database.NAME).touch()
    nights(tmp_path, 1)
    assert len(stored(tmp_path)) == 1


def test_full_disk_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    """If the file cannot grow, the run is not stored, the message says so, and the rest stays."""
    nights(tmp_path, 2)
    size = tmp_path.joinpath(database.NAME).stat().st_size

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, size + 4096))
        with pytest.raises(HistoryUnusable) as raised:
            nights(tmp_path, 200, first=2)
        assert "cannot be written (" in str(raised.value)
        assert "nothing was added to the history" in str(raised.value)

    assert in_process(full) == 0
    kept = len(stored(tmp_path))
    assert kept >= 2
    store_run(of_night(300, phase(), run_id="after"), tmp_path)
    assert len(stored(tmp_path)) == kept + 1


def test_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    """If the report directory's parent is a file, one line names it."""
    tmp_path.joinpath("file").write_text("")
    with pytest.raises(HistoryUnusable, match=r"file/reports/history.db cannot be written .Not a"):
        nights(tmp_path / "file" / "reports", 1)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everyone can read and only this user can write."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def as_somebody_else(directory: Path) -> None:
    """Become a user who cannot write there: root becomes nobody, others drop the permission."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    else:
        directory.joinpath(database.NAME).chmod(0o444)
        directory.chmod(0o555)


def test_other_users_can_read_but_not_write(open_directory: Path) -> None:
    """A user without write permission can read the history; writing fails with a message."""
    old = os.umask(0o077)
    try:
        nights(open_directory, 3)
    finally:
        os.umask(old)
    mode = open_directory.joinpath(database.NAME).stat().st_mode
    assert stat.S_IMODE(mode) == 0o644

    def other() -> None:
        as_somebody_else(open_directory)
        assert len(stored(open_directory)) == 3
        with pytest.raises(HistoryUnusable, match="cannot be written"):
            nights(open_directory, 1, first=3)

    assert in_process(other) == 0
    open_directory.chmod(0o755)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ELOOP, errno.EACCES])
def test_file_system_error_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Any error of the file system ends in a message."""
    nights(tmp_path, 1)
    real = Path.stat

    def stat(path: Path, **options: Any) -> os.stat_result:
        if path.name == database.NAME:
            raise OSError(number, os.strerror(number))
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(HistoryUnusable, match="cannot be read") as raised:
        stored(tmp_path)
    assert os.strerror(number) in str(raised.value)


def test_callers_exception_passes_through(tmp_path: Path) -> None:
    """A broken pipe while printing is not an error of the history."""
    nights(tmp_path, 1)
    with pytest.raises(BrokenPipeError), database.open_for_reading(tmp_path):
        raise BrokenPipeError


def test_missing_history_is_not_an_error(tmp_path: Path) -> None:
    """Without a database, reading yields None and creates none."""
    with database.open_for_reading(tmp_path) as connection:
        assert connection is None
    assert list(tmp_path.iterdir()) == []
