"""What the machine has: cores, free memory, and how JAX is set up on it."""

import contextlib
import os
from pathlib import Path

import jax
import psutil

from fcorun.system.cache import cache_dir

_USED = 0.6  # of the memory that is free


def cores() -> int:
    """Cores that this process may use: $FCORUN_CORES, or those that the system gives it."""
    if os.environ.get("FCORUN_CORES", "").isdigit():
        return max(1, int(os.environ["FCORUN_CORES"]))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """Bytes of memory that are free where JAX computes."""
    stats = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    free = psutil.virtual_memory().available
    try:  # a container, or a job of a cluster
        limit, used = (int(Path("/sys/fs/cgroup", name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):
        return free
    return min(free, limit - used)


def allowed_memory(given: float | None) -> float:
    """Bytes that runs may take together: ``given`` in GiB, or 60 % of what is free."""
    return free_memory() * _USED if given is None else given * 2**30


def cores_as_devices() -> None:
    """Make each core of a CPU a device, unless JAX has begun to compute, or $XLA_FLAGS says how many there are."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", cores())


def set_up_jax() -> None:
    """Make cores devices, and keep compiled programs on disk, so that the second start of the same kind of run does
    not compile."""
    cores_as_devices()
    jax.config.update("jax_compilation_cache_dir", str(cache_dir("programs")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
