"""The selection of a plan: what ``fcorun select`` does, over sites."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fcorun.base.config import Count
from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.sites import Sites
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment.classifiers import DEFAULT_THRESHOLD
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.requirements import are_convex
from fcorun.sites.plan.plan_checks import ONE_OUTPUT, has_one_residual, refuse
from fcorun.studies.selection.choice import choose_metric
from fcorun.studies.selection.path import MIN_RATIO, find_path_parameter
from fcorun.studies.selection.selection_result import ALL_ROWS, DEFAULT_FOLDS, SelectOptions
from fcorun.studies.selection.study import check_study

REFIT = "refit"  # the name of the run on all rows with the chosen value, after the fits
_COMMAND = "a selection over sites"


@dataclass(frozen=True)
class PlannedSelection(SelectOptions):
    """The options of ``fcorun select``, whose number of folds is known, and those of a run that change a choice.

    Attributes:
        metric: the metric that chooses.
        tail_rounds: the number of the last rounds over which a metric is averaged.
    """

    metric: str = "val_loss"
    tail_rounds: Count = 100

    @classmethod
    def of(
        cls, options: SelectOptions, experiment: PreparedExperiment, metric: str | None, secure: bool
    ) -> "PlannedSelection":
        """Return the selection of a plan. Raises UserError for what cannot be chosen, or divided, over sites."""
        values: dict[str, Any] = {option.name: getattr(options, option.name) for option in fields(SelectOptions)}
        assert isinstance(experiment.data, Sites)
        n_folds = options.folds or len(experiment.data.fold_names or ()) or DEFAULT_FOLDS
        values |= {"folds": n_folds, "tail_rounds": experiment.settings.tail_rounds}
        selection = cls(**values)
        selection.check(experiment, secure)
        # what a plan knows of the rows of sites: their task, and that a classification has some classes
        rows = SiteRows(np.empty((0, 1)), np.empty(0), np.empty(0, int), all_sizes=np.ones(1, int))
        classes = tuple(range(experiment.data.target_task.typical_classes))
        data = FederatedData(rows, task=experiment.data.task, classes=classes)
        return replace(selection, metric=choose_metric(metric, experiment, data, options.by))

    def check(self, experiment: PreparedExperiment, secure: bool) -> None:
        """Raise UserError for a selection that cannot be computed over sites."""
        parameter = check_study(experiment, _COMMAND)
        names, reg, data = experiment.names, experiment.reg, experiment.data
        assert isinstance(data, Sites)
        needs_range, threshold = self.range is None, experiment.settings.threshold
        refusals = {
            f"{' and '.join(self.second or {})} has several values: give one": bool(self.second),
            f"outer_folds={self.outer_folds}: nested cross-validation needs all rows in one place: leave it out": bool(
                self.outer_folds
            ),
            f"adaptive={self.adaptive} fits a pilot to all rows in one place: leave adaptive out": bool(self.adaptive),
            "relax fits the features that a lasso selects to all rows in one place: leave relax out": bool(self.shares),
            "reference=true is of one problem, and a path has many: leave it out": experiment.settings.reference,
            "--secure and by=clients: what a fold holds out may be the rows of one site, whose sums masks hide: give "
            "by=rows": secure and self.by == "clients",
            f"data.fold={data.fold} marks folds, and no site decides how many: give data.fold_names=[A,B,C]": (
                data.fold is not None and data.fold_names is None
            ),
            f"data.fold={data.fold} marks the rows of each fold: leave by=clients out, or data.fold": (
                data.fold is not None and self.by == "clients"
            ),
            f"folds={self.folds}: data.fold_names lists {len(data.fold_names or ())} folds: leave folds out": (
                data.fold_names is not None and self.folds not in (None, len(data.fold_names))
            ),
            f"range is missing: the largest radius of reg={names['reg']} takes all rows in one place: give "
            "range=[LOW,HIGH]": needs_range and parameter != "strength",
            f"range is missing: reg={names['reg']} does not say at which strength its solution is 0: give "
            "range=[LOW,HIGH]": needs_range and parameter == "strength" and not hasattr(reg, "strength_max"),
            f"range is missing: objective={names['objective']} is not convex, so that no strength is known to begin a "
            "path: give range=[LOW,HIGH]": needs_range and not are_convex(experiment.objective),
            "range is missing: the largest strength takes a fit of the features that reg.factors leave free, on all "
            "rows in one place: give range=[LOW,HIGH]": needs_range and reg.has_free_features,
            f"threshold={threshold} is chosen out of fold on pooled rows: leave it out, or plan one run with the "
            "chosen strength": threshold != DEFAULT_THRESHOLD,
            f"the largest strength takes sums of {ONE_OUTPUT}, which objective={names['objective']} is not here: give "
            "range=[LOW,HIGH]": needs_range and not has_one_residual(experiment),
        }
        refuse(refusals, f"{_COMMAND}: {{}}")

    @property
    def n_folds(self) -> int:
        """The number of folds, K."""
        assert self.folds is not None
        return self.folds

    @property
    def folds_by_name(self) -> dict[str, int]:
        """The number of each fold, from 0, by its name."""
        return {f"fold{k + 1}": k for k in range(self.n_folds)}

    @property
    def subsets(self) -> list[str]:
        """The subsets of the rows in the order in which the server asks for them: each one once."""
        return [*self.folds_by_name, ALL_ROWS, REFIT]

    def count_runs(self, subset: str) -> int:
        """Return the number of runs on a subset."""
        return 1 if subset == REFIT else self.points

    def describe_fits(self) -> str:
        """Return the fits in words, as parts of sentences on what leaves a site."""
        return (f"each of {self.n_folds + 1} fits (all training rows, and all but those of each of {self.n_folds} "
                "folds)")  # fmt: skip

    def check_path(self, values: Sequence[float], experiment: PreparedExperiment) -> None:
        """Raise UserError unless values are a path of this selection, of which only the largest may be free."""
        parameter = find_path_parameter(experiment)
        strengths = parameter == "strength"
        high = max(values)
        low, high = self.range or (MIN_RATIO * high, high)
        planned = np.geomspace(low, high, self.points)[:: -1 if strengths else 1]
        tolerance = 1e-12 if experiment.settings.precision == "float64" else 1e-5
        if min(values) <= 0 or not np.allclose(values, planned, rtol=tolerance, atol=0):
            raise UserError(f"the server started runs with other values of reg.{parameter} than the path of the plan")

    def describe(self, parameter: str) -> str:
        """Return the selection in words."""
        rules = {"min": f"the best {self.metric}", "one_se": f"one standard error from the best {self.metric}"}
        path = "" if self.range is None else f" from {self.range[0]:g} to {self.range[1]:g}"
        return (f"select: {self.points} values of {parameter}{path}, each on all training rows and on those of all but "
                f"one of {self.n_folds} folds by {self.by}; chosen by {rules[self.rule]} of the rows that folds hold "
                f"out (rule={self.rule}); then a run with the chosen value on all training rows")  # fmt: skip
