"""Composition of files and overrides to a plain configuration. With the command, the only code that uses Hydra."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, OmegaConfBaseException
from yaml import YAMLError

from fcorun.config import AUTO, SECTIONS, Settings, build_plugin, import_classes, keys_outside_identity
from fcorun.configuration.hydra_errors import NO_PACKAGE, describe_hydra_error, find_key_of_class
from fcorun.configuration.overrides import check_overrides, normalize_overrides
from fcorun.configuration.search_path import (
    find_choices,
    packaged_config_dir,
    read_yaml,
    use_config_dir,
    user_config_dir,
)
from fcorun.errors import UserError

if TYPE_CHECKING:
    from fcorun.experiment.experiment import PreparedExperiment

# Hydra 1.3 needs version_base and does not know execution_whitelist; Hydra 1.4 is the other way round. fcorun never
# executes anything by name through Hydra, so its whitelist is empty.
HYDRA_1_3 = hydra.__version__.startswith("1.3")


def compose(overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> dict[str, Any]:
    """Return the configuration that ``fcorun --config-dir CONFIG_DIR OVERRIDES`` would run, as plain values.

    >>> compose(["algo=fedmid", "rounds=20"])["algo"]["name"]
    'fedmid'

    Raises UserError with the sentence that the command would print.
    """
    check_overrides(overrides)
    with use_config_dir(config_dir) if config_dir is not None else nullcontext():
        try:
            return to_plain_values(compose_config(overrides, with_hydra=False))
        except OmegaConfBaseException as error:
            raise UserError(describe_hydra_error(error)) from error


def compose_config(overrides: Sequence[str], with_hydra: bool = True) -> DictConfig:
    """Return the configuration that Hydra composes, with or without Hydra's own section.

    Raises UserError with the sentence that the command would print.
    """
    try:
        with initialize_hydra():
            return compose_with_defaults(
                normalize_overrides(overrides),
                lambda current: hydra.compose("config", current, return_hydra_config=with_hydra),
            )
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise UserError(describe_hydra_error(error)) from error


def initialize_hydra() -> AbstractContextManager[None]:
    """Return a context in which Hydra composes fcorun's configuration files."""
    version: Any = {"version_base": "1.3"} if HYDRA_1_3 else {}
    return hydra.initialize_config_dir(packaged_config_dir(), job_name="main", **version)


def compose_with_defaults(overrides: Sequence[str], compose: Callable[[list[str]], Any]) -> Any:
    """Return ``compose(overrides)``, with keys added that a section's class has but its file does not.

    Raises what Hydra raises.
    """
    current = list(overrides)
    while True:
        try:
            return compose(current)
        except Exception as error:
            key = find_key_of_class(error)
            if key is None or f"++{key}" in (text.partition("=")[0] for text in current):
                raise
            current = [f"++{text}" if text.partition("=")[0] == key else text for text in current]


def to_plain_values(config: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain values, with interpolations resolved, and import its classes.

    Raises UserError.
    """
    if "experiment" in config:  # Hydra's place for the keys of a file without the line @package _global_
        raise UserError(NO_PACKAGE)
    values: dict[str, Any] = {}
    try:
        for key in (str(key) for key in config if key != "hydra"):
            value = "???" if OmegaConf.is_missing(config, key) else config[key]
            values[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except (InterpolationKeyError, InterpolationResolutionError) as error:
        data: Any = OmegaConf.to_container(config.data, resolve=True)
        import_classes({"data": data})
        build_plugin("data", data)  # an error in data.task explains the failed interpolation better
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}; set {error.full_key} itself") from error
    if user_config_dir() is not None:
        check_names(values)
    import_classes(values)  # a composed configuration is the user's own
    return values | resolve_settings(values)


def check_names(values: Mapping[str, Any]) -> None:
    """Raise UserError for a section with the name of a choice whose class is another one.

    Records, tables and pictures call a section by its name.
    """
    for section in SECTIONS:
        given = values.get(section)
        if not isinstance(given, Mapping) or given.get("class") in (None, "???"):
            continue
        path = find_choices(section).get(str(given.get("name")))
        named = (read_yaml(path) or {}).get("class") if path else None
        if named is not None and "$" not in named and named != given["class"]:
            raise UserError(
                f"{section}.name={given['name']} is the name of {named}, and not of {given['class']}: give another name"
            )


def resolve_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for the root keys that are "auto": those of ``data.natural``, else the defaults of ``Settings``."""
    data = values.get("data")
    natural = (data.get("natural") or {}) if isinstance(data, Mapping) else {}
    return {
        field.name: natural.get(field.name, field.default)
        for field in fields(Settings)
        if values.get(field.name) == AUTO
    }


def sweep_name(*, _root_: DictConfig) -> str:
    """Return the folder of a sweep below outputs: beside its figure, or else named after its overrides."""
    if _root_.get("figure"):
        return f"figures/{_root_.figure.get('runs') or _root_.hydra.runtime.choices.experiment}/runs"
    return "sweeps/" + make_sweep_name(list(_root_.hydra.overrides.task))


def make_sweep_name(task_overrides: list[str]) -> str:
    """Return a name for a sweep: its data, and a digest of its axes' keys and its fixed overrides.

    The name stays the same when values are added to an axis.
    """
    fixed, axes = [], []
    data = "lasso"
    for override in OverridesParser.create().parse_overrides(list(task_overrides)):
        key = override.get_key_element()
        if key.partition(".")[0] in {"tracker", *keys_outside_identity()}:
            continue
        if override.is_sweep_override():
            axes.append(key)
        else:
            fixed.append(f"{key}={override.value()}")
        if key == "data":
            data = "several" if override.is_sweep_override() else str(override.value())
    return f"{data}-{hashlib.sha256(repr((sorted(fixed), sorted(axes))).encode()).hexdigest()[:8]}"


class PreparedOnce:
    """The way from plain values to an experiment, which the last values take once.

    Hydra asks for the identity of a run, to name its folder, before it starts the run.

    Args:
        prepare: makes the experiment of plain values. Raises UserError.
    """

    def __init__(self, prepare: "Callable[[dict[str, Any]], PreparedExperiment]"):
        self.prepare = prepare
        self.values: dict[str, Any] = {}
        self.experiment: PreparedExperiment | None = None

    def __call__(self, values: dict[str, Any]) -> "PreparedExperiment":
        """Prepare the experiment of some values, unless they are those of the last call. Raises UserError."""
        if self.experiment is None or values != self.values:
            self.values, self.experiment = values, self.prepare(values)
        return self.experiment


def register_resolvers(prepare_once: PreparedOnce) -> None:
    """Register the resolvers ${run_id:} and ${sweep_name:} with OmegaConf."""

    def run_id(*, _root_: DictConfig) -> str:
        """Return eight digits of the identity of a configuration's run, which a point of a sweep knows already."""
        return _root_.hydra.get("run_id") or prepare_once(to_plain_values(_root_)).identity[:8]

    register: Any = OmegaConf.register_new_resolver if HYDRA_1_3 else OmegaConf.register_resolver
    register("run_id", run_id, replace=True)
    register("sweep_name", sweep_name, replace=True)
