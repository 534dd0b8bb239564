"""The intervals of a plan: what ``fcorun infer`` does, from sums over sites after the last round."""

from dataclasses import dataclass
from typing import Literal

from fcorun.base.errors import UserError
from fcorun.data.datasets.sites import Sites
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.regularizers.none import NoRegularizer
from fcorun.results.models.inference_problem import (
    SHRUNK_BY_RIDGE,
    InferenceOptions,
    InferenceProblem,
    explain_no_intervals,
)
from fcorun.sites.plan.plan_checks import has_one_residual, refuse

MAX_DERIVATIVES = 50  # Newton steps from the model of the last round, with those that are halved
_FRAME = "--infer: {}"


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
        objective, data, settings = experiment.objective, experiment.data, experiment.settings
        assert isinstance(data, Sites)
        InferenceOptions(level=self.level)
        if reason := explain_no_intervals(experiment):
            raise UserError(f"--infer: {reason}")
        is_unweighted = data.weight is None and settings.client_weighting == "examples"
        refuse({
            f"intervals are for one coefficient a feature, which objective={experiment.names['objective']} has not "
            "here: leave --infer out": not has_one_residual(experiment),
            SHRUNK_BY_RIDGE: bool(objective.ridge) and isinstance(experiment.reg, NoRegularizer),
            "objective.ceiling changes the loss of rows beyond it, which no sum over sites counts: give "
            "objective.ceiling=null": getattr(objective, "ceiling", None) is not None,
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
