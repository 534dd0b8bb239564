"""The results in a folder, and their texts without places of this machine, for pages and archives that others get."""

import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from fcorun.base.errors import UserError
from fcorun.base.records.contents import FIGURE, STATUS
from fcorun.base.records.record import PERMUTATION_FILE, SELECTION_FILE, STABILITY_FILE, check_folder, load_records
from fcorun.base.records.sweep_settings import SETTINGS_FILE

COMPARISON_FILE = "comparison.json"
KINDS = {  # of results, by a file that only results of the kind have
    STATUS.name: "run",
    SETTINGS_FILE: "sweep",
    SELECTION_FILE: "selection",
    STABILITY_FILE: "stability",
    PERMUTATION_FILE: "permutation",
    COMPARISON_FILE: "comparison",
    FIGURE.name: "figure",
}
_NAME = r"[\w.~@+%-]"
_ABSOLUTE = re.compile(  # the folders of a path, but not of the address of a page, nor a bar between two words
    rf"(?:\bfile:/*|(?<![\w+/.:<>~*])/(?={_NAME}))(?:{_NAME}+/)*|(?<!\w)[A-Za-z]:[\\/](?:[^\\/:*?\"'<>|,\s]+[\\/])*"
)


def find_results(root: Path) -> dict[Path, str]:
    """Return the kind of each result in and under a folder, by its folder; the runs of a study are no results.

    Raises UserError for a folder that is not there, or without results.
    """
    check_folder(root)
    results: dict[Path, str] = {}
    for folder, subfolders, files in os.walk(root):
        kinds = [kind for name, kind in KINDS.items() if name in files]
        if kinds:
            results[Path(folder)] = kinds[-1]
            subfolders.clear()
        subfolders.sort()
    if not results:
        raise UserError(f"{root} holds no results; give a folder that fcorun has written, such as outputs")
    return dict(sorted(results.items()))


class PathCutter:
    """Takes the folders out of the absolute paths in the texts of a result, of which the names of files remain.

    Paths that configurations hold are known as a whole; others are recognised in the text.
    """

    def __init__(self, folder: Path):
        """Learn the paths of the configurations in and under ``folder``."""
        home = os.path.expanduser("~")  # which stays "~" where it is not known
        self._home = Path(home).name
        known = {home: "~"}
        for record in load_records(folder):
            for value in record.flat_config.values():
                text = str(value)
                if PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute():
                    known[text] = self._cut_path(text)
        known.pop("/", None)  # the home folder of some containers
        self._known = known
        longest_first = sorted(known, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w+/])(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})(?!\w)")

    def _cut_path(self, text: str) -> str:
        name = re.split(r"[\\/]", text.rstrip("\\/"))[-1]
        return "~" if name == self._home else name

    def cut(self, value: Any) -> Any:
        """Return a text, or the texts in lists and mappings, without the folders of absolute paths."""
        if isinstance(value, str):
            text = self._pattern.sub(lambda match: self._known[match[0]], value)
            return _ABSOLUTE.sub("", text)
        if isinstance(value, list):
            return [self.cut(item) for item in value]
        if isinstance(value, dict):
            return {self.cut(key): self.cut(item) for key, item in value.items()}
        return value
