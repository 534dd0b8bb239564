"""What can be made again: compiled programs, certified optima, masked scans."""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from platformdirs import user_cache_dir

T = TypeVar("T")


@dataclass(frozen=True)
class Keyed(Generic[T]):
    """A value under a key, so that ``lru_cache`` compares keys."""

    key: str
    value: T = field(compare=False)


def cache_dir(name: str) -> Path:
    """A writable folder ``name`` under $FCORUN_CACHE (by default the user's cache folder, else a temporary one)."""
    for base in (os.environ.get("FCORUN_CACHE") or user_cache_dir("fcorun", appauthor=False), tempfile.gettempdir()):
        folder = Path(base) / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise OSError("no writable cache folder; set FCORUN_CACHE")
