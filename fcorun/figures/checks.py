"""Checks of a figure before anything runs."""

from collections.abc import Iterable

from fcorun.errors import UserError, suggest_name
from fcorun.figures.spec import Figure
from fcorun.metrics import MetricCatalogue

# the rows that draw=averaging adds to the solutions of single clients
AVERAGING_LABELS = ("mean of the clients", "densest client")


def check_metrics(figure: Figure, catalogue: MetricCatalogue) -> None:
    """Raise UserError if the figure names a metric that nothing declares."""
    names_by_key = {"panels": figure.panels, "claims.metric": [claim.metric for claim in figure.claims]}
    for key, names in names_by_key.items():
        for name in names:
            if name not in catalogue:
                raise UserError(f"figure.{key}={name} is not a metric: {suggest_name(name, catalogue)}")


def check_reference(figure: Figure, requested: bool) -> None:
    """Raise UserError if the figure shows the gap to an optimum that is not ``requested``."""
    metrics = [*figure.panels, *(claim.metric for claim in figure.claims)]
    if "suboptimality" in metrics and not requested:
        raise UserError("figure: suboptimality is the gap to a reference optimum: give reference=true as well")


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
