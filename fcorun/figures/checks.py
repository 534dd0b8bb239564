"""What is refused of a figure before anything runs."""

from collections.abc import Iterable

from fcorun.errors import UserError, suggest_name
from fcorun.figures.spec import Figure
from fcorun.metrics import MetricCatalogue

AVERAGING_LABELS = (
    "mean of the clients",
    "densest client",
)  # what draw=averaging makes of the solutions of single clients


def check_metrics(figure: Figure, catalogue: MetricCatalogue) -> None:
    """Refuse metrics that nothing declares, before anything runs."""
    asked = {"panels": figure.panels, "claims.metric": [claim.metric for claim in figure.claims]}
    for key, names in asked.items():
        for name in names:
            if name not in catalogue:
                raise UserError(f"figure.{key}={name} is not a metric: {suggest_name(name, catalogue)}")


def check_reference(figure: Figure, requested: bool) -> None:
    """Refuse a figure of a gap to an optimum that nobody asks for."""
    shown = [*figure.panels, *(claim.metric for claim in figure.claims)]
    if "suboptimality" in shown and not requested:
        raise UserError("figure: suboptimality is the gap to a reference optimum: give reference=true as well")


def check_algorithms(figure: Figure, ran: Iterable[str]) -> None:
    """Refuse names of algorithms that nobody runs: they would be of nothing, and never measured."""
    ran = {*ran, *(AVERAGING_LABELS if figure.draw == "averaging" else ())}
    told = {
        "claims.algo": [claim.algo for claim in figure.claims],
        "claims.above": [other for claim in figure.claims for other in claim.above if isinstance(other, str)],
        "claims.below": [other for claim in figure.claims for other in claim.below if isinstance(other, str)],
        "only": figure.only,
        "printed": figure.printed or {},
    }
    for key, names in told.items():
        for name in names:
            if name not in ran:
                raise UserError(f"figure.{key}={name} is no algorithm that the figure runs: {suggest_name(name, ran)}")
