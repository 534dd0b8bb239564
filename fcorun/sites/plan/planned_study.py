"""The study of a plan: what is computed, without the list of what leaves a site. It may have a selection or intervals.

A selection does what ``fcorun select`` does, over sites; intervals are what ``fcorun infer`` computes, from sums over
sites after the last round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fcorun.base.config import Count
from fcorun.base.errors import UserError
from fcorun.base.gone_options import drop_unused_of_sections
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.sites import Sites
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import prepare
from fcorun.experiment.requirements import are_convex
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.methods.regularizers.regularizer import NoRegularizer
from fcorun.results.models.inference_problem import (
    SHRUNK_BY_RIDGE,
    InferenceOptions,
    InferenceProblem,
    explain_no_intervals,
)
from fcorun.sites.plan.plan_checks import ONE_OUTPUT, at_any_strength, has_one_residual, refuse
from fcorun.studies.selection.choice import choose_metric
from fcorun.studies.selection.path import MIN_RATIO, find_path_parameter
from fcorun.studies.selection.selection_result import ALL_ROWS, DEFAULT_FOLDS, SelectOptions
from fcorun.studies.selection.study_checks import check_settings

MAX_DERIVATIVES = 50  # Newton steps from the model of the last round, with those that are halved
_FRAME = "--infer: {}"
REFIT = "refit"  # the name of the run on all rows with the chosen value, after the fits
_COMMAND = "a selection over sites"


@dataclass(frozen=True)
class PlannedIntervals:
    """The options of the intervals of a plan. The method follows from the problem: debiased with a penalty, or Wald.

    Attributes:
        level: the confidence level.
        cluster: the rows that may depend on each other: none, or those of a group (data.group).
        errors: "robust" standard errors hold if the model is wrong, those of the "model" if its likelihood is right.
    """

    level: float = 0.95
    cluster: Literal["none", "group"] = "none"
    errors: Literal["robust", "model"] = "robust"

    @classmethod
    def of(cls, options: InferenceOptions, experiment: PreparedExperiment) -> "PlannedIntervals":
        """Return the intervals of a plan. Raises UserError for options that need rows in one place."""
        refuse({
            "method=split: the halves of the rows are drawn in one place: leave method out": options.method == "split",
            f"method={options.method}: the method follows from reg, debiased with a penalty and wald without one: "
            "leave method out": options.method in ("debiased", "wald"),
            "cluster=client: the sum of the scores of each client would leave its site: give cluster=none or group": (
                options.cluster == "client"
            ),
            f"imputations={options.imputations} draws values from rows in one place: leave imputations out": (
                options.imputations > 0
            ),
        }, _FRAME)  # fmt: skip
        assert isinstance(experiment.data, Sites)
        cluster = options.cluster
        if cluster == "auto":
            grouped = experiment.data.group is not None and options.errors == "robust"
            cluster = "group" if grouped else "none"
        assert cluster in ("none", "group")
        intervals = cls(options.level, cluster, options.errors)
        intervals.check(experiment)
        return intervals

    def check(self, experiment: PreparedExperiment) -> None:
        """Raise UserError for an experiment whose coefficients have no intervals from sums over sites."""
        objective = experiment.objective
        data = experiment.data
        settings = experiment.settings
        assert isinstance(data, Sites)
        InferenceOptions(level=self.level)
        if reason := explain_no_intervals(experiment):
            raise UserError(f"--infer: {reason}")
        is_unweighted = data.weight is None and settings.client_weighting == "examples"
        refuse({
            f"intervals are for one coefficient a feature, which objective={experiment.names['objective']} has not "
            "here: leave --infer out": not has_one_residual(experiment),
            SHRUNK_BY_RIDGE: bool(objective.ridge) and isinstance(experiment.reg, NoRegularizer),
            "data.away=skip adds up other sites in each message: leave data.away out": data.away_rule is not None,
            "cluster=group needs groups: give data.group=COLUMN, or cluster=none": (
                self.cluster == "group" and data.group is None
            ),
            "errors=model takes rows as independent: give cluster=none": (
                self.errors == "model" and self.cluster != "none"
            ),
            "errors=model is of likelihoods, objective=logistic, poisson and cox: give errors=robust": (
                self.errors == "model" and not getattr(objective, "is_log_likelihood", False)
            ),
            "errors=model needs rows of equal weight: leave data.weight and client_weighting out, or give "
            "errors=robust": self.errors == "model" and not is_unweighted,
        }, _FRAME)  # fmt: skip

    def resolve(self, problem: InferenceProblem) -> InferenceOptions:
        """Return the options of ``fcorun infer``."""
        method = "debiased" if problem.has_penalty else "wald"
        return InferenceOptions(method, self.level, self.cluster, self.errors)


@dataclass(frozen=True)
class PlannedSelection(SelectOptions):
    """The options of ``fcorun select``, whose number of folds is known, and those of a run that change a choice.

    Attributes:
        folds: the number of folds, K.
        metric: the metric that chooses.
        tail_rounds: the number of the last rounds over which a metric is averaged.
    """

    folds: Count = DEFAULT_FOLDS
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
        check_settings(experiment, _COMMAND)
        parameter = find_path_parameter(experiment)
        names = experiment.names
        reg = experiment.reg
        data = experiment.data
        assert isinstance(data, Sites)
        needs_range = self.range is None
        threshold = experiment.settings.threshold
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
            "by=clients and objective.client_intercepts=true: rows of clients that a fold holds out take the mean of "
            "all intercepts, which no site knows: give by=rows": (
                experiment.objective.client_intercepts and self.by == "clients"
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


@dataclass(frozen=True)
class PlannedStudy:
    """A study over sites.

    Attributes:
        config: the configuration of the experiment as plain values, without keys that change no number.
        fcorun: the version of fcorun that made the plan, which all sites must have.
        secure: the bound on the numbers of each masked message, by its name; None: no message is masked.
        select: the selection of a strength or a radius; None: the study is one run.
        infer: the intervals of the coefficients of the last model; None: there are none.
    """

    config: dict[str, Any]
    fcorun: str
    secure: dict[str, float] | None = None
    select: PlannedSelection | None = None
    infer: PlannedIntervals | None = None

    @cached_property
    def experiment(self) -> PreparedExperiment:
        """The experiment of the plan; of a selection, that of a run whose strength the path replaces."""
        config = drop_unused_of_sections(self.config)
        if self.select is None:
            return prepare(config)
        return at_any_strength(prepare({**config, "tail_rounds": self.select.tail_rounds}))

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, which is no baseline."""
        algorithm = self.experiment.algo
        assert isinstance(algorithm, Algorithm)
        return algorithm

    @property
    def tells_uploads(self) -> bool:
        """True if answers tell the uploads of single clients, or sums over their rows, also of several at a site.

        Moments and a Hessian are two equations for the counts of two clients where clients have intercepts of their
        own: the Hessian subtracts products of their means.
        """
        return self.tells_whole_uploads or self.experiment.objective.client_intercepts

    @property
    def tells_whole_uploads(self) -> bool:
        """True if answers tell all of the upload of a single client, such as its Hessian, also of several at a site.

        A round may draw a client alone. Where clients count alike whatever their size, a weighted sum over two clients
        and a plain sum over all rows are two equations for the two clients' sums.
        """
        settings = self.experiment.settings
        draws_clients = settings.clients_per_round is not None
        return self.algorithm.traits.reveals_uploads or draws_clients or settings.client_weighting == "uniform"

    @property
    def shared_options(self) -> Sites:
        """The options of the tables that all sites share."""
        data = self.experiment.data
        assert isinstance(data, Sites)
        return data

    @property
    def selection(self) -> PlannedSelection:
        """The selection of a study that has one."""
        assert self.select is not None
        return self.select

    @property
    def is_masked(self) -> bool:
        """Return whether masks hide the numbers of single sites."""
        return self.secure is not None

    @property
    def n_rounds(self) -> int:
        """The number of rounds of all runs together; runs with one upload for all count once."""
        rounds = self.experiment.settings.rounds
        if self.select is None:
            return rounds
        n_paths = 1 if self.algorithm.has_common_uploads else self.select.points
        return rounds * (n_paths * (self.select.n_folds + 1) + 1)

    @property
    def n_evaluations(self) -> int:
        """The number of evaluations of a run, with the one before the first round."""
        settings = self.experiment.settings
        return -(-settings.rounds // settings.eval_every) + 1

    def config_of(self, numbers: dict[str, dict[str, float]]) -> dict[str, Any]:
        """Return the configuration of the study's run; of a selection, with the chosen value of ``numbers``."""
        if self.select is None:
            return self.config
        parameter = find_path_parameter(self.experiment)
        relative = {"relative": None} if "relative" in self.config["reg"] else {}
        return {**self.config, "reg": {**self.config["reg"], **relative, parameter: numbers["reg"][parameter]}}
