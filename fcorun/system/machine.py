"""What the machine has: cores, free memory, and how JAX is set up on it."""

import contextlib
import os
from pathlib import Path

import jax
import psutil

from fcorun.errors import UserError
from fcorun.system.cache import cache_dir

REDUCE_HINT = "give fewer rows, features or clients"
_USED = 0.6  # of the memory that is free


def available_cores() -> int:
    """Cores that this process may use: $FCORUN_CORES, or those that the system gives it."""
    if os.environ.get("FCORUN_CORES", "").isdigit():
        return max(1, int(os.environ["FCORUN_CORES"]))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_device_memory() -> int:
    """Bytes of memory that are free where JAX computes."""
    stats = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return free_host_memory()


def free_host_memory() -> int:
    """Bytes of memory that are free for NumPy: of the machine, or of the container or cluster's job that this is."""
    free, group = psutil.virtual_memory().available, Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / name).read_text(encoding="utf-8")) for name in ("memory.max", "memory.current"))
        told = dict(line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return free
    files = int(told.get("inactive_file", 0)) + int(told.get("active_file", 0))  # pages of files, which make room
    return min(free, limit - used + files)


def memory_limit(limit_gib: float | None) -> float:
    """Bytes that runs may take together: ``given`` in GiB, or 60 % of what is free."""
    return free_device_memory() * _USED if limit_gib is None else limit_gib * 2**30


def check_memory(needed: float, free: float, limit_gib: float | None, purpose: str) -> None:
    """Refuse ``what`` needs more bytes than are ``free``, or than are ``given`` in GiB where that is more. Raises
    UserError."""
    there = max(free, (limit_gib or 0) * 2**30)
    if needed > there:
        raise UserError(
            f"{purpose} needs at least {format_gib(needed)} of memory, and {format_gib(there)} are free; "
            f"{REDUCE_HINT}, or "
            "memory=GIB where more is there"
        )


def format_gib(bytes_: float) -> str:
    """A number of bytes in words.

    >>> gib(1.5 * 2**30), gib(12345 * 2**30)
    ('1.5 GiB', '12,345 GiB')
    """
    size = bytes_ / 2**30
    return f"{size:,.0f} GiB" if size >= 100 else f"{size:.3g} GiB"


def use_cores_as_devices(at_least: int = 1) -> None:
    """Make each core of a CPU a device, unless JAX has begun to compute, or $XLA_FLAGS says how many there are."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", max(available_cores(), at_least))


def set_up_jax(devices: int = 1) -> None:
    """Make cores devices, at least so many of a CPU, and keep compiled programs on disk, so that the second start of
    the same kind of run does not compile."""
    use_cores_as_devices(devices)
    jax.config.update("jax_compilation_cache_dir", str(cache_dir("programs")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
