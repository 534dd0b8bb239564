"""The resources of the machine, cores and free memory, the version of fcorun, and how JAX is configured on it.

JAX is imported in the functions that use it, so that data sets can be loaded before that.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import psutil

from fcorun.errors import UserError
from fcorun.system.files import cache_dir

# Arrays whose memory JAX takes over without a copy.

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


# The version of fcorun.

_NOT_INSTALLED = "0.0.0+source"


def fcorun_version() -> str:
    """Return the installed version, or 0.0.0+source where Python runs fcorun from its sources without installation."""
    try:
        return version("fcorun")
    except PackageNotFoundError:
        return _NOT_INSTALLED


# The resources of the machine, cores and free memory, and how JAX is configured on it.

REDUCE_HINT = "give fewer rows, features or clients"
_DEFAULT_SHARE = 0.6  # of the free memory, for runs
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ComputePolicy:
    """All that fcorun does differently on a CPU and on GPUs.

    Attributes:
        device_name: the name of devices in messages.
        has_device_memory: whether devices have a memory of their own, to which arrays are copied.
        chunk_bytes: the bytes that the minibatches and models of clients computed together may take.
        sequential_grid_clients: whether a grid, whose runs share minibatches, computes the clients one by one.
        min_padding_saved: the least padding, in entries of the feature matrices of all runs of a program, that one more
            class of clients of similar sizes must save in a round to be worth its compilation.
        sequential_svd: whether a batch of singular value decompositions is computed one by one.
        threaded_batches: whether batches of runs share the machine by threads, one for each core.
    """

    device_name: str
    has_device_memory: bool
    chunk_bytes: int
    sequential_grid_clients: bool
    min_padding_saved: float
    sequential_svd: bool
    threaded_batches: bool


_CPU_POLICY = ComputePolicy(
    device_name="cores of a CPU",
    has_device_memory=False,
    chunk_bytes=2**22,  # a chunk stays in the cache; measured, half and twice as much do as well
    sequential_grid_clients=True,
    min_padding_saved=2**20,  # measured, 0.1 s in 500 rounds; a class takes 0.4 s to compile, once for all folds
    # jaxlib 0.10 distributes a batch of LAPACK calls over XLA's threads and blocks the calling thread. Programs that
    # run at once, as the batches of a grid do, may then deadlock. A single call is not distributed.
    sequential_svd=True,
    threaded_batches=True,
)
_GPU_POLICY = ComputePolicy(
    device_name="GPUs",
    has_device_memory=True,
    chunk_bytes=2**30,  # bounds the memory of a chunk; not measured
    sequential_grid_clients=False,
    min_padding_saved=math.inf,  # a GPU computes all clients of a round at once; not measured
    sequential_svd=False,
    threaded_batches=False,
)


def compute_policy() -> ComputePolicy:
    """Return how fcorun computes on the devices that JAX has found."""
    import jax

    return _CPU_POLICY if jax.default_backend() == "cpu" else _GPU_POLICY


@contextlib.contextmanager
def use_precision(precision: str) -> Iterator[None]:
    """Compute in ``precision``, float32 or float64, within the context.

    A GPU multiplies matrices of float32 in full precision, too, where JAX else takes TF32 with its 11 binary digits.
    """
    import jax

    with jax.enable_x64(precision == "float64"), jax.default_matmul_precision("highest"):
        yield


def available_cores() -> int:
    """Return the number of cores that this process may use: $FCORUN_CORES, or the system's count."""
    if os.environ.get("FCORUN_CORES", "").isdigit():
        return max(1, int(os.environ["FCORUN_CORES"]))
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_device_memory() -> int:
    """Return the free bytes of the memory in which JAX computes."""
    import jax

    stats = jax.devices()[0].memory_stats() if compute_policy().has_device_memory else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return free_host_memory()


def free_host_memory() -> int:
    """Return the free bytes of main memory: of the machine, or of the container or cluster job if that is less."""
    free = psutil.virtual_memory().available
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="utf-8"))
        used = int((_CGROUP / "memory.current").read_text(encoding="utf-8"))
        statistics = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):  # no limit
        return free
    cached_files = int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0))
    return min(free, limit - used + cached_files)  # the system drops cached files when memory is needed


def memory_limit(limit_gib: float | None) -> float:
    """Return the bytes that simultaneous runs may use together: ``limit_gib``, or 60 % of the free memory."""
    return free_device_memory() * _DEFAULT_SHARE if limit_gib is None else limit_gib * 2**30


def check_memory(needed: float, free: float, limit_gib: float | None, purpose: str) -> None:
    """Raise UserError if ``purpose`` needs more bytes than are free.

    A larger ``limit_gib``, the user's own statement, replaces ``free``.
    """
    available = max(free, (limit_gib or 0) * 2**30)
    if needed > available:
        raise UserError(f"{purpose} needs at least {format_gib(needed)} of memory, and {format_gib(available)} are "
                        f"free; {REDUCE_HINT}, or memory=GIB if more is available")  # fmt: skip


def format_gib(bytes_: float) -> str:
    """Return a number of bytes as text.

    >>> format_gib(1.5 * 2**30), format_gib(12345 * 2**30)
    ('1.5 GiB', '12,345 GiB')
    """
    size = bytes_ / 2**30
    return f"{size:,.0f} GiB" if size >= 100 else f"{size:.3g} GiB"


def use_cores_as_devices(at_least: int = 1) -> None:
    """Make each core of a CPU a device of JAX.

    Does nothing once JAX has begun to compute, or if $XLA_FLAGS names a number of devices.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    import jax

    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", max(available_cores(), at_least))


def set_up_jax(devices: int = 1) -> None:
    """Make cores devices, at least ``devices`` of a CPU, and keep compiled programs on disk.

    With programs on disk, the second start of the same kind of run does not compile.
    """
    import jax

    use_cores_as_devices(devices)
    jax.config.update("jax_compilation_cache_dir", str(cache_dir("programs")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
