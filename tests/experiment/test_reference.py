"""Relative strengths, and the reference optimum."""

import errno
from itertools import pairwise

import jax
import numpy as np
import pytest
from helpers import NONCONVEX, choice_names, fails, flat, grid, matrices_only, plugin_class, ragged, small

from fcorun import run
from fcorun.base.errors import WriteError
from fcorun.experiment import optimum
from fcorun.experiment.build import build_problem
from fcorun.experiment.optimum import compute_strength_max
from fcorun.experiment.prepare import prepare
from fcorun.methods.problem import solver
from fcorun.methods.problem.solver import gather_rows
from fcorun.reports.build_table import build_table

TIGHT = ["algo=centralized", "algo.tolerance=1e-14"]


RELATIVE = [n for n in choice_names("reg") if "relative" in plugin_class("reg", n).__dataclass_fields__]


@pytest.mark.slow
@pytest.mark.parametrize("name", RELATIVE)
def test_relative_strength(name, tmp_path):
    task = "multiclass" if matrices_only(name) else "regression"
    at, below = (ragged(tmp_path, *TIGHT, f"reg={name}", f"reg.relative={r}", task=task) for r in (1.0001, 0.999))
    zero, some = run(at, "at"), run(below, "below")
    assert not zero.solution["weights"].any()
    assert some.solution["weights"].any()
    assert zero.summary["strength"] == pytest.approx(some.summary["strength"] * 1.0001 / 0.999)


@pytest.mark.slow
def test_relative_strength_in_a_grid(tmp_path):
    """The strength of each point is its own, and the same in every way to ask for it."""
    config = ragged(tmp_path, "algo=feddualavg", "reg.relative=0.5", "algo.client_lr=0.02")
    half, fifth = grid(config, {"reg.relative": [0.5, 0.2]})
    records = [run(half, "half"), run(fifth, "fifth")]
    strengths = [record.summary["strength"] for record in records]
    assert strengths[0] == pytest.approx(2.5 * strengths[1])
    plain = run(ragged(tmp_path, "algo=feddualavg", f"reg.strength={strengths[0]!r}", "algo.client_lr=0.02"), "plain")
    np.testing.assert_allclose(flat(plain.solution), flat(records[0].solution), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("reg", ["l1", "elastic_net", "l2"])
def test_suboptimality(reg):
    config = small(
        "algo=feddualavg", f"reg={reg}", "reg.strength=0.2", "reference=true", "precision=float64", "rounds=40"
    )
    metrics = run(config, "run").metrics
    best = run(small("algo=centralized", f"reg={reg}", "reg.strength=0.2", "precision=float64"), "best").metrics[
        "objective"
    ]
    assert (np.asarray(metrics["suboptimality"]) >= -1e-9).all()
    assert metrics["suboptimality"].iloc[-1] < metrics["suboptimality"].iloc[0]
    np.testing.assert_allclose(metrics["objective"] - metrics["suboptimality"], best.iloc[-1], atol=1e-7)


@pytest.mark.slow
def test_the_optimum_is_computed_once(monkeypatch, tmp_path):
    monkeypatch.setenv("FCORUN_CACHE", str(tmp_path / "fresh"))
    config = small("reference=true", "reg.relative=0.3", "rounds=2")
    first = run(config, "first")

    def never(*args, **kwargs):
        raise AssertionError("solved again")

    monkeypatch.setattr(solver, "minimize", never)
    assert run(config, "second").metrics["suboptimality"].tolist() == first.metrics["suboptimality"].tolist()
    with pytest.raises(AssertionError, match="solved again"):
        run(small("reference=true", "reg.relative=0.4", "rounds=2"), "other")


def test_a_strength_is_computed_again_if_its_cached_file_is_damaged_or_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("FCORUN_CACHE", str(tmp_path / "fresh"))
    strengths = iter([0.5, 0.25])
    monkeypatch.setattr(solver, "strength_max", lambda *_: next(strengths))
    experiment = prepare(small("reg.relative=0.3"))
    data = experiment.data.load()
    assert compute_strength_max(experiment, data) == compute_strength_max(experiment, data) == 0.5
    (cached,) = (tmp_path / "fresh/optima").iterdir()
    cached.write_text("")
    monkeypatch.setattr(optimum, "write_atomically", raise_full_disk)
    assert compute_strength_max(experiment, data) == 0.25


def raise_full_disk(*_):
    raise WriteError(errno.ENOSPC, "No space left on device", "a file")


ABSOLUTE = """
from dataclasses import dataclass
import jax.numpy as jnp
from fcorun.regularizers import Regularizer

@dataclass(frozen=True)
class {name}(Regularizer):
    strength: float

    convex = {convex}

    def value(self, w):
        return {factor} * self.strength * (w ** 2).sum()

    def prox(self, z, t):
        return z / (1 + 2 * {factor} * t * self.strength)
"""


@pytest.mark.parametrize("option", ["reference=true", "algo=centralized", "algo=one_client"])
@pytest.mark.parametrize(
    ("declaration", "message"), [("convex = False", "reg=own is not convex"), ("", "does not say whether")]
)
def test_nothing_is_certified_that_may_have_several_optima(user_module, option, declaration, message):
    """A regularizer that does not say that it is convex is none: neither is one that derives from a convex one."""
    code = ABSOLUTE.format(name="Own", factor=-1, convex=True)
    user_module("own_a", code.replace("convex = True", declaration))
    user_module("own_b", "from fcorun.regularizers import L1\n" + code.replace("(Regularizer)", "(L1)").replace(
        "    strength: float\n", "").replace("convex = True", declaration))  # fmt: skip
    for module in ("own_a", "own_b"):
        config = small(option)
        config["reg"] = {"name": "own", "class": f"{module}.Own", "strength": 0.1}
        with fails(option, message):
            prepare(config)
        prepare(small("algo=fedmid") | {"reg": config["reg"]})  # it may be run


def test_every_regularizer_and_objective_says_whether_it_is_convex():
    convexity = {name: plugin_class("reg", name).convex for name in choice_names("reg")}
    assert convexity == {name: name not in NONCONVEX for name in convexity}
    objectives = {
        name: plugin_class("objective", name).convex for name in choice_names("objective") if name != "by_task"
    }
    assert [name for name, convex in objectives.items() if not convex] == ["mlp"]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["least_squares", "gamma"])
def test_each_client_alone_is_as_if_there_were_no_others(objective, monkeypatch, tmp_path):
    """Against one client after the other, on its rows as they are; all together take few rows and few shapes."""
    sizes = (1, 3, 4, 9, 13, 30)
    y = np.random.default_rng(3).uniform(0.5, 2, sum(sizes))
    overrides = (
        "algo=local",
        "algo.client_lr=0.1",
        f"objective={objective}",
        "reg=l1",
        "reg.strength=1",
        "data.standardize=pooled",
    )
    experiment = prepare(ragged(tmp_path, *overrides, sizes=sizes, y=y))
    data, fit_intercept, batch_sizes = experiment.data.load(), solver.fit_intercept, []
    with jax.enable_x64(True):
        problem, ends = build_problem(experiment, data), data.train.offsets.tolist()
        rows = [gather_rows(data, "uniform", slice(*bounds)) for bounds in pairwise(ends)]
        strengths = [solver.strength_max(problem, batch) for batch in rows]

    def counted(problem, w, batch):
        batch_sizes.append(len(batch.y))  # when a program is compiled
        return fit_intercept(problem, w, batch)

    monkeypatch.setattr(solver, "fit_intercept", counted)
    largest = compute_strength_max(experiment, data, of_each_client=True)
    assert largest == pytest.approx(max(strengths), rel=1e-9)
    assert sorted(batch_sizes) == [1, 4, 16, 32]


@pytest.mark.slow
def test_of_strength_and_relative_the_one_given_is_told(tmp_path):
    config = ragged(tmp_path, "algo=feddualavg", "reg.relative=0.5", "algo.client_lr=0.02")
    record = run(config, "run")
    assert "strength" not in record.config["reg"]
    assert prepare(record.config).identity == prepare(config).identity
    other = run(ragged(tmp_path, "algo=feddualavg", "reg.strength=0.3", "algo.client_lr=0.02"), "other")
    frame = build_table([record, other]).frame
    assert frame["reg.strength"].isna().tolist() == [True, False]
    assert frame["reg.relative"].isna().tolist() == [False, True]


@pytest.mark.slow
def test_the_optimum_belongs_to_the_code_of_the_regularizer(user_module):
    """A regularizer of the user's, changed or named like one of fcorun's, has an optimum of its own."""
    config = small("algo=fedavg", "reference=true", "rounds=0")

    def best(module, name, factor):
        user_module(module, ABSOLUTE.format(name=name, factor=factor, convex=True))
        config["reg"] = {"name": "own", "class": f"{module}.{name}", "strength": 0.1}
        return run(config, f"{module}-{name}-{factor}").summary["reference"]["objective"]

    config["reg"] = {"name": "l2", "class": "fcorun.L2", "strength": 0.1}
    l2 = run(config, "l2").summary["reference"]["objective"]
    assert best("mine_a", "L2", 1) == pytest.approx(l2, rel=1e-7)
    assert best("mine_b", "L2", 5) > l2 + 1e-3
    assert best("mine_b", "L2", 1) == pytest.approx(l2, rel=1e-7)
