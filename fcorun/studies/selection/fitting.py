"""Runs of a path of strengths on subsets of the rows: one program, a batch for each subset, which shares the rows.

To the engine a subset (a fold, a subsample, all rows) is like a seed: it has its own schedule, which draws from its
rows, and its own weights in the evaluation. All subsets share one array of features x, unless features were
standardized, or a subset's rows teach other fills or levels: then the subset has its own array.

With ``imputations``, a path runs on each completed table of a fold, and the averages of the fits are judged. The rows
that a fold trains on teach the equations that draw their gaps, as the rows of a run do. Imputing within each fold, not
before rows are divided, leaves the rows that are held out unknown (Wahl, Boulesteix, Zierer, Thorand and van de Wiel,
BMC Med. Res. Methodol. 2016).
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool
from threadpoolctl import threadpool_limits

from fcorun.base.config import numeric_fields
from fcorun.base.metrics import aggregate
from fcorun.base.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.base.records.record import OUT_OF_FOLD, PERSONAL, SHARED
from fcorun.base.records.tables import MAX_PREDICTED_ROWS
from fcorun.base.system.files import defer_interruption, wait_for_first, write_atomically
from fcorun.base.system.machine import available_cores, compute_policy, memory_limit, use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.subset import RowSubset, SubsetDataset
from fcorun.data.rows.features import to_device
from fcorun.engine.device_rows import SubsetView, targets_to_device
from fcorun.engine.engine import CompiledPrograms, Engine, Snapshot, message_bytes, subset_bytes
from fcorun.engine.federation import Numbers
from fcorun.experiment import build
from fcorun.experiment.experiment import PreparedExperiment, measure_remaining_descent
from fcorun.experiment.requirements import has_gaps
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.methods.objectives.objective import Objective
from fcorun.methods.problem import solver
from fcorun.methods.problem.path_solver import PathPoint, has_path_solver, solve_path
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.results.model_outputs import compute_predictions
from fcorun.results.models.client_intercepts import add_client_intercepts, difference_from_mean
from fcorun.results.models.predictions import Predictions, describe_output, predict_personal
from fcorun.results.models.relaxed import (
    PENALIZED_METRICS,
    REFIT_FAILURES,
    NoRefit,
    UnpenalizedRefits,
    keep_relaxed_metrics,
    relax_solution,
)
from fcorun.runs.batch import max_runs
from fcorun.runs.job import RunFollower
from fcorun.runs.pooled_fits import average_solutions, bind_client_problem, complete_tables, prepare_tables
from fcorun.runs.run_history import RunHistory
from fcorun.studies.selection.path import RegularizationPath, compute_adaptive_factors

# saved by position: add new states at the end
END_STATES = ("done", "falling", "diverged", "not certified", *REFIT_FAILURES)
_COUNTS = ("rounds", "bytes_up", "bytes_down")
_MAX_PREDICTIONS = 2**23  # of the runs that are measured together
_MAX_OUTPUTS = 2**27  # outputs for held-out rows that are kept, half a gigabyte in float32
_BASELINE_COPIES = 6  # of all features in float64 that a fit of a baseline takes, as measured where it standardizes
Arrays = dict[str, np.ndarray]  # by name
# maps the solution of a run, and its personal models or None, to outputs for the validation rows, as in PathFit
_PredictHeldOut = Callable[[Arrays, Arrays | None], Arrays]
_Measure = Callable[..., list[dict[str, float]]]


class _RunResult(NamedTuple):
    """The end of one run of a path: tail averages, parameters, a state of END_STATES, and the values of _COUNTS.

    ``held_out`` has the outputs for the validation rows, as in PathFit, for one run.
    """

    metrics: dict[str, float]
    solution: Arrays
    end_state: str
    counts: Sequence[float]
    held_out: Arrays


@dataclass(frozen=True)
class PathFit:
    """The runs of a path of P strengths on a subset of the rows.

    Attributes:
        metrics: tail averages by name, each (P,); NaN of a run that diverged.
        solution: parameters by name, with leading axis P.
        end_state: the position in END_STATES of the state in which each run ended, (P,).
        counts: rounds, bytes_up and bytes_down of each run, each (P,); the bytes of edges are included.
        held_out: the outputs of the shared and of the personal models for the subset's validation rows, without
            offsets, each (P, V) or (P, V, classes); empty without validation rows, or if ``keeps_held_out`` is false.
    """

    metrics: Arrays
    solution: Arrays
    end_state: np.ndarray
    counts: Arrays
    held_out: Arrays = field(default_factory=dict)

    @classmethod
    def of_runs(cls, results: Sequence[_RunResult]) -> "PathFit":
        """Stack the results of P runs into arrays with leading axis P."""
        names = dict.fromkeys(name for result in results for name in result.metrics)
        counts = np.array([result.counts for result in results], np.int64).T
        first = results[0]
        return cls(
            metrics={name: np.array([result.metrics.get(name, np.nan) for result in results]) for name in names},
            solution={name: np.stack([result.solution[name] for result in results]) for name in first.solution},
            end_state=np.array([END_STATES.index(result.end_state) for result in results]),
            counts=dict(zip(_COUNTS, counts, strict=True)),
            held_out={name: np.stack([result.held_out[name] for result in results]) for name in first.held_out},
        )

    def save(self, path: Path) -> None:
        """Write the fit to an npz file, whose keys are GROUP/NAME."""
        arrays = {"/end": self.end_state}
        for group in ("metrics", "solution", "counts", "held_out"):
            for name, array in getattr(self, group).items():
                arrays[f"{group}/{name}"] = array
        write_atomically(path, npz_bytes(arrays))

    @classmethod
    def load(cls, path: Path) -> "PathFit | None":
        """Read a fit from a file; return None if the file is missing or damaged."""
        try:
            groups: dict[str, dict] = {"metrics": {}, "solution": {}, "counts": {}, "held_out": {}, "": {}}
            for key, array in read_npz(path).items():
                group, _, name = key.partition("/")
                groups[group][name] = array
            end_state = groups.pop("")["end"]
            return cls(**groups, end_state=end_state)
        except READ_ERRORS:
            return None


def keeps_held_out(data: FederatedData, n_values: int, n_rows: int) -> bool:
    """Return whether the outputs for ``n_rows`` rows, each held out once, of runs at ``n_values`` values are kept."""
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    return n_rows <= MAX_PREDICTED_ROWS and n_rows * n_values * outputs <= _MAX_OUTPUTS


def find_runs(fits: Mapping[str, PathFit], state: str) -> Bool[np.ndarray, "S P"]:
    """Return a mask of the runs of S fits at P values that ended in a state of END_STATES."""
    return np.stack([fit.end_state for fit in fits.values()]) == END_STATES.index(state)


def compute_in_threads(
    work: Callable[[Any], Any],
    items: Iterable[Any],
    n_threads: int,
    blas_threads: int | None,
    stop: threading.Event | None = None,
) -> Generator[Any, None, None]:
    """Yield ``work(item)`` for each item in their order, computed by threads of this process.

    If the caller ends before, or a signal interrupts, ``stop`` tells the work that runs to end, and no other begins.
    """
    with defer_interruption(), threadpool_limits(blas_threads), ThreadPoolExecutor(n_threads) as pool:
        try:
            results = deque(pool.submit(copy_context().run, work, item) for item in items)
            while results:
                wait_for_first({results[0]})
                yield results.popleft().result()  # popped, so that its models are freed by whom they are for
        except BaseException:
            if stop is not None:
                stop.set()
            pool.shutdown(cancel_futures=True)
            raise


@dataclass
class PathFitter:
    """A runner of one path on many subsets; programs and rows on the device are shared between subsets.

    Attributes:
        data: all rows, from which subsets are taken.
        path: the values of P runs on each subset, and what is made of their solutions.
        max_client_rows: the largest number of rows that each client has in any subset, (M,).
        programs: the compiled programs by their key.
        stop_requested: tells the threads to stop.
    """

    experiment: PreparedExperiment
    data: FederatedData
    path: RegularizationPath
    max_client_rows: np.ndarray
    programs: dict[str, CompiledPrograms] = field(default_factory=dict)
    stop_requested: threading.Event = field(default_factory=threading.Event)
    _shared: dict = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def __reduce__(self):  # without what belongs to this process
        return PathFitter, (self.experiment, self.data, self.path, self.max_client_rows)

    def fit(self, make_subsets: Sequence[Callable[[], RowSubset]]) -> Generator[PathFit, None, None]:
        """Run the path on each subset, made just before it is run, and return the fits in their order."""
        one_thread = self.experiment.settings.debug or not compute_policy().threaded_batches
        threads = 1 if one_thread else available_cores()
        if self._is_baseline:
            bytes_per_fit = _BASELINE_COPIES * 8 * math.prod(self.data.train.x.shape)
            fits_at_once = int(memory_limit(self.experiment.settings.memory) // bytes_per_fit)
            threads = max(1, min(threads, fits_at_once))
        # a fit has one core: with several threads, products of matrices as small as a client's take five times as long
        blas_threads = 1 if threads > 1 else None
        return compute_in_threads(
            lambda make: self.fit_subset(make()), make_subsets, threads, blas_threads, stop=self.stop_requested
        )

    @property
    def _is_baseline(self) -> bool:
        return isinstance(self.experiment.algo, Baseline)

    def fit_subset(self, subset: RowSubset) -> PathFit:
        """Run the path on a subset, in this thread."""
        experiment = replace(self.experiment, data=SubsetDataset(self.experiment.fingerprint, subset))
        if self.path.is_adaptive:
            factors: Any = compute_adaptive_factors(experiment, subset.data)
            experiment = experiment.with_resolved(reg=replace(experiment.reg, factors=factors))
        precision = "float64" if self._is_baseline else experiment.settings.precision
        run_path = self._solve_path if self._is_baseline else self._run_path
        with use_precision(precision):
            view = self._view(subset, precision)
            if experiment.settings.imputations:
                reg = experiment.reg.with_value(self.path.param_name, self.path.values[0])
                fits = []
                for completed in complete_subset(experiment.with_resolved(reg=reg), subset):
                    parent = f"{self.experiment.fingerprint} imputation {len(fits) + 1} of {experiment.settings.seed}"
                    of_table = replace(experiment, data=SubsetDataset(parent, completed))
                    fits.append(PathFit.of_runs(run_path(of_table, completed.data, self._view(completed, precision))))
                return average_fits(fits, self._measure_by(experiment, subset.data, view, precision))
            fit = PathFit.of_runs(run_path(experiment, subset.data, view))
            if self.path.shares is None:
                return fit
            measure = self._measure_by(experiment, subset.data, view, precision)
            predict = self._held_out_predictor(experiment, subset.data)
            refits = UnpenalizedRefits.of_data(experiment, subset.data)
            return relax_fit(fit, self.path.shares, refits, measure, predict)

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
        runs = self.path.runs
        variants = [experiment]
        if runs.second is not None:
            variants = [runs.second.apply(experiment, p) for p in range(0, len(runs.values), runs.length)]
        experiments = [build.resolve_auto(variant, data)[0] for variant in variants]
        experiment = experiments[0]
        engine = build.build_engine(experiment, data, view)
        settings = experiment.settings
        assert isinstance(experiment.algo, Algorithm)
        if settings.stop is None and not experiment.algo.certificate:  # a tail is judged that begins at a known round
            ranked_from = settings.rounds - settings.tail_rounds + 1
            evaluation = replace(engine.federation.evaluation, ranked_from=ranked_from)
            engine = replace(engine, federation=replace(engine.federation, evaluation=evaluation))
        engine = engine.share_programs(lambda key: self.programs.setdefault(key, CompiledPrograms()))
        points = []
        for p, value in enumerate(runs.values):
            variant = experiments[p // runs.length]
            point = point_at(variant, runs.param_name, value)
            if variant.algo.curvature_alternatives:
                least, most = build.compute_curvature_bounds(variant, data)
                point["curvature"] = {"least": least, "most": most}
            points.append(point)
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
        if rows is None or not keeps_held_out(data, len(self.path.values), len(self.data.train)):
            return lambda solution, models: {}
        return partial(predict_validation_rows, experiment, data)

    def _measure_by(
        self, experiment: PreparedExperiment, data: FederatedData, view: SubsetView, precision: str
    ) -> _Measure:
        """Return a function that measures the parameters of runs on a subset, each with its numbers of psi if given."""
        evaluation = build.build_evaluation(experiment, data, view)
        arrays = evaluation.arrays(precision)
        # has_duality_gap depends on the strength: it must be one of the path
        reg = experiment.reg.with_value(self.path.param_name, self.path.values[0])
        problem = build.build_problem(experiment.with_resolved(reg=reg), data)
        runs_together = max(_MAX_PREDICTIONS // len(view.y), 1)

        def measure_runs(numbers: dict[str, Any], solutions: Vector, x: jax.Array, y: jax.Array, extra: dict) -> dict:
            def measure_run(run: tuple[dict[str, Any], Vector]) -> dict:
                return evaluation.measure(problem.with_numbers(run[0]), run[1], x, y, extra)

            return lax.map(measure_run, (numbers, solutions), batch_size=runs_together)

        if "measure" not in self._shared:
            self._shared["measure"] = jax.jit(measure_runs)

        def measure(
            solutions: Sequence[Mapping[str, Any]], numbers: Sequence[dict[str, float]] = ()
        ) -> list[dict[str, float]]:
            # stacked by NumPy: JAX would send each number to the device by itself
            w = Vector({name: np.stack([solution[name] for solution in solutions]) for name in solutions[0]})
            numbers = numbers or [numeric_fields(problem.regularizer)] * len(solutions)
            psi = {name: np.stack([of_run[name] for of_run in numbers]) for name in numbers[0]}
            measured = evaluation.complete(self._shared["measure"](psi, w, view.x, view.y, arrays)).metrics
            columns = {name: np.asarray(values).tolist() for name, values in measured.items()}
            return [{name: values[p] for name, values in columns.items()} for p in range(len(solutions))]

        return measure

    def _solve_path(self, experiment: PreparedExperiment, data: FederatedData, view: SubsetView) -> list[_RunResult]:
        """Solve the path of a baseline; each solution starts from the one before."""
        algo = experiment.algo
        runs = self.path.runs
        assert isinstance(algo, Baseline)
        problem = build.build_problem(experiment, data)
        rows = algo.select_rows(data.train.offsets)
        weight = np.zeros(len(self.data.train.y))
        weight[view.train_rows[rows]] = data.train.objective_weights(experiment.settings.client_weighting)[rows]
        offset = None if self.data.train.offset is None else jnp.asarray(self.data.train.offset)
        client = jnp.asarray(self.data.train.client)
        batch = Batch(view.x, view.y, jnp.asarray(weight / weight.sum()), offset=offset, client=client)
        measure = self._measure_by(experiment, data, view, "float64")
        predict = self._held_out_predictor(experiment, data)
        regularizers = []
        for p, value in enumerate(runs.values):
            reg = problem.regularizer.with_value(runs.param_name, value)
            if runs.second is not None:
                reg = replace(reg, **{runs.second.name: float(runs.second.values[p])})
            regularizers.append(reg)
        problems = [bind_client_problem(replace(problem, regularizer=reg), data, rows) for reg in regularizers]
        solved = list(self._solve_problems(algo, problems, batch))
        metrics = measure([w for w, _ in solved], [numeric_fields(reg) for reg in regularizers])
        results = []
        for of_run, (w, end_state) in zip(metrics, solved, strict=True):
            solution = {name: np.asarray(array) for name, array in w.items()}
            solution = add_client_intercepts(experiment, data, solution)
            results.append(_RunResult(of_run, solution, end_state, (0, 0, 0), predict(solution, None)))
        return results

    def _solve_problems(
        self, algo: Baseline, problems: Sequence[Problem], batch: Batch
    ) -> Iterator[tuple[Vector, str]]:
        """Yield the solution of each problem of a path, and its state of END_STATES; each starts from the one before.

        What the path solver does not solve, or not to the tolerance, the solver of the baseline does.
        """
        points: Iterable[PathPoint | None] = repeat(None)
        if has_path_solver(problems[0], batch):
            points = chain(solve_path(problems, batch, algo.tolerance), points)
        start = None
        for problem, point in zip(problems, points, strict=False):
            if self.stop_requested.is_set():
                raise KeyboardInterrupt
            if point is not None:
                start = point.w
                if point.certified:
                    yield start, "done"
                    continue
            with self._guard:
                if "compiled" not in self._shared:
                    self._shared["compiled"] = solver.compile_programs(problem, batch.x.shape[1])
            options = {"start": start, "compiled": self._shared["compiled"]}
            for iterate in solver.minimize(problem, batch, algo.tolerance, algo.max_iterations, **options):  # noqa: B007
                if self.stop_requested.is_set():
                    raise KeyboardInterrupt
            end_state = "diverged"
            if np.isfinite(iterate.objective):
                end_state = "done" if iterate.certified else "not certified"
                start = iterate.w
            yield iterate.w, end_state


@dataclass
class SubsetFits:
    """The fits of a fitter as work for other processes: maps the name of a subset to its fit.

    Attributes:
        take_subset: maps a name to the rows.
    """

    fitter: PathFitter
    take_subset: Callable[[str], RowSubset]

    def __call__(self, name: str) -> PathFit:
        return self.fitter.fit_subset(self.take_subset(name))


def complete_subset(experiment: PreparedExperiment, subset: RowSubset) -> Iterator[RowSubset]:
    """Yield a subset with its training rows completed, once for each imputation; once if they have no gaps."""
    if not has_gaps(subset.data):
        yield subset
        return
    for data in complete_tables(prepare_tables(experiment, subset.data)):
        x = subset.x.copy()
        x[subset.train_rows] = data.train.x
        yield replace(subset, data=data, x=x)


def predict_validation_rows(
    experiment: PreparedExperiment, data: FederatedData, solution: Arrays, models: Arrays | None
) -> Arrays:
    """Return the outputs of a run for the validation rows of ``data``, as in PathFit, by its parameters and models.

    ``models`` are the parameters of the clients' personal models, with a leading axis of clients.
    """
    rows = data.validation
    assert rows is not None
    outputs = {}
    if experiment.has_shared_model:
        output = compute_predictions(experiment.objective, solution, rows.x, data.features.scale)
        outputs[SHARED] = output + difference_from_mean(solution, rows.client)
    if models is not None and rows.client is not None:
        clients = np.asarray(data.client_of_row("validation"))
        output, has_model = predict_personal(experiment.objective, data, models, rows, clients)
        if has_model.all():
            outputs[PERSONAL] = output
    return outputs


def point_at(experiment: PreparedExperiment, param_name: str, value: float) -> Numbers:
    """Return the numbers of the run at a value of a path, for an experiment whose "auto" fields are resolved."""
    return experiment.numbers() | {"reg": numeric_fields(experiment.reg.with_value(param_name, value))}


def fit_batch(experiment: PreparedExperiment, engine: Engine, points: Sequence[Numbers]) -> PathFit:
    """Run all points of a path as one batch, without outputs for held-out rows."""
    options = {"stop_requested": threading.Event(), "predict": lambda solution, models: {}}
    return PathFit.of_runs(_run_batch(experiment, engine, points, len(points), **options))


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
        solution = add_client_intercepts(experiment, engine.federation.data, solution)
        models = None
        if snapshot.client_models is not None:
            models = {name: np.asarray(array[g]) for name, array in snapshot.client_models.items()}
        ends[g] = solution, predict(solution, models)

    # a site keeps the predictions of the runs at their last evaluation, which must then be that of the server
    follower = RunFollower(engine, runs, points, width=width, together=True, stop=stop_requested)
    for snapshot in follower.follow():
        for g, run in enumerate(runs):
            if run.ended and g not in ends:
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


def relax_fit(
    fit: PathFit, shares: np.ndarray, refits: UnpenalizedRefits, measure: _Measure, predict: _PredictHeldOut
) -> PathFit:
    """Return the fit of S paths, each of the relaxed coefficients with one share, from the fit of a path of P lassos.

    Each solution is measured, and its held-out rows predicted, by the last solution of its run. Metrics of the problem
    with the penalty are those of the lasso, and of share 1 alone. A run without a fit without a penalty has no metrics
    and NaN for its coefficients, and its state says why. The rounds and bytes of a run are counted for the first share.
    """
    results = []
    for s, share in enumerate(shares):
        for p, position in enumerate(fit.end_state):
            solution = {name: values[p] for name, values in fit.solution.items()}
            metrics = {}
            state = END_STATES[position]
            if state != "diverged":
                try:
                    with jax.enable_x64(True):
                        solution, _ = relax_solution(refits, solution, float(share))
                    metrics = keep_relaxed_metrics(*measure([solution]))
                    if share == 1:
                        measured = [name for name in PENALIZED_METRICS if name in fit.metrics]
                        metrics |= {name: float(fit.metrics[name][p]) for name in measured}
                except NoRefit as error:
                    solution = {name: np.full_like(values, np.nan) for name, values in solution.items()}
                    state = error.state
            counts = [fit.counts[name][p] if s == 0 else 0 for name in _COUNTS]
            results.append(_RunResult(metrics, solution, state, counts, predict(solution, None)))
    return PathFit.of_runs(results)


def average_fits(fits: Sequence[PathFit], measure: _Measure) -> PathFit:
    """Return the fit of the averages of the solutions to completed tables, each measured by ``measure``.

    An average has diverged if a solution has. Outputs are averaged, since those of averaged linear models are averages.
    """
    solutions = average_solutions([fit.solution for fit in fits])
    outputs = average_solutions([fit.held_out for fit in fits])
    results = []
    for p, positions in enumerate(np.stack([fit.end_state for fit in fits], axis=1)):
        solution = {name: values[p] for name, values in solutions.items()}
        metrics = {}
        state = "diverged"
        if END_STATES.index(state) not in positions:
            metrics = keep_relaxed_metrics(*measure([solution]))
            state = END_STATES[positions.max()]
        counts = [sum(fit.counts[name][p] for fit in fits) for name in _COUNTS]
        held_out = {name: values[p] for name, values in outputs.items()}
        results.append(_RunResult(metrics, solution, state, counts, held_out))
    return PathFit.of_runs(results)


def join_folds(
    objective: Objective,
    data: FederatedData,
    rows: Mapping[int, np.ndarray],
    outputs: Sequence[Mapping[str, np.ndarray]],
) -> list[Predictions]:
    """Return the predictions of all training rows, by each kind of model whose outputs are finite in every fold.

    Args:
        rows: the rows that each fold holds out, by the number of the fold, from 1; each row is held out once.
        outputs: the outputs for these rows, by SHARED or PERSONAL model.
    """
    number = np.repeat(list(rows), [len(of_fold) for of_fold in rows.values()])
    order = np.argsort(np.concatenate(list(rows.values())))
    predictions = []
    for model in (SHARED, PERSONAL):
        if not all(model in of_fold and np.isfinite(of_fold[model]).all() for of_fold in outputs):
            continue
        described = describe_output(
            objective,
            data,
            data.train,
            np.concatenate([of_fold[model] for of_fold in outputs])[order],
            clients=data.client_of_row("train"),
            split=OUT_OF_FOLD,
            model=model,
            fold=number[order],
        )
        predictions.append(described)
    return predictions
