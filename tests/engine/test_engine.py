"""The engine accepts large numbers, and algorithms without numbers."""

import numpy as np
import pytest
from helpers import small

from fcorun import compose, run
from fcorun.data.rows.features import to_device
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare


def test_large_whole_numbers_are_not_wrapped(tmp_path):
    x = np.arange(40).reshape(20, 2) + 2**31
    np.savez(tmp_path / "big.npz", X=x, y=np.arange(20.0), client=np.arange(20) % 2)
    experiment = prepare(compose(["data=table", f"data.path={tmp_path / 'big.npz'}", "data.validation=0"]))
    on = to_device(load_data(experiment).train.x, "float32")
    assert on.dtype == "float32"
    assert float(on.min()) >= 2**31


@pytest.mark.slow
def test_an_algorithm_without_numbers_runs(user_module):
    user_module(
        "plain",
        "from dataclasses import dataclass\n"
        "from fcorun.algorithms import Algorithm\n"
        "@dataclass(frozen=True)\n"
        "class Plain(Algorithm):\n"
        "    def init(self, problem, w0): return w0, None\n"
        "    def local(self, problem, server, client, data): return server, client\n"
        "    def server(self, problem, server, mean): return mean\n"
        "    def output(self, problem, server): return server\n",
    )
    config = small("reg=none") | {"algo": {"name": "plain", "class": "plain.Plain"}}
    assert run(config).status["status"] == "done"
