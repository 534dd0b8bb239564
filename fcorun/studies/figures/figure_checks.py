"""Checks of a figure before anything runs."""

from collections.abc import Collection, Iterable
from typing import get_args

from fcorun.base.config import CurveAxis, Settings
from fcorun.base.errors import UserError, suggest_name
from fcorun.base.metrics import REFERENCE_METRICS, Metric, MetricCatalogue
from fcorun.base.trust import locate_user_class
from fcorun.experiment.build import load_data
from fcorun.experiment.configuration.search_path import find_choices, read_yaml
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.studies.figures.spec import Figure

# the rows that draw=averaging adds to the solutions of single clients
AVERAGING_LABELS = ("mean of the clients", "densest client")
# the values of figure.draw and figure.verdicts that need suboptimality, also where figure.panels does not list it
GAP_PICTURES = ("rates", "conditioning", "graph_race")
GAP_VERDICTS = ("bounds", "fixed_points", "conditioning", "few_rounds")


def read_declared_metrics(algorithms: Collection[str]) -> list[Metric]:
    """Return the metrics that the classes of these algorithms declare, given by name.

    Raises UserError for a class that cannot be imported.
    """
    metrics: list[Metric] = []
    for path in find_choices("algo").values():
        values = read_yaml(path)
        if values.get("name") in algorithms and "class" in values:
            metrics += getattr(locate_user_class(values["class"], "algo.class"), "declared_metrics", ())
    return metrics


def check_metrics(figure: Figure, catalogue: MetricCatalogue) -> None:
    """Raise UserError if the figure names a metric that nothing declares, or an axis that is neither a counter nor
    a monotone metric.
    """
    names_by_key = {"panels": figure.panels, "claims.metric": [claim.metric for claim in figure.claims]}
    for key, names in names_by_key.items():
        for name in names:
            if name not in catalogue:
                raise UserError(f"figure.{key}={name} is not a metric: {suggest_name(name, catalogue)}")
    axes = [*get_args(CurveAxis), *catalogue.axes]
    for name in figure.x:
        if name not in axes:
            raise UserError(f"figure.x={name} is not a choice: {suggest_name(name, axes)}")
    for claim in figure.claims:
        for name in claim.at if isinstance(claim.at, dict) else ():
            if name not in ("largest", *axes):
                raise UserError(f"figure.claims.at={name} is not a choice: {suggest_name(name, ['largest', *axes])}")


def check_gap_metrics(figure: Figure, settings: Settings) -> None:
    """Raise UserError if a metric of the figure needs reference=true or gap=true, and the settings lack it."""
    metrics = [*figure.panels, *(claim.metric for claim in figure.claims)]
    if figure.draw in GAP_PICTURES or figure.verdicts in GAP_VERDICTS:
        metrics.append("suboptimality")
    for name, meaning in REFERENCE_METRICS.items():
        if name in metrics and not settings.reference:
            raise UserError(f"figure: {name} {meaning}: give reference=true as well")
    if "gap" in metrics and not settings.gap:
        raise UserError("figure: gap is the duality gap, which takes time: give gap=true as well")


def check_accuracy(figure: Figure, experiment: PreparedExperiment) -> None:
    """Raise UserError if the figure compares accuracies, and the data have no classes or no validation rows."""
    if "personalised" not in (figure.draw, figure.verdicts):
        return
    data = load_data(experiment)
    if not data.target_task.has_classes or data.validation is None:
        raise UserError(
            f"figure: personalised compares val_accuracy, which data={experiment.names['data']} does not give: give "
            "data with classes and validation rows"
        )


def check_algorithms(figure: Figure, algorithms: Iterable[str]) -> None:
    """Raise UserError if the figure names an algorithm that is not among those it runs."""
    valid = set(algorithms)
    if figure.draw == "averaging":
        valid |= set(AVERAGING_LABELS)
    names_by_key = {
        "claims.algo": [claim.algo for claim in figure.claims],
        "claims.above": [other for claim in figure.claims for other in claim.above if isinstance(other, str)],
        "claims.below": [other for claim in figure.claims for other in claim.below if isinstance(other, str)],
        "only": figure.only,
        "printed": figure.printed or {},
    }
    for key, names in names_by_key.items():
        for name in names:
            if name not in valid:
                raise UserError(
                    f"figure.{key}={name} is no algorithm that the figure runs: {suggest_name(name, valid)}"
                )
