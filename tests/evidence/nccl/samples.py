"""Recorded logs of NCCL, each with what is known of it."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parent / "data"
SAMPLES = sorted(path.stem for path in DATA.glob("*.log"))
