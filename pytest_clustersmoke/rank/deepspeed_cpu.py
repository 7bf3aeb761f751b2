"""DeepSpeed on CPU ranks: nothing is compiled, and 0.14.0 runs without Intel's extensions."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from importlib.machinery import ModuleSpec

# DeepSpeed compiles this op for CPU ranks when it opens the group: half a minute of C++ that needs
# ninja and g++, and that waits for ever on the lock of a build that was killed. gloo does its work.
SHARED_MEMORY_OP = "deepspeed_shm_comm"
# Up to 0.14.0 DeepSpeed refuses CPU unless these two can be imported. Under gloo it uses neither.
FREE_OF_INTEL = (0, 14, 1)
INTEL = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch")


def choose() -> None:
    """Tell DeepSpeed the device, before its first import."""
    # Unset, DeepSpeed guesses with a warning; where GPUs exist it would guess them.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def load() -> None:
    """Import DeepSpeed and have it leave all communication to torch."""
    if _version() < FREE_OF_INTEL:
        _import_without_intel()
    import deepspeed

    # DeepSpeed's own table of what it may compile here.
    deepspeed.ops.__compatible_ops__[SHARED_MEMORY_OP] = False


def _version() -> tuple[int, ...]:
    found = importlib.metadata.version("deepspeed")
    return tuple(int(part) for part in re.findall(r"\d+", found)[:3])


def _import_without_intel() -> None:
    """Import DeepSpeed with empty modules in the place of Intel's, while the import lasts."""
    missing = [name for name in INTEL if importlib.util.find_spec(name) is None]
    # With a spec, for libraries that ask for one while the import lasts.
    sys.modules.update((n, importlib.util.module_from_spec(ModuleSpec(n, None))) for n in missing)
    try:
        from deepspeed.accelerator import get_accelerator

        # oneCCL is its only choice here, and would be compiled; later versions fall back to gloo.
        get_accelerator()._communication_backend_name = "gloo"
    finally:
        for name in missing:
            del sys.modules[name]
