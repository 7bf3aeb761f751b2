"""A fake nvidia-smi: a script that answers as the real one does, for the GPUs of a test.

Its output follows nvidia-smi(1) and the `--help-query-*` pages: CSV without a header; for an
unknown field it exits with status 2 and an error on standard output.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCRIPT = """#!{python}
import json, sys, time
said = json.loads({said!r})
question = sys.argv[1]
open({log!r}, "a").write(question + "\\n")
if said["sleep"]:
    time.sleep(said["sleep"])
if said["words"]:
    print(said["words"])
    sys.exit(said["status"])
name, _, fields = question.partition("=")
for field in fields.split(","):
    if field in said["unknown"]:
        print('Field "' + field + '" is not a valid field to query.')
        sys.exit(2)
table = said["processes"] if name == "--query-compute-apps" else said["gpus"]
for row in table:
    row = {{"gpu_uuid": row.get("uuid"), **row}}
    print(", ".join(str(row.get(field, "[N/A]")) for field in fields.split(",")))
"""


def gpu(index: int, **fields: Any) -> dict[str, Any]:
    """A healthy GPU, changed by `fields`."""
    return {
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{index:04d}",
        "driver_version": "550.90.12",
        "memory.total": "81559 MiB",
        "pci.bus_id": f"00000000:{index + 1:02X}:00.0",
        "ecc.errors.uncorrected.volatile.total": 0,
        "persistence_mode": "Enabled",
        "retired_pages.pending": "No",
        "mig.mode.current": "Disabled",
        "remapped_rows.pending": "No",
        "remapped_rows.failure": "No",
        **fields,
    }


def write(folder: Path, python: str, gpus: Any = (), **said: Any) -> Path:
    """Write the script `nvidia-smi` into a folder; returns the file in which it logs queries.

    `processes`: rows of --query-compute-apps; `unknown`: unknown fields; `words`, `status`: an
    error in place of all answers; `sleep`: seconds before it answers.
    """
    defaults = {"processes": [], "unknown": [], "words": "", "status": 0, "sleep": 0}
    text = json.dumps({"gpus": list(gpus), **defaults, **said})
    log = folder / "questions"
    path = folder / "nvidia-smi"
    path.write_text(SCRIPT.format(python=python, said=text, log=str(log)))
    path.chmod(0o755)
    return log
