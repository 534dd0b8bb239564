"""fcorun's multirun: a sweeper that knows zipped axes, a launcher that composes once for jobs that differ in numbers.
Also the order of the folders of configuration files: the user's own, fcorun's, those of installed packages.

It lies here because this is where Hydra looks for plug-ins. What a sweep does is in fcorun.runs.sweep.
"""

import itertools
import re
from collections.abc import Sequence
from functools import cache
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

from fcorun.configuration.overrides import split_overrides
from fcorun.configuration.search_path import plugin_config_dirs, user_config_dir
from fcorun.errors import UserError

NumericOverrides = dict[str, Any]  # key -> number, set in a configuration that is already composed


class FcorunSearchPath(SearchPathPlugin):
    """The user's own folder of configuration files goes before fcorun's, those of installed packages after it."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if folder := user_config_dir():
            search_path.prepend("own", f"file://{folder}", anchor="main")
        for name, folder in plugin_config_dirs().items():
            search_path.append(name, f"file://{folder}")


class FcorunSweeper(Sweeper):
    """The product of all axes. Arguments: see conf/hydra/sweeper/fcorun.yaml."""

    def __init__(self, zip: list | str | None = None, params: dict | None = None, also: list | None = None):
        self.zip, self.params, self.also = zip or [], params or {}, also or []

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        with read_write(config.hydra):  # so that every job is given the folder that this command line means
            folder = str(config.hydra.sweep.dir).replace("'", "\\'")
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{folder}'")
        self.parser = OverridesParser.create(config_loader=hydra_context.config_loader)
        self.launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        overrides = self.all_overrides(arguments)
        axes = any(override.is_sweep_override() for override in overrides)
        product = self.product_jobs(overrides) if axes or self.params or not self.also else []
        return self.launcher.launch([*product, *self.additional_jobs(overrides)], initial_job_idx=0)

    def all_overrides(self, arguments: list[str]) -> list[Override]:
        """What the command line asks for, and what an experiment brings along that it does not mention."""
        given = {override.key_or_group: override for override in self.parser.parse_overrides(arguments)}
        if "experiment" in given and given["experiment"].is_sweep_override():
            raise UserError(
                f"{given['experiment'].input_line}: each experiment is a sweep of its own; give one at a time"
            )
        params = [f"{key}={value}" for key, value in self.params.items() if key.lstrip("+") not in given]
        return self.parser.parse_overrides([*arguments, *params])

    def additional_jobs(self, overrides: list[Override]) -> list[list[str]]:
        """The overrides of each job that stands beside the product: what is fixed for all, and its own, with all
        combinations of their values."""
        jobs = []
        for job in self.also:
            parsed = self.parser.parse_overrides(split_overrides(job))
            keys = [override.key_or_group for override in parsed]
            fixed = [o for o in overrides if not o.is_sweep_override()]
            fixed = [o for o in fixed if not any(f"{o.key_or_group}.".startswith(f"{key}.") for key in keys)]
            each = BasicSweeper.split_arguments(parsed, None)[0]
            jobs += [[*(str(o.input_line) for o in fixed), *values] for values in each]
        return jobs

    def product_jobs(self, overrides: list[Override]) -> list[list[str]]:
        """The overrides of each job of the product. Raises UserError when zipped axes are none or differ in length."""
        for override in overrides:
            if override.is_sweep_override() and not override.is_discrete_sweep():
                raise UserError(f"{override.input_line} is no list of values: give hydra/sweeper=optuna to search it")
        axes = {o.get_key_element(): [v for (v,) in BasicSweeper.split_arguments([o], None)[0]] for o in overrides}
        nested = bool(self.zip) and not isinstance(self.zip[0], str)
        together = [list(group) for group in (self.zip if nested else [self.zip])]
        units = {key: [[value] for value in values] for key, values in axes.items()}
        zipped = list(itertools.chain(*together))
        if isinstance(self.zip, str) or len(set(zipped)) < len(zipped):
            raise UserError(f"hydra.sweeper.zip={self.zip} must be a list of different keys: [KEY,KEY]")
        for group in filter(None, together):
            for key in group:
                if len(axes.get(key, [])) < 2:
                    raise UserError(f"hydra.sweeper.zip: {key} has no list of values; give {key}=VALUE,VALUE,...")
            lengths = {len(axes[key]) for key in group}
            if len(lengths) > 1:
                raise UserError(f"hydra.sweeper.zip: {', '.join(group)} differ in length; give each as many values")
            units[group[0]] = [list(values) for values in zip(*(axes[key] for key in group), strict=True)]
            for key in group[1:]:
                del units[key]
        return [list(itertools.chain(*parts)) for parts in itertools.product(*units.values())]


class FcorunLauncher(Launcher):
    """Runs jobs that differ in numbers only as one program. Arguments: see conf/hydra/launcher/fcorun.yaml."""

    def __init__(self, **options: Any):
        self.options = options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader, self.task, self.config = hydra_context.config_loader, task_function, config
        self.parse = cache(OverridesParser.create().parse_override)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        points = self.make_points(job_overrides, initial_job_idx)
        if points and all(isinstance(point.error, UserError) for point in points):
            raise UserError("; ".join(dict.fromkeys(str(point.error) for point in points)))  # nothing is written
        values = self.run_points(points)
        returned = {place: value for point, value in zip(points, values, strict=True) for place in point.combinations}
        return [
            JobReturn(overrides=o, status=JobStatus.COMPLETED, _return_value=returned[place])
            for place, o in enumerate(job_overrides)
        ]

    def run_points(self, points: list, part: bool = False) -> Sequence[float | None]:
        """Run points and report on them; the value of each. Of a ``part`` of a search nothing is reported."""
        return self.task.sweep(points, self.config, self.options, part)  # type: ignore[attr-defined]

    def make_points(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list:
        """The points of a sweep that these overrides ask for; in ``places``, which of them each stands for."""
        from fcorun.config import keys_outside_identity
        from fcorun.configuration.sweep_jobs import deduplicate
        from fcorun.runs.sweep_points import SweepPoint, merge_duplicates

        setup_globals()
        points: list[SweepPoint] = []
        self.folder, self.ignored_keys = str(self.config.hydra.sweep.dir), keys_outside_identity()
        self.compositions: dict = {}  # by what differs in more than numbers: its values, or an error
        for job in deduplicate(job_overrides, self._compose):
            settable, _ = self._split(job.overrides)
            found = job.error or self._found(job.overrides)
            point = self._point(found, settable, initial_job_idx + job.positions[0], job.overrides)
            point.places = job.positions
            if not isinstance(found, Exception):
                point.remarks = job.explain_left_out(lambda group, config=found[0]: str(config[group].name))
            points.append(point)
        return merge_duplicates(points)

    def _compose(self, overrides: list[str]) -> DictConfig:
        """The configuration of some overrides, or of others that differ in numbers only; raises what Hydra raises."""
        found = self._found(overrides)
        if isinstance(found, Exception):
            raise found
        return found[0]

    def _found(self, overrides: list[str]) -> Any:
        from fcorun.configuration.sweep_jobs import compose_with_defaults

        settable, key = self._split(overrides)
        if key not in self.compositions:
            try:
                config = compose_with_defaults(
                    overrides, lambda given: self.loader.load_sweep_config(self.config, given)
                )
                self.compositions[key] = config, _plain(config, settable)
            except Exception as error:
                self.compositions[key] = error
        return self.compositions[key]

    def _split(self, overrides: Sequence[str]) -> tuple[NumericOverrides, tuple]:
        """The numbers among the overrides, and what says which other jobs share the rest."""
        settable, names, rest = {}, [], []
        for text in overrides:
            override = self.parse(text)
            value = override.value()
            plain = override.package is None and not override.is_delete()
            if plain and isinstance(value, (int, float)) and not isinstance(value, bool):
                settable[override.key_or_group] = value
                names.append(override.get_key_element())  # with its sign: a key that is added must not be there
            else:
                rest.append(text)
        return settable, (*sorted(rest), *sorted(names))

    def _point(self, found: Any, settable: NumericOverrides, number: int, overrides: list[str]) -> Any:
        from fcorun.configuration.hydra_errors import describe_hydra_error, is_user_error
        from fcorun.runs.sweep_points import SweepPoint

        text = " ".join(o for o in overrides if re.split("[.=]", o)[0] not in self.ignored_keys)
        if isinstance(found, Exception):
            return SweepPoint.from_error(text, self.folder, UserError(describe_hydra_error(found)))
        config, values = found
        try:
            with read_write(config.hydra), open_dict(config.hydra):
                config.hydra.job.num, config.hydra.job.id = number, str(number)
                config.hydra.overrides.task = overrides
            for key, value in settable.items():
                OmegaConf.update(config, key, value)
            if "hydra:" in str(OmegaConf.to_container(config.hydra.sweep)):  # what that resolver reads, slow to set
                HydraConfig.instance().set_config(config)
            return self.task.point(text, config, values and _changed(values, settable))  # type: ignore[attr-defined]
        except Exception as error:
            if is_user_error(error) and not isinstance(error, UserError):  # a refusal stays what it is
                error = UserError(describe_hydra_error(error))
            return SweepPoint.from_error(text, self.folder, error)


def _plain(config: DictConfig, settable: NumericOverrides) -> dict[str, Any] | None:
    """The plain values of a configuration, if no others can change when these numbers are set to something else."""
    from fcorun.configuration.compose import to_plain_values

    if any(key.count(".") > 1 or key.startswith("hydra.") for key in settable):
        return None
    names = {name for key in settable for name in key.split(".")}
    raw: Any = OmegaConf.to_container(config)
    for interpolation in re.findall(r"\$\{(.*?)\}", repr({key: raw[key] for key in raw if key != "hydra"})):
        resolver, _, place = interpolation.rpartition(":")
        if resolver not in ("", "oc.select") or "$" in place or names & set(re.split(r"\W+", place)):
            return None
    return to_plain_values(config)


def _changed(values: dict[str, Any], settable: NumericOverrides) -> dict[str, Any]:
    """Plain values with some numbers set."""
    values = dict(values)
    for key, value in settable.items():
        section, _, name = key.rpartition(".")
        values |= {section: values[section] | {name: value}} if section else {name: value}
    return values
