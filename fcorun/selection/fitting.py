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
from fcorun.config import numbers
from fcorun.datasets.base import FederatedData
from fcorun.datasets.part import Part, PartOf
from fcorun.engine.arrays import Among, on_device, targets
from fcorun.engine.engine import Engine, Programs, Snapshot
from fcorun.engine.evaluate import Evaluation, row_weights
from fcorun.engine.footprint import broadcast_bytes, bytes_of_part, form, traffic, upload_bytes
from fcorun.experiment import build
from fcorun.experiment.ending import unfinished
from fcorun.experiment.experiment import Experiment
from fcorun.metrics import aggregate
from fcorun.problem import solver
from fcorun.problem.problem import Batch
from fcorun.records.formats import DAMAGED, npz_bytes, read_npz
from fcorun.runs.baseline import own
from fcorun.runs.job import Evaluated
from fcorun.runs.memory import room
from fcorun.system.files import write_whole
from fcorun.system.interruption import uninterrupted
from fcorun.system.machine import cores
from fcorun.system.waiting import first_of

ENDS = ("done", "falling", "diverged", "not certified")


@dataclass(frozen=True)
class Fitted:
    """The runs of a path on a part, P strengths.

    Attributes:
        metrics: tail averages by name, each (P,); NaN of a run that diverged.
        solution: parameters by name, with leading axis P.
        end: the place in ENDS of how each run ended, (P,).
        counts: rounds, bytes_up and bytes_down of each run, those of edges too, each (P,).
    """

    metrics: dict[str, np.ndarray]
    solution: dict[str, np.ndarray]
    end: np.ndarray
    counts: dict[str, np.ndarray]

    def keep(self, path: Path) -> None:
        """Write it to a file."""
        parts = {"metrics": self.metrics, "solution": self.solution, "counts": self.counts, "": {"end": self.end}}
        write_whole(path, npz_bytes({f"{part}/{name}": value for part, each in parts.items()
                                     for name, value in each.items()}))  # fmt: skip

    @classmethod
    def kept(cls, path: Path) -> "Fitted | None":
        """What a file holds; None where there is none that can be read."""
        try:
            found = read_npz(path)
            parts: dict[str, dict] = {"metrics": {}, "solution": {}, "counts": {}, "": {}}
            for name, value in found.items():
                part, _, name = name.partition("/")
                parts[part][name] = value
            return cls(parts["metrics"], parts["solution"], parts[""]["end"], parts["counts"])
        except DAMAGED:
            return None


@dataclass
class Fitter:
    """What the runs on all parts have in common.

    Attributes:
        data: of which they are parts.
        number, values: the number of the regularizer that varies, and its values from the sparsest solution on, (P,).
        width: how many rows a client has at most in a part.
    """

    experiment: Experiment
    data: FederatedData
    number: str
    values: np.ndarray
    width: int
    programs: dict[str, Programs] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)
    _shared: dict = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def fit(self, parts: Sequence[Callable[[], Part]], done: Callable[[int, Fitted], None]) -> None:
        """Run the path on each part, which are made when their turn comes; ``done`` is told as they end, by place."""
        alone = self.experiment.settings.debug or jax.default_backend() != "cpu" or self._solved
        with uninterrupted(), ThreadPoolExecutor(1 if alone else cores()) as pool:
            try:
                fits = deque(pool.submit(lambda make=make: self._fit(make())) for make in parts)
                for place in range(len(parts)):
                    first_of({fit := fits.popleft()})  # whose models are not kept once they are told of
                    done(place, fit.result())
            except BaseException:
                self.stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    @property
    def _solved(self) -> bool:
        return isinstance(self.experiment.algo, Baseline)

    def _fit(self, part: Part) -> Fitted:
        own = PartOf.of(self.experiment.fingerprint, part)
        experiment = replace(self.experiment, data=own)
        precision = "float64" if self._solved else experiment.settings.precision
        with jax.enable_x64(precision == "float64"):
            among = self._among(part, precision)
            return (self._solve if self._solved else self._run)(experiment, part.data, among)

    def _among(self, part: Part, precision: str) -> Among:
        """The rows of a part on the device: those of the whole data set are put there once."""
        with self._guard:
            if "y" not in self._shared:
                self._shared["y"] = targets(self.data, self.data.y, precision)
            if part.x is self.data.x and "x" not in self._shared:
                self._shared["x"] = on_device(part.x, precision)
            x = self._shared["x"] if part.x is self.data.x else on_device(part.x, precision)
            return Among(x, self._shared["y"], part.places, part.held, self.width)

    def _run(self, experiment: Experiment, data: FederatedData, among: Among) -> Fitted:
        """The path of an algorithm, as one batch or as many as memory asks for."""
        experiment = build.resolved(experiment, data)[0]
        engine = build.engine_for(experiment, data, among)
        with self._guard:
            engine = replace(engine, programs=self.programs.setdefault(form(engine.federation), Programs()))
        points, settings = [self._point(experiment, data, value) for value in self.values], experiment.settings
        threads = cores() if jax.default_backend() == "cpu" else 1
        taken = bytes_of_part(engine.federation, among.x is not self._shared.get("x"))
        width = min(room(engine, points[0], [settings.seed], settings.memory, threads, taken=taken), len(points))
        width = -(-len(points) // -(-len(points) // width))  # batches of one size
        found = []
        for i in range(0, len(points), width):
            batch = points[i : i + width]
            runs = _Runs(experiment, engine, len(batch))
            for now in engine.run(batch + batch[-1:] * (width - len(batch))):
                if self.stop.is_set():
                    raise KeyboardInterrupt
                if not runs.note(now):
                    break
            found += runs.ended()
        return _joined(found)

    def _point(self, experiment: Experiment, data: FederatedData, value: float) -> dict:
        found = experiment.numbers() | {"reg": numbers(experiment.reg.with_value(self.number, value))}
        if experiment.algo.needs_curvature:
            least, most = build.curvature_of(experiment, data)
            found["curvature"] = {"least": least, "most": most}
        return found

    def _solve(self, experiment: Experiment, data: FederatedData, among: Among) -> Fitted:
        """The path of a baseline, each solution starting from the one before."""
        settings, algo = experiment.settings, experiment.algo
        assert isinstance(algo, Baseline)
        problem = build.problem_of(experiment, data)
        evaluation = Evaluation(data, settings.client_weighting, settings.cutoff, among)
        extra, rows = evaluation.arrays("float64"), algo.rows(data.offsets)
        weight = np.zeros(len(self.data.y))
        weight[among.places[rows]] = row_weights(data, settings.client_weighting)[rows]
        offset = None if self.data.offset is None else jnp.asarray(self.data.offset)
        batch = Batch(among.x, among.y, jnp.asarray(weight / weight.sum()), offset=offset)
        if "made" not in self._shared:
            reg = problem.regularizer.with_value(self.number, self.values[0])  # without a strength there is no gap
            self._shared["made"] = solver.programs(replace(problem, regularizer=reg), among.x.shape[1])
            self._shared["measure"] = jax.jit(
                lambda psi, w, x, y, extra: evaluation.measure(problem.with_numbers(psi), w, x, y, extra)
            )
        start, found = None, []
        for value in self.values:
            this = replace(problem, regularizer=problem.regularizer.with_value(self.number, value))
            options = {"start": start, "made": self._shared["made"]}
            for now in solver.minimize(own(this, data, rows), batch, algo.tolerance, algo.max_iterations, **options):  # noqa: B007
                if self.stop.is_set():
                    raise KeyboardInterrupt
            measured = self._shared["measure"](numbers(this.regularizer), now.w, among.x, among.y, extra)
            measured = evaluation.ranked(measured)
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
        self.runs = [Evaluated(experiment, up=up, down=down) for _ in range(count)]
        self.traffic = traffic(engine.federation, engine.rounds, experiment.settings.seed)
        self.solutions: dict[int, dict[str, np.ndarray]] = {}  # of runs that have met a target
        self.last: Snapshot | None = None

    def note(self, now: Snapshot) -> bool:
        """A row more for each run; whether any of them goes on."""
        self.last, sent = now, self.traffic.after(now.round, self.runs[0].up, self.runs[0].down)
        for g, run in enumerate(self.runs):
            if run.stopped or run.diverged:
                continue
            run.diverged = int(now.diverged[g])
            if not run.diverged:
                run.note(now, g, sent, 0.0)
                if run.meets():
                    self.solutions[g] = {name: each[g] for name, each in now.solution.items()}
        return not all(run.stopped or run.diverged for run in self.runs)

    def ended(self) -> Iterator[tuple]:
        """Of each run its metrics, solution, end, and counts."""
        assert self.last is not None
        for g, run in enumerate(self.runs):
            solution = self.solutions.get(g) or {name: each[g] for name, each in self.last.solution.items()}
            settings = run.experiment.settings
            run.judge_growth()
            tail = aggregate(run.rows, settings.tail_rounds, run.experiment.metrics, stopped=run.stopped)
            falling = not run.stopped and unfinished(run.rows)
            end = "diverged" if run.diverged else "falling" if falling else "done"
            last = run.rows[-1] if run.rows else {"round": 0}
            sent = [sum(v for name, v in last.items() if name.endswith(way)) for way in ("bytes_up", "bytes_down")]
            yield {} if run.diverged else tail["tail"], solution, end, (last["round"], *sent)


def _joined(found: Sequence[tuple]) -> Fitted:
    names = list(dict.fromkeys(name for each, *_ in found for name in each))
    counts = np.array([each[3] for each in found], np.int64).T
    return Fitted(
        metrics={name: np.array([each[0].get(name, np.nan) for each in found]) for name in names},
        solution={name: np.stack([each[1][name] for each in found]) for name in found[0][1]},
        end=np.array([ENDS.index(each[2]) for each in found]),
        counts=dict(zip(("rounds", "bytes_up", "bytes_down"), counts, strict=True)),
    )
