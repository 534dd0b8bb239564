"""The one catalogue of metrics, and how the rows of a run are averaged. Imports nothing heavy."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

COUNTERS = (
    *("round", "seconds", "bytes_up", "bytes_down"),
    *("edge_bytes_up", "edge_bytes_down"),  # on a tree only
    *("grad_evals", "prox_evals"),
)
INTEGER_COUNTERS = tuple(name for name in COUNTERS if name != "seconds")  # those that are whole numbers
PERSONAL_PREFIX = "personal_"  # begins the names of what is measured of the clients' own models, a mean over clients
QUANTILE_SUFFIXES = {"_q10": 0.1, "_q90": 0.9}  # ends those of its quantiles over clients
_PARTS = {"train_": "training", "val_": "validation"}
TEST_PREFIX = "test_"  # begins no metric
RANKING_METRICS = {"auc": "val_auc", "ap": "val_ap"}  # of two classes: how well predictions rank the validation rows
TEST_METRIC_REFUSAL = (
    "rows of the test are scored once, when a run ends (scores.csv), and nothing may be chosen by them; "
    "take a metric of the validation rows, such as val_loss"
)


@dataclass(frozen=True)
class Metric:
    """What is known of a metric.

    Attributes:
        name: in metrics.csv.
        label: what an axis calls it; {support} and {cutoff} are filled in. Empty: its name.
        higher: whether more of it is better; None: better in no direction.
        cut: whether it depends on the cutoff above which an entry counts as nonzero.
        log: whether its axis is logarithmic where positive values span enough.
        share: whether it lies between 0 and 1.
        structure: whether it says what the regularizer has made of w.
        matters: which metric a run is judged by if nobody says: of those it has, the one with the lowest number. None:
            not by this one.
    """

    name: str
    label: str = ""
    higher: bool | None = None
    uses_cutoff: bool = False
    log: bool = False
    bounded: bool = False
    structure: bool = False
    priority: int | None = None

    def axis_label(self, cutoff: float | None, tail: int | None = None) -> str:
        """Its label, with the cutoff, and with the rounds of its tail if they are given."""
        size = "cutoff" if cutoff is None else f"{cutoff:g}"
        text = (self.label or self.name).replace("{support}", f"|w$_j$| > {size}").replace("{cutoff}", size)
        return text + (f"\nmean of last {tail} rounds" if tail else "")


class MetricCatalogue(dict[str, Metric]):
    """Metrics by name, in the order in which tables show them; one that it has not is better in no direction."""

    def __missing__(self, name: str) -> Metric:
        return Metric(name)

    def with_metrics(self, more: Iterable[Metric]) -> "MetricCatalogue":
        """The same with those it has not."""
        return MetricCatalogue(self | {metric.name: metric for metric in more if metric.name not in self})

    @property
    def comparable(self) -> list[str]:
        """The metrics that are better in one direction."""
        return [name for name, metric in self.items() if metric.higher is not None]

    def sign(self, name: str) -> int:
        """What a metric is multiplied by so that less is better."""
        return -1 if self[name].higher else 1

    def sort(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The same metrics in the order of the catalogue; those that it has not come last."""
        places = {name: place for place, name in enumerate(self)}
        return {name: metrics[name] for name in sorted(metrics, key=lambda n: (places.get(n, len(places)), n))}

    def default_metric(self, names: Iterable[str]) -> str:
        """The metric that matters most out of those a run has."""
        ranks = {name: rank for name in names if (rank := self[name].priority) is not None}
        return min(ranks, key=lambda name: ranks[name], default="objective")

    def depends_on_objective(self, name: str) -> bool:
        """Whether a metric is a loss, or one that an objective declares: of two objectives they do not compare."""
        return name in ("objective", "suboptimality") or "_loss" in name or (name in self and name not in CATALOGUE)

    def cutoff_metrics(self, names: Iterable[str]) -> list[str]:
        """Those of these metrics that depend on the cutoff."""
        return [name for name in names if self[name].uses_cutoff]


def split_metrics(score: Metric, matters: tuple[int | None, int | None] = (None, None)) -> list[Metric]:
    """A figure of an example as a metric of the training rows and one of the validation rows; then the same of the
    clients' own models, of the validation rows with quantiles over clients."""
    label, found = score.label or score.name, []
    for (part, word), rank in zip(_PARTS.items(), matters, strict=True):
        found.append(replace(score, name=part + score.name, label=f"{word} {label}", priority=rank))
    return [*found, *(each for metric in found for each in _personal(metric))]


def _personal(metric: Metric) -> list[Metric]:
    """A metric as a mean over the clients' own models, and of the validation rows as quantiles over clients."""
    rank = {"val_loss": 0, "val_accuracy": 1, "train_loss": 2, "train_accuracy": 3}.get(metric.name)
    ends = QUANTILE_SUFFIXES if metric.name.startswith("val_") else {}
    mean = replace(metric, name=PERSONAL_PREFIX + metric.name, label=f"{metric.label} of own models", priority=rank)
    more = [
        replace(mean, name=mean.name + end, label=f"{mean.label}, {q:.0%} quantile", priority=None)
        for end, q in ends.items()
    ]
    return [mean, *more]


def _catalogue() -> MetricCatalogue:
    loss = split_metrics(Metric("loss", higher=False, log=True), (None, 7))
    accuracy = split_metrics(Metric("accuracy", higher=True, bounded=True), (None, 9))
    support = {"higher": True, "uses_cutoff": True, "bounded": True}
    own = "‖w$_m$ - w$_{m,\\mathrm{true}}$‖$_2$, mean over clients"
    structure = [
        Metric("density", "density: share of {support}", uses_cutoff=True, bounded=True, structure=True),
        Metric("rank", "rank: singular values > {cutoff}", uses_cutoff=True, structure=True),
    ]
    found = [
        Metric("objective", "objective  Φ(w) = F(w) + ψ(w)", higher=False, log=True, priority=11),
        Metric("suboptimality", "gap  Φ(w) - Φ*", higher=False, log=True, priority=10),
        *(loss[0], accuracy[0], loss[1], accuracy[1]),
        Metric(RANKING_METRICS["auc"], "validation AUC", higher=True, bounded=True, priority=8),
        Metric(RANKING_METRICS["ap"], "validation average precision", higher=True, bounded=True),
        Metric("support_f1", "F1 of {support}", priority=4, **support),
        Metric("support_precision", "precision of {support}", **support),
        Metric("support_recall", "recall of {support}", **support),
        *structure,
        Metric("violation", "distance from the set", higher=False, log=True),
        Metric("recovery_error", "‖w - w$_{\\mathrm{true}}$‖$_2$", higher=False, log=True, priority=6),
        *(loss[2], accuracy[2], *loss[3:], *accuracy[3:]),  # training rows, then validation rows with their quantiles
        *(replace(m, name=PERSONAL_PREFIX + m.name, label=f"{m.name} of own models") for m in structure),
        Metric(PERSONAL_PREFIX + "violation", "distance of own models from the set", log=True),
        Metric(PERSONAL_PREFIX + "recovery_error", own, higher=False, log=True),
    ]
    return MetricCatalogue({metric.name: metric for metric in found})


CATALOGUE = _catalogue()
# What metrics were called in records and configurations of before: those of the support are none of a classifier.
RENAMED = {"f1": "support_f1", "precision": "support_precision", "recall": "support_recall"}


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same under the names that metrics have now."""
    return {RENAMED.get(name, name): value for name, value in values.items()}


def custom_metrics(scores: Iterable[Metric]) -> list[Metric]:
    """What is measured of figures of an example that an objective declares, without what the catalogue has anyway."""
    return [metric for score in scores for metric in split_metrics(score) if metric.name not in CATALOGUE]


def to_json(metrics: Iterable[Metric]) -> list[dict[str, Any]]:
    """Metrics as plain values, for summary.json."""
    return [asdict(metric) for metric in metrics]


def from_summaries(summaries: Iterable[Mapping[str, Any]]) -> MetricCatalogue:
    """The catalogue, and the metrics that these summaries note besides."""
    return CATALOGUE.with_metrics(Metric(**each) for summary in summaries for each in summary.get("metrics", ()))


def structure_metrics(metric: str) -> tuple[str, ...]:
    """The figures of structure that go with a metric: those of the clients' own models if that is of them."""
    own = metric.startswith(PERSONAL_PREFIX)
    return tuple(m.name for m in CATALOGUE.values() if m.structure and m.name.startswith(PERSONAL_PREFIX) == own)


def global_name(metric: str) -> str:
    """What a metric of own models is where clients have only the global one; others are what they are."""
    name = metric.removeprefix(PERSONAL_PREFIX)
    return metric if name == "recovery_error" else name  # of the global model, that is of another truth


def is_baseline_row(row: Mapping[str, float]) -> bool:
    """Whether a row, not the first, is a baseline's: it communicates nothing, and its iterations are no rounds."""
    return not (row["bytes_up"] or row.get("grad_evals") or row.get("prox_evals"))


def aggregate(
    rows: list[dict[str, float]], tail_rounds: int, metrics: MetricCatalogue = CATALOGUE, *, stopped: bool = False
) -> dict[str, dict]:
    """Of each metric: the last value, the best with its round, the mean over the evaluations of the last rounds.

    The tail holds the evaluations after round (last - tail_rounds); at least the last one, and of a baseline, which
    communicates nothing and counts iterations, and of a run that was ``stopped`` at a target, only that.
    """
    if not rows:
        return {"final": {}, "best": {}, "tail": {}}
    names = [name for name in rows[-1] if name not in COUNTERS]
    end = rows[-1]["round"]
    tail = [row for row in rows if row["round"] > end - tail_rounds and not is_baseline_row(row)]
    tail = rows[-1:] if stopped else tail or rows[-1:]
    best = {}
    for name in names:
        if metrics[name].higher is not None:
            row = min(rows, key=lambda r, name=name: metrics.sign(name) * r[name])
            best[name] = {"value": row[name], "round": row["round"]}
    return {
        "final": {name: rows[-1][name] for name in names},
        "best": best,
        "tail": {name: sum(row[name] for row in tail) / len(tail) for name in names},
    }
