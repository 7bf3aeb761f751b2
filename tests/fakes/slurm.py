"""Slurm's commands with prepared answers."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.harness import FAKES


class FakeSlurm:
    """Fake commands with prepared answers, and a record of their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder, bin = folder / "state", folder / "bin"
        self.folder.mkdir()
        bin.mkdir()
        for name in ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo"):
            bin.joinpath(name).symlink_to(FAKES / "slurm.sh")
        path = f"{bin}{os.pathsep}{os.environ['PATH']}"
        self.environ = {"PATH": path, "FAKE_SLURM": str(self.folder)}

    def answers(self, name: str, out: str = "", err: str = "", rc: int = 0) -> None:
        for kind, text in (("out", out), ("err", err), ("rc", str(rc))):
            self.folder.joinpath(f"{name}.{kind}").write_text(text)

    def accept_jobs(self) -> None:
        """Number the jobs from 1, as they are submitted; a trial submission may start long ago."""
        trial = "sbatch: Job 9 to start at 2026-01-02T03:04:05 using 1 processors on nodes n1"
        self.folder.joinpath("sbatch.answer").write_text(
            f"""case $* in
              *--test-only*) echo '{trial} in partition main' >&2;;
              *) grep -c 'sbatch --parsable' "$FAKE_SLURM/calls";;
            esac\n"""
        )

    def end_jobs_at_scancel(self, line: str) -> None:
        """From the first scancel on, squeue answers this line."""
        self.folder.joinpath("scancel.answer").write_text(
            f"""echo '{line}' > "$FAKE_SLURM/squeue.out"\n"""
        )

    def answers_in_turn(self, name: str, *lines: str) -> None:
        """Each call of a command answers the next line; after the last one, that one again."""
        (self.folder / f"{name}.lines").write_text("".join(f"{line}\n" for line in lines))
        (self.folder / f"{name}.out").unlink(missing_ok=True)
        self.folder.joinpath(f"{name}.answer").write_text(
            f"""number=$(grep -c '^{name} ' "$FAKE_SLURM/calls")
            head -n "$number" "$FAKE_SLURM/{name}.lines" | tail -n 1\n"""
        )

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def commands(self) -> list[str]:
        return [call.split()[0] for call in self.calls()]
