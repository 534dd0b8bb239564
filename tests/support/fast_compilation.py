"""Compilation with one context of MLIR: JAX makes a context for each program, and the tests compile thousands."""

import tempfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import jax._src.compilation_cache
import jax._src.interpreters.mlir
from jax._src.lru_cache import LRUCache


def speed_up_compilation() -> None:
    """Let all programs share one context, and compress saved programs quickly.

    JAX keeps the context of a program as long as the program. Each context takes over a megabyte, and makes the next
    one slower.
    """
    mlir: Any = jax._src.interpreters.mlir  # their private members are replaced
    cache: Any = jax._src.compilation_cache
    context = mlir.make_ir_context()
    mlir.make_ir_context = lambda: context
    cache.compress_executable = partial(zlib.compress, level=1)
    cache.decompress_executable = zlib.decompress
    LRUCache.put = _put_whole


def _put_whole(self: LRUCache, key: str, value: bytes) -> None:
    """Save a program whole or not at all: later sessions read what a session that is killed has saved."""
    with tempfile.NamedTemporaryFile(dir=self.path, prefix=".", delete=False) as file:
        file.write(value)
    Path(file.name).replace(self.path / f"{key}-cache")
