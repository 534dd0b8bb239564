"""The hosts that Slurm, Open MPI or Kubernetes has started together, as JAX detects them."""

from fcorun.errors import UserError

_NOT_DETECTED = (
    "several tasks were started together, and JAX does not tell the address of the first one, their number, or the "
    "number of this one"
)


def detect_cluster(
    address: str | None, count: int | None, rank: int | None, gpus: list[int] | None, timeout: float
) -> tuple[str | None, int | None, int | None, list[int] | None]:
    """Return the address of the leader, the number of hosts, the number of this one, and the GPUs of this process.

    Values that are None are filled in from the cluster. A process of Slurm or Open MPI has the GPU of its number on its
    machine. A process that computes alone has no address, count and rank. Raises UserError if one stays unknown.
    """
    from jax._src.clusters import ClusterEnv  # used by jax.distributed, and not public

    given_gpus = gpus
    try:
        address, count, rank, cluster_gpus = ClusterEnv.auto_detect_unset_distributed_params(
            coordinator_address=address,
            num_processes=count,
            process_id=rank,
            local_device_ids=gpus,
            cluster_detection_method=None,
            initialization_timeout=int(timeout),
        )
    except Exception as error:
        raise UserError(f"{_NOT_DETECTED} ({error}): give hosts.address, hosts.count and hosts.rank, or "
                        "hosts.count=1 for each alone") from error  # fmt: skip
    if count == 1:
        return None, None, None, given_gpus
    if None in (address, count, rank):
        raise UserError(f"{_NOT_DETECTED}: give hosts.address, hosts.count and hosts.rank, or hosts.count=1 for "
                        "each alone")  # fmt: skip
    return address, count, rank, None if cluster_gpus is None else list(cluster_gpus)
