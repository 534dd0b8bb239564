"""The kinds of numbers that leave a site, as a plan lists them."""

from dataclasses import dataclass

from fcorun.data.datasets.sites import Sites
from fcorun.data.tables.encoding import MissingPolicy
from fcorun.experiment.classifiers import ThresholdRule
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.site_optimum import MAX_CERTIFICATES, MAX_GRADIENTS, MAX_LOSSES
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.methods.communication.contracts import Identity
from fcorun.methods.problem.duality_gap import MAX_INTERCEPT_STEPS
from fcorun.results.scores.auc_interval import N_BINS
from fcorun.results.scores.calibration import MAX_REQUESTS, N_SUMS
from fcorun.sites.plan.table_options import HISTOGRAM_BINS

_GAP_PURPOSE = "the duality gap, a bound on the distance to the optimum"


@dataclass(frozen=True)
class Quantity:
    """A kind of number that leaves a site.

    Attributes:
        message: the name of the message.
        numbers: how many numbers, in words or as a formula in d (features) and p (parameters).
        times: how often it is sent.
        content: what the numbers are.
        purpose: why they are needed.
    """

    message: str
    numbers: str
    times: str
    content: str
    purpose: str


def list_quantities(experiment: PreparedExperiment, masked: bool) -> list[Quantity]:
    """Return everything that leaves a site in an experiment; ``masked`` sums are those of all clients together."""
    algo, settings, data = experiment.algo, experiment.settings, experiment.data
    assert isinstance(algo, Algorithm)
    assert isinstance(data, Sites)
    rounds = settings.rounds
    evaluations = -(-rounds // settings.eval_every) + 1
    quantities = [
        Quantity(
            "describe",
            "clients, columns, levels, classes",
            "once",
            "names of clients, their rows and sums of weights, kinds of columns, counts of levels and classes",
            "the clients' weights, and one encoding for all sites",
        )
    ]
    if data.missing != "refuse":
        size, content = describe_fills(data.missing)
        quantities.append(Quantity("describe", size, "once", content, f"data.missing={data.missing} fills gaps"))
    if data.standardize == "pooled":
        content = "sums of features, and of their squares around the mean"
        quantities.append(
            Quantity("sums", "d" if masked else "d for each client", "twice", content, "data.standardize=pooled")
        )
    if experiment.needs_curvature_bounds or settings.reference:
        content = "bounds on the curvature of the losses of the site's clients together, rounded to two digits"
        if settings.batch_size is not None:
            content += "; those of minibatches tell the length of the longest row"
        purpose = "reference=true"
        if experiment.needs_curvature_bounds:
            purpose = f"fields of algo={experiment.names['algo']} that are auto"
        quantities.append(Quantity("curvature", "5", "once", content, purpose))
    if experiment.reg.relative_or_none is not None:
        content = "sums of losses, residuals, and their products with the features, of the model without features"
        quantities.append(Quantity("residuals", "d + 4, or 4", "a few times", content, "reg.relative"))
    if settings.reference:
        content = "sums of losses, residuals, and their products with the features, of models on the way to the optimum"
        times = f"at most {MAX_GRADIENTS} times with the products, and {MAX_LOSSES} times without"
        quantities.append(Quantity("residuals", "d + 4, or 4", times, content, "reference=true"))
        content = "the sum of the conjugates of the losses at the scaled residuals"
        times = f"at most {MAX_CERTIFICATES} times"
        quantities.append(Quantity("conjugates", "1", times, content, "reference=true"))
    size = "the size of the model for each array of an upload"
    if algo.traits.hessian:
        size = "p (p + 1) / 2 + p: a Hessian and a gradient of p parameters"
    elif algo.traits.local_fits:
        size = "2 p + 1 for each client of the study, of which a client fills its own"
    computed_rounds = rounds if algo.computed_rounds is None else min(algo.computed_rounds, rounds)
    content = "the weighted mean of what the site's clients upload, and counts of gradients"
    if algo.has_personal_models:
        content += "; clients' personal models are not sent"
        if algo.traits.reveals_personal:
            content += ", but the upload of a site's only client determines its model"
    if settings.batch_size is not None:
        content += "; the server knows the rows of each minibatch: as many as a client has rows may tell each row"
    if not isinstance(experiment.uplink, Identity):
        content += (f"; uploads are encoded by uplink={experiment.names['uplink']} at the site, and sent as the server "
                    "decodes them")  # fmt: skip
    quantities.append(Quantity("round", size, f"{computed_rounds} rounds", content, f"algo={experiment.names['algo']}"))
    content = "sums of losses and scores of the model over the training rows and the validation rows"
    if algo.has_personal_models:
        content += ", and of the clients' personal models over the rows of their clients, with their structure"
    quantities.append(Quantity("evaluate", "a few for each split", f"{evaluations} times", content, "metrics.csv"))
    if settings.gap:
        content = "sums of losses, residuals, and their products with the features, at the model's best intercept"
        times = (f"at most {2 * evaluations} times with the products, and {MAX_INTERCEPT_STEPS * evaluations} times "
                 "without")  # fmt: skip
        quantities.append(Quantity("residuals", "d + 4, or 4", times, content, _GAP_PURPOSE))
        content = "the sum of the conjugates of the losses at the scaled residuals"
        quantities.append(Quantity("conjugates", "1", f"{evaluations} times", content, _GAP_PURPOSE))
    return quantities + _list_scores(experiment)


def describe_fills(missing: MissingPolicy, by_client: bool = True) -> tuple[str, str]:
    """Return how many numbers leave a site for ``data.missing``, in words, and what these numbers are.

    Sums are those of each client if ``by_client``, else of all clients together.
    """
    if missing == "median":
        return f"{HISTOGRAM_BINS} counts for each column of numbers", "counts of the values of columns in bins"
    size = "2 for each column of numbers" + (" and each client" if by_client else "")
    return size, "sums of columns, and counts of values"


def _list_scores(experiment: PreparedExperiment) -> list[Quantity]:
    """Return what leaves a site for scores.csv."""
    data = experiment.data
    assert isinstance(data, Sites)
    purpose = "scores.csv, of all sites together"
    if data.by_site:
        purpose = "scores.csv, of all sites together and of each site by itself"
    models, sets = "the last model", "each split"
    if isinstance(experiment.algo, Algorithm) and experiment.algo.has_personal_models:
        models = "each client's last model"
        if experiment.has_shared_model:
            models, sets = f"the last model, and of {models}", "each split and kind of model"
    content, size = f"sums of losses and scores of {models} over the rows of each split", f"a few for {sets}"
    if data.task == "survival":
        content += ", and counts of events, of comparable pairs of rows of a client, and of concordant ones"
    if data.task == "multiclass":
        size = f"3 for each class and a few more for {sets}"
    if data.task == "binary":
        content += ", and counts of these scores in bins, by class"
        size = f"{2 * N_BINS} counts, if masked {4 * N_BINS}, and a few sums for {sets}"
    quantities = []
    rule = ThresholdRule.parse(experiment.settings.threshold)
    if rule.needs_rows:
        counts = f"{2 * N_BINS} counts, if masked {4 * N_BINS}"
        scored = "counts of the scores of the last model over the validation rows in bins, by class"
        quantities.append(Quantity("score_counts", counts, "once", scored, f"threshold={rule.text}"))
    quantities.append(Quantity("scores", size, "once", content, purpose))
    if data.task == "regression":
        content = f"sums of squares of the targets and of the predictions of {models}, around their means"
        quantities.append(Quantity("calibration", f"3 for {sets}", "once", content, purpose))
    elif data.task == "binary":
        content = f"sums of losses and their derivatives of a line through the scores of {models}"
        times = f"at most {MAX_REQUESTS} times"
        quantities.append(Quantity("calibration", f"{2 * N_SUMS} for {sets}", times, content, purpose))
    return quantities
