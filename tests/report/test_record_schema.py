"""report.schema.json: it is up to date with the models, and every report conforms to it."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import jsonschema
import pytest

from pytest_clustersmoke.evidence.run_record import SCHEMA
from pytest_clustersmoke.report.record_schema import SCHEMA_PATH, json_schema
from tests.support import records
from tests.support.harness import Suite
from tests.support.report_files import find_schema_errors

REFERENCE = {"value": 100, "lower": "-10 %", "unit": "steps/s", "source": "a document"}


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(SCHEMA_PATH.read_text())
    return schema


def test_schema_file_is_up_to_date() -> None:
    """The file in the package is the schema of its models."""
    assert json.loads(SCHEMA_PATH.read_text()) == json_schema(), (
        "run python -m pytest_clustersmoke.report.record_schema"
    )


def test_schema_has_a_name_and_a_version(shipped: dict[str, Any]) -> None:
    """The version of the record is in the schema's name, and no other version is valid."""
    jsonschema.Draft202012Validator.check_schema(shipped)
    assert shipped["$id"] == f"urn:pytest-clustersmoke:report:{SCHEMA}"
    assert find_schema_errors(records.run(), shipped) == []
    (error,) = find_schema_errors(records.run(schema=SCHEMA + 1), shipped)
    assert error.startswith("$.schema:")


def test_every_object_is_closed_and_described(shipped: dict[str, Any]) -> None:
    """Unknown keys are invalid, and every object has a description."""
    assert shipped["additionalProperties"] is False
    for name, record in shipped["$defs"].items():
        assert record["additionalProperties"] is False and record["title"] == name
        assert record["description"]
    properties = shipped["$defs"]["PhaseRecord"]["properties"]
    assert properties["queue_s"]["description"] == "from submission to start"
    assert shipped["$defs"]["FactsRecord"]["properties"]["facts"] == {
        "description": "from the last of these phases",
        "type": "object",
    }


def test_unset_fields_are_left_out() -> None:
    """A record is written as it was read: optional fields such as `fault` and `proof` only if they
    were set, and null where it was null."""
    plain = records.run(records.phase(trend=None))
    assert json.loads(json.dumps(records.parsed(plain).as_json())) == json.loads(json.dumps(plain))
    staged = records.run(records.phase(fault="kill"), proof=records.proof(records.gate()))
    held = records.parsed(staged).as_json()
    assert held["phases"][0]["fault"] == "kill" and held["proof"] == staged["proof"]


@pytest.mark.parametrize(
    ("value", "written"), [(math.nan, "nan"), (-math.inf, "-inf"), ("inf", "inf"), (1.5, 1.5)]
)
def test_number_that_is_not_finite_is_written_as_text(value: Any, written: Any) -> None:
    """JSON has no NaN."""
    record = records.run(records.phase(metrics={"final_loss": records.metric(value)}))
    phase = records.parsed(record).as_json()["phases"][0]
    assert phase["metrics"]["final_loss"]["value"] == written


@pytest.mark.parametrize(
    "record",
    [
        records.run(),
        records.run(records.phase(nodes=1, ranks_per_node=1), records.phase("b", nodes=64)),
        records.run(
            records.phase(outcome="lost", topology=None, queue_s=None, nodes=1, metrics={}),
            verdict="INCONCLUSIVE",
            partial="its controller was killed",
        ),
        records.run(records.phase(findings=[records.finding()], fault="kill")),
    ],
)
def test_sample_records_match_the_schema(record: Any, shipped: dict[str, Any]) -> None:
    """Small and large runs, and a run with few known figures."""
    assert find_schema_errors(record, shipped) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdicts",), "FIT"),
        (("phases", 0, "outcome"), "fine"),
        (("phases", 0, "metrics", "steps_per_s", "value"), "fast"),
        (("phases", 0, "ranks", 0, "rank"), "0"),
        (("phases", 0, "loss", 0), [1]),
        (("phases", 0, "topology", "groups", 0, "nodes"), [0, 1, 2]),
        (("phases", 0, "criteria", "job", "result"), "green"),
    ],
)
def test_malformed_report_is_refused(
    path: tuple[Any, ...], value: Any, shipped: dict[str, Any]
) -> None:
    """An unknown key, an unknown value of an enumeration, and values of a wrong type are errors."""
    record: Any = copy.deepcopy(records.run())
    *parents, last = path
    place = record
    for step in parents:
        place = place[step]
    place[last] = value
    errors = find_schema_errors(record, shipped)
    assert errors and all(parents == [] or ".phases[0]" in error for error in errors)


def test_real_reports_match_the_schema(suite: Suite, shipped: dict[str, Any]) -> None:
    """Passed and failed jobs, one with NCCL links; a failed criterion; an infinite rate."""
    suite.cluster(
        phases=dict.fromkeys(["good", "bad", "edges", "infinite"]),
        references={"good": {"steps_per_s": REFERENCE}},
    )
    suite.phase("good", body="def test_rate(self, phase): phase.metric('steps_per_s').check()")
    suite.phase("bad", args={"fail": True})
    suite.phase("edges", args={"nccl": "none"}, gpus_per_node=2)
    suite.phase("infinite", args={"rate": "inf"})
    suite.run()
    record = suite.record()
    assert find_schema_errors(record, shipped) == []
    outcomes = {phase["phase"]: phase["outcome"] for phase in record["phases"]}
    assert outcomes == {"good": "passed", "bad": "failed", "edges": "passed", "infinite": "passed"}
    by_name = {phase["phase"]: phase for phase in record["phases"]}
    assert by_name["good"]["criteria"]["test_rate"]["result"] == "failed"
    assert by_name["bad"]["findings"] and by_name["edges"]["topology"]["links"]
    assert by_name["infinite"]["metrics"]["steps_per_s"]["value"] == "inf"
