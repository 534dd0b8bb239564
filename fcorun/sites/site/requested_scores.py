"""The sums that a request for the scores of the last model asks for, with the threshold between two classes.

The threshold is the number of the plan, or the edge of a bin of scores that the rule of the plan has chosen.
"""

from collections.abc import Mapping

import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.classifiers import DEFAULT_THRESHOLD, ThresholdRule
from fcorun.results.models.binned_threshold import probability_at
from fcorun.results.scores.auc_interval import EDGES
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.site.score_sums import ScoreSums
from fcorun.sites.site.site_results import sort_personal
from fcorun.sites.transport.messages import Message


def threshold_of(scored: Message | None, plan: Plan) -> float:
    """Return the probability from which on rows are flagged.

    ``scored`` is the request for scores, whose "edge" is the score that the rule of the plan has chosen; None if none
    has come. Raises ValueError for anything but an edge of a bin, and for an edge that the plan does not need.
    """
    rule = ThresholdRule.parse(plan.experiment.settings.threshold)
    if not rule.needs_rows:
        if scored is not None and scored.about:
            raise ValueError("an edge that the plan does not need")
        return rule.value
    if scored is None:
        return DEFAULT_THRESHOLD
    edge = scored.about["edge"]
    if type(edge) is not float or edge not in EDGES.tolist():
        raise ValueError("no edge of a bin of scores")
    return probability_at(plan.experiment.objective, edge)


def score_sums_of(
    scored: Message, plan: Plan, policy: Policy, own_data: FederatedData, personal: Mapping[str, np.ndarray] | None
) -> ScoreSums:
    """Return the sums of a site's rows for a request with a model. Raises ValueError like ``threshold_of``.

    ``personal`` has the personal models of the site's clients as a record has them; None: the plan trains none.
    """
    threshold = threshold_of(scored, plan) if scored.name == "scores" else DEFAULT_THRESHOLD
    return ScoreSums(
        plan.experiment.objective,
        own_data,
        dict(scored.arrays) if plan.experiment.has_shared_model else None,
        policy.min_cell,
        masked=plan.secure is not None,
        threshold=threshold,
        personal=None if personal is None else sort_personal(personal, own_data.clients),
    )
