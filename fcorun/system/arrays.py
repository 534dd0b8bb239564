"""Arrays that lie where JAX takes them over."""

from dataclasses import dataclass, field

import numpy as np

_LINE = 64  # bytes: on a CPU, JAX copies what begins elsewhere


def empty_aligned(shape: tuple[int, ...], dtype) -> np.ndarray:
    """An array of this shape that holds nothing yet. On a CPU ``jax.device_put`` takes it as it is, without a copy: it
    is not to be changed afterwards."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.empty(size + _LINE, np.uint8)
    start = -room.ctypes.data % _LINE
    return room[start : start + size].view(dtype).reshape(shape)


@dataclass
class DoubleBuffer:
    """Two arrays in turn, one to compute with and one to read into meanwhile: memory that is asked for anew costs more
    than what is read into it."""

    arrays: list[np.ndarray | None] = field(default_factory=lambda: [None, None])

    def next_array(self, shape: tuple[int, ...], dtype) -> np.ndarray:
        """An array of this shape, which is given out again the time after next; it holds anything."""
        self.arrays.reverse()
        found = self.arrays[0]
        if found is None or found.shape != shape or found.dtype != dtype:
            self.arrays[0] = None  # before there is another one
            found = self.arrays[0] = empty_aligned(shape, dtype)
        return found
