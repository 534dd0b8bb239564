"""Every choice of the command line runs, and so do a user's own plug-ins."""

import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import NEEDED_OVERRIDES, SHARED, SMALL, choice_names, flat, matrices_only, small, traits_of
from table_files import applies_psi, classify, write_table

from fcorun import Record, UserError, run

HAXBY = SHARED / "data" / "nilearn_data"
pytestmark = pytest.mark.undrawn


# ---------------------------------------------------------------- every choice runs

SMALLER = {
    "lasso": ["data.features=20", "data.clients=6", "data.samples=12", "clients_per_round=3", "data.nonzeros=5"],
    "least_squares": ["data.samples=120", "data.features=20"],
    "lowrank": ["data.rows=8", "data.columns=6", "data.rank=1", "data.samples=20"],
    "table": ["data.path=rows.csv", "data.target=y", "data.client=site"],
}


# tested in test_haxby.py, test_nifti.py, test_femnist.py, tests/sites
NEED_FILES = ("haxby", "nifti", "femnist", "femnist_62", "sites")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in choice_names("data") if name not in NEED_FILES])
def test_every_data_set_runs(fcorun, name):
    write_table("rows.csv")
    overrides = next((smaller for prefix, smaller in SMALLER.items() if name.startswith(prefix)), [])
    code, _, err = fcorun(f"data={name}", *overrides, "rounds=2", "hydra.run.dir=here")
    assert code == 0, err
    assert Record(Path("here")).config["data"]["name"] == name


# Tasks differ in the objective alone; the binary task is run with one algorithm of each kind. test_each_choice.py has
# the algorithms that apply psi classify.
ONE_OF_EACH_KIND = ("centralized", "feddualavg", "fedsplit", "local", "pfedmac_sh")
TASKS = [(name, "multiclass") for name in choice_names("algo") if not (
    applies_psi(name) or traits_of(name).hessian == "constant")]  # fmt: skip
TASKS += [(name, "binary") for name in ONE_OF_EACH_KIND]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task"), TASKS)
def test_every_algorithm_classifies(fcorun, name, task):
    code, _, err = fcorun(*classify(name, task), "hydra.run.dir=here")
    assert code == 0, err
    record = Record(Path("here"))
    assert record.config["objective"]["name"] == "logistic"
    metric = "personal_val_accuracy" if name == "local" else "val_accuracy"
    assert record.metrics[metric].iloc[-1] > 0.6
    assert record.solution["weights"].shape == ((3,) if task == "binary" else (3, 3))


@pytest.mark.parametrize("name", choice_names("reg"))
def test_every_regularizer_is_accepted(fcorun, name):
    """test_regularizers.py and test_each_choice.py run rounds with each."""
    data = SMALL
    if matrices_only(name):
        data = ("data=lowrank", "data.rows=5", "data.columns=4", "data.rank=2", "rounds=4", "eval_every=2")
    code, _, err = fcorun(*data, f"reg={name}", *NEEDED_OVERRIDES.get(f"reg={name}", ()), "dry_run=true")
    assert code == 0, err


@pytest.mark.slow
def test_a_regularizer_that_lacks_a_required_method_is_refused(user_module):
    user_module("mine", SOURCE)
    bare = {"reg": {"name": "bare", "class": "mine.Bare"}}
    with pytest.raises(UserError, match=r"algo=fedavg_subgradient needs the subgradient .* reg=bare"):
        run(small("algo=fedavg_subgradient") | bare)
    assert not list(Path().glob("outputs"))
    assert run(small("algo=fedmid") | bare).finished


@pytest.mark.slow
@pytest.mark.skipif(not HAXBY.is_dir(), reason="there are no scans here")
def test_haxby(fcorun):
    rest = ["data=haxby", f"data.root={HAXBY}", "data.subjects=[1]", "data.validation_runs=[10,11]", "eval_every=50"]
    code, _, err = fcorun(*rest, "rounds=100", "hydra.run.dir=here")
    assert code == 0, err
    record = Record(Path("here"))
    assert record.summary["data"]["clients"] == 10
    assert record.metrics["val_accuracy"].iloc[-1] > 0.8
    assert record.metrics["density"].iloc[-1] < 1


# ---------------------------------------------------------------- plug-ins of a user's own

SOURCE = """
from dataclasses import dataclass
from fcorun.algorithms import Algorithm
from fcorun.config import Positive
from fcorun.regularizers import Regularizer


@dataclass(frozen=True)
class Slow(Algorithm):
    client_lr: Positive
    patience: Positive = 1.0

    def init(self, problem, w0):
        return w0, None

    def local(self, problem, server, client, data):
        w = data.steps(lambda w, batch: w - self.client_lr / self.patience * problem.gradient(w, batch), server)
        return w - server, client

    def server(self, problem, server, mean):
        return server + mean

    def output(self, problem, server):
        return server


@dataclass(frozen=True)
class Bare(Regularizer):
    def value(self, w):
        return (0 * w).sum()

    def prox(self, z, t):
        return z
"""


@pytest.mark.slow
def test_a_users_algorithm_runs(fcorun):
    Path("mine.py").write_text(SOURCE)
    Path("conf/algo").mkdir(parents=True)
    Path("conf/algo/slow.yaml").write_text("name: slow\nclass: mine.Slow\nclient_lr: 0.002\npatience: 2.0\n")
    try:
        code, out, err = fcorun("--config-dir", "conf", *SMALL, "algo=slow", "hydra.run.dir=slow")
        assert code == 0, err
        assert out.startswith("algo=slow ")
        fedavg = run(small("algo=fedavg", "algo.client_lr=0.001", "algo.server_lr=1"), "fedavg")
        np.testing.assert_allclose(flat(Record(Path("slow")).solution), flat(fedavg.solution), rtol=1e-5)
        code, _, err = fcorun("--config-dir", "conf", *SMALL, "algo=slow", "algo.patience=0")
        assert code == 2
        assert "algo.patience" in err
        assert "slow" in fcorun("--config-dir", "conf", "--help")[1]
    finally:
        sys.modules.pop("mine", None)


@pytest.mark.slow
def test_a_failing_plugin_is_reported_in_one_line(fcorun, user_module):
    user_module("mine", SOURCE.replace("return server + mean", "raise RuntimeError('out of patience')"))
    overrides = ["algo.class=mine.Slow", "~algo.server_lr", "algo.name=slow", "hydra.run.dir=here"]
    code, _, err = fcorun(*SMALL, *overrides)
    assert code == 1
    assert len(err.splitlines()) == 1
    assert "out of patience" in err
    assert "debug=true" in err
    record = Record(Path("here"))
    assert record.status["status"] == "failed"
    assert "Traceback" in (record.folder / "run.log").read_text()
    _, _, err = fcorun(*SMALL, *overrides, "debug=true")
    assert "Traceback" in err
