"""Checks report the plug-ins that violate a property, and no other."""

import numpy as np
import pytest

from fcorun.data.tasks import Regression
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.interface.checks import algorithms, datasets, mirror_maps, objectives
from fcorun.interface.checks.problems import SMALL, compose_cached
from fcorun.interface.checks.property_check import (
    Violation,
    require_at_least,
    require_at_most,
    require_close,
    require_finite,
    run_checks,
)

PLUGINS = """
import time
from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms import Algorithm, Traits
from fcorun.config import Index, Positive
from fcorun.data.datasets.dataset import Dataset, FederatedData
from fcorun.metrics import Metric
from fcorun.data.rows.rows import Rows
from fcorun.base.system.random_streams import random_stream
from fcorun.mirror_maps import Euclidean
from fcorun.objectives import LeastSquares


@dataclass(frozen=True)
class Mine(Algorithm):
    client_lr: Positive
    traits = Traits(psi_sides=("server",), exact="smooth")

    def init(self, problem, w0):
        return w0, None

    def local(self, problem, server, client, data):
        w = data.steps(lambda w, batch: w - self.client_lr * problem.gradient(w, batch), server)
        return (w - server) * self.noise(data), client

    def server(self, problem, server, mean):
        return problem.prox(server + mean, self.client_lr)

    def output(self, problem, server):
        return server

    def noise(self, data):
        return 1.0


class FromKey(Mine):
    def noise(self, data):
        return jax.random.uniform(data.key, ())


class ByPaddedRows(Mine):
    def noise(self, data):
        return 1 / len(data.whole.y)


class ByPaddedSteps(Mine):
    def noise(self, data):
        return 1 / data.rows.shape[0]


class ByOwnNumbers(Mine):
    def noise(self, data):
        return data.n_rows / data.n_steps


class FromNumpy(Mine):
    def noise(self, data):
        return float(np.random.standard_normal())


class FromClock(Mine):
    def noise(self, data):
        return 1 + time.perf_counter() % 1  # of days, float32 would hold no fraction


class FromOwnKey(Mine):
    def noise(self, data):
        return jax.random.uniform(jax.random.key(0), ())


class FromKeyOfModule(Mine):
    def noise(self, data):
        return jax.random.uniform(KEY, ())


class Both(Mine):
    def local(self, problem, server, client, data):
        def step(w, batch):
            g, h = problem.gradient(w, batch), problem.gradient(server, batch)
            return jax.tree.map(lambda v, a, b: jnp.where(v.sum() > 0, v - a, v - b), w, g, h)

        return data.steps(step, server) - server, client


class Half(Mine):
    def init(self, problem, w0):
        return w0, jnp.zeros((), "float32")


class Clipped(Mine):
    def server(self, problem, server, mean):
        return jax.tree.map(lambda v: jnp.nan_to_num(v.clip(-9, 9)), super().server(problem, server, mean))


class Bursting(Mine):
    def noise(self, data):
        return 1e200


class Twice(Mine):
    def local(self, problem, server, client, data):
        return server + super().local(problem, server, client, data)[0], client


class OneNumber(Mine):
    def local(self, problem, server, client, data):
        return super().local(problem, server, client, data)[0].map(lambda v: v.mean(keepdims=True)), client


class Backward(Mine):
    def server(self, problem, server, mean):
        return problem.prox(server + mean, -self.client_lr)


class Elsewhere(Mine):
    def received_model(self, problem, received, client, data):
        return received.map(lambda v: v + 1)


class WithoutStep(Mine):
    def server(self, problem, server, mean):
        return problem.prox(server + mean, 0.0)


@dataclass(frozen=True)
class Unread(Mine):
    momentum: float = 0.5


@dataclass(frozen=True)
class Threshold(Mine):
    max_norm: Positive = 1000.0

    def server(self, problem, server, mean):
        norm = jnp.sqrt(sum(jnp.vdot(v, v) for v in mean.values()))
        return super().server(problem, server, mean.map(lambda v: v * jnp.minimum(1, self.max_norm / norm)))


class Scaled(Mine):
    def output(self, problem, server):
        return 2 * server


class Unlike(Mine):
    def local(self, problem, server, client, data):
        return super().local(problem, server, client, data)[0], server


class Rising(Mine):
    declared_metrics = (Metric("cost", monotone=True),)
    sign = 1.0

    def metrics(self, problem, server, clients):
        return {"cost": self.sign * server.norm()}


class Falling(Rising):
    declared_metrics = (Metric("cost", monotone=True),)
    sign = -1.0


class Hasty(Mine):
    declared_metrics = (Metric("cost", higher=False),)
    certificate = "cost"

    def metrics(self, problem, server, clients):
        return {"cost": 0 * server.norm()}


KEY = jax.random.PRNGKey(3)


@dataclass(frozen=True)
class EightRows(Dataset):
    seed: Index = 0

    def load(self):
        rng = np.random if self.global_ else random_stream(self.seed, "rows")
        return FederatedData(Rows(rng.standard_normal((8, 3)), np.arange(8.0), np.arange(8) // 4))

    global_ = False


class Global(EightRows):
    global_ = True


class GlobalTruth(EightRows):
    def load(self):
        return replace(super().load(), truth={"weights": np.random.standard_normal(3)})


class GlobalNames(EightRows):
    def load(self):
        return replace(super().load(), clients=("a", f"b{np.random.randint(10**9)}"))


class Skewed(Euclidean):
    def to_dual(self, w):
        return w + 0.5 * jnp.roll(w, 1)


class Doubled(LeastSquares):
    convex = True

    def conjugate(self, u, y):
        return 2 * super().conjugate(u, y)
"""
NUMPY = "its functions, traced twice, should give the same program"


@pytest.fixture
def case(user_module, tmp_path):
    """A function that returns the case of a user's algorithm or data set."""
    user_module("mine", PLUGINS)

    def build_case(kind, name, section="algo"):
        (tmp_path / "conf" / section).mkdir(parents=True, exist_ok=True)
        rate = "client_lr: 0.01\n" if section == "algo" else ""
        (tmp_path / "conf" / section / "mine.yaml").write_text(f"name: mine\nclass: mine.{name}\n{rate}")
        return kind("mine")

    (tmp_path / "conf").mkdir()
    with use_config_dir(tmp_path / "conf"):
        yield build_case


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "check", "sentence"),
    [
        ("Mine", algorithms.check_random_numbers, ""),
        ("FromKey", algorithms.check_random_numbers, ""),
        ("FromNumpy", algorithms.check_random_numbers, NUMPY),
        ("FromClock", algorithms.check_random_numbers, NUMPY),
        ("FromKey", algorithms.check_local_steps, ""),
        ("FromOwnKey", algorithms.check_local_steps, "random numbers that are not drawn from data.key"),
        ("FromKeyOfModule", algorithms.check_local_steps, "random numbers that are not drawn from data.key"),
        ("FromKey", algorithms.check_float64, ""),
        ("Half", algorithms.check_float64, "should be in float64, and some are in float32"),
        ("Unlike", algorithms.check_contract, "the client's new state must be like that of init(), None"),
        ("OneNumber", algorithms.check_contract, "an array (20,) as 'weights', and has an array (1,)"),
        ("Mine", algorithms.check_objective_falls, ""),
        ("Twice", algorithms.check_objective_falls, "objective should fall in a run of 60 rounds, and goes from"),
        ("ByOwnNumbers", algorithms.check_padding, ""),
        ("ByPaddedRows", algorithms.check_padding, "len(data.whole.y)"),
        ("ByPaddedSteps", algorithms.check_padding, "len(data.rows)"),
        ("Mine", algorithms.check_prox_steps, ""),
        ("Backward", algorithms.check_prox_steps, "should be 0 or more, and is -0.01 in the first round"),
        ("Mine", algorithms.check_received_model, ""),
        ("Elsewhere", algorithms.check_received_model, "local() should take a gradient at the model that received_m"),
        ("WithoutStep", algorithms.check_grid_equals_single_runs, "0.3 should lead to another solution"),
        ("Mine", algorithms.check_initial_model, ""),
        ("Scaled", algorithms.check_initial_model, "before the first round should be 1 and is 2 at entry 19"),
        ("Mine", algorithms.check_reaches_optimum, "its traits say exact=smooth, and are 0.0"),
        ("Rising", algorithms.check_declared_metrics, ""),
        ("Rising", algorithms.check_grid_equals_single_runs, ""),
        (
            "Clipped",
            algorithms.check_grid_equals_single_runs,
            "run 4 of a grid of 4 should diverge, since its client_lr",
        ),
        ("Bursting", algorithms.check_grid_equals_single_runs, "run 1 of a grid of 4 should not diverge, and does in"),
        ("Hasty", algorithms.check_certificate, "the certificate 'cost' ends a run in float32 in round"),
        ("Falling", algorithms.check_declared_metrics, "'cost' is declared monotone and should never fall, and is"),
    ],
)
def test_a_violated_property_of_an_algorithm_is_named(case, name, check, sentence):
    (result,) = run_checks([check], case(algorithms.AlgorithmCase, name))
    assert result.status == ("failed" if sentence else "passed"), result
    assert sentence in result.message, result


@pytest.mark.slow
def test_both_sides_of_a_where_are_a_remark(case):
    (result,) = run_checks([algorithms.check_local_steps], case(algorithms.AlgorithmCase, "Both"))
    assert result.status == "passed"
    assert "on both sides of a where" in result.message


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("Unread", "momentum"), ("Threshold", "max_norm")])
def test_a_number_that_has_no_effect_here_is_a_remark(case, name, number):
    (result,) = run_checks([algorithms.check_grid_equals_single_runs], case(algorithms.AlgorithmCase, name))
    assert result.status == "passed", result
    assert f"another algo.{number} leads to the same solution here" in result.message


def failures(results):
    return {result.name: result.message for result in results if result.status == "failed"}


@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("EightRows", []),
        ("Global", ["train.x"]),
        ("GlobalTruth", ["truth.weights"]),
        ("GlobalNames", ["clients"]),
    ],
)
def test_a_data_set_that_draws_from_numpys_generator_is_named(case, name, arrays):
    messages = failures(run_checks(datasets.CHECKS, case(datasets.DatasetCase, name, "data"))).values()
    changed = [message.partition(" should be the same when the data are loaded again")[0] for message in messages]
    assert changed[:1] == arrays


@pytest.mark.slow
def test_violated_properties_of_a_mirror_map_and_an_objective_are_named(case, x64):
    from mine import Doubled, Skewed  # type: ignore[import-not-found]

    (sentence,) = failures(run_checks([mirror_maps.check_to_dual], Skewed())).values()
    assert sentence.startswith("the Jacobian of to_dual should be")
    failed = failures(run_checks(objectives.CHECKS, objectives.ObjectiveCase(Doubled(), Regression())))
    assert list(failed) == ["loss(p) + conjugate(u) >= u p, with equality if u is the gradient at p"]


def test_violations_name_the_entry():
    with pytest.raises(Violation, match=r"^it should be 2 and is 2\.5 at entry 1$"):
        require_close("it", [1.0, 2.5], [1.0, 2.0], rtol=0.1)
    with pytest.raises(Violation, match=r"^it should be at least 0 and is -1 at entry 0$"):
        require_at_least("it", [-1.0, 1.0], 0)
    with pytest.raises(Violation, match=r"^it should be at most 0 and is nan$"):
        require_at_most("it", np.nan, 0)
    with pytest.raises(Violation, match=r"^it should have the shape"):
        require_close("it", [1.0], [1.0, 2.0])
    with pytest.raises(Violation, match=r"^it should be finite and is inf$"):
        require_finite("it", np.inf)
    with pytest.raises(Violation, match=r"^it should be 1 and is 1\.0000000000000002$"):
        require_close("it", 1 + 2**-52, 1.0)
    require_close("it", [np.inf, 1], [np.inf, 1.05], rtol=0.1)
    require_at_least("it", [np.inf, 1], [np.inf, 1 + 1e-9], 1e-8)


def test_values_of_a_run_that_are_set_after_the_composition_are_those_that_are_composed():
    overrides = (*SMALL, "algo=scaffold", "rounds=60", "clients_per_round=null", "precision=float64", "reference=true")
    assert repr(compose_cached(*overrides)) == repr(compose(overrides))
