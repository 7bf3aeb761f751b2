"""The versions of Python and of the packages that ranks use, without importing one of them.

Installers name a package's folder of metadata `NAME-VERSION.dist-info`, so that listing the folders
of sys.path suffices: it takes a tenth of the time of importlib.metadata, which is asked where a
name has no version (`setup.py develop`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

PACKAGES = (
    "pytest-clustersmoke",
    "submitit",
    "torch",
    "deepspeed",
    "transformers",
    "peft",
    "datasets",
    "accelerate",
    "numpy",
    "nvidia-nccl-cu11",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
_METADATA = re.compile(
    r"(?P<name>.+?)(?:-(?P<version>\d[^-]*)(?:-py[\d.]+)?)?\.(?:dist-info|egg-info|egg-link)"
)


def describe_packages() -> dict[str, Any]:
    """The facts about Python and its packages."""
    found = _find_packages()
    return {
        "python": sys.version.split()[0],
        "python_executable": sys.executable,
        "packages": {name: version for name, (version, _) in found.items()},
        "torch_cuda": _torch_build(found["torch"][1]) if "torch" in found else None,
    }


def _find_packages() -> dict[str, tuple[str, Path]]:
    """The version of each of PACKAGES that is installed, and the folder that has it: the first on
    sys.path, which is the one that Python imports."""
    wanted = {_normalize(name): name for name in PACKAGES}
    found: dict[str, tuple[str, Path]] = {}
    for folder in sys.path:
        for match in filter(None, map(_METADATA.fullmatch, _list_folder(folder))):
            name = wanted.get(_normalize(match["name"]))
            if name is not None and name not in found:
                version = match["version"] or _ask_metadata(name)
                if version:
                    found[name] = version, Path(folder)
    return {name: found[name] for name in PACKAGES if name in found}


def _normalize(name: str) -> str:
    """As in the specification of packages' names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _list_folder(folder: str) -> list[str]:
    try:
        return [path.name for path in Path(folder or ".").iterdir()]
    except OSError:  # a zip file, or a folder that is not there
        return []


def _ask_metadata(name: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _torch_build(folder: Path) -> str | None:
    """The CUDA version torch was built for, from its version file: importing it takes seconds."""
    try:
        text = (folder / "torch" / "version.py").read_text()
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=]*= '([^']*)'", text, re.M)
    return match.group(1) if match else None
