"""A fake rank program: writes the events of a rank that trained, at once and without torch.

Each option except --steps stages one deviation.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_clustersmoke.evidence.process_start import start_s
from pytest_clustersmoke.evidence.run_directory import job_name, place_of_rank, read_json
from pytest_clustersmoke.evidence.telemetry import SCHEMA, EventWriter

if TYPE_CHECKING:
    from tests.fakes.nccl import FAULTS, staged
else:  # torchrun puts this file's folder on the path
    from nccl import FAULTS, staged

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--trains", action="store_true", help="say that it loops over its steps")
parser.add_argument("--fail", action="store_true", help="raise in training")
parser.add_argument("--kill", type=int, help="the rank that is killed in training")
parser.add_argument("--leave", action="store_true", help="exit 0 without `done`")
parser.add_argument("--wait-for", type=Path, help="wait until this file exists")
parser.add_argument("--before", type=int, default=0, help="steps done before --wait-for")
parser.add_argument("--loss", default="falls", choices=["falls", "rises", "nan"])
parser.add_argument("--rate", type=float, default=10.0, help="steps_per_s to record")
parser.add_argument("--rate-again", type=float, help="the same, of a rerun")
parser.add_argument("--say", default="", help="a fact's text")
parser.add_argument("--nccl", choices=FAULTS, help="write NCCL's log, with this fault or none")
parser.add_argument("--slow", type=int, help="the rank that the others wait for")
parser.add_argument("--stops", type=int, default=0, help="attempts that stop to be resumed")
parser.add_argument("--gpu-uuid", help="of the GPU that every rank says it has")
parser.add_argument("--fail-again", action="store_true", help="raise when resumed")
given = parser.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
node_rank = int(os.environ["CLUSTERSMOKE_NODE_RANK"])
place = place_of_rank(os.environ["CLUSTERSMOKE_PHASE_DIR"], os.environ)
if given.rate_again is not None and ".confirm" in place.root.name:
    given.rate = given.rate_again
events = EventWriter(place.rank_events(rank))
events.write(
    "start",
    schema=SCHEMA,
    job=job_name(read_json(place.spec) or {}),
    nonce=os.environ["CLUSTERSMOKE_NONCE"],
    rank=rank,
    local_rank=int(os.environ["LOCAL_RANK"]),
    node_rank=node_rank,
    world_size=world,
    local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
    gpu_uuid=given.gpu_uuid,
    pid=os.getpid(),
    pid_started=start_s(os.getpid()),
    host=socket.gethostname(),
    node=os.environ["CLUSTERSMOKE_NODE_NAME"],
    python=sys.version.split()[0],
    torch="2.2.0",
    cuda=None,
    nccl=None,
    device=f"cuda:{os.environ['LOCAL_RANK']}" if given.nccl else "cpu",
    device_name="fake",
    init="torch",
)
backend = "nccl" if given.nccl else "gloo"
events.write("group", backend=backend, world_size=world, timeout_s=60)
if given.nccl:
    host, log_pid, lines = staged(given.nccl, rank, int(os.environ["LOCAL_WORLD_SIZE"]), world)
    path = os.environ["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", str(log_pid))
    Path(path).write_text("".join(f"{line}\n" for line in lines))
events.write("barrier", seconds=0.01)
events.write("fact", values={"argv": sys.argv[1:], "said": given.say})
looped = {"steps": given.steps} if given.trains else {}
events.write("stage", name="train", state="begin", **looped)
if place.attempt:
    events.write("resume", step=3, saved_by=world, equal=True, tensors=4, mismatched=[])
if (given.fail or (given.fail_again and place.attempt)) and rank == 0:
    events.write("error", type="ValueError", message="staged", traceback="Traceback: staged")
    raise ValueError("staged")
if given.kill == rank:
    os.kill(os.getpid(), signal.SIGKILL)
if given.leave and rank == 0:
    raise SystemExit(0)
for step in range(1, given.before + 1):
    figures = {"loss": 2.5 / step, "steps_per_s": given.rate}
    events.write("step", step=step, steps=given.steps, **figures)
while given.wait_for and not given.wait_for.exists():
    time.sleep(0.02)
for step in range(given.before + 1, given.steps + 1):
    events.write("step", step=step, steps=given.steps)
losses = {"falls": [2.0, 1.0], "rises": [1.0, 2.0], "nan": [1.0, float("nan")]}[given.loss]
if given.slow is not None:
    own = 0.131 if rank == given.slow else 0.041
    times = {"seconds": [0.142] * 20, "local_seconds": [own] * 20, "warmup": 5}
    events.write("step_times", **times)
own_losses = [2.0 + rank - step / 10 for step in range(5)]
events.write(
    "losses",
    mean=losses,
    local_finite=given.loss != "nan",
    local_final=losses[-1],
    local_first=own_losses,
)
gradients = {"parameters": 4, "compared": 4, "max_relative_error": 0.0, "tolerance": 1e-5}
events.write("gradients", **gradients, worst="w", precision="fp32", synced=True, sensitive=True)
metrics = {"steps_per_s": given.rate, "samples_per_s": given.rate * 8, "peak_memory_gib": 0.5}
events.write("metrics", values=metrics)
events.write("stage", name="train", state="end", seconds=0.1)
output = place.output / "model.pt"
output.write_bytes(bytes(100))
events.write("checkpoint", files=[{"name": "model.pt", "bytes": 100}], seconds=0.0)
events.write("reload", equal=True, tensors=4, mismatched=[], source="model built anew")
if place.attempt < given.stops:
    events.write("stop", step=3, digest="d", next_loss=own_losses[0], first_loss=9.0)
events.write("done", seconds=0.1)
