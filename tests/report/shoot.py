"""Screenshots of a report's page for the documents: `python -m tests.report.shoot PAGE FOLDER`.

Writes the first screen to FOLDER/report.png, report-dark.png and report-phone.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.report.browsing import DRAWN, LAPTOP, PHONE
from tests.support.needs import need_browser

SHOTS = {
    "report": (LAPTOP, "light"),
    "report-dark": (LAPTOP, "dark"),
    "report-phone": (PHONE, "light"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=need_browser())
        for name, ((width, height), scheme) in SHOTS.items():
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            page.goto(arguments.page.resolve().as_uri())
            page.wait_for_selector(DRAWN, state="attached")
            page.screenshot(path=arguments.folder / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
