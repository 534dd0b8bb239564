"""debug=true: clients one by one, without jit."""

from pathlib import Path

import numpy as np
import pytest
from helpers import engine_of, flat, small, snapshots

from fcorun import run

BUGGY = """
from dataclasses import dataclass

from fcorun.algorithms import FedAvg, Traits


@dataclass(frozen=True)
class Buggy(FedAvg):
    traits = Traits(sides=())

    def local(self, problem, server, client, data):
        upload, client = super().local(problem, server, client, data)
        if (data.rows // 12 == 4).any():  # what can be told of values, not of tracers
            upload = upload["no such parameter"]
        return upload, client
"""


@pytest.mark.parametrize("more", [("algo=fedmid",), ("algo=feddualavg", "topology=tree")])
def test_the_same_numbers(more):
    fast, slow = (snapshots(small(*more, "rounds=2", f"debug={debug}")) for debug in ("false", "true"))
    assert len(fast) == len(slow) == 2
    for one, other in zip(fast, slow, strict=True):
        np.testing.assert_allclose(flat(one.solution), flat(other.solution), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(one.work, other.work)


def test_several_runs():
    configs = [small("algo=fedmid", "rounds=1", "debug=true", f"algo.client_lr={rate}") for rate in (1e-3, 2e-3)]
    both = snapshots(*configs)[-1]
    for place, config in enumerate(configs):
        alone = snapshots(config)[-1]
        np.testing.assert_allclose(both.solution["weights"][place], alone.solution["weights"][0], rtol=1e-6)


def test_nothing_is_compiled():
    engine = engine_of(small("algo=fedavg", "debug=true"))
    snapshots(small("algo=fedavg", "debug=true"), engine=engine)
    assert not engine.programs.compiled


def test_an_error_names_client_round_and_line(user_module):
    user_module("buggy", BUGGY)
    config = small("algo=fedavg", "clients_per_round=null", "debug=true")
    config["algo"]["class"] = "buggy.Buggy"
    with pytest.raises(KeyError) as caught:
        run(config, "here")
    assert [note for note in caught.value.__notes__ if "client" in note] == ["in client client4, round 1"]
    log = Path("here/run.log").read_text()
    assert "in client client4, round 1" in log
    assert "buggy.py" in log


def test_without_debug_values_are_unknown(user_module):
    user_module("buggy", BUGGY)
    config = small("algo=fedavg", "clients_per_round=null")
    config["algo"]["class"] = "buggy.Buggy"
    with pytest.raises(Exception, match=r"[Tt]racer"):
        run(config, "here")
