"""The cache on disk, for results that can be computed again: compiled programs, certified optima, masked scans."""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from platformdirs import user_cache_dir

T = TypeVar("T")


@dataclass(frozen=True)
class Keyed(Generic[T]):
    """A value that is hashed and compared by its key alone, as an argument of a function with ``lru_cache``."""

    key: str
    value: T = field(compare=False)


def cache_dir(name: str) -> Path:
    """Return a writable folder ``name`` below $FCORUN_CACHE, the user's cache folder, or a temporary folder.

    Raises OSError if none of them can be written to.
    """
    for base in (os.environ.get("FCORUN_CACHE") or user_cache_dir("fcorun", appauthor=False), tempfile.gettempdir()):
        folder = Path(base) / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise OSError("no writable cache folder; set FCORUN_CACHE")
