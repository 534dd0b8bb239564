"""Composing: from files and overrides to a plain configuration. With the command, the only place that knows Hydra."""

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, OmegaConfBaseException
from yaml import YAMLError

from fcorun.config import build_plugin, import_classes, keys_outside_identity
from fcorun.configuration.hydra_errors import describe_hydra_error
from fcorun.configuration.overrides import normalize_overrides
from fcorun.configuration.search_path import packaged_config_dir, use_config_dir
from fcorun.configuration.sweep_jobs import compose_with_defaults
from fcorun.errors import UserError

# Hydra 1.3 wants version_base and does not know execution_whitelist; 1.4 the other way round. Nothing is ever executed
# by name through Hydra here, so the whitelist is empty.
HYDRA_1_3 = hydra.__version__.startswith("1.3")
KNOWN_RUN_IDS: dict[int, str] = {}  # of configurations in hand, for run_id


def compose(overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> dict[str, Any]:
    """The configuration that ``fcorun --config-dir CONFIG_DIR OVERRIDES`` would run, as plain values.

    >>> compose(["algo=fedmid", "rounds=20"])["algo"]["name"]
    'fedmid'

    Raises UserError, as the command line would say it.
    """
    with use_config_dir(config_dir) if config_dir is not None else nullcontext():
        try:
            return to_plain_values(compose_config(overrides, with_hydra=False))
        except OmegaConfBaseException as error:
            raise UserError(describe_hydra_error(error)) from error


def compose_config(overrides: Sequence[str], with_hydra: bool = True) -> DictConfig:
    """What Hydra composes, with its own section or without. Raises UserError, as the command line would say it."""
    version: Any = {"version_base": "1.3"} if HYDRA_1_3 else {}
    try:
        with hydra.initialize_config_dir(packaged_config_dir(), **version):
            return compose_with_defaults(
                normalize_overrides(overrides), lambda o: hydra.compose("config", o, return_hydra_config=with_hydra)
            )
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise UserError(describe_hydra_error(error)) from error


def to_plain_values(config: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain values, interpolations resolved, and import the classes that it names.

    Raises UserError.
    """
    if "experiment" in config:  # where Hydra puts the keys of a file that does not say that they are of the root
        raise UserError("the file of an experiment must begin with the line # @package _global_")
    try:
        values = {}
        for key in (str(key) for key in config if key != "hydra"):
            value = "???" if OmegaConf.is_missing(config, key) else config[key]
            values[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except (InterpolationKeyError, InterpolationResolutionError) as error:
        data: Any = OmegaConf.to_container(config.data, resolve=True)
        import_classes({"data": data})
        build_plugin("data", data)  # a wrong data.task is what to say first
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}; set {error.full_key} itself") from error
    import_classes(values)  # all that is composed is the user's own
    return values


def run_id(*, _root_: DictConfig) -> str:
    """Eight digits of the identity of the run that a configuration describes; the resolver behind hydra.run.dir."""
    from fcorun.experiment.prepare import prepare

    return KNOWN_RUN_IDS.get(id(_root_)) or prepare(to_plain_values(_root_)).identity[:8]


def sweep_name(*, _root_: DictConfig) -> str:
    """Where a sweep goes, below outputs: a figure's runs beside the figure, others by what they are."""
    if _root_.get("figure"):
        return f"figures/{_root_.figure.get('runs') or _root_.hydra.runtime.choices.experiment}/runs"
    return "sweeps/" + make_sweep_name(list(_root_.hydra.overrides.task))


def make_sweep_name(task_overrides: list[str]) -> str:
    """A name for a sweep, the same when values are added to its axes: the data, and a digest of what is fixed."""
    fixed, axes, data = [], [], "lasso"
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


def register_resolvers() -> None:
    """Tell OmegaConf of ${run_id:} and ${sweep_name:}."""
    register: Any = OmegaConf.register_new_resolver if HYDRA_1_3 else OmegaConf.register_resolver
    register("run_id", run_id, replace=True)
    register("sweep_name", sweep_name, replace=True)
