"""What is built says which commit it is of, in ``fcorun/commit``; a checkout asks git when it runs."""

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGED_FOLDERS = ("fcorun", "hydra_plugins", "conf")  # what a wheel holds


class CommitHook(BuildHookInterface):
    """Of sources that git has as they are; others are of no commit, and one that the sources bring along stays."""

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
        """What git says; None where it fails or is not there."""
        try:
            return subprocess.check_output(["git", "-C", self.root, *arguments], encoding="utf-8").strip()
        except (OSError, subprocess.CalledProcessError):
            return None
