"""The hosts that compute together: given by the keys ``hosts.*``, or started by Slurm, Open MPI or Kubernetes."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fcorun.config import Count, Index, Positive, build
from fcorun.errors import UserError

SECRET_VARIABLE = "FCORUN_HOSTS_SECRET"  # the environment variable that may hold the secret
_MIN_SECRET_BYTES = 16
_UNKNOWN_LEADER = "several tasks were started together, and the address of the first one is not known"


@dataclass(frozen=True)
class HostOptions:
    """The keys of ``hosts``.

    Attributes:
        address: HOST:PORT of the leader, the host of rank 0; an IPv6 address is in brackets.
        count: the number of hosts.
        rank: the number of this host, from 0.
        timeout: seconds to wait for the other hosts.
        rows: the rows that each host loads: those of its own clients ("own"), or all ("all"). "auto" is "own" unless
            a run needs all rows.
        gpus: the numbers of the GPUs that this process uses; None: all that it sees.
        secret_file: a file with a secret that all hosts share. Without it, the environment variable
            ``SECRET_VARIABLE`` holds the secret.
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
        """The leader's host, without the brackets of IPv6, and its port."""
        host, _, port = str(self.address).rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def is_loopback(self) -> bool:
        """Return whether the address is reachable from this machine alone."""
        host, _ = self.endpoint
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:  # a host name
            return False

    def secret(self) -> bytes:
        """Return the secret that the hosts share; on a loopback address it may be empty.

        Raises UserError for a missing secret, and for one that is short enough to be guessed.
        """
        secret = os.environ.get(SECRET_VARIABLE, "").encode()
        source = SECRET_VARIABLE
        if self.secret_file is not None:
            source = f"hosts.secret_file={self.secret_file}"
            try:
                secret = Path(self.secret_file).read_bytes()
            except OSError as error:
                raise UserError(
                    f"{source} cannot be read ({error.strerror}): give a file with a secret, the same on all hosts"
                ) from error
        secret = secret.strip()
        if not secret and not self.is_loopback:
            raise UserError(
                f"hosts.address={self.address} can be reached by others: give all hosts the same secret, in a file as "
                f"hosts.secret_file=FILE or in the environment variable {SECRET_VARIABLE}"
            )
        if (secret or self.secret_file) and len(secret) < _MIN_SECRET_BYTES:
            raise UserError(
                f"{source} holds a secret of {len(secret)} bytes: give {_MIN_SECRET_BYTES} or more, such as those of "
                "openssl rand -hex 32"
            )
        return secret


def resolve_hosts(values: Mapping[str, Any] | None) -> HostOptions | None:
    """Return the hosts that the keys name, or that a cluster has started; None for a single host.

    Raises UserError for incomplete or contradictory keys.
    """
    options = build(HostOptions, {key: value for key, value in (values or {}).items() if value is not None}, "hosts")
    if options.count == 1:
        return None
    is_incomplete = None in (options.address, options.count, options.rank)
    if is_incomplete and (_count_tasks() > 1 or _is_indexed_pod()):
        options = _detect(options)
    address, count, rank = options.address, options.count, options.rank
    given = [f"hosts.{key}" for key in ("address", "count", "rank") if getattr(options, key) is not None]
    if not given:
        return None
    if address is None or count is None or rank is None:
        raise UserError(f"{', '.join(given)} without the rest: give hosts.address, hosts.count and hosts.rank together")
    if rank >= count:
        raise UserError(f"hosts.rank={rank} must be less than hosts.count={count}: the first one is 0")
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit() and 0 < int(port) < 2**16):
        raise UserError(f"hosts.address={address} must be HOST:PORT, of the first host")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise UserError(f"hosts.address={address}: give an address of IPv6 in brackets, as [::1]:4321")
    return options


def require_single_host(command: str, values: Mapping[str, Any] | None) -> None:
    """Raise UserError if several hosts are configured, or were started, for a ``command`` that runs on one host."""
    if resolve_hosts(values) is not None:
        raise UserError(f"{command} computes on one host: leave hosts.* out and start it once, or give hosts.count=1")


def _count_tasks() -> int:
    """Return the number of tasks that Slurm or Open MPI have started together."""
    tasks = [os.environ.get("OMPI_COMM_WORLD_SIZE", "")]
    if "SLURM_STEP_NODELIST" in os.environ:  # unset in a batch script, which is one process
        tasks.append(os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS", ""))
    return max(int(number) if number.isdigit() else 1 for number in tasks)


def _is_indexed_pod() -> bool:
    """Return whether this is a pod of an indexed Kubernetes job, and the Kubernetes client is installed."""
    is_indexed = "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" in os.environ
    return is_indexed and find_spec("kubernetes") is not None


def _detect(options: HostOptions) -> HostOptions:
    """Return the options with missing ones filled in from the cluster. Raises UserError if one stays unknown."""
    from jax._src.clusters import ClusterEnv  # used by jax.distributed, and not public

    try:
        address, count, rank, gpus = ClusterEnv.auto_detect_unset_distributed_params(
            coordinator_address=options.address,
            num_processes=options.count,
            process_id=options.rank,
            local_device_ids=None,
            cluster_detection_method=None,
            initialization_timeout=int(options.timeout),
        )
    except Exception as error:
        raise UserError(f"{_UNKNOWN_LEADER} ({error}): give hosts.address, hosts.count and hosts.rank, or "
                        "hosts.count=1 for each alone") from error  # fmt: skip
    if count == 1:
        return replace(options, address=None, count=None, rank=None)
    if None in (address, count, rank):
        raise UserError(f"{_UNKNOWN_LEADER}: give hosts.address, hosts.count and hosts.rank, or hosts.count=1 for "
                        "each alone")  # fmt: skip
    return replace(options, address=address, count=count, rank=rank, gpus=None if gpus is None else list(gpus))
