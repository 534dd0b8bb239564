"""The jobs of a sweep, each without the keys that mean nothing to it, so that what is the same run is one job."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fcorun.config import build_plugin, import_classes
from fcorun.configuration.hydra_errors import find_key_of_class, find_unknown_key
from fcorun.configuration.overrides import override_key
from fcorun.errors import UserError
from fcorun.sections import GRID_SECTIONS

ComposeFunction = Callable[[list[str]], DictConfig]  # raises what Hydra raises


@dataclass
class SweepJob:
    """A job of a sweep.

    Attributes:
        overrides: what it is given, without what was left out.
        places: which of the sweep's combinations it stands for.
        lacks: the keys that were left out, since its algorithm, or another choice, does not have them.
        unmoved: the keys of psi that were left out, since its algorithm leaves psi out.
        error: why it cannot be composed.
    """

    overrides: list[str]
    positions: list[int] = field(default_factory=list)
    missing_keys: tuple[str, ...] = ()
    ignored_keys: tuple[str, ...] = ()
    error: Exception | None = None

    def explain_left_out(self, names: Callable[[str], str]) -> list[str]:
        """What a user should know of it, with the names of its choices by group."""
        often = "run once for all values" if len(self.positions) > 1 else "run without"
        found = []
        for section in GRID_SECTIONS:
            keys = [key.partition(".")[2] for key in self.missing_keys if key.startswith(f"{section}.")]
            found += [f"{section}={names(section)} has no {', '.join(keys)}: {often}"] if keys else []
        if self.ignored_keys:
            found.append(
                f"algo={names('algo')} leaves psi out: run once for all values of {', '.join(self.ignored_keys)}"
            )
        return found


def compose_with_defaults(overrides: Sequence[str], compose: Callable[[list[str]], Any]) -> Any:
    """What ``compose`` makes of overrides; a key that a section's file does not hold, since its class has a default, is
    added to it. Raises what Hydra raises."""
    given = list(overrides)
    while True:
        try:
            return compose(given)
        except Exception as error:
            key = find_key_of_class(error)
            if key is None or f"++{key}" in (text.partition("=")[0] for text in given):
                raise
            given = [f"++{text}" if text.partition("=")[0] == key else text for text in given]


def deduplicate(combinations: Sequence[Sequence[str]], compose: ComposeFunction) -> list[SweepJob]:
    """The jobs of a sweep's combinations of overrides, in their order.

    Where a sweep has several algorithms (or several of another group), those that lack a key which others have are run
    without it; a key that none has stays an error. Values of psi are left out where an algorithm leaves psi out.
    """
    values = defaultdict(set)
    for text in (text for overrides in combinations for text in overrides):
        values[override_key(text)].add(text)
    several = {section for section in GRID_SECTIONS if len(values[section]) > 1}
    found = [_without_lacking(list(overrides), several, compose) for overrides in combinations]
    there = {override_key(text) for job in found if job.error is None for text in job.overrides}
    strengths = _strengths(found)
    jobs: dict[tuple[str, ...], SweepJob] = {}
    for place, (job, given) in enumerate(zip(found, combinations, strict=True)):
        if not set(job.missing_keys) <= there:
            job = SweepJob(list(given), error=_error(compose, list(given)))
        elif job.error is None and (keys := strengths[_beside_psi(job.overrides)]) and _leaves_psi_out(compose, job):
            job.overrides = [text for text in job.overrides if override_key(text) not in keys]
            job.ignored_keys = tuple(sorted(keys))
        jobs.setdefault(tuple(job.overrides), job).positions.append(place)
    return list(jobs.values())


def _without_lacking(overrides: list[str], several: set[str], compose: ComposeFunction) -> SweepJob:
    """A job that composes, without the keys that its choices among ``several`` lack; or with the error of the rest."""
    lacks: list[str] = []
    while True:
        kept = [text for text in overrides if override_key(text) not in lacks]
        try:
            compose(kept)
        except Exception as error:
            key = find_unknown_key(error)
            if key is None or key in lacks or key.partition(".")[0] not in several:
                return SweepJob(overrides, error=error)
            lacks.append(key)
        else:
            return SweepJob(kept, missing_keys=tuple(lacks))


def _strengths(jobs: Iterable[SweepJob]) -> dict[tuple[str, ...], set[str]]:
    """The keys of psi with several values among jobs that differ in these alone, by what they have in common."""
    values = defaultdict(lambda: defaultdict(set))
    for job in jobs:
        for text in job.overrides:
            if text.startswith("reg."):
                values[_beside_psi(job.overrides)][override_key(text)].add(text)
    found = {common: {key for key, texts in own.items() if len(texts) > 1} for common, own in values.items()}
    return defaultdict(set, found)


def _beside_psi(overrides: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for text in overrides if not text.startswith("reg."))


def _leaves_psi_out(compose: ComposeFunction, job: SweepJob) -> bool:
    from fcorun.algorithms.base import Algorithm

    try:
        values: Any = OmegaConf.to_container(compose(job.overrides).algo, resolve=True)
        import_classes({"algo": values})
        algo = build_plugin("algo", values)
    except (UserError, OmegaConfBaseException):
        return False
    return isinstance(algo, Algorithm) and not algo.traits.psi_sides


def _error(compose: ComposeFunction, overrides: list[str]) -> Exception | None:
    try:
        compose(overrides)
    except Exception as error:
        return error
    return None
