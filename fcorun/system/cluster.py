"""Whether several hosts are to compute together: asked for by keys, or started by Slurm, Open MPI or Kubernetes."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fcorun.config import Count, Index, Positive, build
from fcorun.errors import UserError

_KEYS = ("address", "count", "rank")
SECRET_VARIABLE = "FCORUN_HOSTS_SECRET"  # the environment variable that may hold the secret
_SHORTEST = 16  # bytes of a secret
_UNKNOWN = "several tasks were started together, and where the first one is was not found"


@dataclass(frozen=True)
class HostOptions:
    """The keys of ``hosts``.

    Attributes:
        address: HOST:PORT of the first one; an address of IPv6 is in brackets.
        count: how many there are.
        rank: which one this is.
        timeout: seconds to wait for the others.
        rows: which rows each host has: those of its own clients, "own", or "all"; "auto": own where a run does not need
            all of them.
        secret_file: a file with a secret that all hosts share; without it the environment variable ``SECRET`` holds it.
        gpus: the numbers of those that are this process's own; None: all that it sees.
    """

    address: str | None = None
    count: Count | None = None
    rank: Index | None = None
    timeout: Positive = 300.0
    rows: Literal["auto", "own", "all"] = "auto"
    gpus: list[int] | None = None
    secret_file: str | None = None

    @property
    def endpoint(self) -> tuple[str, int]:
        """The host, without the brackets of IPv6, and the port of the first one."""
        host, _, port = str(self.address).rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def is_loopback(self) -> bool:
        """Whether no other machine can reach the address."""
        host, _ = self.endpoint
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:  # a name
            return False

    def secret(self) -> bytes:
        """Return the secret that the hosts share, which nobody needs who is on the loopback.

        Raises UserError where there is none, or one that can be guessed.
        """
        found, where = os.environ.get(SECRET_VARIABLE, "").encode(), SECRET_VARIABLE
        if self.secret_file is not None:
            where = f"hosts.secret_file={self.secret_file}"
            try:
                found = Path(self.secret_file).read_bytes()
            except OSError as error:
                raise UserError(
                    f"{where} cannot be read ({error.strerror}): give a file with a secret, the same on all hosts"
                ) from error
        found = found.strip()
        if not found and not self.is_loopback:
            raise UserError(
                f"hosts.address={self.address} can be reached by others: give all hosts the same secret, in a file as "
                f"hosts.secret_file=FILE or in the environment variable {SECRET_VARIABLE}"
            )
        if (found or self.secret_file) and len(found) < _SHORTEST:
            raise UserError(
                f"{where} holds a secret of {len(found)} bytes: give {_SHORTEST} or more, such as those of "
                "openssl rand -hex 32"
            )
        return found


def resolve_hosts(values: Mapping[str, Any] | None) -> HostOptions | None:
    """The hosts that keys ask for, or that a cluster has started; None for one alone. Raises UserError."""
    asked = build(HostOptions, {k: v for k, v in (values or {}).items() if v is not None}, "hosts")
    if asked.count == 1:
        return None
    if None in (asked.address, asked.count, asked.rank) and (_tasks() > 1 or _in_pods()):
        asked = _detected(asked)
    address, count, rank = asked.address, asked.count, asked.rank
    given = [f"hosts.{key}" for key in _KEYS if getattr(asked, key) is not None]
    if not given:
        return None
    if address is None or count is None or rank is None:
        raise UserError(f"{', '.join(given)} without the rest: give hosts.address, hosts.count and hosts.rank together")
    if rank >= count:
        raise UserError(f"hosts.rank={rank} must be less than hosts.count={count}: the first one is 0")
    name, _, port = address.rpartition(":")
    if not (name and port.isdigit() and 0 < int(port) < 2**16):
        raise UserError(f"hosts.address={address} must be HOST:PORT, of the first host")
    if ":" in name and not (name.startswith("[") and name.endswith("]")):
        raise UserError(f"hosts.address={address}: an address of IPv6 stands in brackets, as [::1]:4321")
    return asked


def require_single_host(command: str, values: Mapping[str, Any] | None) -> None:
    """Raises UserError where several hosts are asked for, or were started, to do ``what`` one does alone."""
    if resolve_hosts(values) is not None:
        raise UserError(f"{command} computes on one host: leave hosts.* out and start it once, or give hosts.count=1")


def _tasks() -> int:
    """How many tasks Slurm or Open MPI have started together."""
    tasks = [os.environ.get("OMPI_COMM_WORLD_SIZE", "")]
    if "SLURM_STEP_NODELIST" in os.environ:  # not of a script of sbatch, which is one process
        tasks.append(os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS", ""))
    return max(int(number) if number.isdigit() else 1 for number in tasks)


def _in_pods() -> bool:
    """Whether this is a pod of a job of Kubernetes that numbers its pods, and Kubernetes can be asked about them."""
    numbered = "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" in os.environ
    return numbered and find_spec("kubernetes") is not None


def _detected(asked: HostOptions) -> HostOptions:
    """What was not asked for, as the cluster says. Raises UserError where it does not say all."""
    from jax._src.clusters import ClusterEnv  # jax.distributed's own, which it does not show

    try:
        address, count, rank, gpus = ClusterEnv.auto_detect_unset_distributed_params(
            coordinator_address=asked.address,
            num_processes=asked.count,
            process_id=asked.rank,
            local_device_ids=None,
            cluster_detection_method=None,
            initialization_timeout=int(asked.timeout),
        )
    except Exception as error:
        raise UserError(f"{_UNKNOWN} ({error}): give hosts.address, hosts.count and hosts.rank, or hosts.count=1 for "
                        "each alone") from error  # fmt: skip
    if count == 1:
        return replace(asked, address=None, count=None, rank=None)
    if None in (address, count, rank):
        raise UserError(f"{_UNKNOWN}: give hosts.address, hosts.count and hosts.rank, or hosts.count=1 for each alone")
    return replace(asked, address=address, count=count, rank=rank, gpus=None if gpus is None else list(gpus))
