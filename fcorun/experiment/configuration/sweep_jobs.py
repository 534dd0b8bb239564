"""The jobs of a sweep: combinations of overrides, without the keys that have no effect on their run."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fcorun.base.config import FEDERATED_SECTIONS, GRID_SECTIONS, build_plugin, import_classes
from fcorun.base.errors import UserError
from fcorun.base.metrics import IGNORES_PSI
from fcorun.experiment.configuration.compose import (
    find_unknown_key,
    override_key,
)

ComposeFunction = Callable[[list[str]], DictConfig]  # raises what Hydra raises


@dataclass
class SweepJob:
    """A job of a sweep.

    Attributes:
        overrides: its overrides, without those that were left out.
        positions: the combinations of the sweep that it stands for.
        missing_keys: the keys that were left out because its algorithm, or another choice, does not have them.
        ignored_keys: the keys of psi that were left out because its algorithm ignores psi.
        federated_keys: the keys of clients and server, such as the uplink, that were left out for a baseline.
        error: the reason why it cannot be composed.
    """

    overrides: list[str]
    positions: list[int] = field(default_factory=list)
    missing_keys: tuple[str, ...] = ()
    ignored_keys: tuple[str, ...] = ()
    federated_keys: tuple[str, ...] = ()
    error: Exception | None = None

    def explain_left_out(self, choice_of: Callable[[str], str]) -> list[str]:
        """Return a line for each choice whose keys were left out; ``choice_of`` gives a section's choice."""
        often = "run once for all values" if len(self.positions) > 1 else "run without"
        lines = []
        for section in GRID_SECTIONS:
            keys = [key.partition(".")[2] for key in self.missing_keys if key.startswith(f"{section}.")]
            if keys:
                lines.append(f"{section}={choice_of(section)} has no {', '.join(keys)}: {often}")
        if self.ignored_keys:
            keys = ", ".join(self.ignored_keys)
            lines.append(f"algo={choice_of('algo')} {IGNORES_PSI}: run once for all values of {keys}")
        if self.federated_keys:
            keys = ", ".join(self.federated_keys)
            lines.append(f"algo={choice_of('algo')} solves the problem in one place, without {keys}: {often}")
        return lines


def deduplicate(combinations: Sequence[Sequence[str]], compose: ComposeFunction) -> list[SweepJob]:
    """Return the jobs of a sweep's combinations of overrides in their order, each distinct job once.

    In a sweep over several algorithms (or several choices of another section), a key that some of them lack is left
    out of their jobs; a key that none of them has stays an error. Values of psi are left out for an algorithm that
    ignores psi, and those of sections that no baseline depends on, such as the uplink, for a baseline.
    """
    from fcorun.methods.algorithms.algorithm import Algorithm, Baseline

    values = defaultdict(set)
    for overrides in combinations:
        for text in overrides:
            values[override_key(text)].add(text)
    varied_sections = {section for section in GRID_SECTIONS if len(values[section]) > 1}
    if "algo" in varied_sections:
        varied_sections.add("uplink")  # an algorithm may have a default uplink of its own
    composed = [_without_missing_keys(list(overrides), varied_sections, compose) for overrides in combinations]
    known_keys = {override_key(text) for job in composed if job.error is None for text in job.overrides}
    varied_psi_keys = _varied_psi_keys(composed)
    varied_keys = {key for key, texts in values.items() if len(texts) > 1}
    jobs: dict[tuple[str, ...], SweepJob] = {}
    for position, (job, overrides) in enumerate(zip(composed, combinations, strict=True)):
        if not set(job.missing_keys) <= known_keys:
            job = SweepJob(list(overrides))
            try:
                compose(job.overrides)
            except Exception as error:
                job.error = error
        elif job.error is None:
            psi_keys = varied_psi_keys[_without_psi(job.overrides)]
            federated_keys = _find_federated_keys(job)
            if not varied_keys & {"algo", *federated_keys}:  # then a baseline is refused with them
                federated_keys = set()
            algo = _build_algo(compose, job) if psi_keys or federated_keys else None
            if psi_keys and isinstance(algo, Algorithm) and not algo.traits.psi_sides:
                job.overrides = [text for text in job.overrides if override_key(text) not in psi_keys]
                job.ignored_keys = tuple(sorted(psi_keys))
            if federated_keys and isinstance(algo, Baseline):
                job.overrides = [text for text in job.overrides if override_key(text) not in federated_keys]
                job.federated_keys = tuple(sorted(federated_keys))
        jobs.setdefault(tuple(job.overrides), job).positions.append(position)
    return list(jobs.values())


def _without_missing_keys(overrides: list[str], varied_sections: set[str], compose: ComposeFunction) -> SweepJob:
    """Return a job without the keys that its choices of ``varied_sections`` lack; any other error stays in the job."""
    missing_keys: list[str] = []
    while True:
        remaining = [text for text in overrides if override_key(text) not in missing_keys]
        try:
            compose(remaining)
        except Exception as error:
            key = find_unknown_key(error)
            if key is None or key in missing_keys or key.partition(".")[0] not in varied_sections:
                return SweepJob(overrides, error=error)
            missing_keys.append(key)
        else:
            return SweepJob(remaining, missing_keys=tuple(missing_keys))


def _varied_psi_keys(jobs: Iterable[SweepJob]) -> dict[tuple[str, ...], set[str]]:
    """Return the keys of psi that vary among jobs with the same other overrides, by these other overrides."""
    values = defaultdict(lambda: defaultdict(set))
    for job in jobs:
        for text in job.overrides:
            if override_key(text).startswith("reg."):
                values[_without_psi(job.overrides)][override_key(text)].add(text)
    varied = defaultdict(set)
    for other_overrides, texts_by_key in values.items():
        varied[other_overrides] = {key for key, texts in texts_by_key.items() if len(texts) > 1}
    return varied


def _without_psi(overrides: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for text in overrides if not override_key(text).startswith("reg."))


def _find_federated_keys(job: SweepJob) -> set[str]:
    """Return the keys of a job's overrides in sections that no baseline depends on."""
    return {key for key in map(override_key, job.overrides) if key.partition(".")[0] in FEDERATED_SECTIONS}


def _build_algo(compose: ComposeFunction, job: SweepJob) -> object:
    """Return the algorithm or the baseline of a job; None if its configuration is not valid."""
    try:
        values: Any = OmegaConf.to_container(compose(job.overrides).algo, resolve=True)
        import_classes({"algo": values})
        return build_plugin("algo", values)
    except (UserError, OmegaConfBaseException):
        return None


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
