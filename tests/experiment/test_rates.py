"""Rates that are worked out, where a round sees little: of minibatches, of clients that differ, of psi on one side."""

import numpy as np
import pytest
from helpers import ragged

from fcorun import compose, run
from fcorun.experiment.build import compute_problem_constants, load_data
from fcorun.experiment.prepare import prepare


def wide(folder, *overrides):
    """Six clients whose minibatches bend far more than their losses do."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 100))
    y = x @ rng.standard_normal(100) + rng.standard_normal(300)
    base = ("reg=none", "local_epochs=null", "eval_every=20", *overrides)
    return ragged(folder, *base, sizes=(50,) * 6, task="regression", x=x, y=y)


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "steps"), [("fedavg", 2), ("feddualavg", 1), ("fedavgm", 5)])
def test_a_round_of_few_rows_is_a_short_step(algo, steps, tmp_path):
    """With 1 / L of F the objective rose a hundred million times; with that of a row it hardly fell."""
    config = wide(tmp_path, f"algo={algo}", "batch_size=5", f"local_steps={steps}", "clients_per_round=2", "rounds=100")
    rows = run(config, "run").rows
    assert rows[-1]["objective"] < 0.3 * rows[0]["objective"]


@pytest.mark.slow
def test_scaffold_at_its_default_goes_down_where_features_have_large_means(tmp_path):
    """At the client_lr of other methods, 0.001, the objective rose a thousand times."""
    less = ("data.clients=12", "data.samples=40", "data.validation_samples=0", "clients_per_round=4", "rounds=60")
    rows = run(compose(["algo=scaffold", "data=lasso", *less, "eval_every=60"]), tmp_path / "run").rows
    assert rows[-1]["objective"] < 0.7 * rows[0]["objective"]


def test_the_expected_smoothness_joins_one_row_and_all(tmp_path):
    def known(*overrides):
        experiment = prepare(wide(tmp_path, "algo=fedavg", *overrides))
        return compute_problem_constants(experiment, load_data(experiment))

    one = known("batch_size=1", "local_steps=1", "clients_per_round=1")
    assert (one.effective_rows, one.expected_smoothness(one.cohort_smoothness)) == pytest.approx((1, one.smoothness))
    some = known("batch_size=4", "local_steps=2", "clients_per_round=3")
    assert some.effective_rows == pytest.approx(24)
    assert some.expected_smoothness(2.0) == pytest.approx(2.0 * 23 / 24 + some.smoothness / 24)
    whole = known("batch_size=null", "local_steps=2")
    assert whole.effective_rows is None
    assert whole.expected_smoothness(whole.cohort_smoothness) == whole.cohort_smoothness


def test_rows_in_a_short_batch_and_clients_of_much_weight_count_for_more(tmp_path):
    def rows(*overrides):
        return compute_problem_constants(
            e := prepare(ragged(tmp_path, "algo=fedavg", *overrides)), load_data(e)
        ).effective_rows

    base = ("batch_size=4", "local_epochs=null", "client_weighting=uniform")
    sizes = np.diff(load_data(prepare(ragged(tmp_path, "algo=fedavg"))).train.offsets)
    assert rows(*base, "local_steps=1") == pytest.approx(np.minimum(sizes, 4).min() * len(sizes))
    one = rows(*base, "local_steps=1", "client_weighting=examples")
    assert one == pytest.approx((np.minimum(sizes, 4) / sizes).min() * sizes.sum())


@pytest.mark.slow
def test_own_models_do_not_diverge_where_one_client_bends_more(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((80, 3)) * np.where(np.arange(80) < 2, 20, 1)[:, None]
    config = ragged(tmp_path, "algo=apfl", "reg=none", "rounds=100", "eval_every=50", "data.standardize=none",
                    sizes=(2,) * 40, task="regression", x=x, y=x[:, 0] + rng.standard_normal(80))  # fmt: skip
    record = run(config, "run")
    assert record.status["status"] == "done"
    assert record.rows[-1]["personal_train_loss"] < record.rows[0]["personal_train_loss"]
