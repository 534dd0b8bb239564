"""A search instead of a grid: optuna suggests points in batches, each run as one program, and is given their results.

This file lies here because Hydra looks for its plug-ins in this folder. Hydra's own sweeper for optuna requires a
version of optuna below 3.
"""

import glob
import hashlib
import itertools
import json
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from filelock import FileLock, Timeout
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import IntervalSweep, Override

from fcorun.base.config import Count, Index, build
from fcorun.base.errors import UserError
from fcorun.base.metrics import differ_in_epsilon
from fcorun.base.system.machine import require_single_host
from fcorun.experiment.configuration.compose import make_sweep_name
from fcorun.reports.build_table import asks_for_privacy, is_environment_seed
from fcorun.reports.run_table import SEED_KEYS, changes_function
from hydra_plugins.fcorun import FcorunLauncher, FcorunSweeper

_INITIAL_POINTS = 8  # before the sampler uses results; a power of two, as Sobol's sequence needs
_ALIVE = ".alive"  # the end of the name of a lock beside a journal, which a process holds as long as it searches


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search: its number of points, the points of a batch, its seed, and optuna's journal, a file."""

    n_trials: Count = 32
    batch: Count = 4
    seed: Index = 0
    storage: str | None = None


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

    @property
    def examples(self) -> list[str]:
        """Overrides that tell plug-ins apart: a value each of a list of choices, else one number."""
        values = self.values[:1] if self.ordered else self.values
        return [f"{self.key}={value}" for value in values or (self.low,)]

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
        self._check_equal_worlds(axes, seed_jobs[0])
        if self.launcher.config.dry_run:
            options = replace(options, storage=None)
        study = _open_study(options, axes, self._name_study(arguments, axes, seed_jobs[0]))
        self._take_metric(study)
        with _show_alive(options.storage) as process:
            return self._search(study, options, axes, seed_jobs, process)

    def _search(
        self, study: Any, options: SearchOptions, axes: list[SearchAxis], seed_jobs: list[tuple[str, ...]], process: str
    ) -> Any:
        """Run the trials of a study, each with all seeds, and report on all of its points."""
        run_of_job: dict[tuple[str, ...], tuple] = {}  # several jobs may be the same run
        points: dict[tuple, Any] = {}  # by their run

        def add_points(trials: list) -> list[list[tuple[str, ...]]]:
            """Add the points of some trials, and return the jobs of each trial."""
            jobs_of_trials = [
                [(*trial.user_attrs["overrides"], *seed_job) for seed_job in seed_jobs] for trial in trials
            ]
            new_jobs = [job for job in dict.fromkeys(itertools.chain(*jobs_of_trials)) if job not in run_of_job]
            for point in self.launcher.make_points([list(job) for job in new_jobs], len(run_of_job)):
                run = (point.folder, point.experiment and point.experiment.identity)
                points.setdefault(run, point)
                run_of_job.update((new_jobs[position], run) for position in point.combinations)
            return jobs_of_trials

        add_points(_finished(study))  # those of an earlier search, or of other processes
        n_failed = 0  # trials that may succeed when the command is given again
        while trials := _ask(study, options, axes, n_failed, process):
            jobs_of_trials = add_points(trials)
            if self.launcher.config.dry_run:
                break  # later points depend on results
            self.launcher.run_points(list(points.values()), without_report=True)
            values = dict(zip(points, self._objective_values(study, list(points.values()), axes), strict=True))
            for trial, jobs in zip(trials, jobs_of_trials, strict=True):
                if any(points[run_of_job[job]].error is not None for job in jobs):
                    _give_up(study, trial)
                    n_failed += 1
                    continue
                trial_values = [values[run_of_job[job]] for job in jobs]
                study.tell(trial, inf if inf in trial_values else median(trial_values), skip_if_finished=True)
            failed = [point.error is not None for point in points.values()]
            if all(failed) or (self.launcher.config.fail_fast and any(failed)):
                break
        add_points(_finished(study))
        return self.launcher.run_points(list(points.values()))

    def _check_equal_worlds(self, axes: list[SearchAxis], seed_job: tuple[str, ...]) -> None:
        """Refuse an axis that draws the world or asks for privacy, or whose values cost another epsilon.

        Raises UserError.
        """
        first = [axis.examples[0] for axis in axes]
        for position, axis in enumerate(axes):
            if is_environment_seed(axis.key):
                raise UserError(f"{axis.key} is searched, and the luckiest would win: give one value, "
                                f"{axis.examples[0]}, and a search for each other one")  # fmt: skip
            values = axis.values or (axis.low, axis.high)
            jobs = [[*first[:position], f"{axis.key}={v}", *first[position + 1 :], *seed_job] for v in values]
            experiments = [point.experiment for point in self.launcher.make_points(jobs[:1], 0)]
            if asks_for_privacy(axis.key, () if experiments[0] is None else experiments[0].privacy.choices):
                raise UserError(f"{axis.key} is searched, but less privacy always fits better, and would win: give one "
                                f"value, {axis.examples[0]}, and a search for each other one")  # fmt: skip
            if experiments[0] is None or not experiments[0].privacy.acts:
                continue
            experiments += [point.experiment for point in self.launcher.make_points(jobs[1:], 0)]
            if differ_in_epsilon([experiment.planned_epsilon for experiment in experiments if experiment]):
                raise UserError(f"{axis.key} is searched, but its values cost another epsilon, and less privacy always "
                                f"fits better: give one value, {axis.examples[0]}, or privacy.epsilon, for which the "
                                "noise of each is found")  # fmt: skip

    def _name_study(self, arguments: list[str], axes: list[SearchAxis], seed_job: tuple[str, ...]) -> str:
        """Return the name of the study of these axes, seeds, fixed overrides, code and data in its storage.

        Identities of runs tell the code and the data: of a point, and of those that replace one of its choices.
        """
        overrides = self.all_overrides(arguments)
        seeds = sorted(str(o.input_line) for o in overrides if o.get_key_element() in SEED_KEYS)
        first = [axis.examples[0] for axis in axes]
        jobs = []
        for position, axis in enumerate(axes):
            for choice in axis.examples:
                jobs.append([*first[:position], choice, *first[position + 1 :], *seed_job])
        points = self.launcher.make_points(jobs, 0)
        identities = sorted(point.experiment.identity for point in points if point.experiment)
        digest = hashlib.sha256(repr([axes, seeds, identities]).encode()).hexdigest()[:8]
        return f"{make_sweep_name('search', [str(o.input_line) for o in overrides])}-{digest}"

    def _take_metric(self, study: Any) -> None:
        """Take the metric of a study that has one. Raises UserError if another one is given."""
        config, of_study = self.launcher.config, study.user_attrs.get("metric")
        if of_study is not None and config.metric not in (None, of_study):
            raise UserError(f"metric={config.metric}: the search in hydra.sweeper.storage goes by {of_study}: give "
                            f"metric={of_study}, or another storage")  # fmt: skip
        config.metric = config.metric or of_study

    def _objective_values(self, study: Any, points: list, axes: list[SearchAxis]) -> list[float]:
        """Return the values that the search minimizes.

        A metric that is not given is chosen once, and the report uses it too. Raises UserError if none compares points.
        """
        from fcorun.runs.sweep import choose_search_metric, objective_values

        config = self.launcher.config
        if config.metric is None:
            config.metric = choose_search_metric(points, [axis.key for axis in axes])
        study.set_user_attr("metric", str(config.metric))
        return objective_values(points, config.metric, config.tail_rounds)

    def _check_options(self) -> SearchOptions:
        """Return the options of the search. Raises UserError for options of grids, another launcher, several hosts."""
        for name, value in (("also", self.also), ("zip", self.zip), ("conditions", self.conditions)):
            if value:
                raise UserError(f"hydra.sweeper.{name} is of grids: leave it out, or leave hydra/sweeper=optuna out")
        if not isinstance(self.launcher, FcorunLauncher):
            raise UserError("hydra/sweeper=optuna goes with hydra/launcher=fcorun: leave hydra/launcher out")
        require_single_host("hydra/sweeper=optuna", self.launcher.config.get("hosts"))
        return build(SearchOptions, self.options, "hydra.sweeper")

    def _split_axes(self, arguments: list[str]) -> tuple[list[SearchAxis], list[tuple[str, ...]]]:
        """Return the searched axes, and the other overrides of a job, once for each combination of seeds.

        Raises UserError if there is no axis, if an axis is of data, or if the metric does not
        compare its values.
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
            if axis.key.partition(".")[0] == "data":
                raise UserError(f"{axis.key} is searched, but other data are another problem, and the easiest would "
                                f"win: give one value, {axis.examples[0]}, and a search for each other one"
                                )  # fmt: skip
            if metric and changes_function(axis.key, str(metric)):
                other = "val_accuracy" if changes_function(axis.key, "val_loss") else "val_loss"
                raise UserError(f"metric={metric} is another one at each {axis.key}, which is searched, and does not "
                                f"compare: give metric={other}")  # fmt: skip
        return axes, [tuple(job) for job in seed_jobs]


def _open_study(options: SearchOptions, axes: list[SearchAxis], name: str) -> Any:
    """Return the optuna study of these axes, new or of its name in the storage. Its first points are a Sobol sequence.

    Such points, spread over the space, find better values than random ones. Raises UserError if optuna is not
    installed, or if the storage cannot be used.
    """
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
        from scipy.stats.qmc import Sobol
    except ImportError as error:
        raise UserError("hydra/sweeper=optuna needs optuna: pip install 'fcorun[optuna]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with _alone(options.storage):
        storage = None
        if options.storage is not None:
            _check_journal(Path(options.storage))
            storage = JournalStorage(JournalFileBackend(options.storage))
        study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
        study.sampler = _make_sampler(options.seed)
        if not study.trials:
            for fractions in Sobol(len(axes), rng=options.seed).random(_INITIAL_POINTS):
                values = {axis.key: axis.value_at(fraction) for axis, fraction in zip(axes, fractions, strict=True)}
                study.enqueue_trial(values)
    return study


def _make_sampler(seed: int) -> Any:
    """Return a sampler that models the axes jointly and keeps the points of a batch at a distance from each other."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=True, n_startup_trials=_INITIAL_POINTS
        )


def _check_journal(path: Path) -> None:
    """Raise UserError for a file that is no journal of optuna, which would add lines to it."""
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        with path.open(encoding="utf-8") as file:
            is_journal = "op_code" in json.loads(file.readline())
    except (OSError, ValueError, TypeError):
        is_journal = False
    if not is_journal:
        raise UserError(f"hydra.sweeper.storage={path} is no journal of optuna: give another file")


@contextmanager
def _alone(storage: str | None) -> Iterator[None]:
    """Let one process at a time count and propose the trials of a storage."""
    if storage is None:
        yield
        return
    try:
        with FileLock(f"{storage}.ask"):
            yield
    except OSError as error:
        raise UserError(f"hydra.sweeper.storage={storage} cannot be written ({error.strerror}): give another "
                        "file") from error  # fmt: skip


def _ask(study: Any, options: SearchOptions, axes: list[SearchAxis], n_failed: int, process: str) -> list:
    """Return the next trials of a study, at most a batch, so that all processes together make ``n_trials``.

    The trials of a process that was killed are made anew. ``n_failed`` of this process are counted, too. The new trials
    name this ``process``.
    """
    from optuna.trial import TrialState

    with _alone(options.storage):
        n_trials = len(_finished(study)) + n_failed
        living = _find_living(options.storage)
        for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if str(trial.user_attrs.get("process")) in living:
                n_trials += 1
            else:
                _give_up(study, trial)
                study.enqueue_trial(trial.params)
        if (
            options.storage is not None
        ):  # processes propose other points, and one that goes on those of an unbroken search
            study.sampler = _make_sampler(options.seed + len(study.get_trials(deepcopy=False)))
        trials = [study.ask() for _ in range(min(options.batch, options.n_trials - n_trials))]
        for trial in trials:
            trial.set_user_attr("process", process)
            trial.set_user_attr("overrides", [axis.suggest_override(trial) for axis in axes])
    return trials


def _give_up(study: Any, trial: Any) -> None:
    """End a trial without a value."""
    from optuna.trial import TrialState

    study.tell(trial.number, state=TrialState.FAIL)


def _finished(study: Any) -> list:
    """Return the trials of a study that have a value."""
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])


@contextmanager
def _show_alive(storage: str | None) -> Iterator[str]:
    """Name this process, and hold a lock of this name beside the storage, by which processes of any machine see it."""
    name = secrets.token_hex(8)
    if storage is None:
        yield name
        return
    path = Path(f"{storage}.{name}{_ALIVE}")
    try:
        with FileLock(path):
            yield name
    finally:
        path.unlink(missing_ok=True)


def _find_living(storage: str | None) -> set[str]:
    """Return the names of the processes that search with a storage, and delete the locks of those that were killed."""
    living: set[str] = set()
    if storage is None:
        return living
    path = Path(storage)
    for lock in path.parent.glob(f"{glob.escape(path.name)}.*{_ALIVE}"):
        try:
            with FileLock(lock, timeout=0):
                lock.unlink(missing_ok=True)
        except Timeout:
            living.add(lock.name.removesuffix(_ALIVE).rpartition(".")[2])
    return living
