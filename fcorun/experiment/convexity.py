"""Convexity: certified optima need it, and so do algorithms with a convex theory."""

from typing import Any

from fcorun.algorithms.base import Baseline
from fcorun.config import Settings
from fcorun.errors import UserError
from fcorun.objectives.base import Objective
from fcorun.regularizers.base import Constraint, Regularizer


def are_convex(*plugins: Objective | Regularizer) -> bool:
    """Return whether the objective and the regularizer both declare that they are convex."""
    return all(declared_convexity(plugin) for plugin in plugins)


def declared_convexity(plugin: Objective | Regularizer) -> bool | None:
    """Return the ``convex`` that the plug-in's class itself declares, not a base class; None if it declares none."""
    return vars(type(plugin)).get("convex")


def check_optimum(plugins: dict[str, Any], names: dict[str, str], settings: Settings) -> None:
    """Refuse a baseline, a reference, a gap or a relative strength where the problem has no certified optimum.

    Raises UserError.
    """
    is_baseline = isinstance(plugins["algo"], Baseline)
    has_relative_strength = plugins["reg"].relative_or_none is not None
    if is_baseline:
        option, convex_sections = f"algo={names['algo']}", ("objective", "reg")
    elif settings.reference or settings.gap:
        option, convex_sections = "reference=true" if settings.reference else "gap=true", ("objective", "reg")
    elif has_relative_strength:
        option, convex_sections = "reg.relative", ("objective",)
    else:
        return
    for section in convex_sections:
        convex = declared_convexity(plugins[section])
        if not convex:
            problem = "is not convex; leave it out"
            if convex is None:
                problem = "does not say whether it is convex: leave it out, or give its class convex = True, if it is"
            raise UserError(f"{option} needs one optimum, and {section}={names[section]} {problem}")
    if not plugins["mirror"].domain_contains(plugins["reg"]) and not has_relative_strength:
        raise UserError(
            f"{option} would be of another problem: mirror={names['mirror']} holds w >= 0, and reg={names['reg']} does "
            "not; choose reg=nonneg, l1_nonneg or simplex"
        )


def check_convex_psi(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse a psi that is not convex where the algorithm, or means of models, need a convex one. Raises UserError."""
    traits, topology = plugins["algo"].traits, plugins["topology"]
    is_convex = declared_convexity(plugins["reg"]) is not False
    if traits.needs_convex_psi and not is_convex:
        raise UserError(
            f"algo={names['algo']} needs a convex psi, and reg={names['reg']} is not convex: choose another reg, or "
            "an algo that takes it: fcorun list algo shows which need a convex psi"
        )
    takes_means = (topology.has_nodes or topology.edge_rounds is not None) and not traits.restores_domain
    if takes_means and traits.psi_sides and isinstance(plugins["reg"], Constraint) and not is_convex:
        raise UserError(f"topology={names['topology']} takes means of models, which leave the set of "
                        f"reg={names['reg']}, because it is not convex: leave topology out, or choose another reg"
                        )  # fmt: skip
