"""Runs of plain configurations from Python: one, or a grid of them."""

import itertools
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError, suggest_name
from fcorun.base.trust import locate
from fcorun.interface.api.experiment_object import Experiment
from fcorun.interface.api.python_words import (
    check_axes,
    check_configuration,
    check_folder,
    check_list,
    check_watcher,
    names_of_configuration,
    python_words,
)
from fcorun.interface.api.run_record import RunRecord
from fcorun.runs.job import Watcher
from fcorun.runs.run_experiments import run_experiments


@python_words(names_of_configuration)
def run(
    config: Mapping[str, Any],
    folder: str | Path | None = None,
    watch: Watcher | None = None,
    trust: str | Path | None = None,
) -> RunRecord:
    """Run one configuration to the end and return its record.

    Args:
        config: plain values, as ``compose`` returns them or as a record's config.yaml holds them.
        folder: the folder of the record; by default outputs/DATA/ALGORITHM-IDENTITY. If it holds the finished record of
            the same run, that record is returned; an interrupted run is resumed, with the numbers of an unbroken one.
        watch: the callbacks that follow the run.
        trust: the folder from which classes are imported that are neither fcorun's, nor those of an installed plug-in
            package, nor imported by this program already. None: such classes are refused, because the configuration may
            come from somebody else's record.

    Raises UserError for errors that a user can fix. Other errors are recorded as failed and raised.
    """
    check_configuration(config)
    return run_grid([config], [folder], watch, trust)[0]


@python_words(names_of_configuration)
def grid(
    config: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], trust: str | Path | None = None
) -> list[dict[str, Any]]:
    """Return the configurations of a grid: ``config`` with every combination of the axes' values.

    An axis is a dotted key with its values: {"algo.client_lr": [0.1, 0.2], ...}. A key may also be an option of a class
    that the configuration names; ``trust`` is the folder from which such classes are imported, as in ``run``. Raises
    UserError for a key that is neither or lies in another axis, for values that are no list, and for a class that is
    not imported.
    """
    check_configuration(config)
    check_axes(axes)
    check_folder(trust, "trust")
    for key in axes:
        _check_key(config, key, trust)
        outer = next((other for other in axes if key.startswith(f"{other}.")), None)
        if outer is not None:
            raise UserError(f"axes: '{key}' is a part of '{outer}': give the values of one of them")
    configs = []
    for values in itertools.product(*axes.values()):
        point = deepcopy(dict(config))
        for key, value in zip(axes, values, strict=True):
            *sections, last = key.split(".")
            section = point
            for name in sections:
                section = section[name]
            section[last] = deepcopy(value)
        configs.append(point)
    return configs


def _check_key(config: Mapping[str, Any], key: str, trust: str | Path | None) -> None:
    """Raise UserError for a dotted key that is not in the configuration, and no option of the class of its section."""
    values: Any = config
    names = key.split(".")
    for depth, name in enumerate(names):
        if not isinstance(values, Mapping) or name not in values:
            known = [*values] if isinstance(values, Mapping) else []
            if "class" in known:
                section = ".".join(names[:depth])
                options = [field.name for field in fields(locate(values["class"], f"{section}.class", trust))]
                if name in options and depth == len(names) - 1:
                    return
                known += [option for option in options if option not in known]
            raise UserError(f"axes: the configuration has no key '{key}': {suggest_name(name, known)}")
        values = values[name]


@python_words(names_of_configuration)
def run_grid(
    configs: Sequence[Mapping[str, Any]],
    folders: Sequence[str | Path | None] | None = None,
    watch: Watcher | None = None,
    trust: str | Path | None = None,
) -> list[RunRecord]:
    """Run configurations. Those that differ in numbers (rates, strengths) and seed only are one program.

    Each run leaves the record that it would leave alone, up to rounding, and so does one that is resumed. Arguments and
    errors are as for ``run``. An error of one configuration is raised after the others have run.
    """
    check_list(configs, "configs", "give a list of configurations, as fcorun.grid returns")
    for index, config in enumerate(configs):
        check_configuration(config, f"configs[{index}]")
    if not configs:
        return []
    if folders is not None:
        check_list(folders, "folders", "give a list of paths, one for each configuration")
        if len(folders) != len(configs):
            raise UserError(f"folders has {len(folders)} paths and configs {len(configs)}: give one for each")
    for folder in folders or ():
        check_folder(folder)
    check_folder(trust, "trust")
    check_watcher(watch, Watcher)
    experiments = [Experiment.from_config(config, trust) for config in configs]
    records = run_experiments(
        [experiment.prepared for experiment in experiments], folders or [None] * len(configs), watch
    )
    return [RunRecord(record.folder) for record in records]
