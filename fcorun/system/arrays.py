"""Arrays whose memory JAX takes over without a copy."""

from dataclasses import dataclass, field

import numpy as np

_ALIGNMENT = 64  # bytes: on a CPU, JAX copies an array that begins at any other address


def empty_aligned(shape: tuple[int, ...], dtype) -> np.ndarray:
    """Return an uninitialised array that ``jax.device_put`` takes on a CPU without a copy.

    The array must not be changed after it was put on the device.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


@dataclass
class DoubleBuffer:
    """Two arrays used in turn: one is computed with while the next rows are read into the other.

    Reusing the two arrays is faster than allocating a new one for each read.
    """

    arrays: list[np.ndarray | None] = field(default_factory=lambda: [None, None])

    def next_array(self, shape: tuple[int, ...], dtype) -> np.ndarray:
        """Return an array of this shape with arbitrary content. Every second call returns the same array."""
        self.arrays.reverse()
        array = self.arrays[0]
        if array is None or array.shape != shape or array.dtype != dtype:
            self.arrays[0] = None  # frees the old array before the new one is allocated
            array = self.arrays[0] = empty_aligned(shape, dtype)
        return array
