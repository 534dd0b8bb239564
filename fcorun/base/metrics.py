"""The catalogue of all metrics, and the aggregation of a run's evaluations. Imports nothing heavy."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

# the largest relative gap of an objective called near the optimum: relative to the optimum's objective, or to the
# decrease since the start where the optimum's objective is about 0
NEAR_OPTIMUM = 0.01
# words of warnings at the end of a run, by which tables of many runs count them
MORE_ROUNDS_ADVICE = "more rounds or larger rates may help"
IGNORES_PSI = "ignores the regularizer psi"
NO_RANDOMNESS = "all clients take part with all their data, and nothing else is drawn"

OPTIONAL_COUNTERS = (
    *("edge_bytes_up", "edge_bytes_down"),  # on a tree
    *("simulated_seconds", "mean_staleness"),  # with a clock, and with an asynchronous server
)
COUNTERS = ("round", "seconds", "bytes_up", "bytes_down", *OPTIONAL_COUNTERS, "grad_evals", "prox_evals")
_REAL_COUNTERS = ("seconds", "simulated_seconds", "mean_staleness")
INTEGER_COUNTERS = tuple(name for name in COUNTERS if name not in _REAL_COUNTERS)
PERSONAL_PREFIX = "personal_"  # of metrics of the clients' personal models, averaged over clients
QUANTILE_SUFFIXES = {"_q10": 0.1, "_q90": 0.9}  # of the quantiles of such a metric over clients
# of the mean over the tenth of the clients where a metric is worst or best, and of its deviation over all clients
SPREAD_SUFFIX = "_spread"
CLIENT_SUFFIXES = {
    "_worst_tenth": "worst tenth of clients",
    "_best_tenth": "best tenth of clients",
    SPREAD_SUFFIX: "deviation over clients",
}
SPLIT_PREFIXES = {"train_": "training", "val_": "validation"}
# of the sites whose rows are measured, and of these rows, where a site may be away
SITES_PRESENT = "sites_present"
ROWS_PRESENT = "rows_present"
EPSILON = "epsilon"  # of what the rounds so far have cost in privacy
GAP_METRICS = ("suboptimality", "gap")  # bounds on the distance to the optimum: differences of objectives
GAP_RESOLUTION = {"float32": 1e-6, "float64": 1e-14}  # the smallest gap of each precision, as a share of the objective
REFERENCE_METRICS = {  # that need a reference optimum
    "suboptimality": "is the gap to a reference optimum",
    "pattern_errors": "counts differences from a reference optimum",
}
TEST_PREFIX = "test_"  # no metric has this prefix
RANKING_METRICS = ("val_auc", "val_ap")  # how well scores of two classes rank the validation rows
TEST_METRIC_REFUSAL = (
    "rows of the test are scored once, when a run ends (scores.csv), and nothing may be chosen by them; "
    "take a metric of the validation rows, such as val_loss"
)


@dataclass(frozen=True)
class Metric:
    """A metric with its properties.

    Attributes:
        name: the column in metrics.csv.
        label: the text on an axis, with {support} and {cutoff} as placeholders. Empty: the name.
        higher: True if larger values are better, False if smaller ones are, None if neither.
        uses_cutoff: the metric depends on the cutoff above which an entry counts as nonzero.
        log: the axis is logarithmic if positive values span enough.
        bounded: values lie between 0 and 1.
        structure: the metric describes the structure that the regularizer gives to w.
        priority: runs are judged by their metric of the lowest priority unless the user names one. None: runs are not
            judged by this metric by default.
        monotone: no value is below that of the evaluation before, so that curves can be drawn against the metric
            (``x=NAME``), and a run can ``stop`` when the metric reaches a number.
    """

    name: str
    label: str = ""
    higher: bool | None = None
    uses_cutoff: bool = False
    log: bool = False
    bounded: bool = False
    structure: bool = False
    priority: int | None = None
    monotone: bool = False

    def axis_label(self, cutoff: float | None, tail: int | None = None) -> str:
        """Return the label with the cutoff filled in, and with the number of averaged rounds if ``tail`` is given."""
        size = "cutoff" if cutoff is None else f"{cutoff:g}"
        text = (self.label or self.name).replace("{support}", f"|w$_j$| > {size}").replace("{cutoff}", size)
        return text + (f"\nmean of last {tail} rounds" if tail else "")


def without_client_metrics(names: Iterable[str]) -> list[str]:
    """Return names of metrics without those of CLIENT_SUFFIXES, which would make lists in messages twice as long."""
    return [name for name in names if not name.endswith(tuple(CLIENT_SUFFIXES))]


class MetricCatalogue(dict[str, Metric]):
    """Metrics by name, in the order of the columns of tables. An unknown metric has no better direction."""

    def __missing__(self, name: str) -> Metric:
        return Metric(name)

    def with_metrics(self, metrics: Iterable[Metric]) -> "MetricCatalogue":
        """Return a catalogue that has these metrics too; metrics of the same name stay as they are.

        Of several new metrics of a name the first is taken, without a direction on which they do not agree.
        """
        extended = MetricCatalogue(self)
        for metric in metrics:
            if metric.name not in self:
                first = extended.setdefault(metric.name, metric)
                higher = first.higher if first.higher == metric.higher else None
                extended[metric.name] = replace(first, higher=higher, monotone=first.monotone and metric.monotone)
        return extended

    @property
    def comparable(self) -> list[str]:
        """The names of the metrics that have a better direction."""
        return [name for name, metric in self.items() if metric.higher is not None]

    @property
    def targets(self) -> list[str]:
        """The names of the metrics that ``stop`` may name: those with a better direction, and monotone ones."""
        return [name for name, metric in self.items() if metric.higher is not None or metric.monotone]

    def is_cost(self, name: str) -> bool:
        """Return whether a metric grows with the rounds and says nothing on the model, so that ``stop`` limits it."""
        metric = self[name]
        return metric.monotone and metric.higher is None

    @property
    def axes(self) -> list[str]:
        """The names of the metrics that curves can be drawn against."""
        return [name for name, metric in self.items() if metric.monotone]

    def sign(self, name: str) -> int:
        """Return the factor, 1 or -1, that makes smaller values of a metric the better ones."""
        return -1 if self[name].higher else 1

    def sort(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values by metric in the order of the catalogue, unknown metrics last and by name."""
        position = {name: i for i, name in enumerate(self)}
        names = sorted(metrics, key=lambda name: (position.get(name, len(position)), name))
        return {name: metrics[name] for name in names}

    def default_metric(self, names: Iterable[str]) -> str:
        """Return the metric by which runs that measured ``names`` are judged unless the user names one."""
        ranked = [name for name in names if self[name].priority is not None]
        return min(ranked, key=lambda name: self[name].priority or 0, default="objective")

    def depends_on_objective(self, name: str) -> bool:
        """Return True for losses and for metrics that plug-ins declare: two objectives do not share them."""
        if name in ("objective", *GAP_METRICS) or "_loss" in name:
            return True
        return name in self and name not in CATALOGUE

    def cutoff_metrics(self, names: Iterable[str]) -> list[str]:
        """Return the metrics among ``names`` that depend on the cutoff."""
        return [name for name in names if self[name].uses_cutoff]


def split_metrics(score: Metric, priorities: tuple[int | None, int | None] = (None, None)) -> list[Metric]:
    """Return the metrics that the score of an example gives on the training and the validation rows.

    The metrics of the shared model come first, with these ``priorities``; then those of personal models, on the
    validation rows with quantiles over clients.
    """
    label = score.label or score.name
    metrics = []
    for (prefix, split), priority in zip(SPLIT_PREFIXES.items(), priorities, strict=True):
        metrics.append(replace(score, name=prefix + score.name, label=f"{split} {label}", priority=priority))
    for metric in metrics[:]:
        priority = {"val_loss": 0, "val_accuracy": 1, "train_loss": 2, "train_accuracy": 3}.get(metric.name)
        label = f"{metric.label} of personal models"
        mean = replace(metric, name=PERSONAL_PREFIX + metric.name, label=label, priority=priority)
        metrics.append(mean)
        if metric.name.startswith("val_"):
            for suffix, level in QUANTILE_SUFFIXES.items():
                label = f"{mean.label}, {level:.0%} quantile"
                metrics.append(replace(mean, name=mean.name + suffix, label=label, priority=None))
    return metrics


def list_client_metrics(metrics: Iterable[Metric]) -> list[Metric]:
    """Return the metrics of CLIENT_SUFFIXES of losses and scores, those of personal models too."""
    splits = (*SPLIT_PREFIXES, *(PERSONAL_PREFIX + prefix for prefix in SPLIT_PREFIXES))
    found = []
    for metric in metrics:
        if not metric.name.startswith(splits) or metric.name.endswith(tuple(QUANTILE_SUFFIXES)):
            continue
        for suffix, noun in CLIENT_SUFFIXES.items():
            of_clients = replace(metric, name=metric.name + suffix, label=f"{metric.label}, {noun}", priority=None)
            if suffix == SPREAD_SUFFIX:
                of_clients = replace(of_clients, higher=None, bounded=False)  # a model that is as bad for all has none
            found.append(of_clients)
    return found


def _build_catalogue() -> MetricCatalogue:
    train_loss, val_loss, personal_train_loss, *personal_val_loss = split_metrics(
        Metric("loss", higher=False, log=True), (None, 7)
    )
    train_accuracy, val_accuracy, personal_train_accuracy, *personal_val_accuracy = split_metrics(
        Metric("accuracy", higher=True, bounded=True), (None, 9)
    )
    support = {"higher": True, "uses_cutoff": True, "bounded": True}
    structure = [
        Metric("density", "density: share of {support}", uses_cutoff=True, bounded=True, structure=True),
        Metric("rank", "rank: singular values > {cutoff}", uses_cutoff=True, structure=True),
    ]
    personal_structure = [
        replace(metric, name=PERSONAL_PREFIX + metric.name, label=f"{metric.name} of personal models")
        for metric in structure
    ]
    personal_error = "‖w$_m$ - w$_{m,\\mathrm{true}}$‖$_2$, mean over clients"
    metrics = [
        Metric("objective", "objective  Φ(w) = F(w) + ψ(w)", higher=False, log=True, priority=11),
        Metric("suboptimality", "gap  Φ(w) - Φ*", higher=False, log=True, priority=10),
        Metric("gap", "duality gap, at least  Φ(w) - Φ*", higher=False, log=True),
        train_loss,
        train_accuracy,
        val_loss,
        val_accuracy,
        Metric("val_auc", "validation AUC", higher=True, bounded=True, priority=8),
        Metric("val_ap", "validation average precision", higher=True, bounded=True),
        Metric("support_f1", "F1 of {support}", priority=4, **support),
        Metric("support_precision", "precision of {support}", **support),
        Metric("support_recall", "recall of {support}", **support),
        *structure,
        Metric("pattern_errors", "wrong zeros and nonzeros, or ranks", higher=False, log=True),
        Metric("identified_round", "round since when zeros, or rank, are the optimum's"),
        Metric(SITES_PRESENT, "sites whose rows are measured"),
        Metric(ROWS_PRESENT, "training rows of these sites"),
        Metric("violation", "distance from the set", higher=False, log=True),
        Metric("recovery_error", "‖w - w$_{\\mathrm{true}}$‖$_2$", higher=False, log=True, priority=6),
        personal_train_loss,
        personal_train_accuracy,
        *personal_val_loss,
        *personal_val_accuracy,
        *personal_structure,
        Metric(PERSONAL_PREFIX + "violation", "distance of personal models from the set", log=True),
        Metric(PERSONAL_PREFIX + "recovery_error", personal_error, higher=False, log=True),
    ]
    metrics += list_client_metrics(metric for metric in metrics if metric.name not in RANKING_METRICS)
    return MetricCatalogue({metric.name: metric for metric in metrics})


CATALOGUE = _build_catalogue()


def custom_metrics(scores: Iterable[Metric]) -> list[Metric]:
    """Return the metrics of the scores that an objective declares, without metrics of the catalogue."""
    metrics = [metric for score in scores for metric in split_metrics(score)]
    return [metric for metric in (*metrics, *list_client_metrics(metrics)) if metric.name not in CATALOGUE]


def to_json(metrics: Iterable[Metric]) -> list[dict[str, Any]]:
    """Return metrics as plain values, for summary.json."""
    return [asdict(metric) for metric in metrics]


def from_summaries(summaries: Iterable[Mapping[str, Any]]) -> MetricCatalogue:
    """Return the catalogue with the metrics that plug-ins declared in these summaries."""
    metrics = [Metric(**fields) for summary in summaries for fields in summary.get("metrics", ())]
    return CATALOGUE.with_metrics(metrics)


def structure_metrics(metric: str) -> tuple[str, ...]:
    """Return the metrics of structure of the models that ``metric`` measures: personal or shared."""
    personal = metric.startswith(PERSONAL_PREFIX)
    names = (name for name, known in CATALOGUE.items() if known.structure)
    return tuple(name for name in names if name.startswith(PERSONAL_PREFIX) == personal)


def global_name(metric: str) -> str:
    """Return the metric of the shared model that stands in for a personal one if clients have no personal models.

    The recovery error has no stand-in: the shared model has another ground truth.
    """
    name = metric.removeprefix(PERSONAL_PREFIX)
    return metric if name == "recovery_error" else name


def metric_of(row: Mapping[str, float], metric: str) -> float:
    """Return a metric of an evaluation; without personal models that of the shared model, NaN without either."""
    return row.get(metric, row.get(global_name(metric), float("nan")))


def is_baseline_row(row: Mapping[str, float]) -> bool:
    """Return True if an evaluation after the first is of a baseline, which communicates nothing and has no rounds."""
    return not (row["bytes_up"] or row.get("grad_evals") or row.get("prox_evals"))


def differ_in_epsilon(epsilons: Iterable[float]) -> bool:
    """Return whether runs of these privacy losses are not equally private; NaN is of runs without privacy.

    Noise that is found for a loss has one a little below it.
    """
    known = [epsilon for epsilon in epsilons if epsilon == epsilon]
    return bool(known) and max(known) > 1.01 * min(known)


def aggregate(
    rows: list[dict[str, float]], tail_rounds: int, metrics: MetricCatalogue = CATALOGUE, *, stopped: bool = False
) -> dict[str, dict]:
    """Return the last value of each metric, the best one with its round, and the mean over the last evaluations.

    The tail has the evaluations after round (last - tail_rounds), at least the last one. Of a baseline, which counts
    iterations, and of a run that was ``stopped`` at a target, the tail is the last evaluation alone. Where sites were
    away, the best value is one of those on the most rows, and the tail has evaluations on as many rows as the last one.
    """
    if not rows:
        return {"final": {}, "best": {}, "tail": {}}
    last = rows[-1]
    names = [name for name in last if name not in COUNTERS]
    tail = [row for row in rows if row["round"] > last["round"] - tail_rounds and not is_baseline_row(row)]
    tail = [row for row in tail if row.get(ROWS_PRESENT) == last.get(ROWS_PRESENT)]
    most_rows = max(row.get(ROWS_PRESENT, 0) for row in rows)
    candidates = [row for row in rows if row.get(ROWS_PRESENT, 0) == most_rows]
    if stopped or not tail:
        tail = [last]
    best = {}
    for name in names:
        if metrics[name].higher is not None:
            sign = metrics.sign(name)
            known = [row for row in candidates if not math.isnan(row[name])] or candidates
            row = min(known, key=lambda row, name=name, sign=sign: sign * row[name])
            best[name] = {"value": row[name], "round": row["round"]}
    return {
        "final": {name: last[name] for name in names},
        "best": best,
        "tail": {name: sum(row[name] for row in tail) / len(tail) for name in names},
    }
