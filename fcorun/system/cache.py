"""Caches of results that can be computed again: in memory by a key, and on disk.

Compiled programs, certified optima and masked scans are cached on disk.
"""

import functools
import os
import tempfile
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from platformdirs import user_cache_dir

T = TypeVar("T")


@dataclass(frozen=True)
class Keyed(Generic[T]):
    """A value that is hashed and compared by its key alone, as an argument of a function with ``lru_cache``."""

    key: str
    value: T = field(compare=False)


def cached_by_key(compute: Callable[..., T]) -> Callable[..., T]:
    """Decorate a pure function whose first argument is a key of all others, so that it computes each result once.

    Unlike with ``lru_cache`` and ``Keyed``, the other arguments, which may be large, are not kept in memory.
    """
    results: dict[Hashable, T] = {}

    @functools.wraps(compute)
    def look_up(key: Hashable, *arguments: Any) -> T:
        if key not in results:
            results[key] = compute(key, *arguments)
        return results[key]

    return look_up


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
