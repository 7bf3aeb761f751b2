"""The YAML reader: scalars, lines, and files that cannot be read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.config.cluster_file import load_cluster_file
from pytest_clustersmoke.config.profile import Profile
from pytest_clustersmoke.config.yaml_source import Reading, Source, read_yaml
from pytest_clustersmoke.text import UsageProblems

Problems = Callable[..., list[str]]


def source_of(directory: Path, text: str) -> Source:
    path = directory / "cluster.yaml"
    path.write_text(text)
    return read_yaml(path, Reading())


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("on", "on"),
        ("01:00:00", "01:00:00"),
        ("1:30", "1:30"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("2024-01-31", "2024-01-31"),
        ("-12", -12),
        ("1.5", 1.5),
        ("5e8", 5e8),
        (".5", 0.5),
        (".inf", float("inf")),
        ("~", None),
        ("", None),
        ("null", None),
        ("-10 %", "-10 %"),
        ('"12"', "12"),
        ("!!str 12", "12"),
        ("[1, a]", (1, "a")),
        ("<<", "<<"),
    ],
)
def test_scalars_follow_yaml_1_2(tmp_path: Path, written: str, value: Any) -> None:
    """Only true and false are booleans, and text that merely resembles a number stays text."""
    parsed = source_of(tmp_path, f"key: {written}\n").values["key"]
    assert (parsed, type(parsed)) == (value, type(value))


def test_lines_are_correct_through_anchors_and_merges(tmp_path: Path) -> None:
    """A key's line is where it was written, even if an anchor or a merge brought it elsewhere."""
    source = source_of(
        tmp_path,
        """\
x-a: &a
  inner:
    key: 1
  other: 2
x-b: &b {other: 3, more: 4}
first:
  <<: [*a, *b]
  other: 9
second: *a
list:
  - one
  - two
""",
    )
    path = source.file
    assert source.values["first"] == {"inner": {"key": 1}, "other": 9, "more": 4}
    assert source.where(("first", "inner", "key")) == f"{path}:3"
    assert source.where(("first", "other")) == f"{path}:8"
    assert source.where(("first", "more")) == f"{path}:5"
    assert source.where(("second", "other")) == f"{path}:4"
    assert source.where(("list", 1)) == f"{path}:12"
    assert source.where(("second", "absent", "key")) == f"{path}:9"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "cluster.yaml: the file is empty; expected a mapping with the key `clusters`"),
        (
            b"# nothing\n",
            "cluster.yaml: the file is empty; expected a mapping with the key `clusters`",
        ),
        (
            b"- a\n",
            "cluster.yaml: the file is not a mapping; expected a mapping with the key `clusters`",
        ),
        (
            b"x-a: 1\n",
            "cluster.yaml: the file has no `clusters`; expected a mapping with the key `clusters`",
        ),
        (
            b"clusters: 5\n",
            "cluster.yaml:1: `clusters` lists no profile; expected profiles, each under its name",
        ),
        (
            b"a: 1\nb: \xff\n",
            "cluster.yaml:2: malformed YAML: invalid leading UTF-8 octet; expected valid YAML in "
            "UTF-8",
        ),
        (
            b"a: 1\nb: \x07\n",
            "cluster.yaml:2: malformed YAML: control characters are not allowed; expected valid "
            "YAML in UTF-8",
        ),
    ],
)
def test_file_that_is_not_a_mapping_is_refused(
    problems: Problems, content: bytes, expected: str
) -> None:
    """A file that is not a mapping in UTF-8 gives one problem that says what it is."""
    assert problems(content) == [expected]


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "flow sequence"),
        ("a: 1\nb: }\n", 2, "node content"),
        ("a: *nowhere\n", 1, "undefined alias"),
        ("a: 1\n---\nb: 2\n", 2, "document"),
        ("a: 1\nb: !!python/name:os.system x\n", 2, "determine a constructor for the tag"),
        ("a: 1\nb: " + "[" * 60 + "]" * 60, 2, "values nest more than 40 levels deep"),
        # libyaml 0.2.6 has a limit of its own, which its scanner reaches first.
        ("a: 1\nb: " + "[" * 100_000, 2, "nest"),
    ],
)
def test_malformed_yaml_names_the_line(problems: Problems, text: str, line: int, word: str) -> None:
    """A parser's error becomes one problem with its line."""
    (problem,) = problems(text)
    assert problem.startswith(f"cluster.yaml:{line}: malformed YAML: ")
    assert word in problem
    assert "\n" not in problem


def test_directory_and_missing_file_are_refused(tmp_path: Path) -> None:
    """A path that cannot be read gives a problem, not a traceback."""
    with pytest.raises(UsageProblems, match="cannot be read: Is a directory; expected a readable"):
        load_cluster_file(tmp_path, {})
    with pytest.raises(UsageProblems, match="cannot be read: No such file or directory"):
        load_cluster_file(tmp_path / "absent.yaml", {})


def test_aliases_that_expand_too_far_are_refused_quickly(
    problems: Problems, one_slurm: str
) -> None:
    """A few lines of nested aliases take neither much memory nor much time."""
    lists = "".join(
        f"x-{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" if n else "x-0: &a0 [1]\n"
        for n in range(12)
    )
    merges = "x-m0: &m0 {k0: 1}\n" + "".join(
        f"x-m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}], k{n}: 1}}\n" for n in range(1, 12)
    )
    started = time.perf_counter()
    for text in (lists, merges):
        (problem,) = problems(text + one_slurm)
        assert "aliases expand to too many values; expected at most 20000 values" in problem
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("endless", ["&a [1, *a]", "&a {<<: *a}", "&a {b: &b {<<: [*a, *b]}}"])
def test_alias_inside_its_own_anchor_is_refused(
    problems: Problems, one_slurm: str, endless: str
) -> None:
    """A value that contains itself gives one problem with its line."""
    assert problems(f"x-a: {endless}\n{one_slurm}") == [
        "cluster.yaml:1: aliases expand to too many values; expected at most 20000 values"
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "x-a: 1\nx-a: 2",
            "2: the key `x-a` appears twice (first at line 1); expected each key once",
        ),
        ("x-a: {1: 2}", "1: the key `1` is not text; expected text; put it in quotes"),
        ("x-a: {[1]: 2}", "1: a key is not text; expected text; put it in quotes"),
        ("x-a: !!int five", "1: `five` does not fit its tag; expected a plain value"),
        ("x-a: !!bool five", "1: `five` does not fit its tag; expected a plain value"),
        ("x-a: !!int ''", "1: `` does not fit its tag; expected a plain value"),
        ("x-a: !!timestamp five", "1: `five` does not fit its tag; expected a plain value"),
        (
            "x-a: {<<: 5}",
            "1: `<<` merges something that is not a mapping; expected `<<: *anchor` of a mapping",
        ),
        (
            "x-a: &a {b: 1}\nx-b:\n  <<: *a\n  <<: *a",
            "4: the key `<<` appears twice (first at line 3); expected each key once",
        ),
    ],
)
def test_duplicate_keys_and_wrong_tags_are_refused(
    problems: Problems, one_slurm: str, line: str, expected: str
) -> None:
    """Duplicate keys, keys that are not text, and tags that do not fit are refused."""
    (problem,) = problems(f"{line}\n{one_slurm}")
    assert problem.startswith(f"cluster.yaml:{expected}")


def test_two_spellings_of_an_option_are_one_key(
    problems: Problems, one_slurm: str, profile: Callable[..., Profile]
) -> None:
    """`cpus-per-task` and `cpus_per_task` are the same option, and may appear only once."""
    text = one_slurm + "    slurm:\n      cpus-per-task: 3\n"
    read_profile = profile(text)
    assert read_profile.slurm == {"cpus_per_task": 3}
    assert read_profile.where("slurm", "cpus-per-task").endswith("cluster.yaml:8")
    assert problems(text + "      cpus_per_task: 4\n") == [
        "cluster.yaml:9: the key `cpus_per_task` appears twice (first at line 8); "
        "expected each key once"
    ]
