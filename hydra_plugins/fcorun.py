"""fcorun's sweeps: a sweeper with zipped axes, and a launcher that composes jobs that differ in numbers only once.

Also the search path of configuration files: the user's own folder, fcorun's, those of installed packages.

This file lies here because Hydra looks for its plug-ins in this folder. A sweep is run by ``fcorun.runs.sweep``.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from fcorun.base.errors import UserError
from fcorun.base.override_text import split_overrides
from fcorun.experiment.configuration.compose import override_key, translate_names
from fcorun.experiment.configuration.objects import read_choices
from fcorun.experiment.configuration.search_path import own_defaults_dir, plugin_config_dirs, user_config_dir
from fcorun.experiment.configuration.sweep_jobs import has_product
from fcorun.runs.sweep_conditions import check_conditions

NumericOverrides = dict[str, Any]  # key -> number, set in a configuration that is already composed


class FcorunSearchPath(SearchPathPlugin):
    """The search path of configuration files: the user's own folder, fcorun's, those of installed packages."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if folder := user_config_dir():
            search_path.prepend("own", f"file://{folder}", anchor="main")
        if folder := own_defaults_dir():
            search_path.prepend("own defaults", f"file://{folder}", anchor="own")
        for name, folder in plugin_config_dirs().items():
            search_path.append(name, f"file://{folder}")


class FcorunSweeper(Sweeper):
    """A sweep over the product of all axes. Arguments: see conf/hydra/sweeper/fcorun.yaml."""

    def __init__(
        self,
        zip: list | str | None = None,
        params: dict | None = None,
        also: list | None = None,
        conditions: list | str | None = None,
    ):
        self.zip = zip or []
        self.params = params or {}
        self.also = also or []
        self.conditions = conditions or []

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        with read_write(config.hydra):  # every job is given the sweep folder of this command line
            folder = str(config.hydra.sweep.dir).replace("'", "\\'")
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{folder}'")
        self.parser = OverridesParser.create(config_loader=hydra_context.config_loader)
        self.launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        overrides = self.all_overrides(arguments)
        given = self.parser.parse_overrides(arguments)
        given_keys = {override.key_or_group for override in given}
        jobs = []
        self._check_zipped_keys(overrides)
        if has_product(self.params, self._own_overrides, given):
            jobs = _combine(overrides, self._zip_groups())
        else:
            self._require_effect(given)
        jobs += self.additional_jobs(overrides, given_keys)
        if isinstance(self.conditions, str):
            raise UserError(f"hydra.sweeper.conditions={self.conditions} must be a list of keys: [KEY,KEY]")
        check_conditions(self.conditions, [{override_key(text): text for text in job} for job in jobs])
        return self.launcher.launch(jobs, initial_job_idx=0)

    def all_overrides(self, arguments: list[str]) -> list[Override]:
        """Return the overrides of the command line, and those of its experiment with other keys. Raises UserError."""
        given = {override.key_or_group: override for override in self.parser.parse_overrides(arguments)}
        if "experiment" in given and given["experiment"].is_sweep_override():
            raise UserError(
                f"{given['experiment'].input_line}: each experiment is a sweep of its own; give one at a time"
            )
        params = [f"{key}={value}" for key, value in self.params.items() if key.lstrip("+") not in given]
        return self.parser.parse_overrides([*arguments, *params])

    def additional_jobs(self, overrides: list[Override], given_keys: set[str]) -> list[list[str]]:
        """Return the overrides of each job outside of the product: those that the job inherits, and its own.

        A job inherits overrides of keys that it does not set itself: single values, and the lists of the command line,
        whose keys are ``given_keys``. It stands for all combinations of values, but for zipped lists. Raises UserError
        as ``_combine``.
        """
        jobs = []
        for own in self._own_overrides:
            inherited = [override for override in overrides if not _is_set_by(own, override)]
            fixed = [str(override.input_line) for override in inherited if not override.is_sweep_override()]
            lists = [o for o in inherited if o.is_sweep_override() and o.key_or_group in given_keys]
            axes = [*lists, *own]
            keys = {override.get_key_element() for override in axes if override.is_sweep_override()}
            zipped = [group for group in self._zip_groups() if keys.issuperset(group)]
            jobs += [[*fixed, *values] for values in _combine(axes, zipped)]
        return jobs

    @cached_property
    def _own_overrides(self) -> list[list[Override]]:
        """The overrides of each line of ``also``."""
        return [self.parser.parse_overrides(list(map(translate_names, split_overrides(line)))) for line in self.also]

    def _require_effect(self, given: list[Override]) -> None:
        """Raise UserError for an override of the command line whose key each line of ``also`` sets itself."""
        lines = self._own_overrides
        experiment = next((f"experiment={o.value()}" for o in given if o.key_or_group == "experiment"), "")
        for override in given:
            if all(_is_set_by(own, override) for own in lines):
                key = override.key_or_group
                advice = "leave it out"
                if key.startswith("algo."):
                    advice += f", or add runs of their own: algo=NAME {override.input_line}"
                raise UserError(
                    f"{override.input_line} reaches no run: {key} is set by every run of "
                    f"{experiment or 'hydra.sweeper.also'} itself; {advice}"
                )

    def _check_zipped_keys(self, overrides: list[Override]) -> None:
        """Raise UserError for a zipped key that has a list of values neither in ``overrides`` nor in ``also``."""
        all_overrides = [*overrides, *itertools.chain(*self._own_overrides)]
        listed = {override.get_key_element() for override in all_overrides if override.is_sweep_override()}
        _check_listed(itertools.chain(*self._zip_groups()), listed)

    def _zip_groups(self) -> list[list[str]]:
        """Return the groups of zipped keys. Raises UserError for a ``zip`` of another form."""
        is_nested = bool(self.zip) and not isinstance(self.zip[0], str)
        groups = [list(group) for group in (self.zip if is_nested else [self.zip])]
        zipped_keys = list(itertools.chain(*groups))
        if isinstance(self.zip, str) or len(set(zipped_keys)) < len(zipped_keys):
            raise UserError(f"hydra.sweeper.zip={self.zip} must be a list of different keys: [KEY,KEY]")
        return [group for group in groups if group]


def _is_set_by(own: list[Override], override: Override) -> bool:
    """Return whether the own overrides of a job set the key of another override, or choose its section."""
    return any(f"{override.key_or_group}.".startswith(f"{o.key_or_group}.") for o in own)


def _check_listed(zipped_keys: Iterable[str], listed: set[str]) -> None:
    """Raise UserError for a zipped key that is not among the keys with lists of values."""
    for key in zipped_keys:
        if key not in listed:
            raise UserError(f"hydra.sweeper.zip: {key} has no list of values; give {key}=VALUE,VALUE,...")


def _explain_chosen_strength(config: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Return the remark on a strength of a file that ``study.strength`` of the command replaces.

    A file of a psi, as conf/reg/l1.yaml, has a default; another value is that of an experiment's file. Raises UserError
    for a composed job that has both choices from one source.
    """
    study = OmegaConf.select(config, "study.strength")
    if study is None:
        return []
    keys = set(map(override_key, overrides))
    sentence = f"study.strength={study} chooses the strength of each run: give study.strength or reg.strength, not both"
    if "reg.strength" in keys:
        raise UserError(sentence)
    composed: Any = OmegaConf.to_container(config.reg, resolve=False)
    defaults = read_choices("reg", user_config_dir()).get(config.hydra.runtime.choices.reg, {})
    if composed.get("strength") == defaults.get("strength"):
        return []
    if not keys & {"study", "study.strength"}:
        raise UserError(f"{sentence}; a file sets reg.strength={composed['strength']}: leave it out there")
    return [f"study.strength={study} replaces reg.strength={composed['strength']} of a file"]


def _combine(overrides: list[Override], zip_groups: list[list[str]]) -> list[list[str]]:
    """Return the combinations of the values of overrides, where the keys of a group are combined pairwise.

    Raises UserError for axes that are no lists, and for zipped axes that have no list of values, or lists of different
    lengths.
    """
    for override in overrides:
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise UserError(f"{override.input_line} is no list of values: give hydra/sweeper=optuna to search it")
    values = {}  # of each key, as overrides
    for override in overrides:
        split = BasicSweeper.split_arguments([override], None)[0]
        values[override.get_key_element()] = [value for (value,) in split]
    axes = {key: [[value] for value in key_values] for key, key_values in values.items()}
    for group in zip_groups:
        _check_listed(group, {key for key, key_values in values.items() if len(key_values) > 1})
        if len({len(values[key]) for key in group}) > 1:
            raise UserError(f"hydra.sweeper.zip: {', '.join(group)} differ in length; give each as many values")
        axes[group[0]] = [list(combination) for combination in zip(*(values[key] for key in group), strict=True)]
        for key in group[1:]:
            del axes[key]
    return [list(itertools.chain(*combination)) for combination in itertools.product(*axes.values())]


class FcorunLauncher(Launcher):
    """A launcher that runs jobs that differ in numbers only as one program.

    Arguments: see conf/hydra/launcher/fcorun.yaml.
    """

    def __init__(self, **options: Any):
        self.options = options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader = hydra_context.config_loader
        self.task = task_function
        self.config = config
        self.parse = cache(OverridesParser.create().parse_override)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        points = self.make_points(job_overrides, initial_job_idx)
        if points and all(isinstance(point.error, UserError) for point in points):
            raise UserError("; ".join(dict.fromkeys(str(point.error) for point in points)))  # nothing is written
        values = {}
        for point, value in zip(points, self.run_points(points), strict=True):
            values |= dict.fromkeys(point.combinations, value)
        return [
            JobReturn(overrides=overrides, status=JobStatus.COMPLETED, _return_value=values[position])
            for position, overrides in enumerate(job_overrides)
        ]

    def run_points(self, points: list, without_report: bool = False) -> Sequence[float | None]:
        """Run points, report on them, and return the value of each; with ``without_report`` only run them."""
        return self.task.sweep(points, self.config, self.options, without_report)  # type: ignore[attr-defined]

    def make_points(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list:
        """Return the points of a sweep; ``combinations`` of a point lists the jobs that it stands for."""
        from fcorun.experiment.configuration.sweep_jobs import deduplicate
        from fcorun.runs.sweep import SweepPoint, merge_duplicates

        setup_globals()
        points: list[SweepPoint] = []
        self.folder = str(self.config.hydra.sweep.dir)
        # by the overrides that are no numbers: a configuration and its plain values, or an error
        self.compositions: dict = {}
        for job in deduplicate(job_overrides, self._compose):
            numbers, _ = self._split(job.overrides)
            composition = job.error or self._find_composition(job.overrides)
            point = self._make_point(composition, numbers, initial_job_idx + job.positions[0], job.overrides)
            point.combinations = job.positions
            if not isinstance(composition, Exception):
                point.warnings = job.explain_left_out(lambda group, config=composition[0]: str(config[group].name))
                point.warnings += _explain_chosen_strength(composition[0], job.overrides)
            points.append(point)
        return merge_duplicates(points)

    def _compose(self, overrides: list[str]) -> DictConfig:
        """Return a configuration with these overrides, except for numbers. Raises what Hydra raises."""
        composition = self._find_composition(overrides)
        if isinstance(composition, Exception):
            raise composition
        return composition[0]

    def _find_composition(self, overrides: list[str]) -> Any:
        """Return the configuration and plain values of overrides that differ in numbers only, or the error."""
        from fcorun.experiment.configuration.compose import compose_with_defaults

        numbers, key = self._split(overrides)
        if key not in self.compositions:
            try:
                config = compose_with_defaults(
                    overrides, lambda current: self.loader.load_sweep_config(self.config, current)
                )
                self.compositions[key] = config, _plain_values(config, numbers)
            except Exception as error:
                self.compositions[key] = error
        return self.compositions[key]

    def _split(self, overrides: Sequence[str]) -> tuple[NumericOverrides, tuple]:
        """Return the overrides that are numbers, and a key that jobs share that differ in these numbers only."""
        numbers = {}
        number_keys = []
        others = []
        for text in overrides:
            override = self.parse(text)
            value = override.value()
            is_plain = override.package is None and not override.is_delete()
            if is_plain and isinstance(value, (int, float)) and not isinstance(value, bool):
                numbers[override.key_or_group] = value
                number_keys.append(override.get_key_element())  # with its sign: +KEY is an error if the key exists
            else:
                others.append(text)
        return numbers, (*sorted(others), *sorted(number_keys))

    def _make_point(self, composition: Any, numbers: NumericOverrides, job_number: int, overrides: list[str]) -> Any:
        """Return the point of a job from its composition, with its numbers set; or a point with the error."""
        from fcorun.base.config import changes_runs
        from fcorun.experiment.configuration.compose import describe_hydra_error, is_user_error
        from fcorun.runs.sweep import SweepPoint

        text = " ".join(o for o in overrides if changes_runs(override_key(o)))
        if isinstance(composition, Exception):
            return SweepPoint.from_error(text, self.folder, UserError(describe_hydra_error(composition)))
        config, values = composition
        try:
            with read_write(config.hydra), open_dict(config.hydra):
                config.hydra.job.num = job_number
                config.hydra.job.id = str(job_number)
                config.hydra.overrides.task = overrides
            for key, value in numbers.items():
                OmegaConf.update(config, key, value)
            if "hydra:" in str(OmegaConf.to_container(config.hydra.sweep)):  # read by that resolver, and slow to set
                HydraConfig.instance().set_config(config)
            plain_values = values and _with_numbers(values, numbers)
            return self.task.point(text, config, plain_values)  # type: ignore[attr-defined]
        except Exception as error:
            if is_user_error(error) and not isinstance(error, UserError):  # a UserError is a sentence already
                error = UserError(describe_hydra_error(error))
            return SweepPoint.from_error(text, self.folder, error)


def _plain_values(config: DictConfig, numbers: NumericOverrides) -> dict[str, Any] | None:
    """Return the plain values of a configuration; None if setting the numbers may change other values."""
    from fcorun.experiment.configuration.compose import to_plain_values

    if any(key.count(".") > 1 or key.startswith("hydra.") for key in numbers):
        return None
    names = {name for key in numbers for name in key.split(".")}
    raw: Any = OmegaConf.to_container(config)
    text = repr({key: raw[key] for key in raw if key != "hydra"})
    for interpolation in re.findall(r"\$\{(.*?)\}", text):
        resolver, _, target = interpolation.rpartition(":")
        if resolver not in ("", "oc.select") or "$" in target or names & set(re.split(r"\W+", target)):
            return None
    return to_plain_values(config)


def _with_numbers(values: dict[str, Any], numbers: NumericOverrides) -> dict[str, Any]:
    """Return plain values with some numbers set."""
    values = dict(values)
    for key, value in numbers.items():
        section, _, name = key.rpartition(".")
        if section:
            values[section] = values[section] | {name: value}
        else:
            values[name] = value
    return values
