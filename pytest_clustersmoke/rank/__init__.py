"""In the rank: what a rank program uses. torch is imported only inside functions.

    with Rank.start(init="torch") as rank:
        model = rank.stage("model", build)
        for step in rank.steps(100, samples_per_rank=32):
            step.record(loss=train_one(model))

| module | contents |
|---|---|
| `core.py` | `Rank`: everything a program calls |
| `rank_environment.py` | which rank this is, from the environment |
| `device.py` | chooses and describes its device |
| `process_group.py` | opens the process group with a timeout, by torch or by DeepSpeed |
| `rank_events.py` | events to the rank's file, a readable line on rank 0's stdout |
| `steps.py` | `StepLog`: timing, losses and memory of a training loop |
| `step_clock.py` | when each step began and ended, without waiting for the device; the rates |
| `step_marks.py` | marks of progress, of a loop and of a program without one |
| `resume.py` | runs the loop of one attempt, stops it and goes on in the next |
| `peak_memory.py` | the peak memory of the loop, without proven or traced steps |
| `trace.py` | a trace of some steps, and where their time went |
| `proof.py` | which steps of a loop are proven, and how |
| `attention.py` | attention whose backward pass adds in a fixed order, in proven steps |
| `replay.py` | whether a rank's pass gives the same bits again |
| `lone_block.py` | one block of a sharded model, whole, so that its passes wait for no rank |
| `cross_replay.py` | whether other ranks get the same bits from a rank's pass |
| `engine_pass.py` | the engine's own pass of a proven step |
| `leaves.py` | the tensors by which a pass is differentiated |
| `gradients.py` | whether gradients are the mean over all ranks |
| `own_step.py` | a rank's own step, without waiting for other ranks |
| `watches.py` | the first gradient that is not finite, the first step with unequal parameters |
| `pass_watch.py` | all that a rank watches in one pass over its loop |
| `twin.py` | trains again from the same state, and compares the two passes bit by bit |
| `stopwatch.py` | times a call on all ranks together |
| `checkpoint.py` | digests of nested state, directory and files of a checkpoint |
| `rank_dumps.py` | writes stacks and the flight recorder of a rank that hangs or fails |
| `recorder_dump.py` | the flight recorder as JSON, for all versions of torch |
| `abort_delay.py` | delays an abort until the flight recorder is written |
| `hook.py` | where a staged fault acts |
"""

from .core import Rank
from .leaves import Groups
from .proof import Proof
from .rank_environment import RankMisuse
from .steps import Step, StepLog
from .stopwatch import Stopwatch
from .twin import TwinLog

__all__ = ["Groups", "Proof", "Rank", "RankMisuse", "Step", "StepLog", "Stopwatch", "TwinLog"]
