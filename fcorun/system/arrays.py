"""Arrays that lie where JAX takes them over."""

import numpy as np

_LINE = 64  # bytes: on a CPU, JAX copies what begins elsewhere


def aligned(shape: tuple[int, ...], dtype) -> np.ndarray:
    """An array of this shape that holds nothing yet. On a CPU ``jax.device_put`` takes it as it is, without a copy: it
    is not to be changed afterwards."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.empty(size + _LINE, np.uint8)
    start = -room.ctypes.data % _LINE
    return room[start : start + size].view(dtype).reshape(shape)
