"""The environment of a run: versions, the git commit of fcorun, and the device."""

import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from fcorun.system.version import fcorun_version


@cache
def describe_environment() -> dict[str, Any]:
    """Return versions, the git commit of fcorun if it is known, and the device."""
    packages = ("jax", "jaxlib", "numpy", "hydra-core")
    versions = {"python": platform.python_version(), "fcorun": fcorun_version(), **{p: version(p) for p in packages}}
    device = jax.devices()[0]
    return {
        "versions": versions,
        "git": _commit(Path(__file__).parent.parent),
        "device": f"{device.platform}: {device.device_kind}",
        "platform": f"{sys.platform} {platform.machine()}",
    }


def _commit(package: Path) -> str | None:
    """Return the git commit of fcorun in this folder: of a checkout, or as noted when the package was built."""
    if (package.parent / ".git").exists():
        command = ["git", "-C", str(package), "rev-parse", "--verify", "-q", "HEAD"]
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout.strip() or None
    note = package / "commit"
    return note.read_text(encoding="utf-8").strip() if note.exists() else None
