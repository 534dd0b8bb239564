"""Options and result of ``fcorun stability``, and sentences about the bound on false selections."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fcorun.base.config import Count, Positive
from fcorun.base.errors import UserError, word
from fcorun.data.datasets.dataset import FederatedData
from fcorun.results.models.coefficients import feature_names
from fcorun.studies.selection.stability_scores import (
    Assumption,
    SelectionUnits,
    StabilityScores,
    bound_false_selections,
)
from fcorun.studies.selection.study import StudyResult


@dataclass(frozen=True)
class StabilityOptions:
    """Options of ``fcorun stability``, beside a configuration.

    Attributes:
        subsamples: the number of halves, two in each pair.
        points: the number of values of the path, at least 2.
        by: "rows" halves the rows of each client, "clients" the clients.
        threshold: the share of the halves on which a stable feature is chosen, over 1/2.
        max_errors: the largest expected number of false selections; the path is followed as far as this bound holds.
        assumption: the assumption of the bound on the distribution of the share of pairs, or halves, that choose a
            feature by chance: "none", "unimodal", or "r_concave" (see ``fcorun.studies.selection.stability_scores``).
        refit: whether a model without a penalty is fitted to the stable columns of a table.
        range: the least and the largest strength or radius; None: computed from the data.
    """

    subsamples: Count = 100
    points: Count = 20
    by: Literal["rows", "clients"] = "rows"
    threshold: float = 0.75
    max_errors: Positive = 1.0
    assumption: Assumption = "none"
    refit: bool = False
    range: list[float] | None = None

    def __post_init__(self):
        if self.subsamples % 2:
            raise UserError(f"`subsamples={self.subsamples}` come in pairs of halves: give an even number")
        if self.points < 2:
            raise UserError(f"`points={self.points}` must be at least 2")
        if not 0.5 < self.threshold <= 1:
            raise UserError(f"`threshold={self.threshold:g}` must be over 0.5, or no bound holds, and at most 1")


@dataclass(frozen=True, kw_only=True, repr=False)
class StabilityResult(StudyResult):
    """Result of a stability selection.

    Attributes:
        scores: the frequency of each unit, and the stable units.
        client_similarity: the Jaccard indices of the supports of the clients' own solutions at the end of the region,
            (M, M); NaN for a client without a solution; None if no client has a solution of its own.
        units: the features, or groups of features, that a half chooses or not.
        refit_columns: the columns of the refit; None without one.
    """

    options: StabilityOptions
    units: SelectionUnits
    scores: StabilityScores
    client_similarity: np.ndarray | None
    refit_columns: list[str] | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether the refit, if one follows from the options and the columns, is done."""
        return self.refit_columns is None or super().is_complete

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the d features."""
        return name_features(self.data)


def name_features(data: FederatedData) -> tuple[str, ...]:
    """Return the names of the d features of the data."""
    features = data.features
    return feature_names(features.names, features.shape or data.train.x.shape[1:], features.voxel_grid)


_ASSUMPTIONS: dict[Assumption, str] = {
    "unimodal": "assumption=unimodal is assumed, not tested: the share of the pairs of which both halves choose such a "
    "feature has a unimodal distribution (Shah and Samworth 2013, theorem 2)",
    "r_concave": "assumption=r_concave is assumed, not tested: of such a feature, the share of the pairs of which both "
    "halves choose it has a -1/2-concave distribution, and the share of the halves a -1/4-concave one (Shah and "
    "Samworth 2013)",
}


def state_bound(result: StabilityResult) -> list[str]:
    """Return sentences: the bound on false selections, and its assumptions."""
    scores, options, path = result.scores, result.options, result.path
    last = scores.region_length - 1
    q, bound = scores.q[last], scores.bound[last]
    n_features = int((~scores.unpenalized).sum())
    excess = word(f" (more than `max_errors={options.max_errors:g}`)") if bound > options.max_errors else ""
    label = "bound: q^2 / ((2 threshold - 1) d) ="
    if options.assumption != "none":
        label = f"bound with assumption={options.assumption}:"
    independence = {
        "rows": "rows are drawn independently within each client",
        "groups": word("groups of rows (`data.group`) are drawn independently"),
        "clients": "rows are drawn independently among the clients",
    }[name_halves(result)]
    sentences = [
        f"{label} {bound:.3g}{excess}, with q = {q:.3g} of d = {n_features} "
        f"{result.units.noun} chosen on a half, for {path.param_name} from {path.values[0]:.4g} to "
        f"{path.values[last]:.4g}",
        f"so many stable {result.units.noun} are expected at most whose chance on a half is q / d or less, if "
        f"{independence} (Shah and Samworth 2013, theorem 1); these are the false ones, if noise "
        "features are exchangeable and the choice no worse than guessing (Meinshausen and Buehlmann 2010, theorem 1); "
        "q was estimated from these rows, and the path's end chosen by it",
    ]
    if options.assumption != "none":
        n_pairs = options.subsamples // 2
        (weaker,) = bound_false_selections(scores.q[[last]], n_features, options.threshold, n_pairs, "none")
        comparison = f"without an assumption the bound is {weaker:.3g}"
        if bound >= weaker:
            comparison = "such an assumption gives no smaller bound for this q and threshold"
        sentences.append(f"{_ASSUMPTIONS[options.assumption]}; {comparison}")
    return sentences


def state_judged_part(result: StabilityResult) -> str:
    """Return a clause that names the settings if the bound leaves only the path's first value to judge; else ""."""
    options, scores = result.options, result.scores
    if scores.region_length > 1 or scores.bound[0] > options.max_errors:
        return ""
    return word(f" at the first of {options.points} values of the {result.path.param_name}, the only one that "
            f"`points={options.points}`, `threshold={options.threshold:g}` and `max_errors={options.max_errors:g}` "
            "leave to judge (a larger one of them judges more)")  # fmt: skip


def name_halves(result: StabilityResult) -> str:
    """Return what the halves are drawn from: "rows", "clients", or "groups" (data.group)."""
    if result.options.by == "rows" and result.data.train.group is not None:
        return "groups"
    return result.options.by


def list_unpenalized(result: StabilityResult) -> list[str]:
    """Return the names of the units that are not penalized."""
    return [name for name, free in zip(result.units.names, result.scores.unpenalized, strict=True) if free]
