"""Report directories on a local disk and on a network file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.preflight import mounts


@pytest.fixture(params=["a local disk", "a network file system"])
def directory(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A report directory; the table of mounts says what it lies on."""
    kind = "nfs4" if "network" in request.param else "ext4"
    table = [mounts.Mount(Path("/"), kind, "x")]
    monkeypatch.setattr(mounts, "read_mounts", lambda: table)
    monkeypatch.setattr(mounts, "EXPORTS", tmp_path / "no exports")
    return tmp_path / "reports"
