"""Which algorithms a sweep runs, before it is one."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override

from fcorun.configuration.compose import compose_config
from fcorun.configuration.overrides import normalize_overrides, split_overrides
from fcorun.configuration.search_path import find_choices


def sweep_algorithms(overrides: Sequence[str]) -> list[str]:
    """The names of the algorithms that a sweep of these overrides runs, with what its experiment brings along.

    Raises UserError for overrides that cannot be composed.
    """
    parse = OverridesParser.create().parse_overrides
    every = parse(normalize_overrides(overrides))
    given = [o for o in every if re.match("(algo|algo.name|experiment|hydra.*)$", o.key_or_group)]
    config = compose_config([str(o.input_line) for o in given if not o.is_sweep_override()])
    sweeper: Any = config.hydra.sweeper
    named = {o.key_or_group for o in given}
    axes = parse([f"{key}={value}" for key, value in (sweeper.get("params") or {}).items() if key not in named])
    also = [parse(split_overrides(job)) for job in sweeper.get("also") or ()]
    product = axes or not also or any(o.is_sweep_override() for o in every)
    jobs = [*([[*given, *axes]] if product else []), *([*given, *job] for job in also)]
    return list(dict.fromkeys(name for job in jobs for name in _of(job) or [str(config.algo.name)]))


def _of(job: Iterable[Override]) -> list[str]:
    """The names of a job's algorithms: of variants their own, else those of their files; none if nothing says so."""
    said = {o.key_or_group: o for o in job}
    if "algo.name" in said:
        return _values(said["algo.name"])
    return [_name(choice) for choice in _values(said["algo"])] if "algo" in said else []


def _values(override: Override) -> list[str]:
    value = override.value()
    if isinstance(value, Glob):
        return value.filter(list(find_choices("algo")))
    return [str(each) for each in (override.sweep_iterator() if override.is_sweep_override() else [value])]


def _name(choice: str) -> str:
    """What a file calls its algorithm, if it says so itself."""
    path = find_choices("algo").get(choice)
    return str((yaml.safe_load(path.read_text(encoding="utf-8")) if path else {}).get("name", choice))
