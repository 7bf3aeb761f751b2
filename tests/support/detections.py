"""The criteria of the suite that must detect a fault of `--cluster-prove`, as their marks say."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.support.harness import SMOKE_TESTS


@cache
def list_tests(*files: Path) -> list[ast.FunctionDef]:
    """The tests, or criteria, that these files define."""
    return [
        node
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


@cache
def detections() -> dict[str, set[str]]:
    """Fault -> the suite's own criteria that must detect it."""
    criteria: dict[str, set[str]] = {}
    for test in list_tests(*SMOKE_TESTS.glob("test_*.py")):
        for mark in map(ast.unparse, test.decorator_list):
            if found := re.fullmatch(r"pytest\.mark\.detects\('([a-z0-9-]+)'\)", mark):
                criteria.setdefault(found[1], set()).add(test.name)
    return criteria
