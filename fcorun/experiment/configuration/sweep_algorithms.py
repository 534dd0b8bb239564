"""The algorithms of a sweep, known before the sweep runs."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from fcorun.base.errors import UserError
from fcorun.experiment.configuration.compose import compose_config, normalize_overrides
from fcorun.experiment.configuration.hydra_errors import describe_hydra_error
from fcorun.experiment.configuration.override_text import split_overrides
from fcorun.experiment.configuration.search_path import find_choices, read_yaml


def sweep_algorithms(overrides: Sequence[str]) -> list[str]:
    """Return the names of the algorithms that a sweep with these overrides runs, including those of its experiment.

    Raises UserError for overrides that cannot be composed.
    """
    parsed = _parse(normalize_overrides(overrides))
    relevant = [o for o in parsed if re.match("(algo|algo.name|experiment|hydra.*)$", o.key_or_group)]
    config = compose_config([str(o.input_line) for o in relevant if not o.is_sweep_override()])
    sweeper: Any = config.hydra.sweeper
    given_keys = {o.key_or_group for o in relevant}
    params = sweeper.get("params") or {}
    axes = _parse([f"{key}={value}" for key, value in params.items() if key not in given_keys])
    further_jobs = [_parse(split_overrides(job)) for job in sweeper.get("also") or ()]
    jobs = [[*relevant, *job] for job in further_jobs]
    if has_product(params, further_jobs, parsed):
        jobs.insert(0, [*relevant, *axes])
    names = []
    for job in jobs:
        names += _algorithms_of_job(job) or [str(config.algo.name)]
    return list(dict.fromkeys(names))


def _parse(overrides: Sequence[str]) -> list[Override]:
    """Return the overrides that texts stand for. Raises UserError for a text that is no override."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise UserError(describe_hydra_error(error)) from error


def has_product(params: Any, further_jobs: Sequence[Sequence[Override]], given: Sequence[Override]) -> bool:
    """Return whether a sweep has runs besides those that ``hydra.sweeper.also`` lists: the product of its axes.

    It has none if an experiment lists all its runs, unless the command line (``given``) adds an algorithm and all
    listed runs choose their own. Without an experiment, lists of the command line are a product.

    Args:
        params: the axes of the experiment, ``hydra.sweeper.params``.
        further_jobs: the overrides of each line of ``also``.
    """
    if params or not further_jobs:
        return True
    keys = {override.key_or_group for override in given}
    if "experiment" not in keys:
        return any(override.is_sweep_override() for override in given)
    return "algo" in keys and all(any(override.key_or_group == "algo" for override in job) for job in further_jobs)


def _algorithms_of_job(job: Iterable[Override]) -> list[str]:
    """Return the names of a job's algorithms: ``algo.name``, else the names in the files of ``algo``, else none."""
    by_key = {o.key_or_group: o for o in job}
    if "algo.name" in by_key:
        return _values(by_key["algo.name"])
    if "algo" in by_key:
        files = find_choices("algo")
        names = []
        for choice in _values(by_key["algo"]):
            values = {}
            if choice in files:
                values = read_yaml(files[choice])
            names.append(str(values.get("name", choice)))
        return names
    return []


def _values(override: Override) -> list[str]:
    """Return the values of an override as texts; those of glob(...) are the choices that match."""
    value = override.value()
    if isinstance(value, Glob):
        return value.filter(list(find_choices("algo")))
    if override.is_sweep_override():
        return [str(item) for item in override.sweep_iterator()]
    return [str(value)]
