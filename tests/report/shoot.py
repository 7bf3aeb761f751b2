"""Pictures of sample reports for the documents: `python -m tests.report.shoot SAMPLES PICTURES`.

SAMPLES is the folder in which `make pages` keeps them. Each picture is the first screen of a page.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tests.report.browsing import LAPTOP, PHONE, first_screen, started
from tests.report.sample_runs import MADE, PLACES

FAULTS, NIGHTS, SCREEN = f"UNFIT by three faults{MADE}", f"45 nights{MADE}", "screen of 64 nodes"
SHOTS = {
    "report": (FAULTS, LAPTOP, "light"),
    "report-dark": (FAULTS, LAPTOP, "dark"),
    "report-phone": (FAULTS, PHONE, "light"),
    "runs": (NIGHTS, LAPTOP, "light"),
    "screen": (SCREEN, LAPTOP, "light"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", type=Path)
    parser.add_argument("pictures", type=Path)
    arguments = parser.parse_args()
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    pages = json.loads((arguments.samples / PLACES).read_text())
    with started() as browser:
        for name, (sample, (width, height), scheme) in SHOTS.items():
            with first_screen(browser, arguments.samples / pages[sample]) as opened:
                opened.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
                opened.page.set_viewport_size({"width": width, "height": height})
                opened.page.reload()
                opened.settle()
                opened.page.screenshot(path=arguments.pictures / f"{name}.png")


if __name__ == "__main__":
    main()
