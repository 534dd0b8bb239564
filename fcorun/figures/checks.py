"""What is refused of a figure before anything runs."""

from collections.abc import Iterable

from fcorun.errors import UserError, nearest
from fcorun.figures.spec import Figure
from fcorun.metrics import Catalogue

AVERAGED = ("mean of the clients", "densest client")  # what draw=averaging makes of the solutions of single clients


def metrics(figure: Figure, known: Catalogue) -> None:
    """Refuse metrics that nothing declares, before anything runs."""
    asked = {"panels": figure.panels, "claims.metric": [claim.metric for claim in figure.claims]}
    for key, names in asked.items():
        for name in names:
            if name not in known:
                raise UserError(f"figure.{key}={name} is not a metric: {nearest(name, known)}")


def reference(figure: Figure, asked: bool) -> None:
    """Refuse a figure of a gap to an optimum that nobody asks for."""
    shown = [*figure.panels, *(claim.metric for claim in figure.claims)]
    if "suboptimality" in shown and not asked:
        raise UserError("figure: suboptimality is the gap to a reference optimum: give reference=true as well")


def algorithms(figure: Figure, ran: Iterable[str]) -> None:
    """Refuse names of algorithms that nobody runs: they would be of nothing, and never measured."""
    ran = {*ran, *(AVERAGED if figure.draw == "averaging" else ())}
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
                raise UserError(f"figure.{key}={name} is no algorithm that the figure runs: {nearest(name, ran)}")
