"""A search instead of a grid: optuna suggests points in batches, each run as one program, and is given their results.

This file lies here because Hydra looks for its plug-ins in this folder. Hydra's own sweeper for optuna requires a
version of optuna below 3.
"""

import itertools
import warnings
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import IntervalSweep, Override

from fcorun.base.config import Count, Index, build
from fcorun.base.errors import UserError
from fcorun.reports.run_table import SEED_KEYS, changes_function
from hydra_plugins.fcorun import FcorunLauncher, FcorunSweeper

_INITIAL_POINTS = 8  # before the sampler uses results; a power of two, as Sobol's sequence needs


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search: its number of points, the points of a batch, and its seed."""

    n_trials: Count = 32
    batch: Count = 4
    seed: Index = 0


@dataclass(frozen=True)
class SearchAxis:
    """A searched key with its values: those of a list, or the numbers from ``low`` to ``high``."""

    key: str
    values: tuple[str, ...] = ()
    ordered: bool = False
    low: Any = None
    high: Any = None
    log: bool = False

    @classmethod
    def from_override(cls, override: Override) -> "SearchAxis":
        """Return the axis of an override; numbers in a list are sorted. Raises UserError for an invalid interval."""
        key = override.get_key_element()
        sweep = override.value()
        if not isinstance(sweep, IntervalSweep):
            values = [value.partition("=")[2] for (value,) in BasicSweeper.split_arguments([override], None)[0]]
            try:
                return cls(key, tuple(sorted(values, key=float)), ordered=True)
            except ValueError:
                return cls(key, tuple(values))
        low = sweep.start
        high = sweep.end
        log = "log" in sweep.tags
        if low is None or high is None or not low < high:
            raise UserError(f"{override.input_line}: give an interval from a smaller number to a larger one")
        if log and low <= 0:
            raise UserError(f"{override.input_line}: give an interval that is logarithmic a positive lower end")
        return cls(key, low=low, high=high, log=log)

    def value_at(self, fraction: float) -> Any:
        """Return the value at a fraction of the axis, from 0 to 1, in the form that optuna keeps it."""
        if self.values:
            index = int(fraction * len(self.values))
            return index if self.ordered else self.values[index]
        if self.log:
            value = self.low * (self.high / self.low) ** fraction
        else:
            value = self.low + fraction * (self.high - self.low)
        if isinstance(self.low, int):
            return min(max(round(value), self.low), self.high)
        return value

    def suggest_override(self, trial: Any) -> str:
        """Return an optuna trial's suggestion as an override; real numbers have four digits, as in tables."""
        if self.ordered:
            value: Any = self.values[trial.suggest_int(self.key, 0, len(self.values) - 1)]
        elif self.values:
            value = trial.suggest_categorical(self.key, self.values)
        elif isinstance(self.low, int):
            value = trial.suggest_int(self.key, self.low, self.high, log=self.log)
        else:
            rounded = float(f"{trial.suggest_float(self.key, self.low, self.high, log=self.log):.4g}")
            value = min(max(rounded, self.low), self.high)
        return f"{self.key}={value}"


class OptunaSweeper(FcorunSweeper):
    """A search by the tree-structured Parzen estimator. Arguments: see conf/hydra/sweeper/optuna.yaml."""

    def __init__(
        self,
        params: dict | None = None,
        also: list | None = None,
        zip: list | None = None,
        conditions: list | None = None,
        **options: Any,
    ):
        super().__init__(zip, params, also, conditions)
        self.options = options

    def sweep(self, arguments: list[str]) -> Any:
        options = self._check_options()
        axes, seed_jobs = self._split_axes(arguments)
        study = _create_study(options.seed, axes)
        run_of_job: dict[tuple[str, ...], tuple] = {}  # several jobs may be the same run
        points: dict[tuple, Any] = {}  # by their run
        finished_trials = 0
        while finished_trials < options.n_trials:
            batch = min(options.batch, options.n_trials - finished_trials)
            trials = [study.ask() for _ in range(batch)]
            jobs_of_trials = []
            for trial in trials:
                suggestions = [axis.suggest_override(trial) for axis in axes]
                jobs_of_trials.append([(*suggestions, *seed_job) for seed_job in seed_jobs])
            new_jobs = [job for job in dict.fromkeys(itertools.chain(*jobs_of_trials)) if job not in run_of_job]
            for point in self.launcher.make_points([list(job) for job in new_jobs], len(run_of_job)):
                run = (point.folder, point.experiment and point.experiment.identity)
                points.setdefault(run, point)
                run_of_job |= {new_jobs[position]: run for position in point.combinations}
            if self.launcher.config.dry_run:
                break  # later points depend on results
            self.launcher.run_points(list(points.values()), without_report=True)
            values = dict(zip(points, self._objective_values(list(points.values()), axes), strict=True))
            for trial, jobs in zip(trials, jobs_of_trials, strict=True):
                trial_values = [values[run_of_job[job]] for job in jobs]
                study.tell(trial, inf if inf in trial_values else median(trial_values))
            finished_trials += batch
            failed = [point.error is not None for point in points.values()]
            if all(failed) or (self.launcher.config.fail_fast and any(failed)):
                break
        return self.launcher.run_points(list(points.values()))

    def _objective_values(self, points: list, axes: list[SearchAxis]) -> list[float]:
        """Return the values that the search minimizes.

        A metric that is not given is chosen once, and the report uses it too. Raises UserError if none compares points.
        """
        from fcorun.runs.sweep import choose_search_metric, objective_values

        config = self.launcher.config
        if config.metric is None:
            config.metric = choose_search_metric(points, [axis.key for axis in axes])
        return objective_values(points, config.metric, config.tail_rounds)

    def _check_options(self) -> SearchOptions:
        """Return the options of the search. Raises UserError for options of grids, and for another launcher."""
        for name, value in (("also", self.also), ("zip", self.zip), ("conditions", self.conditions)):
            if value:
                raise UserError(f"hydra.sweeper.{name} is of grids: leave it out, or leave hydra/sweeper=optuna out")
        if not isinstance(self.launcher, FcorunLauncher):
            raise UserError("hydra/sweeper=optuna goes with hydra/launcher=fcorun: leave hydra/launcher out")
        return build(SearchOptions, self.options, "hydra.sweeper")

    def _split_axes(self, arguments: list[str]) -> tuple[list[SearchAxis], list[tuple[str, ...]]]:
        """Return the searched axes, and the other overrides of a job, once for each combination of seeds.

        Raises UserError if there is no axis, or if the metric does not compare the values of an axis.
        """
        overrides = self.all_overrides(arguments)
        searched = [o for o in overrides if o.is_sweep_override() and o.get_key_element() not in SEED_KEYS]
        seed_jobs = BasicSweeper.split_arguments([o for o in overrides if o not in searched], None)[0]
        if not searched:
            raise UserError("hydra/sweeper=optuna has nothing to search: give KEY=VALUE,VALUE or an interval, such as "
                            "'algo.client_lr=tag(log,interval(1e-4,1e-1))'")  # fmt: skip
        axes = [SearchAxis.from_override(override) for override in searched]
        metric = self.launcher.config.metric
        for axis in axes:
            if metric and changes_function(axis.key, str(metric)):
                other = "val_accuracy" if changes_function(axis.key, "val_loss") else "val_loss"
                raise UserError(f"metric={metric} is another one at each {axis.key}, which is searched, and does not "
                                f"compare: give metric={other}")  # fmt: skip
        return axes, [tuple(job) for job in seed_jobs]


def _create_study(seed: int, axes: list[SearchAxis]) -> Any:
    """Return an optuna study in memory, whose first points are a Sobol sequence.

    Such points, spread over the space, find better values than random ones. The sampler models the axes jointly and
    keeps the points of a batch at a distance from each other. Raises UserError if optuna is not installed.
    """
    try:
        import optuna
        from scipy.stats.qmc import Sobol
    except ImportError as error:
        raise UserError("hydra/sweeper=optuna needs optuna: pip install 'fcorun[optuna]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=True, n_startup_trials=_INITIAL_POINTS
        )
    study = optuna.create_study(sampler=sampler)
    for fractions in Sobol(len(axes), rng=seed).random(_INITIAL_POINTS):
        study.enqueue_trial({axis.key: axis.value_at(fraction) for axis, fraction in zip(axes, fractions, strict=True)})
    return study
