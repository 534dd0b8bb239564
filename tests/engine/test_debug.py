"""debug=true: clients one by one, without jit."""

from pathlib import Path

import numpy as np
import pytest
from helpers import engine_of, flat, small, snapshots

from fcorun import run
from fcorun.base.errors import describe_error
from fcorun.interface.cli.console import Console

BUGGY = """
from dataclasses import dataclass

from fcorun.algorithms import FedAvg, Traits


@dataclass(frozen=True)
class Buggy(FedAvg):
    traits = Traits(psi_sides=())

    def local(self, problem, server, client, data):
        upload, client = super().local(problem, server, client, data)
        if (data.rows // 12 == 4).any():  # what can be told of values, not of tracers
            upload = upload["no such parameter"]
        return upload, client
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", [("algo=fedmid",), ("algo=feddualavg", "topology=tree")])
def test_the_same_numbers(more):
    fast, slow = (snapshots(small(*more, "rounds=2", f"debug={debug}")) for debug in ("false", "true"))
    assert len(fast) == len(slow) == 2
    for one, other in zip(fast, slow, strict=True):
        np.testing.assert_allclose(flat(one.solution), flat(other.solution), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(one.work, other.work)


@pytest.mark.slow
def test_several_runs():
    configs = [small("algo=fedmid", "rounds=1", "debug=true", f"algo.client_lr={rate}") for rate in (1e-3, 2e-3)]
    both = snapshots(*configs)[-1]
    alone = snapshots(configs[1])[-1]
    np.testing.assert_allclose(both.solution["weights"][1], alone.solution["weights"][0], rtol=1e-6)
    assert not np.allclose(both.solution["weights"][0], alone.solution["weights"][0], rtol=1e-3)


@pytest.mark.slow
def test_nothing_is_compiled():
    engine = engine_of(small("algo=fedavg", "debug=true"))
    snapshots(small("algo=fedavg", "debug=true"), engine=engine)
    assert not engine.programs.compiled


@pytest.mark.slow
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


LOST = BUGGY.replace('upload["no such parameter"]', "jax.tree.map(lambda v: 0 * v / 0, upload)").replace(
    "from fcorun", "import jax\nfrom fcorun", 1
)


@pytest.mark.slow
def test_what_is_not_finite_is_traced_to_client_round_and_line(user_module, capsys):
    user_module("lossy", LOST)
    config = small("algo=fedavg", "clients_per_round=null", "debug=true")
    config["algo"]["class"] = "lossy.Buggy"
    fine = small("algo=fedavg", "clients_per_round=null", "debug=true")
    with Console() as watch:
        record = run(config, "here", watch)
    assert record.status["status"] == "diverged"
    assert record.status["reason"] == "not finite in round 1, first in client client4 (lossy.py line 15)"
    assert "in round 1, first in client client4 (lossy.py line 15); try" in capsys.readouterr().out
    assert run(fine, "fine").status["status"] == "done"
    with Console() as watch:
        run(config, "here", watch)
    assert "debug=true force=true shows the client" in capsys.readouterr().out


def test_an_error_says_what_its_first_line_promises():
    assert (
        describe_error(TypeError("they differ:\n\n  * one is int32\n  * so"))
        == "TypeError: they differ: * one is int32"
    )


def test_without_debug_values_are_unknown(user_module):
    user_module("buggy", BUGGY)
    config = small("algo=fedavg", "clients_per_round=null")
    config["algo"]["class"] = "buggy.Buggy"
    with pytest.raises(Exception, match=r"[Tt]racer"):
        run(config, "here")


NUMBERS = """
from dataclasses import dataclass

import jax
import numpy as np

from fcorun.algorithms import FedAvg, Traits


def check_arrays(*states):
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(states))


@dataclass(frozen=True)
class Numbers(FedAvg):
    traits = Traits(psi_sides=())

    def init(self, problem, w0):
        return {"w": w0, "count": 0, "rate": 0.1, "scale": np.float32(1)}, {"visits": 0, "last": np.float32(2)}

    def local(self, problem, server, client, data):
        check_arrays(server, client)
        gradient = problem.gradient(server["w"], data.whole)
        return {"w": server["w"] - server["rate"] * gradient}, client | {"visits": client["visits"] + 1, "last": 3.0}

    def server(self, problem, server, mean):
        check_arrays(server, mean)
        return server | {"w": mean["w"], "count": server["count"] + 1, "rate": 0.1}

    def output(self, problem, server):
        check_arrays(server)
        return server["w"]
"""


@pytest.mark.parametrize("debug", ["false", "true"])
def test_states_that_init_gives_as_numbers_are_arrays_in_every_call(debug, user_module):
    config = small("algo=fedavg", "reg=none", "rounds=2", f"debug={debug}")
    user_module("numbers_state", NUMBERS)
    config["algo"]["class"] = "numbers_state.Numbers"
    assert int(snapshots(config)[-1].state["server"]["count"][0]) == 2
