"""Directories that this user cannot use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_clustersmoke.preflight import access
from tests.support.evidence import make_profile


def test_directory_that_cannot_be_searched_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report directory cannot be written; the last visible directory is named."""
    closed, whole = tmp_path / "closed", Path.exists

    def there(path: Path) -> bool:
        if closed in path.parents:
            raise PermissionError(13, "Permission denied")
        return whole(path)

    closed.mkdir()
    monkeypatch.setattr(Path, "exists", there)
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed)
    profile = make_profile(tmp_path)
    (problem,) = access.find_unusable_paths(profile, [], closed / "reports" / "mine")
    assert problem.what.endswith(f"{closed}/reports/mine, but {closed} cannot be written")
