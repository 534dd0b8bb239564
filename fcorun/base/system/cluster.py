"""The hosts that Slurm, Open MPI or Kubernetes has started together, as JAX detects them."""

from dataclasses import replace
from typing import Any

from fcorun.base.errors import UserError

_NOT_DETECTED = (
    "several tasks were started together, and JAX does not tell the address of the first one, their number, or the "
    "number of this one"
)
_ADVICE = "give hosts.address, hosts.count and hosts.rank, or hosts.count=1 for each alone"


def detect_cluster(options: Any) -> Any:
    """Return ``HostOptions`` with missing ones filled in from the cluster. Raises UserError if one stays unknown.

    Without ``hosts.gpus``, a process of Slurm or Open MPI has the GPU of its number on its machine.
    """
    # JAX has no public name for this: jax.distributed.initialize detects a cluster and at once connects its processes,
    # while here the options are needed alone. Nothing else in fcorun imports from jax._src.
    from jax._src.clusters import ClusterEnv

    try:
        address, count, rank, gpus = ClusterEnv.auto_detect_unset_distributed_params(
            coordinator_address=options.address,
            num_processes=options.count,
            process_id=options.rank,
            local_device_ids=options.gpus,
            cluster_detection_method=None,
            initialization_timeout=int(options.timeout),
        )
    except Exception as error:
        raise UserError(f"{_NOT_DETECTED} ({error}): {_ADVICE}") from error
    if count == 1:
        return replace(options, address=None, count=None, rank=None)
    if None in (address, count, rank):
        raise UserError(f"{_NOT_DETECTED}: {_ADVICE}")
    return replace(options, address=address, count=count, rank=rank, gpus=None if gpus is None else list(gpus))
