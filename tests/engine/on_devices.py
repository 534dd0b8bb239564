"""Script with eight devices: runs on one device and on several, as ``test_devices.py`` requests them.

Takes [configuration, numbers of devices, runs, seeds] from each line of JSON, and prints for each number of devices the
largest relative difference of all that these runs leave, and that of the evaluations that they counted.
"""

import json
import sys

import jax
import partial_channel  # noqa: F401 - classes of the user's own that configurations name
import ring_topology  # noqa: F401
import svrg  # noqa: F401
import timed_fedavg  # noqa: F401
from fast_compilation import speed_up_compilation

from fcorun.base.system.machine import set_up_jax
from fcorun.interface.checks.problems import compare_devices


def main() -> None:
    """Print a line for each case."""
    for line in sys.stdin:
        print(json.dumps(compare_devices(*json.loads(line))), flush=True)


if __name__ == "__main__":
    jax.config.update("jax_numpy_rank_promotion", "raise")
    set_up_jax()
    speed_up_compilation()
    main()
