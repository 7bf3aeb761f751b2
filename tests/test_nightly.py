"""docs/how-to/run-every-night.md shows the example files, and the examples work."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from croniter import croniter

from pytest_clustersmoke import lab
from pytest_clustersmoke.evidence import locks
from tests.support.harness import BARE, Suite
from tests.support.needs import need_lab
from tests.support.waiting import wait_for

DOCS = Path(__file__).resolve().parent.parent / "docs"
EXAMPLES = DOCS / "examples"
SCRIPT, CRONTAB, WORKFLOW = (EXAMPLES / f"nightly.{kind}" for kind in ("sh", "crontab", "yml"))
# Those of tests/report/test_prometheus.py
OTHERS = [
    EXAMPLES / name
    for name in ("clustersmoke.rules.yml", "clustersmoke.dashboard.json", "dashboard.py")
]
# Tools that pip installed next to this Python, even if its environment is not activated.
TOOLS = Path(sys.executable).parent
# The environment of a job in a user's crontab (man 5 crontab).
CRON = {"LOGNAME": "someone", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
RUNNERS_BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")  # `shell: bash` of a step


def workflow() -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true; the text is what GitHub reads.
    loaded: dict[str, Any] = yaml.load(WORKFLOW.read_text(), Loader=yaml.BaseLoader)
    return loaded


def job() -> dict[str, Any]:
    (single,) = workflow()["jobs"].values()
    return dict(single)


def steps() -> dict[str, str]:
    """The shell scripts of the workflow's steps, by their names."""
    return {step["name"]: step["run"] for step in job()["steps"] if "run" in step}


def crontab() -> list[tuple[str, str]]:
    """The jobs of the crontab: schedule and command."""
    jobs = []
    for line in CRONTAB.read_text().splitlines():
        if not line or line.startswith("#") or re.match(r"[A-Za-z_]+\s*=", line):
            continue
        fields = line.split(None, 5)
        jobs.append((" ".join(fields[:5]), fields[5]))
    return jobs


def test_page_shows_the_example_files() -> None:
    """Each example is a block of the page, letter for letter, and is linked from it."""
    page = (DOCS / "how-to" / "run-every-night.md").read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for path in (SCRIPT, CRONTAB, WORKFLOW):
        assert path.read_text() in blocks, path.name
        assert f"(../examples/{path.name})" in page
    files = [path for path in EXAMPLES.iterdir() if path.is_file()]
    assert sorted(files) == sorted([SCRIPT, CRONTAB, WORKFLOW, *OTHERS])


def test_page_shows_the_refusal_of_a_second_run(tmp_path: Path) -> None:
    """The page quotes the real error of a cluster in use."""
    page = (DOCS / "how-to" / "run-every-night.md").read_text()
    (line,) = re.findall(r"^ERROR: (--cluster-exclusive: .*)$", page, re.MULTILINE)
    path = locks.cluster_lock_path(tmp_path, "gilbreth")
    path.write_text(
        '{"run_id": "20261122-023001-64d4f4", "user": "ops", "host": "login1", "pid": 4711,'
        ' "since": "2026-11-22 02:30:03 +0000"}'
    )
    (problem,) = locks._in_use_problem(path, "gilbreth").problems
    assert str(problem).replace(str(tmp_path), "/scratch/…/runs") == line


def check_command(*words: str | Path) -> None:
    """Run a command, which must succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_scripts_pass_shellcheck(tmp_path: Path) -> None:
    """bash parses them, and shellcheck reports nothing; also for the steps of the workflow."""
    scripts = [SCRIPT]
    for number, text in enumerate(steps().values()):
        scripts.append(tmp_path / f"step{number}.sh")
        scripts[-1].write_text(text)
    assert len(scripts) == 3 and os.access(SCRIPT, os.X_OK)
    for path in scripts:
        check_command("bash", "-n", path)
        check_command(TOOLS / "shellcheck", "--shell=bash", "--severity=style", path)


def test_workflow_matches_githubs_schema(tmp_path: Path) -> None:
    """GitHub's schema accepts it, and refuses a broken one."""
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema")
    check_command(*command, "vendor.github-workflows", WORKFLOW)
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOW.read_text().replace("runs-on:", "runs-at:"))
    with pytest.raises(AssertionError, match="runs-on"):
        check_command(*command, "vendor.github-workflows", broken)


def test_schedules_run_once_a_night() -> None:
    """Crontab and workflow have a valid cron schedule that occurs once in 24 hours."""
    times = [when for when, _ in crontab()]
    times += [entry["cron"] for entry in workflow()["on"]["schedule"]]
    assert len(times) == 2
    for when in times:
        assert croniter.is_valid(when), when
        nights = croniter(when, 1_800_000_000)
        first, second = nights.get_next(float), nights.get_next(float)
        assert second - first == 24 * 3600


def test_crontab_starts_the_script() -> None:
    """Its only command is the script, at the path named on the page, without cron's `%`."""
    ((_, command),) = crontab()
    assert command == '"$HOME/clustersmoke/nightly.sh"' and "%" not in command


def test_example_runs_are_exclusive() -> None:
    """Script and workflow take the cluster's lock, and keep the reports."""
    for text in (SCRIPT.read_text(), steps()["Run the phases"]):
        assert text.count("--cluster-exclusive") == 1
        assert text.count('--cluster-report-dir="$REPORTS"') == 1


def run_as_cron(home: Path) -> subprocess.CompletedProcess[str]:
    """Run the crontab's command as cron does: by sh, in the home directory, with only cron's
    variables."""
    ((_, command),) = crontab()
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=home,
        env={**CRON, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def install_script(home: Path, suite: Path, **settings: str) -> None:
    """Copy the script next to the suite, and write this machine's settings to nightly.env."""
    shutil.copy(SCRIPT, suite / "nightly.sh")
    lines = [
        f"{name}='{value}'\n" for name, value in {"PYTHON": sys.executable, **settings}.items()
    ]
    (suite / "nightly.env").write_text("".join(lines))
    if not (home / "clustersmoke").exists():
        (home / "clustersmoke").symlink_to(suite)


@pytest.fixture
def night(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory with a suite of one phase that passes quickly."""
    home = tmp_path_factory.mktemp("cron")
    (suite.path / "smoke_tests").mkdir()
    suite.phase(file="smoke_tests/test_small.py")
    (suite.path / "pytest.ini").write_text("[pytest]\n")
    install_script(home, suite.path, CLUSTER="one", PYTEST_ADDOPTS=" ".join(BARE))
    return home


def test_fit_night_is_silent(night: Path, suite: Suite) -> None:
    """cron has nothing to mail; the output is kept next to the report, for this user alone: it has
    what `limits.publish: names` keeps out of a report."""
    done = run_as_cron(night)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (log,) = suite.reports.glob("nightly-*.log")
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.read_text().splitlines()[-1] == "FIT: 1 of 1 phases passed"
    assert (suite.report / "junit.xml").is_file()


def fail_suite(suite: Suite) -> None:
    """Make the criterion of the phase fail."""
    suite.phase(file="smoke_tests/test_small.py", body="def test_fails(self, phase):\n    assert 0")


def test_unfit_night_is_mailed_in_ten_lines(night: Path, suite: Suite) -> None:
    """The verdict, its cause, the report, pytest's exit status and output; old outputs are
    deleted."""
    fail_suite(suite)
    suite.reports.mkdir()
    old, kept = suite.reports / "nightly-20200101-023000-1.log", suite.reports / "mine.log"
    for path in (old, kept):
        path.touch()
        os.utime(path, (0, 0))
    done = run_as_cron(night)
    assert done.returncode == 1 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "UNFIT: 1 of 1 phases failed (small: test_fails)"
    assert lines[1].startswith(f"one, run {suite.report.resolve().name}: 20")
    assert "small: 1 failed: test_fails: assert 0" in lines
    assert lines[-2].endswith(f"/reports/{suite.report.resolve().name}")
    assert lines[-1].startswith("exit status 1; pytest's output: ")
    assert len(lines) <= 11
    assert not old.exists() and kept.exists()


def write_tool(path: Path, text: str) -> None:
    """A program of the shell."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def mail_with(home: Path, text: str) -> None:
    """Let the script send its mail by this program of the shell."""
    write_tool(home / "tools" / "mail", text)
    with (home / "clustersmoke" / "nightly.env").open("a") as settings:
        settings.write(f"MAIL_TO=owners@example.org\nPATH={home}/tools:$PATH\n")


def test_subject_of_the_mail_is_the_verdict(night: Path, suite: Suite) -> None:
    """With MAIL_TO the script sends the mail itself, and prints nothing."""
    fail_suite(suite)
    mail_with(night, f"printf '%s\\n' \"$@\" >{night}/mail; cat >>{night}/mail")
    done = run_as_cron(night)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    mail = (night / "mail").read_text().splitlines()
    verdict = "UNFIT: 1 of 1 phases failed (small: test_fails)"
    assert mail[:4] == ["-s", f"one: {verdict}", "owners@example.org", verdict]


@pytest.mark.parametrize(
    ("status", "summary", "subject"),
    [
        (
            3,
            "echo FIT: 8 of 8 phases passed; echo more",
            "exit status 3: FIT: 8 of 8 phases passed",
        ),
        (1, "echo UNFIT: 1 of 8 phases failed", "UNFIT: 1 of 8 phases failed"),
        (4, "exit 2", "exit status 4: no report"),
        (
            137,
            "exit 2",
            "pytest was killed (out of memory, or ten minutes after the limit of 8h): ",
        ),
    ],
)
def test_subject_of_the_mail_names_a_status_that_the_verdict_does_not(
    tmp_path: Path, status: int, summary: str, subject: str
) -> None:
    """A report that could not be written whole is not mailed as FIT, and a run without a report has
    a subject that is no line of pytest's output."""
    (tmp_path / "suite").mkdir()
    python = tmp_path / "python"
    write_tool(
        python, f'case $3 in summary) {summary};; *) echo "== start =="; exit {status};; esac'
    )
    install_script(tmp_path, tmp_path / "suite", CLUSTER="one", PYTHON=str(python))
    mail_with(tmp_path, f'echo "$2" >{tmp_path}/subject; cat >/dev/null')
    done = run_as_cron(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
    assert (tmp_path / "subject").read_text().startswith(f"one: {subject}")


@pytest.mark.parametrize("mail", ["cat >/dev/null; exit 75", "exec /missing"])
def test_text_of_a_mail_that_cannot_be_sent_is_printed(tmp_path: Path, mail: str) -> None:
    """cron mails it instead; the status stays pytest's, and old outputs are deleted."""
    (tmp_path / "suite" / "reports").mkdir(parents=True)
    old = tmp_path / "suite" / "reports" / "nightly-20200101-023000-1.log"
    old.touch()
    os.utime(old, (0, 0))
    python = tmp_path / "python"
    write_tool(python, "case $3 in summary) echo UNFIT: all;; *) exit 1;; esac")
    install_script(tmp_path, tmp_path / "suite", CLUSTER="one", PYTHON=str(python))
    mail_with(tmp_path, mail)
    done = run_as_cron(tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("UNFIT: all\nexit status 1; pytest's")
    assert not old.exists()


def find_child(name: str) -> psutil.Process:
    """The process of this name below this one."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found += [child] if child.name() == name else []
    (only,) = found
    return only


def test_night_that_reaches_the_limit_says_so(night: Path, suite: Suite) -> None:
    """First the limit, then the verdict, which names the signal; status 2. The limit passes once
    a rank runs: SIGALRM is what `timeout` gets from its timer."""
    never = {"wait_for": str(suite.path / "never")}
    suite.phase(file="smoke_tests/test_small.py", args=never)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_as_cron, night)
        wait_for("a rank", lambda: [*suite.shared.glob("*/phases/small/ranks/*.jsonl")])
        find_child("timeout").send_signal(signal.SIGALRM)
        done = running.result()
    assert done.returncode == 2 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "stopped by the nightly limit of 8h"
    assert lines[1].startswith("INCONCLUSIVE: 0 of 1 phases finished")
    assert "(interrupted by SIGTERM; small: cancelled)" in lines[1]
    assert "incomplete: the run was interrupted by SIGTERM" in lines
    assert "next: run it again: `pytest --cluster one -k 'small'`" in lines
    assert "KeyboardInterrupt" not in done.stdout


def test_second_run_names_the_holder_of_the_cluster(night: Path, suite: Suite) -> None:
    """Status 4 and the line with the holder, while the first run continues."""
    code = (
        "import sys; from pathlib import Path\n"
        "from pytest_clustersmoke.evidence.locks import lock_cluster\n"
        "lock = lock_cluster(Path(sys.argv[1]), 'one', 'the-first'); print('held', flush=True)\n"
        "sys.stdin.read(); lock.release()"
    )
    command = [sys.executable, "-c", code, str(suite.shared)]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        done = run_as_cron(night)
    finally:
        first.communicate("")
    assert done.returncode == 4
    assert "one is in use: held by run the-first since 2" in done.stdout
    assert f"(pid {first.pid} of " in done.stdout


def test_mail_without_a_report_has_no_paths_where_names_only_are_published(
    night: Path, suite: Suite
) -> None:
    """It has the end of pytest's output, and names the file of the whole, which this user alone can
    read."""
    suite.cluster(limits={"publish": "names"})
    suite.phase(file="smoke_tests/test_small.py", body="    broken (")
    done = run_as_cron(night)
    lines = done.stdout.splitlines()
    assert done.returncode == 2 and lines[:2] == ["no report", "pytest's output ends with:"]
    assert len(lines) <= 23 and str(suite.path) not in "".join(lines[:-1])
    assert lines[-1].startswith("exit status 2; pytest's output: /")


def test_missing_setting_is_named(night: Path, suite: Suite) -> None:
    """Without CLUSTER nothing runs."""
    (suite.path / "nightly.env").unlink()
    done = run_as_cron(night)
    assert done.returncode == 4 and "CLUSTER is not set: set it in nightly.env" in done.stderr
    assert suite.published() == []


# On a real Slurm


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home directory with a suite that `clustersmoke init` wrote for a lab of one node."""
    need_lab()
    folder = Path(tempfile.mkdtemp(prefix="csm-", dir="/var/tmp"))
    running = lab.start_lab(lab.LabSettings(name=f"nightly-{os.getpid()}", nodes=1))
    try:
        conf = str(running.slurm_conf)
        words = ("init", "--cluster", "lab", str(folder / "clustersmoke"))
        command = [sys.executable, "-m", "pytest_clustersmoke.cli", *words]
        subprocess.run(command, env={**os.environ, "SLURM_CONF": conf}, check=True)
        only = f"{' '.join(BARE)} -m singlegpu"
        suite = folder / "clustersmoke"
        install_script(folder, suite, CLUSTER="lab", SLURM_CONF=conf, PYTEST_ADDOPTS=only)
        yield folder
    finally:
        lab.stop_lab(running.name)
        shutil.rmtree(folder)


def newest(reports: Path) -> tuple[str, int]:
    """The newest run's id and the number of its JUnit cases, none of which failed."""
    run = (reports / "latest").resolve()
    suites = ElementTree.parse(run / "junit.xml").getroot().iter("testsuite")
    counted = [
        (int(suite.get("tests", 0)), suite.get("failures"), suite.get("errors")) for suite in suites
    ]
    ((cases, failures, errors),) = counted
    assert (failures, errors) == ("0", "0")
    return run.name, cases


@pytest.mark.slow
@pytest.mark.lab
def test_crontab_runs_on_slurm(home: Path) -> None:
    """With cron's environment a real phase is FIT, and nothing is printed."""
    done = run_as_cron(home)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert newest(home / "clustersmoke" / "reports")[1] > 10


@pytest.mark.slow
@pytest.mark.lab
def test_workflow_runs_on_slurm(home: Path) -> None:
    """Run its steps as a runner does: a real phase is FIT, the step finds this run's report, the
    files to upload exist, and the job has a summary."""
    suite, work = home / "clustersmoke", home / "runner"
    work.mkdir()
    settings = dict(
        line.rstrip().split("=", 1) for line in (suite / "nightly.env").read_text().splitlines()
    )
    env = {**CRON, "HOME": str(home), "RUNNER_TEMP": str(work), **job()["env"]}
    env |= {name: value.strip("'") for name, value in settings.items()}
    env |= {"REPORTS": str(work / "reports"), "GITHUB_OUTPUT": str(work / "output")}
    env |= {"GITHUB_STEP_SUMMARY": str(work / "summary.md")}
    for name, text in steps().items():
        script = work / "step.sh"
        script.write_text(text)
        command = [*RUNNERS_BASH, str(script)]
        done = subprocess.run(command, cwd=suite, env=env, capture_output=True, text=True)
        assert done.returncode == 0, (name, done.stdout + done.stderr)
    run, _ = newest(work / "reports")
    assert (work / "output").read_text() == f"path={work}/reports/{run}\n"
    upload = next(
        step["with"]["path"] for step in job()["steps"] if "upload" in step.get("uses", "")
    )
    for line in upload.splitlines():
        name = line.rpartition("/")[2]
        assert (work / "reports" / run / name).is_file(), name
    assert "FIT" in (work / "summary.md").read_text()
    # A refused run has no report to find.
    (work / "before").write_text(f"{run}\n")
    (work / "output").unlink()
    command = [*RUNNERS_BASH, "-c", steps()["Find the report"]]
    subprocess.run(command, cwd=suite, env=env, check=True)
    assert not (work / "output").exists()
