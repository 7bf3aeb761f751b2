"""junit.xml: readable by junitparser, valid by Jenkins' XSD, complete, and bounded in size."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import junitparser
import pytest

from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.report.junit import CUT_OFF, MAX_MESSAGE, MAX_TEXT_BYTES, cut
from tests.support.harness import Suite
from tests.support.report_files import OF_RECORD, JunitFile, check_agreement

SUITE_PROPERTIES = [*OF_RECORD, "interrupted", "report", "package_version"]
REFERENCE = {"value": 100, "lower": "-10 %", "unit": "steps/s", "source": "a document"}
# How the name of a metric in a unit ends.
ENDS = {
    "steps/s": "steps_per_s",
    "samples/s": "samples_per_s",
    "tokens/s": "tokens_per_s_per_rank",
    "GiB": "_gib",
    "GB/s": "_gb_per_s",
    "s": "_s",
    "us": "_us",
    "1": "_loss",
}


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_every_kind_of_case(suite: Suite, words: tuple[str, ...]) -> None:
    """A passed job, a failed job with its finding, a failed criterion, expected failures and a
    skip; with xdist too."""
    suite.cluster(
        phases=dict.fromkeys(["good", "bad"]),
        references={"good": {"steps_per_s": REFERENCE}},
        known=[
            {
                "phase": "good",
                "criterion": "test_known",
                "reason": "the switch",
                "until": str(date.today() + timedelta(days=30)),
            }
        ],
    )
    suite.phase(
        "good",
        nodes=2,
        body="""\
        def test_rate(self, phase): phase.metric('steps_per_s').check()
        def test_unknown(self, phase): phase.metric('samples_per_s').check()
        def test_known(self, phase): assert phase.world_size == 3
        @pytest.mark.xfail(reason='not yet')
        def test_expected(self, phase): assert not phase.ranks_done
        """,
    )
    suite.phase("bad", args={"fail": True})
    ran = suite.run_apart(*words) if words else suite.run()
    assert ran.ret == 1
    record, read = suite.record(), JunitFile(suite.report / "junit.xml")
    check_agreement(record, read)
    assert (read.suite.failures, read.suite.errors) == (2, 0)  # one for each of the two causes
    assert read.of_suite["verdict"] == "UNFIT" and read.of_suite["report"] == str(
        suite.report.resolve()
    )
    assert list(read.of_suite)[: len(SUITE_PROPERTIES)] == SUITE_PROPERTIES
    (good_phase,) = (phase for phase in record["phases"] if phase["phase"] == "good")
    for case in ("job", "test_rate", "test_unknown", "test_known", "test_expected"):
        of_case = read.properties(f"test_good.TestGood::{case}")
        assert of_case["phase"] == "good" and of_case["outcome"] == "passed"
        assert of_case["phase_verdict"] == "1 failed"
        assert (
            of_case["nodes"] == "local0,local1" and of_case["transport"] == good_phase["transport"]
        )
        figures = {name: metric["value"] for name, metric in good_phase["metrics"].items()}
        figures |= {name: good_phase[name] for name in ("queue_s", "run_s", "job_id")}
        figures |= good_phase["versions"]
        assert {name: of_case[name] for name in figures} == {k: str(v) for k, v in figures.items()}
    published = suite.report.resolve() / "phases"
    job = read.result("test_bad.TestBad::job")
    assert isinstance(job, junitparser.Failure)
    assert "finding rank-error: rank 0 (local0) failed: ValueError: staged" in job.text
    assert "next: read the traceback" in job.text
    assert job.text.endswith(f"report: {published / 'bad'}") and (published / "bad").is_dir()
    assert "see test_bad.py::TestBad::job" in read.result("test_bad.TestBad::test_all_done").text
    rate = read.result("test_good.TestGood::test_rate")
    assert "90.0 % below the reference 100.0 steps/s" in rate.message
    assert rate.text.endswith(f"report: {published / 'good'}")
    unknown = read.result("test_good.TestGood::test_unknown")
    assert unknown.type == "pytest.skip" and "no reference" in unknown.message
    known = read.result("test_good.TestGood::test_known")
    assert known.type == "pytest.xfail" and known.message.startswith("the switch (known until ")
    assert read.result("test_good.TestGood::test_expected").message == "not yet"
    assert read.cases["test_good.TestGood::job"].is_passed


@pytest.mark.parametrize("words", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_passing_case_says_what_it_could_have_seen(suite: Suite, words: tuple[str, ...]) -> None:
    """In its own property and in its record, and in those of no other case."""
    suite.phase(
        body="""\
        def test_a(self, phase): phase.sensitivity.append('would have named\\n5% more time')
        def test_b(self, phase): pass
        def test_c(self, phase):
            phase.sensitivity.append('unseen')
            assert False
        """
    )
    assert (suite.run_apart(*words) if words else suite.run()).ret == 1
    (record,) = suite.record()["phases"]
    read = JunitFile(suite.report / "junit.xml")
    seen = "would have named 5% more time"
    assert record["criteria"]["test_a"]["text"] == seen
    assert read.properties("test_small.TestSmall::test_a")["sensitivity"] == seen
    assert record["criteria"]["test_b"]["text"] == ""
    for case in ("test_b", "test_c"):
        assert "sensitivity" not in read.properties(f"test_small.TestSmall::{case}")


@pytest.mark.parametrize("words", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_each_case_lists_the_kinds_it_judged(suite: Suite, words: tuple[str, ...]) -> None:
    """A case lists the kinds that it or the set-up of its fixtures judged, even if another case
    judged them too, and none that only other cases judged."""
    suite.cluster(references={"small": {"steps_per_s": REFERENCE}})
    suite.phase(
        body="""\
        import pytest
        @pytest.fixture
        def judged(self, phase):
            phase.judged.add('of a fixture')
            yield
            phase.judged.add('of a teardown')
        def test_a(self, phase): phase.metric('steps_per_s').check()
        def test_b(self, phase): phase.metric('steps_per_s').check()
        def test_c(self, phase, judged): pass
        def test_d(self, phase): assert 'references' in phase.judged
        """
    )
    suite.run_apart(*words) if words else suite.run()
    read = JunitFile(suite.report / "junit.xml")
    cases = [read.properties(f"test_small.TestSmall::test_{name}") for name in "abcd"]
    judged = [case.get("judged") for case in cases]
    assert judged == ["references", "references", "of a fixture", None]
    assert "judged" not in read.properties("test_small.TestSmall::job")
    criteria = suite.record()["phases"][0]["criteria"]
    recorded = [criteria[f"test_{name}"].get("judged", []) for name in "abcd"]
    assert recorded == [["references"], ["references"], ["of a fixture"], []]


@pytest.mark.parametrize("words", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_interrupted_run_names_the_unfinished_case(suite: Suite, words: tuple[str, ...]) -> None:
    """The unfinished case has its name and an error; the suite has `interrupted`."""
    suite.phase(args={"wait_for": str(suite.path / "never")})
    with suite.started(*words) as running:
        running.wait_for_ranks()
        running.interrupt()
        outcome = running.wait()
    assert outcome.ret == 2 and "INTERNALERROR" not in outcome.output, outcome.output
    read = JunitFile(suite.report / "junit.xml")
    check_agreement(suite.record(), read)
    assert read.of_suite["interrupted"] == "true" and read.of_suite["verdict"] == "INCONCLUSIVE"
    cut_off = read.result("test_small.TestSmall::job")
    assert isinstance(cut_off, junitparser.Error)
    assert cut_off.type == "interrupted" and cut_off.message == CUT_OFF
    assert read.suite.errors == read.suite.tests == 1


def test_criterion_that_ends_the_session_is_an_error(suite: Suite) -> None:
    """After pytest.exit in a criterion, earlier results stay, and the criterion is an error."""
    suite.phase(body="def test_a(self, phase): pytest.exit('enough')")
    suite.run()
    read = JunitFile(suite.report / "junit.xml")
    check_agreement(suite.record(), read)
    assert read.cases["test_small.TestSmall::job"].is_passed
    assert read.result("test_small.TestSmall::test_a").message == CUT_OFF


@pytest.mark.parametrize("words", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_junitxml_option_moves_the_file(suite: Suite, words: tuple[str, ...]) -> None:
    """--junitxml writes the same file to another path."""
    suite.phase()
    suite.run_apart("--junitxml", "mine/own.xml", "-k", "small", *words)
    assert not (suite.report / "junit.xml").exists()
    read = JunitFile(suite.path / "mine" / "own.xml")
    check_agreement(suite.record(), read)
    assert read.of_suite["verdict"] == "FIT" and read.of_suite["selection"] == "small"


def test_file_without_a_run_is_left_alone(suite: Suite) -> None:
    """If nothing was submitted, the suite gets no properties: there is no verdict."""
    suite.path.joinpath("test_other.py").write_text("def test_other(): pass\n")
    suite.run("--junitxml", "own.xml")
    assert JunitFile(suite.path / "own.xml").of_suite == {}


def test_long_texts_are_cut_and_not_repeated(suite: Suite) -> None:
    """A case has at most 16 KiB: the head and tail of its text, the path of the evidence, and each
    output once."""
    suite.phase(
        body="""\
        def test_long(self, phase): pytest.fail('first ' + 'ü' * 2**20 + ' last')
        def test_printed(self, phase):
            print('out ' + 'x' * 2**20 + ' end')
            pytest.skip('no')
        """
    )
    suite.run("-o", "junit_logging=all")
    path = suite.report / "junit.xml"
    assert path.stat().st_size < 3 * MAX_TEXT_BYTES
    read = JunitFile(path)
    long = read.result("test_small.TestSmall::test_long")
    assert len(long.message) <= MAX_MESSAGE and long.message.startswith("Failed: first ")
    size = len(long.text.encode())
    assert MAX_TEXT_BYTES - 8 <= size <= MAX_TEXT_BYTES
    assert "first ü" in long.text and "ü last" in long.text and "is omitted ...]" in long.text
    assert long.text.endswith(f"report: {suite.report.resolve() / 'phases' / 'small'}")
    case = read.cases["test_small.TestSmall::test_printed"]
    assert len(case.result) == 1 and case.system_out.count("out x") == 1
    outputs = [element for element in case._elem if element.tag == "system-out"]
    assert len(outputs) == 1 and len(case.system_out) <= MAX_TEXT_BYTES


def test_hostile_text_is_valid_xml(suite: Suite) -> None:
    """Control characters, lone surrogates and characters that XML forbids are escaped."""
    bad = r"\x00\x1b[31m\ud800\ufffe\uffff]]>&<"
    suite.phase(
        body=f"""\
        def test_a(self, phase, record_property):
            record_property('hostile', {bad!r}.encode().decode('unicode_escape'))
            pytest.fail({bad!r}.encode().decode('unicode_escape'))
        """,
    )
    suite.run()
    read = JunitFile(suite.report / "junit.xml")
    result = read.result("test_small.TestSmall::test_a")
    assert "#x00#x1B[31m#xD800#xFFFE#xFFFF]]>&<" in result.text
    assert read.properties("test_small.TestSmall::test_a")["hostile"].startswith("#x00#x1B")


@pytest.mark.parametrize("name", sorted(METRICS))
def test_metric_name_ends_in_its_unit(name: str) -> None:
    """A JUnit property has no unit, so the name has it."""
    assert name.endswith(ENDS[METRICS[name].unit])


@pytest.mark.parametrize("size", [0, 10, 63, 64, 65, 100, 1000])
@pytest.mark.parametrize("text", ["", "a" * 63, "ü" * 40, "ü€𝄞" * 100])
def test_cut_keeps_head_and_tail(text: str, size: int) -> None:
    """Short texts stay as they are; longer ones are cut to the size, with a note."""
    raw = len(text.encode())
    made = cut(text, size)
    if raw <= size:
        assert made == text
    else:
        assert f"{raw} bytes in total" in made
        assert len(made.encode()) <= max(size, len(cut(text, 0).encode()))
        assert made[0] in f"\n{text[0]}" and made[-1] in f"\n{text[-1]}"


def test_every_property_is_documented() -> None:
    """reports.md names each property of the suite and of cases, except metrics and versions."""
    document = (Path(__file__).parents[2] / "docs" / "reference" / "reports.md").read_text()
    of_cases = ["phase", "job_id", "nodes", "outcome", "queue_s", "run_s", "transport", "judged"]
    of_cases += ["unmeasured", "known", "known_until", "known_where"]
    names = [*SUITE_PROPERTIES, *of_cases]
    assert [name for name in names if f"`{name}`" not in document] == []
