"""The build hook that writes the commit of a built package into ``fcorun/commit``; a checkout asks git instead."""

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGED_FOLDERS = ("fcorun", "hydra_plugins", "conf")  # the content of a wheel


class CommitHook(BuildHookInterface):
    """A hook that records the commit of sources without uncommitted changes.

    Changed sources get no commit. A ``fcorun/commit`` that is part of the sources stays as it is.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not Path(self.root, ".git").exists():
            return
        sha = self._git("rev-parse", "HEAD")
        if sha and self._git("status", "--porcelain", "--", *PACKAGED_FOLDERS) == "":
            file = Path(self.directory, ".commit")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{sha}\n", encoding="utf-8")
            build_data["force_include"][str(file)] = "fcorun/commit"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        Path(self.directory, ".commit").unlink(missing_ok=True)

    def _git(self, *arguments: str) -> str | None:
        """Return the output of a git command; None if it fails or git is not installed."""
        try:
            return subprocess.check_output(["git", "-C", self.root, *arguments], encoding="utf-8").strip()
        except (OSError, subprocess.CalledProcessError):
            return None
