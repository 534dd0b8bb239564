"""The plan of a study: what will be computed at each site, and what leaves the site. Owners accept its digest."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from yaml import YAMLError

from fcorun.base.config import IDENTITY_SECTIONS, SECTIONS, build, keys_outside_identity
from fcorun.base.errors import UserError
from fcorun.base.records.formats import parse_yaml, read_text, yaml_text
from fcorun.base.system.machine import fcorun_version
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.sites.plan.messages.message_kind import MessageKind, Quantity, default_bounds, kinds_of, list_quantities
from fcorun.sites.plan.plan_checks import at_any_strength, check_away, check_experiment
from fcorun.sites.plan.planned_study import PlannedIntervals, PlannedSelection, PlannedStudy
from fcorun.sites.plan.secure_sums import check_bounds, check_secure, choose_bounds
from fcorun.studies.selection.path import find_path_parameter
from fcorun.studies.selection.selection_result import SelectOptions

FORMAT = 6  # raise it with every change of messages, which a test finds
_KEYS = {"format", "fcorun", "experiment", "select", "secure", "quantities", "digest"}
_INFER = "infer"  # the key of the intervals, in plans that have them
_HEADER = """\
# A plan of fcorun. It says what is computed at every site, and what leaves a site; nothing else does.
# Its digest is what the owner of a site accepts: fcorun site accept {name} --kit KIT
"""


@dataclass(frozen=True)
class Plan(PlannedStudy):
    """A plan of a study: the study, and everything that leaves a site in it."""

    @classmethod
    def from_experiment(
        cls,
        experiment: PreparedExperiment,
        bounds: dict[str, float] | None = None,
        options: SelectOptions | None = None,
        metric: str | None = None,
        infer: InferenceOptions | None = None,
    ) -> "Plan":
        """Return the plan of an experiment. Raises UserError for what cannot be computed at sites.

        Args:
            bounds: for secure sums, the bounds of messages that differ from the default; None: no message is masked.
            options: the options of a selection, for which ``experiment`` has no metric; None: the plan is one run.
            metric: the metric that chooses; None: the loss.
            infer: the options of intervals of the coefficients; None: the plan has none.
        """
        if options is not None:
            experiment = at_any_strength(experiment)
        check_experiment(experiment)
        select = None
        if options is not None:
            select = PlannedSelection.of(options, experiment, metric, bounds is not None)
        intervals = None
        if infer is not None:
            intervals = PlannedIntervals.of(infer, experiment)
        if experiment.settings.strength_study:
            raise UserError("a plan for sites: study.strength chooses in each run of a sweep: leave it out")
        without = keys_outside_identity() | {
            "study",
            "client_metrics",
            "aggregate",
            "faults",
            "privacy",
        }  # which plans refuse
        if experiment.settings.threshold != DEFAULT_THRESHOLD:  # it changes what leaves a site
            without -= {"threshold"}
        config = {key: value for key, value in experiment.config.items() if key not in without}
        plan = cls(json.loads(json.dumps(config)), fcorun_version(), None, select, intervals)
        check_classes(plan.config, "a plan for sites")
        return plan._with_bounds(bounds)

    def _with_bounds(self, bounds: dict[str, float] | None) -> "Plan":
        """Return the plan with these bounds, and the default for other masked messages; None: no message is masked.

        Raises UserError for what cannot be computed at sites.
        """
        experiment = self.experiment
        is_masked = bounds is not None
        check_experiment(experiment)
        if self.select is not None:
            self.select.check(experiment, is_masked)
        if self.infer is not None:
            self.infer.check(experiment)
        check_away(experiment, secure=is_masked, selects=self.select is not None)
        if bounds is None:
            return self
        check_secure(experiment)
        return replace(self, secure=choose_bounds(default_bounds(self), bounds))

    @cached_property
    def kinds(self) -> dict[str, MessageKind]:
        """The messages that a site answers, by name."""
        return kinds_of(self)

    @cached_property
    def quantities(self) -> list[Quantity]:
        """Everything that leaves a site."""
        return list_quantities(self)

    def _content(self) -> dict[str, Any]:
        content = {"format": FORMAT, "fcorun": self.fcorun, "experiment": self.config, "select": None}
        if self.select is not None:
            content["select"] = asdict(self.select)
        content |= {"secure": self.secure, "quantities": [quantity.to_dict() for quantity in self.quantities]}
        if self.infer is not None:
            content[_INFER] = asdict(self.infer)
        return content

    @cached_property
    def digest(self) -> str:
        """The hash of everything in the plan, 64 hex digits."""
        return _hash(self._content())

    def describe(self) -> list[str]:
        """Return the plan as lines to read: the experiment, and everything that leaves a site."""
        lines = [f"plan {self.digest}", f"  {self.experiment.label}"]
        if self.select is not None:
            lines.append(f"  {self.select.describe(find_path_parameter(self.experiment))}")
        if self.infer is not None:
            lines.append(f"  then {100 * self.infer.level:g} % intervals of the coefficients, as fcorun infer computes "
                         f"them (cluster={self.infer.cluster}, errors={self.infer.errors})")  # fmt: skip
        if rule := self.shared_options.away_rule:
            lines.append(f"  a site without an answer after {rule.seconds:g} seconds is left out of that round, if "
                         f"{rule.least_sites} others answer")  # fmt: skip
        if self.shared_options.standardize == "per_client":
            scaling_note = "each client's means and deviations stay at its site"
            lines.append(f"  {scaling_note}; coefficients are per standard deviation of each client")
        lines.append("what leaves each site:")
        for quantity in self.quantities:
            lines.append(f"  {quantity.message}: {quantity.content}")
            lines.append(f"    {quantity.numbers}; {quantity.times}; for {quantity.purpose}")
        return lines

    def to_text(self, name: str = "study.yaml") -> str:
        """Return the plan as the text of a YAML file called ``name``."""
        return _HEADER.format(name=name) + yaml_text({**self._content(), "digest": self.digest})

    @classmethod
    def read(cls, path: str | Path) -> "Plan":
        """Read a plan. Raises UserError for a file that cannot be read, and as ``from_text``."""
        try:
            text = read_text(Path(path))
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{path} cannot be read ({reason}): fcorun plan ... --out {path} makes a plan") from error
        except ValueError as error:
            raise UserError(f"{path} is no plan of fcorun, since it is no text in UTF-8: fcorun plan ... --out FILE "
                            "makes one") from error  # fmt: skip
        return cls.from_text(text, str(path))

    @classmethod
    def from_text(cls, text: str, where: str) -> "Plan":
        """Return the plan of ``to_text``.

        Raises UserError for anything else; it names ``where`` if the text is no plan, of another version, or changed.
        """
        content = _parse(text, where)
        own_version = fcorun_version()
        if content["fcorun"] != own_version:
            raise UserError(f"{where} was made by fcorun {content['fcorun']}, and this is fcorun {own_version}: all "
                            "sites and the server need the same version")  # fmt: skip
        parts: dict[str, Any] = {}
        for name, kind in (("select", PlannedSelection), (_INFER, PlannedIntervals)):
            values = content.get(name)
            if not isinstance(values, dict | None):
                raise UserError(f"{where} is no plan of fcorun: '{name}' lists no options")
            parts[name] = None if values is None else build(kind, values, name)
        bounds = content["secure"]
        if bounds is not None:
            try:
                check_bounds(bounds)
            except UserError as error:
                raise UserError(f"{where} is no plan of fcorun: {error}") from error
        plan = cls(content["experiment"], content["fcorun"], bounds, **parts)
        check_classes(plan.config, where)
        _check_digest(content, digest_of_text(text, where), where)
        plan = plan._with_bounds(bounds)  # with all that a plan masks, or the digest is another
        _check_digest(content, plan.digest, where)
        return plan


def digest_of_text(text: str, where: str) -> str:
    """Return the digest of the plan of a text, without building anything that the text names.

    Raises UserError, which begins with ``where``, for a text that is no plan.
    """
    content = _parse(text, where)
    del content["digest"]
    return _hash(content)


def _parse(text: str, where: str) -> dict[str, Any]:
    """Return the content of the text of a plan. Raises UserError, which begins with ``where``, for other texts."""
    try:
        content = parse_yaml(text, where)
    except YAMLError as error:
        raise UserError(f"{where} is no plan of fcorun ({error}): have it sent again, or fcorun plan ... --out FILE "
                        "makes one") from error  # fmt: skip
    if "format" in content and content["format"] != FORMAT:
        raise UserError(f"{where} was made by another version of fcorun, in format {str(content['format'])[:20]}, and "
                        f"this one reads format {FORMAT}: all sites and the server need the same version")  # fmt: skip
    if set(content) - {_INFER} != _KEYS or not isinstance(content["experiment"], dict):
        raise UserError(f"{where} is no plan of fcorun: fcorun plan ... --out FILE makes one")
    return content


def _check_digest(content: dict[str, Any], digest: str, where: str) -> None:
    """Raise UserError, which begins with ``where``, unless the content of a plan says this digest."""
    if content["digest"] != digest:
        raise UserError(f"{where} was changed after it was made: its digest is {digest[:16]}.. and it says "
                        f"{str(content['digest'])[:16]}..: have it sent again, or make a new plan")  # fmt: skip


def _hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_classes(config: dict[str, Any], where: str) -> None:
    """Raise UserError for a class that is not fcorun's, before any class is imported."""
    for section in IDENTITY_SECTIONS:
        values = config.get(section) or SECTIONS[section].default
        name = str(values.get("class", "")) if isinstance(values, dict) else ""
        if not name.startswith("fcorun."):
            raise UserError(f"{where}: {section}.class={name or 'missing'} is no class of fcorun: sites compute "
                            "nothing else")  # fmt: skip
