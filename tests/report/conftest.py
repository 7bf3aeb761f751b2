"""One Chromium for each module of tests, and a page for each record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.report.browsing import LAPTOP, Browse, Opened, new_tab, started, written
from tests.support import records

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with started() as browser:
        yield browser


@pytest.fixture
def browse(chromium: Browser, tmp_path: Path) -> Iterator[Browse]:
    """A function that opens the page of a record; `scripts=False` turns scripts off."""
    opened: list[Opened] = []

    def open_page(
        record: records.Record,
        size: tuple[int, int] = LAPTOP,
        scheme: Literal["light", "dark"] = "light",
        scripts: bool = True,
    ) -> Opened:
        width, height = size
        made = new_tab(
            chromium,
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            java_script_enabled=scripts,
        )
        opened.append(Opened(made, written(record, tmp_path)))
        if scripts:
            opened[-1].open()
        else:
            made.goto(opened[-1].file.as_uri())
        return opened[-1]

    yield open_page
    for tab in opened:
        tab.page.close()
