"""Checks that an algorithm and psi fit: methods of the regularizer, a bounded domain, a prox that is computed."""

from collections.abc import Mapping
from typing import Any

from fcorun.errors import UserError
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.regularizers.none import NoRegularizer


def check_required_psi(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse a regularizer without a method that the algorithm calls, or with an unbounded domain. Raises UserError."""
    algo, reg = plugins["algo"], plugins["reg"]
    for piece in algo.traits.needs:
        if not hasattr(reg, piece):
            raise UserError(
                f"algo={names['algo']} needs the {piece} of the regularizer, which reg={names['reg']} does "
                "not have; choose another algo or another reg"
            )
    if algo.traits.needs_bounded_domain:
        _check_bounded_domain(plugins, names)


def _check_bounded_domain(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse parameters that psi does not act on. Raises UserError."""
    objective, reg = plugins["objective"], plugins["reg"]
    regularized = objective.regularized if reg.apply_to is None else reg.apply_to
    free = [name for name in objective.shapes((1,), 2) if name not in regularized]
    if free:
        without = "objective.intercept=false, or " if free == ["bias"] and hasattr(objective, "intercept") else ""
        raise UserError(f"algo={names['algo']} moves within a bounded set, and reg={names['reg']} leaves "
                        f"{' and '.join(free)} free: give {without}reg.apply_to with all parameters")  # fmt: skip


def warn_unapplied_psi(experiment: PreparedExperiment, row: Mapping[str, float]) -> str:
    """Return a warning if an algorithm of the user's computed no prox although its traits say that it applies psi.

    ``row`` is the last one of metrics.csv. An algorithm that needs another method of the regularizer is left out.
    """
    algo, name = experiment.algo, experiment.names["algo"]
    if type(algo).__module__.startswith("fcorun.") or isinstance(experiment.reg, NoRegularizer):
        return ""
    if not experiment.applies_regularizer or algo.traits.needs or row["round"] == 0 or row.get("prox_evals") != 0:
        return ""
    return (f"{name} computed no prox of reg={experiment.names['reg']}: problem.prox(w, step) applies psi, and "
            "traits = Traits(psi_sides=()) says that an algorithm ignores it")  # fmt: skip
