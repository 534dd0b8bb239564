"""A search instead of a grid: optuna asks for points in batches, each a program, and is told what came out.

It lies here because this is where Hydra looks for plug-ins. Hydra's own sweeper for optuna wants optuna below 3.
"""

import itertools
import warnings
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import IntervalSweep, Override

from fcorun.config import Count, Index, build
from fcorun.errors import UserError
from fcorun.reports.run_table import OBJECTIVE_SECTIONS, REGULARIZED_METRICS, SEED_KEYS
from hydra_plugins.fcorun import FcorunLauncher, FcorunSweeper

_START = 8  # points before the first that follows from others; a power of two, as Sobol's points want it


@dataclass(frozen=True)
class SearchOptions:
    """How a search goes: how many points, how many of them asked for together, and its seed."""

    n_trials: Count = 32
    batch: Count = 4
    seed: Index = 0


@dataclass(frozen=True)
class SearchAxis:
    """A key and what it may be: a value of a list, or a number from ``low`` to ``high``."""

    key: str
    values: tuple[str, ...] = ()
    ordered: bool = False
    low: Any = None
    high: Any = None
    log: bool = False

    @classmethod
    def from_override(cls, override: Override) -> "SearchAxis":
        """The axis that an override asks for; numbers in a list are taken in order. Raises UserError for an interval
        that is none."""
        key, sweep = override.get_key_element(), override.value()
        if not isinstance(sweep, IntervalSweep):
            values = [value.partition("=")[2] for (value,) in BasicSweeper.split_arguments([override], None)[0]]
            try:
                return cls(key, tuple(sorted(values, key=float)), ordered=True)
            except ValueError:
                return cls(key, tuple(values))
        low, high, log = sweep.start, sweep.end, "log" in sweep.tags
        if low is None or high is None or not low < high:
            raise UserError(f"{override.input_line}: give an interval from a smaller number to a larger one")
        if log and low <= 0:
            raise UserError(f"{override.input_line}: give an interval that is logarithmic a positive lower end")
        return cls(key, low=low, high=high, log=log)

    def value_at(self, share: float) -> Any:
        """What lies at a share of the axis, from 0 to 1, in the terms of ``suggest``."""
        if self.values:
            place = int(share * len(self.values))
            return place if self.ordered else self.values[place]
        found = self.low * (self.high / self.low) ** share if self.log else self.low + share * (self.high - self.low)
        return min(max(round(found), self.low), self.high) if isinstance(self.low, int) else found

    def suggest_override(self, trial: Any) -> str:
        """What a trial of optuna's suggests, as an override; real numbers with four digits, as tables show them."""
        if self.ordered:
            value: Any = self.values[trial.suggest_int(self.key, 0, len(self.values) - 1)]
        elif self.values:
            value = trial.suggest_categorical(self.key, self.values)
        elif isinstance(self.low, int):
            value = trial.suggest_int(self.key, self.low, self.high, log=self.log)
        else:
            found = float(f"{trial.suggest_float(self.key, self.low, self.high, log=self.log):.4g}")
            value = min(max(found, self.low), self.high)
        return f"{self.key}={value}"


class OptunaSweeper(FcorunSweeper):
    """A search by the tree-structured Parzen estimator. Arguments: see conf/hydra/sweeper/optuna.yaml."""

    def __init__(self, params: dict | None = None, also: list | None = None, zip: list | None = None, **options: Any):
        super().__init__(zip, params, also)
        self.options = options

    def sweep(self, arguments: list[str]) -> Any:
        how = self._checked()
        axes, fixed = self._axes(arguments)
        study, told = _study(how.seed, axes), 0
        tried: dict[tuple[str, ...], tuple] = {}  # which run each job is: several may be the same one
        points: dict[tuple, Any] = {}
        while told < how.n_trials:
            trials = [study.ask() for _ in range(min(how.batch, how.n_trials - told))]
            asked = [[axis.suggest_override(trial) for axis in axes] for trial in trials]
            jobs = [[(*own, *rest) for rest in fixed] for own in asked]
            new = [job for job in dict.fromkeys(itertools.chain(*jobs)) if job not in tried]
            for point in self.launcher.make_points([list(job) for job in new], len(tried)):
                same = (point.folder, point.experiment and point.experiment.identity)
                points.setdefault(same, point)
                tried |= {new[place]: same for place in point.combinations}
            if self.launcher.config.dry_run:
                break  # what comes next depends on what comes out
            self.launcher.run(list(points.values()), part=True)
            costs = dict(zip(points, self._costs(list(points.values()), axes), strict=True))
            for trial, own in zip(trials, jobs, strict=True):
                found = [costs[tried[job]] for job in own]
                study.tell(trial, inf if inf in found else median(found))
            told += len(trials)
            failed = [point.error is not None for point in points.values()]
            if all(failed) or (self.launcher.config.fail_fast and any(failed)):
                break
        return self.launcher.run(list(points.values()))

    def _costs(self, points: list, axes: list[SearchAxis]) -> list[float]:
        """What to make small. The metric, if none is given, is chosen once, and the report goes by it too."""
        from fcorun.runs.sweep_points import choose_search_metric, objective_values

        config = self.launcher.config
        if config.metric is None:
            config.metric = choose_search_metric(points, lambda name: any(_depends(name, axis.key) for axis in axes))
        return objective_values(points, config.metric, config.tail_rounds)

    def _checked(self) -> SearchOptions:
        """How to search. Raises UserError for what only grids have, and for another launcher."""
        for name, given in (("also", self.also), ("zip", self.zip)):
            if given:
                raise UserError(f"hydra.sweeper.{name} is of grids: leave it out, or leave hydra/sweeper=optuna out")
        if not isinstance(self.launcher, FcorunLauncher):
            raise UserError("hydra/sweeper=optuna goes with hydra/launcher=fcorun: leave hydra/launcher out")
        return build(SearchOptions, self.options, "hydra.sweeper")

    def _axes(self, arguments: list[str]) -> tuple[list[SearchAxis], list[tuple[str, ...]]]:
        """What to search, and the rest of a job, once for each combination of seeds. Raises UserError:
        nothing to, or a metric that does not compare it."""
        overrides = self.all_overrides(arguments)
        searched = [o for o in overrides if o.is_sweep_override() and o.get_key_element() not in SEED_KEYS]
        rest = BasicSweeper.split_arguments([o for o in overrides if o not in searched], None)[0]
        if not searched:
            raise UserError("hydra/sweeper=optuna has nothing to search: give KEY=VALUE,VALUE or an interval, such as "
                            "'algo.client_lr=tag(log,interval(1e-4,1e-1))'")  # fmt: skip
        axes, metric = [SearchAxis.from_override(override) for override in searched], self.launcher.config.metric
        for axis in axes:
            if metric and _depends(metric, axis.key):
                other = "val_accuracy" if axis.key == "objective" else "val_loss"
                raise UserError(f"metric={metric} is another one at each {axis.key}, which is searched, and does not "
                                f"compare: give metric={other}")  # fmt: skip
        return axes, [tuple(job) for job in rest]


def _depends(metric: str, key: str) -> bool:
    """Whether a metric is another one at another value of a key, so that the two do not compare."""
    penalised = metric in REGULARIZED_METRICS and key.partition(".")[0] in OBJECTIVE_SECTIONS
    return penalised or (key == "objective" and metric.endswith("loss"))  # a ridge is in no loss


def _study(seed: int, axes: list[SearchAxis]) -> Any:
    """A study of optuna's in memory. It begins with points spread over the space, which finds more than random ones;
    the sampler takes the axes together, and keeps the points of a batch apart."""
    try:
        import optuna
        from scipy.stats.qmc import Sobol
    except ImportError as error:
        raise UserError("hydra/sweeper=optuna needs optuna: pip install 'fcorun[optuna]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=_START)
    study = optuna.create_study(sampler=sampler)
    for shares in Sobol(len(axes), rng=seed).random(_START):
        study.enqueue_trial({axis.key: axis.value_at(share) for axis, share in zip(axes, shares, strict=True)})
    return study
