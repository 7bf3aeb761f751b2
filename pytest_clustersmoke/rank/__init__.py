"""In the rank: what a rank program uses. torch is imported only inside functions.

    with Rank.start(init="torch") as rank:
        model = rank.stage("model", build)
        for step in rank.steps(100, samples_per_rank=32):
            step.record(loss=train_one(model))

| module | what happens there |
|---|---|
| `core.py` | `Rank`: everything a program calls |
| `place.py` | which rank this is, from the environment |
| `device.py` | which device it uses, and what that is |
| `group.py` | the process group: opened with a timeout, first barrier |
| `deepspeed_cpu.py` | what DeepSpeed must not do on CPU ranks |
| `voice.py` | events to the rank's file, a readable line on rank 0's stdout |
| `steps.py` | timing, losses and memory of a training loop |
| `gradient_watch.py` | on which rank was a gradient not finite first? |
| `gradients.py` | are gradients the mean over all ranks? |
| `checkpoint.py` | digests of nested state, files of a checkpoint |
| `dumps.py` | stacks and flight-recorder entries of a rank that hangs |
"""

from .core import Rank
from .steps import Step, StepLog

__all__ = ["Rank", "Step", "StepLog"]
