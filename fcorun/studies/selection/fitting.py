"""Runs of a path of strengths on subsets of the rows: one program, a batch for each subset, which shares the rows.

To the engine a subset (a fold, a subsample, all rows) is like a seed: it has its own schedule, which draws from its
rows, and its own weights in the evaluation. All subsets share one array of features x, unless features were
standardized, or a subset's rows teach other fills or levels: then the subset has its own array.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from fcorun.base.config import numeric_fields
from fcorun.base.metrics import aggregate
from fcorun.base.records.record import PERSONAL, SHARED
from fcorun.base.system.files import defer_interruption, wait_for_first
from fcorun.base.system.machine import available_cores, compute_policy, use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.subset import RowSubset, SubsetDataset
from fcorun.engine.device_rows import SubsetView, targets_to_device, to_device
from fcorun.engine.engine import (
    CompiledPrograms,
    Engine,
    Snapshot,
    message_bytes,
    program_key,
    subset_bytes,
)
from fcorun.engine.federation import Numbers
from fcorun.experiment import build
from fcorun.experiment.experiment import PreparedExperiment, measure_remaining_descent
from fcorun.experiment.requirements import has_gaps
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.methods.problem import solver
from fcorun.methods.problem.problem import Batch, Vector
from fcorun.results.model_outputs import compute_predictions
from fcorun.results.models.predictions import predict_personal
from fcorun.results.models.relaxed import UnpenalizedRefits
from fcorun.runs.baseline import bind_client_problem
from fcorun.runs.batch import max_runs
from fcorun.runs.follow import RunFollower, RunHistory
from fcorun.runs.imputed import complete_tables
from fcorun.studies.selection.adaptive import AdaptiveFactors
from fcorun.studies.selection.path import SecondNumber
from fcorun.studies.selection.path_fit import END_STATES, PathFit, average_fits, keeps_held_out, relax_fit

_COUNTS = ("rounds", "bytes_up", "bytes_down")
# maps the solution of a run, and its personal models or None, to outputs for the validation rows, as in PathFit
_PredictHeldOut = Callable[[dict[str, np.ndarray], dict[str, np.ndarray] | None], dict[str, np.ndarray]]


class _RunResult(NamedTuple):
    """The end of one run of a path: tail averages, parameters, a state of END_STATES, and the values of _COUNTS.

    ``held_out`` has the outputs for the validation rows, as in PathFit, for one run.
    """

    metrics: dict[str, float]
    solution: dict[str, np.ndarray]
    end_state: str
    counts: tuple[float, ...]
    held_out: dict[str, np.ndarray]


@dataclass
class PathFitter:
    """A runner of one path on many subsets; programs and rows on the device are shared between subsets.

    Attributes:
        data: all rows, from which subsets are taken.
        param_name, values: the field of the regularizer that varies, and its P values, from the simplest solution on.
        second: a second number, with its value in each of the P runs; None: the first one alone varies.
        adaptive: the factors of features' penalties, which the rows of each subset give; None: those of ``reg``.
        shares: the shares of the lasso in the relaxed coefficients of each value, (S,); None: these are not relaxed.
        max_client_rows: the largest number of rows that each client has in any subset, (M,).
        programs: the compiled programs by their key.
        stop_requested: tells the threads to stop.
    """

    experiment: PreparedExperiment
    data: FederatedData
    param_name: str
    values: np.ndarray
    max_client_rows: np.ndarray
    programs: dict[str, CompiledPrograms] = field(default_factory=dict)
    stop_requested: threading.Event = field(default_factory=threading.Event)
    second: SecondNumber | None = None
    adaptive: AdaptiveFactors | None = None
    shares: np.ndarray | None = None
    _shared: dict = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def fit(self, make_subsets: Sequence[Callable[[], RowSubset]], on_fit: Callable[[int, PathFit], None]) -> None:
        """Run the path on each subset, made just before it is run; call ``on_fit`` with its position and its fit."""
        one_thread = self.experiment.settings.debug or not compute_policy().threaded_batches or self._is_baseline
        threads = 1 if one_thread else available_cores()
        # a fit has one core: with several threads, products of matrices as small as a client's take five times as long
        blas_threads = 1 if threads > 1 else None
        with defer_interruption(), threadpool_limits(blas_threads), ThreadPoolExecutor(threads) as pool:
            try:
                fits = deque()
                for make in make_subsets:
                    fits.append(pool.submit(copy_context().run, lambda make=make: self._fit(make())))
                for i in range(len(make_subsets)):
                    wait_for_first({fit := fits.popleft()})  # popped, so that its models are freed after on_fit
                    on_fit(i, fit.result())
            except BaseException:
                self.stop_requested.set()
                pool.shutdown(cancel_futures=True)
                raise

    @property
    def _is_baseline(self) -> bool:
        return isinstance(self.experiment.algo, Baseline)

    def _fit(self, subset: RowSubset) -> PathFit:
        experiment = replace(self.experiment, data=SubsetDataset(self.experiment.fingerprint, subset))
        if self.adaptive is not None:
            factors: Any = self.adaptive.compute(experiment, subset.data)
            experiment = experiment.with_resolved(reg=replace(experiment.reg, factors=factors))
        precision = "float64" if self._is_baseline else experiment.settings.precision
        with use_precision(precision):
            view = self._view(subset, precision)
            if experiment.settings.imputations:
                measure = self._solution_measure(experiment, subset.data, view, precision=precision)
                reg = experiment.reg.with_value(self.param_name, self.values[0])
                fits = []
                for completed in complete_subset(experiment.with_resolved(reg=reg), subset):
                    parent = f"{self.experiment.fingerprint} imputation {len(fits) + 1} of {experiment.settings.seed}"
                    of_table = replace(experiment, data=SubsetDataset(parent, completed))
                    fits.append(self._run(of_table, completed.data, self._view(completed, precision)))
                return average_fits(fits, measure)
            fit = self._run(experiment, subset.data, view)
            if self.shares is None:
                return fit
            measure = self._solution_measure(experiment, subset.data, view, precision=precision)
            predict = self._held_out_predictor(experiment, subset.data)
            return relax_fit(fit, self.shares, UnpenalizedRefits.of_data(experiment, subset.data), measure, predict)

    def _run(self, experiment: PreparedExperiment, data: FederatedData, view: SubsetView) -> PathFit:
        """Run the path on a subset, whose rows on the device are ``view``."""
        run_path = self._solve_path if self._is_baseline else self._run_path
        return _stack_runs(run_path(experiment, data, view))

    def _view(self, subset: RowSubset, precision: str) -> SubsetView:
        """Return the rows of a subset on the device; the rows of the whole data set are transferred once."""
        with self._guard:
            if "y" not in self._shared:
                self._shared["y"] = targets_to_device(self.data, self.data.train.y, precision)
            if subset.x is self.data.train.x and "x" not in self._shared:
                self._shared["x"] = to_device(subset.x, precision)
            x = self._shared["x"] if subset.x is self.data.train.x else to_device(subset.x, precision)
            max_client_rows, n_clients = self.max_client_rows, subset.data.n_clients
            # subsets that leave out different clients, but equally many, have the same shapes and share a program
            if n_clients < len(max_client_rows):
                max_client_rows = np.full(n_clients, max_client_rows.max())
            return SubsetView(x, self._shared["y"], subset.train_rows, subset.validation_rows, max_client_rows)

    def _run_path(self, experiment: PreparedExperiment, data: FederatedData, view: SubsetView) -> list[_RunResult]:
        """Run the path of an algorithm, in one batch or in as many as fit into memory."""
        variants = [experiment]
        if self.second is not None:
            first_of_paths = np.unique(self.second.values, return_index=True)[1]
            variants = [self.second.apply(experiment, int(p)) for p in first_of_paths]
        experiments = [build.resolve_auto(variant, data)[0] for variant in variants]
        experiment = experiments[0]
        engine = build.build_engine(experiment, data, view)
        settings = experiment.settings
        with self._guard:
            key = program_key(engine.federation)
            engine = replace(engine, programs=self.programs.setdefault(key, CompiledPrograms()))
            # the first subset with a program traces the shapes of messages for all
            key = f"shapes of messages about {engine.federation.problem.shapes}, {key}"
            if key not in self._shared:
                self._shared[key] = engine.federation.shapes
            vars(engine.federation)["shapes"] = self._shared[key]
        length = len(self.values) // len(experiments)
        points = [self._point(experiments[p // length], data, value) for p, value in enumerate(self.values)]
        threads = available_cores() if compute_policy().threaded_batches else 1
        taken = subset_bytes(engine.federation, view.x is not self._shared.get("x"))
        width = max_runs(engine, points[0], [settings.seed], settings.memory, threads, reserved=taken)
        n_batches = -(-len(points) // min(width, len(points)))
        width = -(-len(points) // n_batches)  # batches of one size
        predict = self._held_out_predictor(experiment, data)
        results = []
        for start in range(0, len(points), width):
            batch = points[start : start + width]
            results += _run_batch(experiment, engine, batch, width, stop_requested=self.stop_requested, predict=predict)
        return results

    def _held_out_predictor(self, experiment: PreparedExperiment, data: FederatedData) -> _PredictHeldOut:
        """Return a function of a run's parameters and personal models that predicts the validation rows."""
        rows = data.validation
        n_values = len(self.values) * (1 if self.shares is None else len(self.shares))
        if rows is None or not keeps_held_out(data, n_values, len(self.data.train)):
            return lambda solution, models: {}
        clients = data.client_of_row("validation")

        def predict(solution: dict[str, np.ndarray], models: dict[str, np.ndarray] | None) -> dict[str, np.ndarray]:
            outputs = {}
            if experiment.has_shared_model:
                outputs[SHARED] = compute_predictions(experiment.objective, solution, rows.x, data.features.scale)
            if models is not None and clients is not None:
                output, has_model = predict_personal(experiment.objective, data, models, rows, clients)
                if has_model.all():
                    outputs[PERSONAL] = output
            return outputs

        return predict

    def _solution_measure(
        self, experiment: PreparedExperiment, data: FederatedData, view: SubsetView, *, precision: str
    ) -> Callable[[dict[str, np.ndarray]], dict[str, float]]:
        """Return a function of parameters that measures them on a subset."""
        evaluation = build.build_evaluation(experiment, data, view)
        arrays = evaluation.arrays(precision)
        if "measure solution" not in self._shared:
            reg = experiment.reg.with_value(self.param_name, self.values[0])
            problem = build.build_problem(experiment.with_resolved(reg=reg), data)
            self._shared["measure solution"] = jax.jit(
                lambda w, x, y, extra: evaluation.measure(problem, w, x, y, extra)
            )

        def measure(solution: dict[str, np.ndarray]) -> dict[str, float]:
            w = Vector({name: jnp.asarray(values) for name, values in solution.items()})
            measured = self._shared["measure solution"](w, view.x, view.y, arrays)
            return {name: float(value) for name, value in evaluation.add_ranking(measured).items()}

        return measure

    def _point(self, experiment: PreparedExperiment, data: FederatedData, value: float) -> Numbers:
        """Return the numbers of the run with this value of the path."""
        point = point_at(experiment, self.param_name, value)
        if experiment.algo.curvature_alternatives:
            least, most = build.compute_curvature_bounds(experiment, data)
            point["curvature"] = {"least": least, "most": most}
        return point

    def _solve_path(self, experiment: PreparedExperiment, data: FederatedData, view: SubsetView) -> list[_RunResult]:
        """Solve the path of a baseline; each solution starts from the one before."""
        settings, algo = experiment.settings, experiment.algo
        assert isinstance(algo, Baseline)
        problem = build.build_problem(experiment, data)
        evaluation = build.build_evaluation(experiment, data, view)
        arrays = evaluation.arrays("float64")
        rows = algo.select_rows(data.train.offsets)
        weight = np.zeros(len(self.data.train.y))
        weight[view.train_rows[rows]] = data.train.objective_weights(settings.client_weighting)[rows]
        offset = None if self.data.train.offset is None else jnp.asarray(self.data.train.offset)
        client = jnp.asarray(self.data.train.client)
        batch = Batch(view.x, view.y, jnp.asarray(weight / weight.sum()), offset=offset, client=client)
        if "compiled" not in self._shared:
            # compile_programs asks has_duality_gap, which depends on the strength: it must be one of the path
            reg = problem.regularizer.with_value(self.param_name, self.values[0])
            self._shared["compiled"] = solver.compile_programs(replace(problem, regularizer=reg), view.x.shape[1])
            self._shared["measure"] = jax.jit(
                lambda psi, w, x, y, extra: evaluation.measure(problem.with_numbers(psi), w, x, y, extra)
            )
        predict = self._held_out_predictor(experiment, data)
        start = None
        results = []
        for p, value in enumerate(self.values):
            reg = problem.regularizer.with_value(self.param_name, value)
            if self.second is not None:
                reg = replace(reg, **{self.second.name: float(self.second.values[p])})
            client_problem = bind_client_problem(replace(problem, regularizer=reg), data, rows)
            iterates = solver.minimize(
                client_problem,
                batch,
                algo.tolerance,
                algo.max_iterations,
                start=start,
                compiled=self._shared["compiled"],
            )
            for iterate in iterates:  # noqa: B007
                if self.stop_requested.is_set():
                    raise KeyboardInterrupt
            measured = self._shared["measure"](numeric_fields(reg), iterate.w, view.x, view.y, arrays)
            metrics = {name: float(value) for name, value in evaluation.add_ranking(measured).items()}
            solution = {name: np.asarray(array) for name, array in iterate.w.items()}
            end_state = "diverged"
            if np.isfinite(iterate.objective):
                end_state = "done" if iterate.certified else "not certified"
                start = iterate.w
            results.append(_RunResult(metrics, solution, end_state, (0, 0, 0), predict(solution, None)))
        return results


def complete_subset(experiment: PreparedExperiment, subset: RowSubset) -> Iterator[RowSubset]:
    """Yield a subset with its training rows completed, once for each imputation; once if they have no gaps."""
    if not has_gaps(subset.data):
        yield subset
        return
    for data in complete_tables(experiment, subset.data):
        x = subset.x.copy()
        x[subset.train_rows] = data.train.x
        yield replace(subset, data=data, x=x)


def point_at(experiment: PreparedExperiment, param_name: str, value: float) -> Numbers:
    """Return the numbers of the run at a value of a path, for an experiment whose "auto" fields are resolved."""
    return experiment.numbers() | {"reg": numeric_fields(experiment.reg.with_value(param_name, value))}


def fit_batch(experiment: PreparedExperiment, engine: Engine, points: Sequence[Numbers]) -> PathFit:
    """Run all points of a path as one batch, without outputs for held-out rows."""
    options = {"stop_requested": threading.Event(), "predict": lambda solution, models: {}}
    return _stack_runs(_run_batch(experiment, engine, points, len(points), **options))


def _run_batch(
    experiment: PreparedExperiment,
    engine: Engine,
    points: Sequence[Numbers],
    width: int,
    *,
    stop_requested: threading.Event,
    predict: _PredictHeldOut,
) -> list[_RunResult]:
    """Run points as a batch of ``width`` runs, which are followed like the run of a record."""
    assert isinstance(experiment.algo, Algorithm)
    sent = message_bytes(engine.federation, experiment.algo, experiment.uplink, experiment.downlink)
    runs = [RunHistory(experiment, message_bytes=sent) for _ in points]
    ends: dict[int, tuple[dict, dict]] = {}  # solution and predictions by the run's position

    def note_end(snapshot: Snapshot, g: int) -> None:
        solution = {name: array[g] for name, array in snapshot.solution.items()}
        models = None
        if snapshot.client_models is not None:
            models = {name: np.asarray(array[g]) for name, array in snapshot.client_models.items()}
        ends[g] = solution, predict(solution, models)

    for snapshot in RunFollower(engine, runs, points, width=width, stop=stop_requested).follow():
        for g, run in enumerate(runs):
            if run.stopped and g not in ends:
                note_end(snapshot, g)
    results = []
    for g, run in enumerate(runs):
        if g not in ends:
            note_end(snapshot, g)
        run.check_growth()
        metrics: dict[str, float] = {}
        end_state = "diverged"
        if not run.divergence_round:
            settings = experiment.settings
            metrics = aggregate(run.rows, settings.tail_rounds, experiment.metrics, stopped=run.stopped)["tail"]
            is_falling = not run.stopped and measure_remaining_descent(run.rows)
            end_state = "falling" if is_falling else "done"
        last_row = run.rows[-1] if run.rows else {"round": 0}
        bytes_up = sum(value for name, value in last_row.items() if name.endswith("bytes_up"))
        bytes_down = sum(value for name, value in last_row.items() if name.endswith("bytes_down"))
        solution, held_out = ends[g]
        results.append(_RunResult(metrics, solution, end_state, (last_row["round"], bytes_up, bytes_down), held_out))
    return results


def _stack_runs(results: Sequence[_RunResult]) -> PathFit:
    """Stack the results of P runs into arrays with leading axis P."""
    metric_names = dict.fromkeys(name for result in results for name in result.metrics)
    counts = np.array([result.counts for result in results], np.int64).T
    return PathFit(
        metrics={name: np.array([result.metrics.get(name, np.nan) for result in results]) for name in metric_names},
        solution={name: np.stack([result.solution[name] for result in results]) for name in results[0].solution},
        end_state=np.array([END_STATES.index(result.end_state) for result in results]),
        counts=dict(zip(_COUNTS, counts, strict=True)),
        held_out={name: np.stack([result.held_out[name] for result in results]) for name in results[0].held_out},
    )
