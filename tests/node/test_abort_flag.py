"""The flag that ends a phase, on file systems without hard links and on a full one."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import read_json
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.node import node_job
from pytest_clustersmoke.node.abort_flag import raise_abort, visible
from tests.support.launched import make_job


def no_links(*_: Any) -> None:
    raise OSError(errno.EPERM, "no hard links here")


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_first_flag_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """A second flag changes nothing, and no draft file is left."""
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    job = make_job(tmp_path)
    raise_abort(job, "rank_died", "rank 1 ended", 1)
    raise_abort(job, "stalled", "an echo", 0)
    flag = read_json(job.dir.abort) or {}
    assert (flag["reason"], flag["why"], flag["rank"]) == ("rank_died", "rank 1 ended", 1)
    assert list(job.dir.root.glob(".abort*")) == []


def test_flag_is_raised_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other nodes still see the file; the caller gets the error."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        write = full

    def opened(path: Path, mode: str) -> Full:
        assert mode == "x"
        path.touch(exist_ok=False)
        return Full()

    job = make_job(tmp_path)
    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(OSError, match="No space left"):
        raise_abort(job, "rank_died", "rank 1 ended")
    assert visible(job.dir.abort)


def test_result_is_written_even_if_the_flag_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's result keeps its reason, and says that the flag was not raised."""

    def refused(*_: Any) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(node_job, "raise_abort", refused)
    job = make_job(tmp_path)
    result = node_job._Result(job)
    result.ended({"ok": False, "reason": "rank_died", "why": "rank 0 ended"})
    result.write(time.time(), EventWriter(job.dir.node_events(0)))
    written = read_json(job.dir.node_result(0)) or {}
    assert (written["reason"], written["why"]) == ("rank_died", "rank 0 ended")
    assert "Disk quota exceeded" in written["flag"]
