"""fcorun list: the choices of groups, a line each, with their requirements and capabilities."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import yaml

from fcorun.base.config import SECTIONS, build
from fcorun.base.errors import UserError, suggest_name
from fcorun.base.metrics import IGNORES_PSI
from fcorun.experiment.configuration.key_docs import (
    GROUPS,
    ChoiceDoc,
    plugin_class,
    read_choice,
    read_default_choices,
    source_text,
)
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.interface.cli.commands.common_command import CommandParser
from fcorun.interface.cli.terminal import Terminal

LISTED = (*GROUPS, "experiment")


def run(argv: Sequence[str]) -> int:
    """List the choices of groups (algo, data, reg, ...) in a line each: description, requirements and capabilities,
    source; without GROUP, the groups."""
    parser = CommandParser("list", run.__doc__, folders=False)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(LISTED))
    arguments = parser.parse_args(argv)
    for group in arguments.groups:
        if group not in LISTED:
            raise UserError(f"list has no group '{group}': {suggest_name(group, LISTED)}")
    out = Terminal()
    for group in arguments.groups:
        default = read_default_choices().get(group)
        rows = []
        for name in find_choices(group):
            choice = read_choice(group, name)
            label = f"{name} *" if name == default else name
            first_sentence = re.split(r"(?<=[^A-Z])\. (?=[A-Z])", choice.description)[0].removesuffix(".")
            rows.append((label, first_sentence, ", ".join(capabilities(group, choice)), source_text(group, choice)))
        headers = (group, "description", "requirements and capabilities", "source")
        columns = [column for column in range(4) if any(row[column] for row in rows)]  # none that is empty
        legend = ["* the default"] if default in find_choices(group) else []
        if group in LEGENDS:
            legend.append(LEGENDS[group])
        lines = [[row[column] for column in columns] for row in rows]
        out.print_table([headers[column] for column in columns], lines, headers, caption="; ".join(legend))
    if not arguments.groups:
        for group in LISTED:
            out.print(f"{group}: {len(find_choices(group))} choices")
    return 0


def capabilities(group: str, choice: ChoiceDoc) -> list[str]:
    """Return the requirements and capabilities of a choice.

    For a class that cannot be imported, these are its required keys alone.
    """
    words = [f"needs {key}" for key, doc in choice.keys.items() if doc.value == "???"]
    with suppress(UserError):
        cls = plugin_class(group, choice)
        if cls is not None and group in _READERS:
            words += [word for word, holds in _READERS[group](cls, choice).items() if holds]
        for word, method in _OWN_METHODS.get(group, {}).items() if cls is not None else ():
            if getattr(cls, method) is not getattr(SECTIONS[group].base_classes[0], method):
                words.append(word)
    return words


# The words for a class and a choice, each with whether it holds.
Words = dict[str, bool]


def _algorithm(cls: Any, choice: ChoiceDoc) -> Words:
    from fcorun.methods.algorithms.algorithm import Algorithm, Baseline

    if issubclass(cls, Baseline):
        return {"baseline, in one place": True, "certified optimum": True}
    values = {}
    for key, doc in choice.keys.items():
        name = key.removeprefix("algo.")
        if name not in cls.__dataclass_fields__:
            continue
        if "$" in doc.value or doc.value == "???":
            values[name] = 1.0  # other keys give the value
            continue
        try:
            values[name] = float(doc.value)  # YAML reads 1e-3 as text
        except ValueError:
            values[name] = yaml.safe_load(doc.value)
    algorithm: Algorithm = build(cls, values, "algo")
    traits = algorithm.traits
    sides = [side.replace("server", "the server").replace("client", "clients") for side in traits.psi_sides]
    metrics = [metric.name for metric in algorithm.declared_metrics]
    return {
        f"psi on {' and '.join(sides)}": bool(sides),
        IGNORES_PSI: not sides,
        f"needs the {' and '.join(traits.needs)} of reg": bool(traits.needs),
        "needs a convex psi": traits.needs_convex_psi,
        "needs a psi that bounds every parameter": algorithm.needs_bounded_domain,
        "personal models": algorithm.has_personal_models,
        "all clients in every round": not traits.partial,
        "clients of equal weight": algorithm.needs_equal_weights,
        "cohorts of a known size": algorithm.divides_cohort,
        "all data at once": traits.deterministic,
        "linear models": traits.hessian == "linear model" or traits.local_fits or algorithm.needs_one_output,
        "numbers or two classes": algorithm.needs_one_output,
        "least squares": algorithm.needs_quadratic_losses,
        "mirror maps": traits.mirrored,
        "topology=tree": traits.hierarchy == "some",
        "topology=graph": traits.hierarchy == "some" and not algorithm.has_personal_models,
        "privacy": traits.public_uploads is not None,
        "privacy of rows": traits.gradient_steps,
        "privacy of rows in one step": bool(traits.gradient_uploads),
        "any aggregate": not traits.why_means_only and not algorithm.has_server_all,
        "restores the domain of psi": traits.restores_domain,
        "needs topology=graph": traits.hierarchy == "graph",
        "needs topology=tree": traits.hierarchy == "only",
        "exact": traits.exact == "composite",
        "exact for psi = 0": traits.exact == "smooth",
        f"metrics {', '.join(metrics)}": bool(metrics),
    }


def _regularizer(cls: Any, choice: ChoiceDoc) -> Words:
    from fcorun.methods.regularizers.regularizer import Constraint

    return {
        _convexity(cls): True,
        "constraint": issubclass(cls, Constraint),
        "sparse": getattr(cls, "sparse", False),
        "reg.relative": hasattr(cls, "strength_max") and "reg.relative" in choice.keys,
        "subgradient": hasattr(cls, "subgradient"),
        "linear minimizer": hasattr(cls, "linear_minimizer"),
        "duality gap": hasattr(cls, "conjugate") and hasattr(cls, "dual_scale"),
    }


def _objective(cls: Any, choice: ChoiceDoc) -> Words:
    tasks = getattr(cls, "tasks", ())
    return {
        _convexity(cls): True,
        " and ".join(tasks): bool(tasks),
        "client prox in closed form": hasattr(cls, "quadratic"),
        "rates auto": hasattr(cls, "curvature"),
    }


def _convexity(cls: type) -> str:
    """Return the convexity that a class itself declares, and not its parents."""
    return {True: "convex", False: "not convex", None: "convexity not declared"}[vars(cls).get("convex")]


def _mirror_map(cls: Any, choice: ChoiceDoc) -> Words:
    from fcorun.methods.mirror_maps.mirror_map import Euclidean

    if issubclass(cls, Euclidean):
        return {"any reg": True}
    names = ["none"]
    for name in find_choices("reg"):
        with suppress(UserError):  # of a class that cannot be imported
            if plugin_class("reg", read_choice("reg", name)) in getattr(cls, "retrieve_functions", {}):
                names.append(name)
    return {f"reg={','.join(names)}": True}


def _faults(cls: Any, choice: ChoiceDoc) -> Words:
    from fcorun.methods.communication.faults import Faults, Liars

    changes_labels = cls.change_targets is not Faults.change_targets
    return {
        "clients lie": issubclass(cls, Liars) and not changes_labels,
        "clients train on wrong labels": changes_labels,
    }


def _downlink(cls: Any, choice: ChoiceDoc) -> Words:
    from fcorun.methods.communication.compressor import Compressor

    return {"all clients in every round": issubclass(cls, Compressor)}


def _aggregation_rule(cls: Any, choice: ChoiceDoc) -> Words:
    return {"clients count by their weights": cls.divides_weights}


def _tracker(cls: Any, choice: ChoiceDoc) -> Words:
    pip_extra = getattr(cls, "pip_extra", "")
    return {f"needs pip install 'fcorun[{pip_extra}]'": bool(pip_extra)}


LEGENDS = {
    "algo": "exact: converges to the optimum of F + psi with full gradients and exact solves",
    "reg": "reg.relative: a fraction of the smallest strength at which 0 is optimal; duality gap: certifies optima",
    "objective": "rates auto: rates may be auto, computed from bounds on the curvature of the losses",
    "mirror": "reg: the regularizers that work with the map",
}
# the words for a method that a class has in place of that of its contract
_OWN_METHODS = {
    "data": {"reads files": "sources", "downloads missing files": "fetch"},
    "topology": {
        "needs an algo for trees": "edge_rounds",
        "needs an algo for graphs": "node_states",
        "needs a clock": "waits_for_cohort",
    },
    "uplink": {"memory at the clients": "client_memory", "memory at the server": "server_memory"},
    "clock": {"reads a file": "sources"},
    "faults": {"clients may drop out": "drops_out"},
}
_READERS = {
    "algo": _algorithm,
    "reg": _regularizer,
    "objective": _objective,
    "mirror": _mirror_map,
    "downlink": _downlink,
    "aggregate": _aggregation_rule,
    "faults": _faults,
    "tracker": _tracker,
}
