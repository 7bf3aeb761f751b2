"""Stand-ins with which Megatron's core runs on the CPU; Python imports this file by its name.

With this folder on PYTHONPATH, whoever imports Megatron gets them:

1. `torch.cuda.current_device` returns the CPU device;
2. `torch.cuda.synchronize` does nothing;
3. tensors that are asked for on "cuda", or moved there, are on the CPU;
4. `Tensor.type()` names the class that the tensor would have on CUDA;
5. the `fork` of Megatron's tracker of CUDA's random states is a null context.

The shipped program knows nothing of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from importlib.abc import MetaPathFinder
from typing import Any

FACTORIES = ("empty", "ones", "tensor", "zeros")


def stand_in() -> None:
    import torch

    def put_on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(factory)
        def make(*given: Any, **named: Any) -> Any:
            if named.get("device") == "cuda":
                named["device"] = "cpu"
            return factory(*given, **named)

        return make

    name_type = torch.Tensor.type

    def name_cuda_type(tensor: Any, *given: Any, **named: Any) -> Any:
        kind = name_type(tensor, *given, **named)
        return kind.replace("torch.", "torch.cuda.") if isinstance(kind, str) else kind

    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.synchronize = lambda *_: None
    for name in FACTORIES:
        setattr(torch, name, put_on_cpu(getattr(torch, name)))
    tensors: Any = torch.Tensor
    tensors.type = name_cuda_type
    tensors.cuda = lambda tensor, *_, **__: tensor


def replace_fork() -> None:
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    CudaRNGStatesTracker.fork = lambda *_: nullcontext()


class MegatronWatch(MetaPathFinder):
    """Puts the stand-ins in place as Megatron's modules are imported; finds no module itself."""

    def __init__(self) -> None:
        self._actions = {"megatron": stand_in, "megatron.core.models": replace_fork}

    def find_spec(self, name: str, *_: Any) -> None:
        if name in self._actions:
            self._actions.pop(name)()


sys.meta_path.insert(0, MegatronWatch())
