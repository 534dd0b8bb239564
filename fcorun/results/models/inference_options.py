"""The options of ``fcorun infer``, and whether they fit a record's problem."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fcorun.base.config import Index
from fcorun.base.errors import UserError
from fcorun.results.models.inference_problem import InferenceProblem


@dataclass(frozen=True)
class InferenceOptions:
    """Options of ``fcorun infer``.

    Attributes:
        method: "wald" for problems without a penalty, "debiased" for the debiased lasso, "split" for a selection on one
            half of the rows and Wald intervals on the other. "auto": debiased with a penalty, wald without.
        level: the confidence level.
        cluster: the rows that may depend on each other: none, those of a client, or those of a group (data.group).
            "auto": those of a group if the data have groups and errors are robust.
        errors: "robust" standard errors hold if the model is wrong, those of the "model" if its likelihood is right.
        seed: the seed of the halves of "split", and of the imputations.
        imputations: the number of data sets with gaps filled by chained equations, of which estimates without a penalty
            are pooled; 0: gaps are filled as in the record.
    """

    method: Literal["auto", "debiased", "wald", "split"] = "auto"
    level: float = 0.95
    cluster: Literal["auto", "none", "client", "group"] = "auto"
    errors: Literal["robust", "model"] = "robust"
    seed: Index = 0
    imputations: Index = 0

    def __post_init__(self):
        if self.imputations == 1:
            raise UserError(
                "`imputations=1` does not tell how much the imputed values vary: give 2 or more, such as 20"
            )
        if not 0 < self.level < 1:
            raise UserError(f"`level={self.level:g}` must be between 0 and 1, such as 0.95")


def resolve_options(options: InferenceOptions, problem: InferenceProblem) -> InferenceOptions:
    """Return the options without "auto". Raises UserError for options that do not fit the problem."""
    method, cluster = options.method, options.cluster
    has_groups = problem.data.train.group is not None
    if method == "auto":
        method = "debiased" if problem.has_penalty else "wald"
    if cluster == "auto":
        cluster = "group" if has_groups and options.errors == "robust" else "none"
    if options.errors == "model":
        _check_model_errors(problem, cluster)
    if cluster == "group" and not has_groups:
        raise UserError("`cluster=group`: the record has no groups: give `cluster=client` or none, or run it with "
                        "`data.group=COLUMN`")  # fmt: skip
    if method == "wald" and problem.has_penalty:
        raise UserError("`method=wald`: coefficients that a penalty shrinks, or selected on the same rows, have no "
                        "valid Wald intervals: give `method=debiased` or split, or a record with "
                        "`reg=none`")  # fmt: skip
    if method != "wald" and not problem.has_penalty:
        raise UserError(f"`method={method}` is for a problem with an l1 penalty, and this record has none: give "
                        "`method=wald`")  # fmt: skip
    if method == "split" and cluster == "client":
        raise UserError("`method=split` halves the rows of each client, which `cluster=client` takes as dependent: "
                        "give `method=debiased`")  # fmt: skip
    return replace(options, method=method, cluster=cluster)


def _check_model_errors(problem: InferenceProblem, cluster: str) -> None:
    """Raise UserError for a problem or clusters without model-based standard errors."""
    weight = problem.rows.weight[problem.rows.weight > 0]
    refusals = {
        "are of likelihoods, `objective=logistic, poisson and cox`": not problem.objective.is_log_likelihood,
        f"take rows as independent, and `cluster={cluster}` does not": cluster != "none",
        "need rows of equal weight, and `data.weight` or client_weighting gives them different ones": (
            not np.allclose(weight, weight.mean(), rtol=1e-9, atol=0)
        ),
    }
    for reason, applies in refusals.items():
        if applies:
            raise UserError(f"errors=model: model-based standard errors {reason}: give errors=robust")
