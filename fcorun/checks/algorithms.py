"""The laws of an algorithm: its contract, its random numbers, and the same numbers however it is run."""

import contextlib
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import Algorithm, Baseline, Traits
from fcorun.checks.check import Check, require, require_close, require_finite
from fcorun.checks.problems import SMALL, compose_cached, engine_of, flat, ragged, snapshots
from fcorun.config import build_plugin, numeric_fields
from fcorun.engine.engine import Engine
from fcorun.engine.inspection import BOTH_SIDES, inspect_local
from fcorun.engine.traffic import trace_message_shapes
from fcorun.experiment import reference
from fcorun.experiment.build import build_problem, load_data, resolve_auto
from fcorun.experiment.convergence import minimised_metric
from fcorun.experiment.prepare import prepare
from fcorun.problem import solver
from fcorun.records.record import Record
from fcorun.runs.job import Watcher
from fcorun.runs.run import grid, run

Config = dict[str, Any]

ROUNDS = 3000  # in which an exact algorithm is to come to the optimum
SIZES = (12, 20, 16, 30)  # rows of the clients there
UNBROKEN = ("rounds=6", "checkpoint_every=1000")
LOCAL_STEPS = ("local_epochs=null", "local_steps=4")
TOO_LARGE = 1e200  # a rate at which a loss overflows in float64 after one step, however its steps are bounded


@dataclass(frozen=True)
class AlgorithmCase:
    """An algorithm, as ``algo=NAME`` and overrides of its keys choose it."""

    name: str
    overrides: tuple[str, ...] = ()

    @cached_property
    def algorithm(self) -> Algorithm | Baseline:
        return build_plugin("algo", compose_cached(*SMALL, f"algo={self.name}", *self.overrides)["algo"])

    @property
    def traits(self) -> Traits:
        return self.algorithm.traits

    @property
    def required_overrides(self) -> tuple[str, ...]:
        """Overrides without which the algorithm is refused: all clients in each round, edges."""
        everybody = () if self.traits.partial else ("clients_per_round=null",)
        return everybody + (("topology=tree",) if self.traits.hierarchy == "only" else ())

    @property
    def exact_overrides(self) -> tuple[str, ...]:
        """Overrides with which an inner solver comes as close as rounding lets it, where there is one."""
        return ("algo.tolerance=1e-12",) if self.has_field("tolerance") else ()

    def has_field(self, name: str) -> bool:
        """Whether the algorithm has a field of this name."""
        return name in {field.name for field in fields(self.algorithm)}

    def config(self, *overrides: str) -> Config:
        """Return a configuration of the algorithm that takes a second."""
        return compose_cached(*SMALL, f"algo={self.name}", *self.required_overrides, *self.overrides, *overrides)

    @cached_property
    def uninterrupted(self) -> Record:
        """The record of a run, in a folder that is there as long as this case."""
        return run(self.config(*UNBROKEN), Path(self._folder.name, "unbroken"))

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory:
        return tempfile.TemporaryDirectory()

    @property
    def tolerance(self) -> float:
        """How far float64 numbers of two runs may be apart: rounding may say where an inner solver stops."""
        return 1e-8 if self.has_field("iterations") else 1e-10


# ---------------------------------------------------------------- its functions


def check_contract(case: AlgorithmCase) -> None:
    """Each function returns what the next one takes, with shapes that stay."""
    _ = engine_of(case.config()).federation.shapes


def check_random_numbers(case: AlgorithmCase) -> None:
    """The functions are one program however often they are traced: no random numbers but those of data.key, no time."""
    first, second = (_traced(case, seed) for seed in (1, 2))
    require(first == second, "its functions, traced twice, should give one program, and give two: random numbers of "
                             "NumPy or of Python, or the time, are in it; draw from data.key")  # fmt: skip


def _traced(case: AlgorithmCase, seed: int) -> str:
    """Return the program of the algorithm's functions as text, traced after NumPy's generator was given a seed."""
    federation, programs = engine_of(case.config()).federation, []

    def noted(functions: Callable) -> Any:
        programs.append(jax.make_jaxpr(functions)())
        return jax.eval_shape(functions)

    before = np.random.get_state()
    np.random.seed(seed)
    try:
        made_of = (federation.algorithm, federation.problem, federation.data, federation.schedule)
        trace_message_shapes(*made_of, dtype=federation.precision, shape_of=noted)
    finally:
        np.random.set_state(before)
    (program,) = programs
    constants = [np.asarray(each).tolist() for each in program.consts if isinstance(each, (np.ndarray, jax.Array))]
    return re.sub("0x[0-9a-f]+", "", f"{program.jaxpr} {constants}")


def check_local_steps(case: AlgorithmCase) -> str:
    """local() draws from data.key, and the gradients and proxes that it takes are counted. Both sides of a ``where``
    count, which is no fault, but is said."""
    found = inspect_local(engine_of(case.config()).federation)
    both = [sentence for sentence in found if BOTH_SIDES in sentence]
    wrong = [sentence for sentence in found if sentence not in both]
    require(not wrong, "; ".join(wrong))
    return "; ".join(both)


# ---------------------------------------------------------------- its runs


class _Stopped(KeyboardInterrupt):
    """The interruption of a check, which is not the user's."""


class _StopAfter(Watcher):
    """An interruption after a round."""

    def __init__(self, round_: int):
        self.round = round_

    def on_evaluation(self, job, row):
        if row["round"] == self.round:
            raise _Stopped


def check_objective_falls(case: AlgorithmCase) -> None:
    """A run lowers what it minimises: the objective, or the training loss of the clients' own models."""
    rows = case.uninterrupted.rows
    name = minimised_metric(rows[-1])
    first, last = rows[0][name], rows[-1][name]
    require(last < first, f"{name} should fall in a run of 6 rounds, and goes from {first:.6g} to {last:.6g}: smaller "
                          "rates may do, algo.KEY=VALUE")  # fmt: skip


def check_repeatability(case: AlgorithmCase) -> None:
    """A second run leaves the same numbers to the last bit."""
    with tempfile.TemporaryDirectory() as folder:
        again = run(case.config(*UNBROKEN), Path(folder, "again"))
        require_same_records("a second run", again, case.uninterrupted)


def check_resuming(case: AlgorithmCase) -> None:
    """A run that was broken off goes on to the numbers of an unbroken one, to the last bit."""
    config = case.config(*UNBROKEN)
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder, "broken")
        with contextlib.suppress(_Stopped):
            run(config, broken, _StopAfter(2))
        resumed = run(config, broken)
        log = (resumed.folder / "run.log").read_text(encoding="utf-8")
        require("goes on after round 2" in log, "a run that was broken off after round 2 should go on from there")
        require_same_records("a run that goes on after round 2", resumed, case.uninterrupted)


def require_same_records(what: str, found: Record, expected: Record) -> None:
    """Raise Violation where two records are not of the same numbers."""
    for record in (found, expected):
        status = record.status
        require(status["status"] == "done", f"{what} should be done and is {status['status']}: {status['reason']}")
    for one, other in zip(found.rows, expected.rows, strict=True):
        for name in (name for name in other if name != "seconds"):
            require_finite(f"{name} after round {other['round']}", other[name])
            require_close(f"{name} of {what}, after round {other['round']},", one[name], other[name])
    values = found.solution | found.personal
    for name, value in (expected.solution | expected.personal).items():
        same = np.array_equal(values[name], value)
        require(same, f"'{name}' of {what} should be the same to the last bit and differs")


def check_grid_equals_single_runs(case: AlgorithmCase) -> None:
    """Runs that differ in numbers give the same in one program as each alone, also beside one that diverges."""
    base = case.config("precision=float64", *case.exact_overrides)
    experiment = prepare(base)
    values = numeric_fields(resolve_auto(experiment, load_data(experiment))[0].algo)
    require(bool(values), "an algorithm should have a real number at least, a field of type float or Positive")

    def scaled(factor: float, **rest: Any) -> Config:
        (point,) = grid(base, {f"algo.{key}": [factor * value] for key, value in values.items()} | rest)
        return point

    points = [scaled(1), scaled(0.5), *grid(base, {"reg.strength": [0.3]})]
    lost = grid(base, {"algo.client_lr": [TOO_LARGE]}) if case.has_field("client_lr") else []
    together = snapshots(*points, *lost)
    require_close("which runs of a grid diverge", together[-1].diverged > 0, [False] * len(points) + [True] * len(lost))
    for name, value in together[-1].solution.items():
        require_finite(f"'{name}' in a grid, where a run that diverged stays as it was before,", value)
    apart = engine_of(scaled(0.7, **{"reg.strength": [0.2]}))  # whose own numbers are those of none
    for g, point in enumerate(points):
        for ours, theirs in zip(together, snapshots(point, engine=apart), strict=True):
            _same_snapshot(ours, g, theirs, case.tolerance)
    last = together[-1]
    ends = last.client_models or last.solution
    one, other = (flat({name: value[g] for name, value in ends.items()}) for g in (0, 1))
    require(not np.allclose(one, other, rtol=1e-4), "half of its numbers should lead to another solution, and lead to "
                                                    "the same: they do not reach the run")  # fmt: skip


def _same_snapshot(ours: Any, g: int, theirs: Any, tolerance: float) -> None:
    """Raise Violation where run ``g`` of a grid is not the run alone."""
    for kind in ("solution", "models"):
        for name, value in (getattr(theirs, kind) or {}).items():
            require_close(f"'{name}' in a grid, beside the run alone,", getattr(ours, kind)[name][g], value[0],
                  rtol=tolerance, atol=tolerance)  # fmt: skip
    for name in ("objective", "train_loss", "val_loss"):
        require_close(f"{name} in a grid, beside the run alone,", ours.metrics[name][g], theirs.metrics[name][0],
              rtol=tolerance)  # fmt: skip


# ---------------------------------------------------------------- precision and devices


def check_float64(case: AlgorithmCase) -> None:
    """With precision=float64 all states are in float64, and the numbers are those of float32 but for rounding, unless
    they are drawn."""
    last = snapshots(case.config(*UNBROKEN, "precision=float64", *case.exact_overrides))[-1]
    kinds = {str(leaf.dtype) for leaf in jax.tree.leaves(last.state)}
    require("float32" not in kinds, "with precision=float64 all states should be in float64, and some are in float32")
    if "key_bits" in engine_of(case.config()).federation.shapes.accessed:
        return  # jax.random draws other numbers in another precision
    row = case.uninterrupted.rows[-1]
    for name in {"objective", "train_loss", "personal_train_loss"} & set(row):
        require_close(f"{name} in float32, beside float64,", row[name], last.metrics[name][0], rtol=1e-3)


def check_two_devices(case: AlgorithmCase) -> None:
    """Two devices give the numbers of one, and count the same work."""
    everybody = ("clients_per_round=5",) if case.traits.partial else ()
    (apart, counted) = compare_devices(case.config("precision=float64", *everybody), [2])[0]
    require(apart <= 1e-12, f"numbers of two devices should be those of one to 1e-12, and are {apart:.2g} apart")
    most = 0.02 if case.has_field("tolerance") or case.has_field("iterations") else 0.0
    require(counted <= most, f"gradients and proxes of two devices should be counted as on one: {counted:.2g} apart")


def compare_devices(
    config: Config, devices: Sequence[int], runs: int = 1, seeds: Sequence[int] = ()
) -> list[tuple[float, float]]:
    """Return how far runs on several devices are from those on one, for each of these numbers of devices: the largest
    relative difference of all that they leave, and of the evaluations that they counted."""
    with jax.enable_x64(config["precision"] == "float64"):
        expected = _ends(config, 1, runs, seeds)
        found = [_ends(config, count, runs, seeds) for count in devices]
        return [(_apart(left, expected[0]), _apart(work, expected[1])) for left, work in found]


def _apart(found: Any, expected: Any) -> float:
    """Return the largest difference of two trees, relative to the largest number of each leaf."""
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(f - e.astype(float)).max() / max(np.abs(e).max(), 1e-3)) for f, e in leaves if e.size)


def _ends(config: Config, devices: int, runs: int, seeds: Sequence[int]) -> Any:
    """Return what ``runs`` runs leave after two rounds, whose rates or strengths differ."""
    engine = engine_of(config)
    experiment = prepare(config)
    values = resolve_auto(experiment, load_data(experiment))[0].numbers()
    points = [{s: {n: v * (1 - 0.1 * g) for n, v in of.items()} for s, of in values.items()} for g in range(runs)]
    *_, end = Engine(engine.federation, 2, 2, devices).run(points, list(seeds) or None)
    return jax.tree.map(np.asarray, ((end.solution, end.metrics, end.state, end.client_models), end.work))


# ---------------------------------------------------------------- where it ends


def check_reaches_optimum(case: AlgorithmCase, cohorts: Sequence[str] = ("null",)) -> None:
    """Come to the optimum with full gradients and several local steps on unlike clients, if the traits say so.
    ``cohorts`` are values of clients_per_round to try; traits speak of all clients."""
    for reg in {"smooth": ("none",), "composite": ("none", "l1"), "": ()}[case.traits.exact]:
        for cohort in cohorts:
            _reaches(case, reg, cohort)


def _reaches(case: AlgorithmCase, reg: str, cohort: str) -> None:
    strength = ("reg.strength=0.3",) if reg == "l1" else ()
    steps = () if case.traits.deterministic else LOCAL_STEPS
    rest = (*strength, *steps, *case.overrides, f"rounds={ROUNDS}", f"eval_every={ROUNDS // 2}")
    chosen = (f"algo={case.name}", f"reg={reg}", f"clients_per_round={cohort}", *rest)
    with tempfile.TemporaryDirectory() as folder:
        config = ragged(Path(folder), *chosen, sizes=SIZES)
        experiment = prepare(config)
        data = load_data(experiment)
        with jax.enable_x64(True):
            rows = reference.gather_rows(data, "examples")
            *_, best = solver.minimize(build_problem(experiment, data), rows, 1e-15, 100_000)
        ends = [flat({name: value[0] for name, value in each.solution.items()}) for each in snapshots(config)[1:]]
    half, end = (float(np.abs(found - flat(best.w)).max()) for found in ends)
    who = "all clients" if cohort == "null" else "2 of 4 clients"
    moves = "it still approaches: give larger rates, algo.KEY=VALUE" if end < 0.9 * half else "it does not approach"
    require(end <= 1e-8, f"with reg={reg} and {who} in each round, parameters should come to 1e-8 of the optimum in "
                         f"{ROUNDS} rounds, for its traits say exact={case.traits.exact}, and are {end:.2g} away "
                         f"({half:.2g} after half of the rounds): {moves}")  # fmt: skip


def _baseline(case: AlgorithmCase) -> str:
    return "it is a baseline, in one place" if isinstance(case.algorithm, Baseline) else ""


def reason_not_exact(case: AlgorithmCase) -> str:
    return _baseline(case) or ("" if case.traits.exact else "its traits do not say that it is exact")


def _devices(case: AlgorithmCase) -> str:
    return _baseline(case) or ("" if jax.local_device_count() > 1 else "there is one device here")


CHECKS: tuple[Check[AlgorithmCase], ...] = (
    Check("its functions return what the next one takes", check_contract, _baseline),
    Check("its functions are one program, without random numbers of Python", check_random_numbers, _baseline),
    Check("local steps draw from data.key, and are counted", check_local_steps, _baseline),
    Check("a run lowers the objective", check_objective_falls, _baseline),
    Check("a run gives the same again", check_repeatability),
    Check("goes on where it was broken off", check_resuming, _baseline),
    Check("alone as in a grid", check_grid_equals_single_runs, _baseline),
    Check("float64", check_float64, _baseline),
    Check("on two devices as on one", check_two_devices, _devices),
    Check("reaches the optimum", check_reaches_optimum, reason_not_exact),
)
