"""`clustersmoke references propose`: its output can be pasted into cluster.yaml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.cli.tables import moment
from pytest_clustersmoke.config.cluster_file import load_cluster_file
from pytest_clustersmoke.config.expectations import Reference
from pytest_clustersmoke.evidence.history.outlier_judge import FAIL_SPREADS, measure_level
from tests.evidence.history.made import DAY_S, night, nights, of_night, with_versions
from tests.support.records import BEGUN, Record, metric, phase, store_run

PROFILE = """\
clusters:
  gilbreth:
    backend: slurm
    shared_dir: /shared
    hardware: {gpu: NVIDIA H100, gpus_per_node: 2}
    slurm: {partition: gpu}
    phases: {zero1_4node: , ddp_2gpu: , lora_sft_ddp: }
"""


def proposed(capsys: pytest.CaptureFixture[str], directory: Path, *words: str) -> str:
    words = (
        "references",
        "propose",
        "--cluster",
        "gilbreth",
        "--report-dir",
        str(directory),
        *words,
    )
    assert main(words) == 0
    return capsys.readouterr().out


def pasted(directory: Path, text: str) -> dict[str, dict[str, Reference]]:
    """The references of a profile into which the text was pasted, as loaded."""
    path = directory / "cluster.yaml"
    path.write_text(PROFILE + text)
    return load_cluster_file(path, {}).profile("gilbreth").references


def test_output_can_be_pasted_into_cluster_yaml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loader of cluster.yaml accepts it unchanged, with value, bound, unit and source."""
    for number in range(10):
        metrics = {
            "steps_per_s": metric(9.5 + 0.05 * (number % 5 - 2)),
            "samples_per_s": metric(2432.4, "samples/s"),
            "tokens_per_s_per_rank": metric(1234567.0, "tokens/s"),
            "peak_memory_gib": metric(9.0071, "GiB", False),
            "latency_us": metric(0.00012344, "us", False),
        }
        store_run(
            of_night(number, phase(metrics=metrics), phase("ddp_2gpu", metrics=metrics)), tmp_path
        )
    text = proposed(capsys, tmp_path)
    references = pasted(tmp_path, text)
    assert list(references) == ["ddp_2gpu", "zero1_4node"]
    values = {name: reference.value for name, reference in references["zero1_4node"].items()}
    assert values == {
        "steps_per_s": 9.5,
        "samples_per_s": 2432,
        "tokens_per_s_per_rank": 1235000,
        "peak_memory_gib": 9.007,
    }
    speed = references["zero1_4node"]["steps_per_s"]
    assert (speed.lower, speed.upper, speed.unit) == (-0.11, None, "steps/s")
    assert speed.source == (
        "median of 10 runs, 2026-11-18 to 2026-11-27, torch 2.5.1+cu121, cuda 12.1, nccl 2.21.5, "
        "driver 550.54.15"
    )
    memory = references["zero1_4node"]["peak_memory_gib"]
    assert (memory.lower, memory.upper) == (None, 0.11)
    assert "# latency_us is left out: times, latencies and losses vary too much" in text


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("noise", [0.01, 0.2, 0.3])
def test_bound_is_where_the_history_check_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], noise: float, higher: bool
) -> None:
    """However much past values vary, the bound is at least 10 % from the median, and not closer to
    it than the bound of the history check."""
    name, unit = ("steps_per_s", "steps/s") if higher else ("peak_memory_gib", "GiB")
    values = [9.4567 + noise * (number % 7 - 3) for number in range(21)]
    for number, value in enumerate(values):
        store_run(night(number, metrics={name: metric(value, unit, higher)}), tmp_path)
    reference = pasted(tmp_path, proposed(capsys, tmp_path))["zero1_4node"][name]
    here = measure_level(values)
    assert here is not None
    far = here.off(FAIL_SPREADS)
    off = max(far, 0.1 * reference.value)
    if higher:
        assert reference.low is not None
        assert here.median - off - 0.01 * reference.value <= reference.low <= here.median - far
        assert reference.low <= 0.9 * reference.value * (1 + 1e-12)
    else:
        assert reference.high is not None
        assert here.median + off + 0.01 * reference.value >= reference.high >= here.median + far
        assert reference.high >= 1.1 * reference.value * (1 - 1e-12)


def test_phases_with_too_few_runs_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A phase with fewer than eight good runs on its newest versions is left out, in a comment."""
    nights(tmp_path, 9)
    for number in range(12):
        versions = with_versions(**({"nccl": "2.22"} if number >= 5 else {}))
        store_run(of_night(number, phase("ddp_2gpu", versions=versions)), tmp_path)
    store_run(of_night(20, phase("lora_sft_ddp", outcome="lost")), tmp_path)
    text = proposed(capsys, tmp_path)
    assert (
        "    # left out: ddp_2gpu, 7 good runs with the newest setup (12 in total); 8 are "
        "needed\n    # left out: lora_sft_ddp, 0 good runs; 8 are needed\n"
    ) in text
    assert list(pasted(tmp_path, text)) == ["zero1_4node"]


def test_newest_run_of_another_setup_does_not_hide_earlier_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the newest good run is the only one of its setup, the references come from the newest
    setup with enough good runs, and a comment says what has changed since."""
    nights(tmp_path, 9, shape='{"steps": 10}')
    nights(tmp_path, 30, first=10, shape='{"steps": 30}')
    nights(tmp_path, 1, first=50, shape='{"steps": 60}')
    text = proposed(capsys, tmp_path)
    assert "# 30 runs, median 9.5 steps/s" in text
    day = moment(BEGUN + 50 * DAY_S)[:10]
    assert (
        f"      # not from the newest good run ({day}): fewer than 8 like it; changed since: "
        "args.steps 30 -> 60\n"
    ) in text
    assert list(pasted(tmp_path, text)["zero1_4node"]) == ["steps_per_s"]


def test_phase_option_selects_one_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If no phase has enough runs, only comments are printed."""
    nights(tmp_path, 8)
    store_run(of_night(0, phase("ddp_2gpu")), tmp_path)
    text = proposed(capsys, tmp_path, "--phase", "ddp_2gpu")
    assert all(line.startswith("    #") for line in text.splitlines())
    assert pasted(tmp_path, text) == {}
    references = pasted(tmp_path, proposed(capsys, tmp_path, "--phase", "zero1_4node"))
    assert list(references) == ["zero1_4node"]


def test_metrics_without_a_bound_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too noisy, not positive, too rare or unknown: named in a comment, and the rest stays."""
    for number in range(9):
        metrics: dict[str, Record] = {
            "steps_per_s": metric(1.0 + 2 * number),
            "peak_memory_reserved_gib": metric(0.0, "GiB", False),
            "final_loss": metric(1.0, "1", False),
            "vanished": metric(1.0, "m"),
            "samples_per_s": metric(100.0, "samples/s"),
        }
        if number == 8:
            metrics["peak_memory_gib"] = metric(1.0, "GiB", False)
        store_run(night(number, metrics=metrics), tmp_path)
    text = proposed(capsys, tmp_path)
    for words in (
        "# steps_per_s is left out: too noisy for a bound, spread ",
        "# peak_memory_reserved_gib is left out: its median is 0",
        "# final_loss is left out: times, latencies and losses vary too much",
        "# vanished is left out: this version has no such metric in m",
        "# peak_memory_gib is left out: too few of these runs have it",
    ):
        assert words in text
    assert list(pasted(tmp_path, text)["zero1_4node"]) == ["samples_per_s"]


def test_phase_without_any_bound_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A phase is left out, with a comment, if none of its metrics can have a bound."""
    for number in range(8):
        store_run(night(number, metrics={"final_loss": metric(-1.0, "1", False)}), tmp_path)
    text = proposed(capsys, tmp_path)
    assert "# left out: zero1_4node, none of its metrics can have bounds" in text
    assert pasted(tmp_path, text) == {}


def test_hostile_names_stay_on_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded versions and hardware cannot break out of quotes or comments."""
    versions = with_versions(torch='2.5"}\n  evil: [', nccl="${HOME}: # x 😀")
    nights(tmp_path, 8, versions=versions, hardware="H100\n    evil: true")
    references = pasted(tmp_path, proposed(capsys, tmp_path))
    assert list(references) == ["zero1_4node"]
    assert json.dumps('2.5"}   evil: [')[1:-1] in json.dumps(
        references["zero1_4node"]["steps_per_s"].source
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cluster", "gilbret"), "--cluster: no cluster `gilbret` in the history"),
        (
            ("--cluster", "gilbreth", "--phase", "x"),
            "--phase: no phase `x` in the history; expected one of `zero1_4node`",
        ),
    ],
)
def test_unknown_names_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    """An unknown cluster or phase gives one line, and status 2."""
    nights(tmp_path, 1)
    assert main(["references", "propose", "--report-dir", str(tmp_path), *words]) == 2
    assert capsys.readouterr().err.startswith(f"clustersmoke: {message}")
