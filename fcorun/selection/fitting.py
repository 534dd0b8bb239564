"""Runs of a path of strengths on parts of the data: one program, a batch for each part, which shares the rows.

A part (a fold, a subsample, all rows) is to the engine what a seed is: a schedule of its own, which draws from the rows
that are left, and weights of its own in the evaluation. The rows x are one array for all parts, unless they were
standardized, and are so anew by the rows of the part.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.config import numeric_fields
from fcorun.datasets.base import FederatedData
from fcorun.datasets.subset import RowSubset, SubsetDataset
from fcorun.engine.arrays import SubsetView, targets_to_device, to_device
from fcorun.engine.engine import CompiledPrograms, Engine, Snapshot
from fcorun.engine.estimates import broadcast_bytes, estimate_traffic, program_key, subset_bytes, upload_bytes
from fcorun.engine.evaluate import Evaluation, objective_weights
from fcorun.experiment import build
from fcorun.experiment.convergence import measure_remaining_descent
from fcorun.experiment.experiment import Experiment
from fcorun.metrics import aggregate
from fcorun.problem import solver
from fcorun.problem.problem import Batch
from fcorun.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.runs.baseline import bind_client_problem
from fcorun.runs.batching import max_runs
from fcorun.runs.job import RunHistory
from fcorun.system.files import write_atomically
from fcorun.system.interruption import defer_interruption
from fcorun.system.machine import available_cores
from fcorun.system.polling import wait_for_first

END_STATES = ("done", "falling", "diverged", "not certified")


@dataclass(frozen=True)
class PathFit:
    """The runs of a path on a part, P strengths.

    Attributes:
        metrics: tail averages by name, each (P,); NaN of a run that diverged.
        solution: parameters by name, with leading axis P.
        end: the place in ENDS of how each run ended, (P,).
        counts: rounds, bytes_up and bytes_down of each run, those of edges too, each (P,).
    """

    metrics: dict[str, np.ndarray]
    solution: dict[str, np.ndarray]
    end_state: np.ndarray
    counts: dict[str, np.ndarray]

    def save(self, path: Path) -> None:
        """Write it to a file."""
        parts = {"metrics": self.metrics, "solution": self.solution, "counts": self.counts, "": {"end": self.end_state}}
        write_atomically(path, npz_bytes({f"{part}/{name}": value for part, each in parts.items()
                                     for name, value in each.items()}))  # fmt: skip

    @classmethod
    def load(cls, path: Path) -> "PathFit | None":
        """What a file holds; None where there is none that can be read."""
        try:
            found = read_npz(path)
            parts: dict[str, dict] = {"metrics": {}, "solution": {}, "counts": {}, "": {}}
            for name, value in found.items():
                part, _, name = name.partition("/")
                parts[part][name] = value
            return cls(parts["metrics"], parts["solution"], parts[""]["end"], parts["counts"])
        except READ_ERRORS:
            return None


@dataclass
class PathFitter:
    """What the runs on all parts have in common.

    Attributes:
        data: of which they are parts.
        number, values: the number of the regularizer that varies, and its values from the sparsest solution on, (P,).
        width: how many rows a client has at most in a part.
    """

    experiment: Experiment
    data: FederatedData
    param_name: str
    values: np.ndarray
    max_client_rows: int
    programs: dict[str, CompiledPrograms] = field(default_factory=dict)
    stop_requested: threading.Event = field(default_factory=threading.Event)
    _shared: dict = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def fit(self, make_subsets: Sequence[Callable[[], RowSubset]], on_fit: Callable[[int, PathFit], None]) -> None:
        """Run the path on each part, which are made when their turn comes; ``done`` is told as they end, by place."""
        alone = self.experiment.settings.debug or jax.default_backend() != "cpu" or self._solved
        with defer_interruption(), ThreadPoolExecutor(1 if alone else available_cores()) as pool:
            try:
                fits = deque(pool.submit(lambda make=make: self._fit(make())) for make in make_subsets)
                for place in range(len(make_subsets)):
                    wait_for_first({fit := fits.popleft()})  # whose models are not kept once they are told of
                    on_fit(place, fit.result())
            except BaseException:
                self.stop_requested.set()
                pool.shutdown(cancel_futures=True)
                raise

    @property
    def _solved(self) -> bool:
        return isinstance(self.experiment.algo, Baseline)

    def _fit(self, part: RowSubset) -> PathFit:
        own = SubsetDataset.from_subset(self.experiment.fingerprint, part)
        experiment = replace(self.experiment, data=own)
        precision = "float64" if self._solved else experiment.settings.precision
        with jax.enable_x64(precision == "float64"):
            among = self._among(part, precision)
            return (self._solve if self._solved else self._run)(experiment, part.data, among)

    def _among(self, part: RowSubset, precision: str) -> SubsetView:
        """The rows of a part on the device: those of the whole data set are put there once."""
        with self._guard:
            if "y" not in self._shared:
                self._shared["y"] = targets_to_device(self.data, self.data.y, precision)
            if part.x is self.data.x and "x" not in self._shared:
                self._shared["x"] = to_device(part.x, precision)
            x = self._shared["x"] if part.x is self.data.x else to_device(part.x, precision)
            return SubsetView(x, self._shared["y"], part.train_rows, part.validation_rows, self.max_client_rows)

    def _run(self, experiment: Experiment, data: FederatedData, among: SubsetView) -> PathFit:
        """The path of an algorithm, as one batch or as many as memory asks for."""
        experiment = build.resolve_auto(experiment, data)[0]
        engine = build.build_engine(experiment, data, among)
        with self._guard:
            engine = replace(
                engine, programs=self.programs.setdefault(program_key(engine.federation), CompiledPrograms())
            )
        points, settings = [self._point(experiment, data, value) for value in self.values], experiment.settings
        threads = available_cores() if jax.default_backend() == "cpu" else 1
        taken = subset_bytes(engine.federation, among.x is not self._shared.get("x"))
        width = min(max_runs(engine, points[0], [settings.seed], settings.memory, threads, taken=taken), len(points))
        width = -(-len(points) // -(-len(points) // width))  # batches of one size
        found = []
        for i in range(0, len(points), width):
            batch = points[i : i + width]
            runs = _Runs(experiment, engine, len(batch))
            for now in engine.run(batch + batch[-1:] * (width - len(batch))):
                if self.stop_requested.is_set():
                    raise KeyboardInterrupt
                if not runs.note(now):
                    break
            found += runs.ended()
        return _joined(found)

    def _point(self, experiment: Experiment, data: FederatedData, value: float) -> dict:
        found = experiment.numbers() | {"reg": numeric_fields(experiment.reg.with_value(self.param_name, value))}
        if experiment.algo.curvature_alternatives:
            least, most = build.compute_curvature_bounds(experiment, data)
            found["curvature"] = {"least": least, "most": most}
        return found

    def _solve(self, experiment: Experiment, data: FederatedData, among: SubsetView) -> PathFit:
        """The path of a baseline, each solution starting from the one before."""
        settings, algo = experiment.settings, experiment.algo
        assert isinstance(algo, Baseline)
        problem = build.build_problem(experiment, data)
        evaluation = Evaluation(data, settings.client_weighting, settings.cutoff, among)
        extra, rows = evaluation.arrays("float64"), algo.select_rows(data.offsets)
        weight = np.zeros(len(self.data.y))
        weight[among.train_rows[rows]] = objective_weights(data, settings.client_weighting)[rows]
        offset = None if self.data.offset is None else jnp.asarray(self.data.offset)
        batch = Batch(among.x, among.y, jnp.asarray(weight / weight.sum()), offset=offset)
        if "made" not in self._shared:
            reg = problem.regularizer.with_value(self.param_name, self.values[0])  # without a strength there is no gap
            self._shared["made"] = solver.compile_programs(replace(problem, regularizer=reg), among.x.shape[1])
            self._shared["measure"] = jax.jit(
                lambda psi, w, x, y, extra: evaluation.measure(problem.with_numbers(psi), w, x, y, extra)
            )
        start, found = None, []
        for value in self.values:
            this = replace(problem, regularizer=problem.regularizer.with_value(self.param_name, value))
            options = {"start": start, "compiled": self._shared["made"]}
            for now in solver.minimize(  # noqa: B007
                bind_client_problem(this, data, rows), batch, algo.tolerance, algo.max_iterations, **options
            ):
                if self.stop_requested.is_set():
                    raise KeyboardInterrupt
            measured = self._shared["measure"](numeric_fields(this.regularizer), now.w, among.x, among.y, extra)
            measured = evaluation.add_ranking(measured)
            lost = not np.isfinite(now.objective)
            end = "diverged" if lost else "done" if now.certified else "not certified"
            start = start if lost else now.w
            solution = {name: np.asarray(each) for name, each in now.w.items()}
            found.append(({name: float(each) for name, each in measured.items()}, solution, end, (0, 0, 0)))
        return _joined(found)


class _Runs:
    """The runs of a batch, evaluated as those of a record are."""

    def __init__(self, experiment: Experiment, engine: Engine, count: int):
        assert isinstance(experiment.algo, Algorithm)
        up, down = (of(engine.federation, experiment.algo) for of in (upload_bytes, broadcast_bytes))
        self.runs = [RunHistory(experiment, upload_bytes=up, download_bytes=down) for _ in range(count)]
        self.traffic = estimate_traffic(engine.federation, engine.rounds, experiment.settings.seed)
        self.solutions: dict[int, dict[str, np.ndarray]] = {}  # of runs that have met a target
        self.last: Snapshot | None = None

    def note(self, now: Snapshot) -> bool:
        """A row more for each run; whether any of them goes on."""
        self.last, sent = (
            now,
            self.traffic.bytes_after(now.round, self.runs[0].upload_bytes, self.runs[0].download_bytes),
        )
        for g, run in enumerate(self.runs):
            if run.stopped or run.divergence_round:
                continue
            run.divergence_round = int(now.diverged[g])
            if not run.divergence_round:
                run.add_snapshot(now, g, sent, 0.0)
                if run.check_targets():
                    self.solutions[g] = {name: each[g] for name, each in now.solution.items()}
        return not all(run.stopped or run.divergence_round for run in self.runs)

    def ended(self) -> Iterator[tuple]:
        """Of each run its metrics, solution, end, and counts."""
        assert self.last is not None
        for g, run in enumerate(self.runs):
            solution = self.solutions.get(g) or {name: each[g] for name, each in self.last.solution.items()}
            settings = run.experiment.settings
            run.check_growth()
            tail = aggregate(run.rows, settings.tail_rounds, run.experiment.metrics, stopped=run.stopped)
            falling = not run.stopped and measure_remaining_descent(run.rows)
            end = "diverged" if run.divergence_round else "falling" if falling else "done"
            last = run.rows[-1] if run.rows else {"round": 0}
            sent = [sum(v for name, v in last.items() if name.endswith(way)) for way in ("bytes_up", "bytes_down")]
            yield {} if run.divergence_round else tail["tail"], solution, end, (last["round"], *sent)


def _joined(found: Sequence[tuple]) -> PathFit:
    names = list(dict.fromkeys(name for each, *_ in found for name in each))
    counts = np.array([each[3] for each in found], np.int64).T
    return PathFit(
        metrics={name: np.array([each[0].get(name, np.nan) for each in found]) for name in names},
        solution={name: np.stack([each[1][name] for each in found]) for name in found[0][1]},
        end_state=np.array([END_STATES.index(each[2]) for each in found]),
        counts=dict(zip(("rounds", "bytes_up", "bytes_down"), counts, strict=True)),
    )
