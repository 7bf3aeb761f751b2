"""Acknowledged failures in cluster.yaml: what an entry may cover, and for how long."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from datetime import date, timedelta
from typing import get_args, get_type_hints

import jsonschema
import pytest
from pydantic import PlainSerializer

from pytest_clustersmoke.config.field_types import Day
from pytest_clustersmoke.config.profile import Profile
from pytest_clustersmoke.config.profile_schema import generate
from pytest_clustersmoke.config.waivers import LONGEST_DAYS

BASE = """\
clusters:
  one:
    backend: slurm
    shared_dir: /shared
    hardware: {gpu: A100, gpus_per_node: 2}
    phases: {ddp_2gpu: {}, zero1_4node: {}}
    known:
      - {node: n*, reason: fine, until: 2020-01-01}
      - ENTRY
"""
SOON = (date.today() + timedelta(days=7)).isoformat()


def entry(words: str) -> str:
    return BASE.replace("ENTRY", words)


def test_entries_are_read_with_their_lines(profile: Callable[..., Profile]) -> None:
    """An entry names a node, or a criterion of a phase; its line in the file is known."""
    made = profile(
        entry(f"{{phase: zero1_*, criterion: test_throughput, reason: $5 short, until: {SOON}}}")
    )
    node, criterion = made.known
    assert (node.node, node.phase, node.until) == ("n*", None, date(2020, 1, 1))
    assert (criterion.phase, criterion.criterion) == ("zero1_*", "test_throughput")
    assert criterion.reason == "$5 short" and criterion.until.isoformat() == SOON
    assert made.where("known", 1).endswith("cluster.yaml:9")


def test_hosts_of_several_ranges_are_accepted(profile: Callable[..., Profile]) -> None:
    """As `sinfo` prints racks; wildcards stand only after the last range."""
    hosts = "rack[1-2]n[01-04]"
    made = profile(entry(f'{{node: "{hosts}", reason: x, until: {SOON}}}'))
    assert made.known[1].node == hosts


def test_last_allowed_day_is_accepted(profile: Callable[..., Profile]) -> None:
    """A day in the past is accepted too."""
    last = date.today() + timedelta(days=LONGEST_DAYS)
    assert profile(entry(f"{{node: n1, reason: x, until: {last}}}")).known[1].until == last


def test_day_is_written_as_text_without_a_warning(profile: Callable[..., Profile]) -> None:
    """A run compares its profile as JSON with that of the run it attaches to."""
    made = profile(entry(f"{{node: n1, reason: x, until: {SOON}}}"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known = made.model_dump(mode="json")["known"]
    assert [each["until"] for each in known] == ["2020-01-01", SOON]


def test_day_is_written_by_a_function_in_python() -> None:
    """pydantic 2.6 reads the annotations of a serializer, and a method in C has none."""
    (writer,) = (part for part in get_args(Day) if isinstance(part, PlainSerializer))
    assert get_type_hints(writer.func)["return"] is str


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "{node: n1, until: SOON}",
            "clusters.one.known[1] has no `reason`; expected `reason` (why it fails and who is "
            "responsible, in one line)",
        ),
        (
            "{node: n1, reason: x}",
            "clusters.one.known[1] has no `until`; expected `until` (the last day on which this "
            "is valid)",
        ),
        (
            '{node: n1, reason: "a\\nb", until: SOON}',
            "clusters.one.known[1].reason is `a b`; expected one line of text",
        ),
        (
            "{node: n1, reason: x, until: 2026-02-30}",
            "clusters.one.known[1].until is `2026-02-30`; expected a calendar date such as "
            "`2026-12-31`",
        ),
        (
            "{node: n1, reason: x, until: 20261231}",
            "clusters.one.known[1].until is `20261231`; expected a calendar date such as "
            "`2026-12-31`",
        ),
        (
            "{node: n1, reason: x, until: next week}",
            "clusters.one.known[1].until is `next week`; expected a calendar date such as "
            "`2026-12-31`",
        ),
        (
            "{reason: x, until: SOON}",
            "clusters.one.known[1] has neither `node` nor `phase`; expected either `node`, or "
            "`phase` with `criterion`",
        ),
        (
            "{node: , reason: x, until: SOON}",
            "clusters.one.known[1] has neither `node` nor `phase`; expected either `node`, or "
            "`phase` with `criterion`",
        ),
        (
            "{phase: ddp_2gpu, reason: x, until: SOON}",
            "clusters.one.known[1] has `phase`; expected either `node`, or `phase` with "
            "`criterion`",
        ),
        (
            "{node: n1, phase: ddp_2gpu, criterion: job, reason: x, until: SOON}",
            "clusters.one.known[1] has `node` and `phase` and `criterion`; expected either `node`, "
            "or `phase` with `criterion`",
        ),
        (
            "{node: '*', reason: x, until: SOON}",
            "`node: *` in clusters.one.known[1] covers every failure; "
            "expected the name of the node, or of the phase and criterion, that fails",
        ),
        (
            "{phase: '*', criterion: '**', reason: x, until: SOON}",
            "`phase: *` and `criterion: **` in clusters.one.known[1] cover every failure; "
            "expected the name of the node, or of the phase and criterion, that fails",
        ),
        (
            "{node: '*.local,n1', reason: x, until: SOON}",
            "`node: *.local,n1` in clusters.one.known[1] covers every failure; "
            "expected the name of the node, or of the phase and criterion, that fails",
        ),
        (
            "{node: '?*', reason: x, until: SOON}",
            "`node: ?*` in clusters.one.known[1] covers every failure; "
            "expected the name of the node, or of the phase and criterion, that fails",
        ),
        (
            "{phase: '[!~]*', criterion: 'test_*', reason: x, until: SOON}",
            "`phase: [!~]*` and `criterion: test_*` in clusters.one.known[1] cover every failure; "
            "expected the name of the node, or of the phase and criterion, that fails",
        ),
        (
            "{phase: '*', criterion: job, reason: x, until: SOON}",
            "`phase: *` and `criterion: job` in clusters.one.known[1] cover every failure; "
            "expected the name of the node, or of the phase and criterion, that fails",
        ),
        (
            "{phase: zero1_4nodes, criterion: job, reason: x, until: SOON}",
            "`zero1_4nodes` in clusters.one.known[1] matches no phase listed under "
            "`phases`; expected one of `ddp_2gpu`, `zero1_4node`; did you mean `zero1_4node`?",
        ),
        (
            "{nod: n1, reason: x, until: SOON}",
            "unknown key `nod` in clusters.one.known[1]; expected one of `node`, `phase`, "
            "`criterion`, `reason`, `until`; did you mean `node`?",
        ),
        ("n1", "clusters.one.known[1] is `n1`; expected a mapping of keys"),
    ],
)
def test_invalid_entry_is_refused(
    problems: Callable[..., list[str]], words: str, expected: str
) -> None:
    """The problem has the entry's line and says what was expected."""
    assert f"cluster.yaml:9: {expected}" in problems(entry(words.replace("SOON", SOON)))


@pytest.mark.parametrize(
    "node",
    ["[!~]*", "n[", "n[a-b]", "n[5-3]", "*[0-9]*", "a,,b", "n[0-99999999]", "n]"],
)
def test_invalid_host_list_is_refused(problems: Callable[..., list[str]], node: str) -> None:
    """`[` only opens a range of numbers."""
    (problem,) = problems(entry(f"{{node: '{node}', reason: x, until: {SOON}}}"))
    assert problem.startswith(
        f"cluster.yaml:9: `node: {node}` in clusters.one.known[1] is not a list of"
    )
    assert problem.endswith("`[` opens a range of numbers")


@pytest.mark.parametrize(
    "words",
    [
        "node: 'n[01-12,20].local,rack10-5,m*'",
        "phase: '*', criterion: test_rate",
        "phase: '*', criterion: 'test_rate[bf16-2]'",
        "phase: 'ddp_*', criterion: 'test_*'",
        "phase: ddp_2gpu, criterion: '*'",
        "phase: 'ddp_*', criterion: job",
    ],
)
def test_entry_that_does_not_cover_everything_is_accepted(
    profile: Callable[..., Profile], words: str
) -> None:
    """Globs are allowed if they do not cover every failure."""
    assert len(profile(entry(f"{{{words}, reason: x, until: {SOON}}}")).known) == 2


def test_day_too_far_ahead_is_refused(problems: Callable[..., list[str]]) -> None:
    """An acknowledgement must be renewed after LONGEST_DAYS."""
    last = date.today() + timedelta(days=LONGEST_DAYS)
    far = last + timedelta(days=1)
    assert problems(entry(f"{{node: n1, reason: x, until: {far}}}")) == [
        f"cluster.yaml:9: clusters.one.known[1].until is `{far}`, more than 90 days ahead; "
        f"expected a day no later than {last}; review the entry and renew it by then"
    ]


@pytest.mark.parametrize(
    ("known", "valid"),
    [
        ({"node": "n1", "reason": "x", "until": "2026-12-31"}, True),
        ({"phase": "a", "criterion": "job", "reason": "x", "until": "2026-12-31"}, True),
        ({"node": "n1", "reason": "x", "until": "2026"}, False),
        ({"node": "n1", "until": "2026-12-31"}, False),
        ({"phase": "a", "reason": "x", "until": "2026-12-31"}, False),
        (
            {"node": "n1", "phase": "a", "criterion": "b", "reason": "x", "until": "2026-12-31"},
            False,
        ),
        ({"node": "n1", "phase": "a", "reason": "x", "until": "2026-12-31"}, False),
    ],
)
def test_schema_refuses_what_the_reader_refuses(known: dict[str, str], valid: bool) -> None:
    """The JSON Schema accepts and refuses the same entries."""
    profile = {
        "backend": "local",
        "shared_dir": "/x",
        "hardware": {"gpu": "any", "gpus_per_node": 1},
        "phases": {"a": None},
        "known": [known],
    }
    validator = jsonschema.Draft7Validator(generate())
    file = json.loads(json.dumps({"clusters": {"one": profile}}))
    assert validator.is_valid(file) is valid
