"""The machine: versions of libraries, cores, free memory, how JAX is configured on it, and the hosts that join it.

JAX, NumPy and psutil are imported in the functions that use them, so that data sets can be loaded before JAX, and the
help is printed at once.
"""

import contextlib
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fcorun.base.config import Count, Positive, build
from fcorun.base.errors import UserError
from fcorun.base.system.files import cache_dir

if TYPE_CHECKING:
    import numpy as np

    from fcorun.base.system.hosts import Hosts

# Arrays whose memory JAX takes over without a copy.

_ALIGNMENT = 64  # bytes: on a CPU, JAX copies an array that begins at any other address


def empty_aligned(shape: tuple[int, ...], dtype) -> "np.ndarray":
    """Return an uninitialized array that ``jax.device_put`` takes on a CPU without a copy.

    The array must not be changed while a computation uses it.
    """
    import numpy as np

    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def align(array: "np.ndarray") -> "np.ndarray":
    """Return the array, or a copy, as ``empty_aligned`` makes arrays."""
    if array.ctypes.data % _ALIGNMENT == 0:
        return array
    aligned = empty_aligned(array.shape, array.dtype)
    aligned[...] = array
    return aligned


# The versions of fcorun and its libraries, and the device.

_SOURCE_VERSION = "0.0.0+source"


def fcorun_version() -> str:
    """Return the installed version, or 0.0.0+source where Python runs fcorun from its sources without installation."""
    try:
        return version("fcorun")
    except PackageNotFoundError:
        return _SOURCE_VERSION


def read_versions() -> dict[str, str]:
    """Return the versions that must be the same in all processes of a command, by package."""
    return {"fcorun": fcorun_version(), **{package: version(package) for package in ("jax", "jaxlib")}}


def check_versions(versions: Mapping[str, str], where: str) -> None:
    """Raise UserError, which names this process by ``where``, for other versions than those of the command."""
    for package, number in read_versions().items():
        if number != versions[package]:
            raise UserError(f"{where} has {package} {number} and the command has {versions[package]}: install the same "
                            "there, start workers of Dask anew, and give the command again")  # fmt: skip


@cache
def describe_environment() -> dict[str, Any]:
    """Return versions, the git commit of fcorun if it is known, and the device."""
    import jax

    packages = ("jax", "jaxlib", "numpy", "hydra-core")
    versions = {"python": platform.python_version(), "fcorun": fcorun_version(), **{p: version(p) for p in packages}}
    device = jax.devices()[0]
    return {
        "versions": versions,
        "git": read_commit(Path(__file__).parents[2]),
        "device": f"{device.platform}: {device.device_kind}",
        "platform": f"{sys.platform} {platform.machine()}",
    }


def read_commit(package: Path) -> str | None:
    """Return the git commit of fcorun in this folder: of a checkout, or as noted when the package was built."""
    if (package.parent / ".git").exists():
        command = ["git", "-C", str(package), "rev-parse", "--verify", "-q", "HEAD"]
        try:
            return subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout.strip() or None
        except OSError:  # git is not installed
            return None
    note = package / "commit"
    return note.read_text(encoding="utf-8").strip() if note.exists() else None


# The resources of the machine, cores and free memory, and how JAX is configured on it.

REDUCE_HINT = "give fewer rows, features or clients"
_DEFAULT_SHARE = 0.6  # of the free memory, for runs
_CGROUP_FILE = Path("/proc/self/cgroup")
_CGROUP_FOLDER = Path("/sys/fs/cgroup")
# the files of the limit and the use of a cgroup, and the beginning of two keys in memory.stat, of each version
_CGROUP_FILES = {
    2: ("memory.max", "memory.current", ""),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}


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


# of whoever started this process, without the limits that its tasks set, such as on the cores
STARTING_ENVIRONMENT = dict(os.environ)


def available_cores() -> int:
    """Return the number of cores that this process may use: $FCORUN_CORES, or the system's count."""
    if os.environ.get("FCORUN_CORES", "").isdecimal():
        return max(1, int(os.environ["FCORUN_CORES"]))
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_blas_threads(n_threads: int | None) -> contextlib.AbstractContextManager:
    """Return a context in which each BLAS uses so many threads at most; None: as many as it would."""
    from threadpoolctl import threadpool_limits

    if n_threads is not None:
        import scipy.linalg  # noqa: F401  # SciPy's own BLAS, which is limited only where it is loaded
    return threadpool_limits(n_threads)


def free_device_memory() -> int:
    """Return the free bytes of the memory in which JAX computes."""
    import jax

    stats = jax.local_devices()[0].memory_stats() if compute_policy().has_device_memory else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return free_host_memory()


def free_host_memory() -> int:
    """Return the free bytes of main memory: of the machine, or of the container or cluster job if that is less."""
    import psutil

    free = psutil.virtual_memory().available
    for folder, cgroup_version in _cgroup_folders():
        limit_file, use_file, prefix = _CGROUP_FILES[cgroup_version]
        try:
            limit, used = (int((folder / name).read_text(encoding="utf-8")) for name in (limit_file, use_file))
            statistics = dict(
                line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
            )
        except (OSError, ValueError):  # no limit
            continue
        cached_files = sum(int(statistics.get(f"{prefix}{name}_file", 0)) for name in ("inactive", "active"))
        free = min(free, limit - used + cached_files)  # the system drops cached files when memory is needed
    return free


def free_memory_for_rows() -> int:
    """Return the free bytes of main memory; of several hosts the least of any, so that all keep rows in one way."""
    hosts = current_hosts()
    return hosts.free_memory if hosts else free_host_memory()


def _cgroup_folders() -> Iterator[tuple[Path, int]]:
    """Yield the folders of the memory cgroups that this process is in, with the version of the cgroups.

    Within a container, the kernel's file names a folder outside, and the container's own cgroup is the topmost one.
    """
    try:
        lines = _CGROUP_FILE.read_text(encoding="utf-8").splitlines()
    except OSError:  # another system
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            top, cgroup_version = (_CGROUP_FOLDER / "memory", 1) if controllers else (_CGROUP_FOLDER, 2)
            folder = top / path.lstrip("/")
            yield from ((each, cgroup_version) for each in (folder, *folder.parents) if each.is_relative_to(top))


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


# The hosts that compute together.


@dataclass(frozen=True)
class HostOptions:
    """The keys of ``hosts``.

    Attributes:
        count: the number of hosts.
        rows: the rows that each host loads: those of its own clients ("own"), or all ("all"). "auto" is "own" unless
            a run needs all rows.
        timeout: seconds to wait for the workers of a cluster, and for hosts to find each other.
    """

    count: Count = 1
    rows: Literal["auto", "own", "all"] = "auto"
    timeout: Positive = 300.0


def read_hosts(values: Mapping[str, Any] | None) -> HostOptions:
    """Return the options of the keys ``hosts``. Raises UserError."""
    return build(HostOptions, {key: value for key, value in (values or {}).items() if value is not None}, "hosts")


def require_single_host(command: str, values: Mapping[str, Any] | None) -> None:
    """Raise UserError if several hosts are configured for a ``command`` that runs on one host."""
    if read_hosts(values).count > 1:
        raise UserError(f"{command} computes on one host: leave hosts.* out, or give hosts.count=1")


# The ``Hosts`` of this process, at most one. This is a fact of the process, as JAX's group of processes is, which
# cannot be left and joined again. An argument would pass through all functions between the command and each collective
# step.
_CURRENT_HOSTS: list["Hosts"] = []


def current_hosts() -> "Hosts | None":
    """Return the hosts that this process computes with; None if it computes alone."""
    return _CURRENT_HOSTS[0] if _CURRENT_HOSTS else None


def set_hosts(hosts: "Hosts") -> None:
    """Make ``hosts`` the current ones, and begin to receive their messages."""
    _CURRENT_HOSTS.append(hosts)
    hosts.start_receiving()


def close_hosts(code: int) -> None:
    """Close the current hosts, if this process has any, with an exit code."""
    if hosts := current_hosts():
        _CURRENT_HOSTS.clear()
        hosts.close(code)
