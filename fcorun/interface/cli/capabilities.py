"""The requirements and capabilities of plug-ins, in short phrases, read from their classes."""

from contextlib import suppress
from typing import Any

import yaml

from fcorun.base.config import build
from fcorun.base.errors import UserError
from fcorun.experiment.configuration.key_docs import ChoiceDoc, plugin_class, read_choice
from fcorun.experiment.configuration.search_path import find_choices

_SIDE_NAMES = {"client": "clients", "server": "the server"}


def capabilities(group: str, choice: ChoiceDoc) -> list[str]:
    """Return the requirements and capabilities of a choice.

    For a class that cannot be imported, these are its required keys alone.
    """
    requirements = [f"needs {key}" for key, doc in choice.keys.items() if doc.value == "???"]
    try:
        cls = plugin_class(group, choice)
        if cls is None or group not in _READERS:
            return requirements
        return [*requirements, *_READERS[group](cls, choice)]
    except UserError:
        return requirements


def _algorithm(cls: type, choice: ChoiceDoc) -> list[str]:
    from fcorun.base.metrics import IGNORES_PSI
    from fcorun.methods.algorithms.algorithm import Algorithm, Baseline

    if issubclass(cls, Baseline):
        return ["baseline, in one place", "certified optimum"]
    texts = {key.removeprefix("algo."): doc.value for key, doc in choice.keys.items()}
    field_names = cls.__dataclass_fields__  # type: ignore[attr-defined]
    values = {name: _parse_value(text) for name, text in texts.items() if name in field_names}
    algorithm: Algorithm = build(cls, values, "algo")
    traits = algorithm.traits
    sides = traits.psi_sides
    metrics = [metric.name for metric in algorithm.declared_metrics]
    return _applicable(
        {
            f"psi on {' and '.join(_SIDE_NAMES[side] for side in sides)}": bool(sides),
            IGNORES_PSI: not sides,
            f"needs the {' and '.join(traits.needs)} of reg": bool(traits.needs),
            "needs a convex psi": traits.needs_convex_psi,
            "needs a psi that bounds every parameter": algorithm.needs_bounded_domain,
            "personal models": algorithm.has_personal_models,
            "all clients in every round": not traits.partial,
            "all data at once": traits.deterministic,
            "linear models": traits.hessian == "linear model" or traits.local_fits,
            "least squares": algorithm.needs_quadratic_losses,
            "mirror maps": traits.mirrored,
            "topology=tree": traits.hierarchy == "some",
            "topology=graph": traits.hierarchy == "some" and not algorithm.has_personal_models,
            "restores the domain of psi": traits.restores_domain,
            "needs topology=graph": traits.hierarchy == "graph",
            "needs topology=tree": traits.hierarchy == "only",
            "exact": traits.exact == "composite",
            "exact for psi = 0": traits.exact == "smooth",
            f"metrics {', '.join(metrics)}": bool(metrics),
        }
    )


def _regularizer(cls: type, choice: ChoiceDoc) -> list[str]:
    from fcorun.methods.regularizers.regularizer import Constraint

    words = _applicable(
        {
            "constraint": issubclass(cls, Constraint),
            "sparse": getattr(cls, "sparse", False),
            "reg.relative": hasattr(cls, "strength_max") and "reg.relative" in choice.keys,
            "subgradient": hasattr(cls, "subgradient"),
            "linear minimizer": hasattr(cls, "linear_minimizer"),
            "duality gap": hasattr(cls, "conjugate") and hasattr(cls, "dual_scale"),
        }
    )
    return [_convexity(cls), *words]


def _objective(cls: type, choice: ChoiceDoc) -> list[str]:
    tasks = " and ".join(getattr(cls, "tasks", ()))
    words = _applicable(
        {
            tasks: bool(tasks),
            "client prox in closed form": hasattr(cls, "quadratic"),
            "rates auto": hasattr(cls, "curvature"),
        }
    )
    return [_convexity(cls), *words]


def _mirror_map(cls: type, choice: ChoiceDoc) -> list[str]:
    from fcorun.methods.mirror_maps.mirror_map import Euclidean

    if issubclass(cls, Euclidean):
        return ["any reg"]
    supported = getattr(cls, "retrieve_functions", {})
    names = ["none"]
    for name in find_choices("reg"):
        with suppress(UserError):  # of a class that cannot be imported
            if plugin_class("reg", read_choice("reg", name)) in supported:
                names.append(name)
    return [f"reg={','.join(names)}"]


def _dataset(cls: type, choice: ChoiceDoc) -> list[str]:
    from fcorun.data.datasets.dataset import Dataset

    return _applicable(
        {
            "reads files": cls.sources is not Dataset.sources,  # type: ignore[attr-defined]
            "downloads missing files": cls.fetch is not Dataset.fetch,  # type: ignore[attr-defined]
        }
    )


def _topology(cls: type, choice: ChoiceDoc) -> list[str]:
    from fcorun.methods.communication.contracts import Topology

    has_edges = cls.edge_rounds is not Topology.edge_rounds  # type: ignore[attr-defined]
    return _applicable(
        {
            "needs an algo for trees": has_edges,
            "needs an algo for graphs": cls.node_states is not Topology.node_states,  # type: ignore[attr-defined]
            "needs a clock": cls.waits_for_cohort is not Topology.waits_for_cohort,  # type: ignore[attr-defined]
        }
    )


def _channel(cls: type, choice: ChoiceDoc) -> list[str]:
    from fcorun.methods.communication.contracts import Channel

    return _applicable(
        {
            "memory at the clients": cls.client_memory is not Channel.client_memory,  # type: ignore[attr-defined]
            "memory at the server": cls.server_memory is not Channel.server_memory,  # type: ignore[attr-defined]
        }
    )


def _clock(cls: type, choice: ChoiceDoc) -> list[str]:
    from fcorun.methods.clocks.clock import Clock

    return ["reads a file"] if cls.sources is not Clock.sources else []  # type: ignore[attr-defined]


def _downlink(cls: type, choice: ChoiceDoc) -> list[str]:
    from fcorun.methods.communication.compressor import Compressor

    return _applicable({"all clients in every round": issubclass(cls, Compressor)})


def _tracker(cls: type, choice: ChoiceDoc) -> list[str]:
    pip_extra = getattr(cls, "pip_extra", "")
    return [f"needs pip install 'fcorun[{pip_extra}]'"] if pip_extra else []


LEGENDS = {
    "algo": "exact: converges to the optimum of F + psi with full gradients and exact solves",
    "reg": "reg.relative: a fraction of the smallest strength at which 0 is optimal; duality gap: certifies optima",
    "objective": "rates auto: rates may be auto, computed from bounds on the curvature of the losses",
    "mirror": "reg: the regularizers that work with the map",
}
_READERS = {
    "algo": _algorithm,
    "reg": _regularizer,
    "objective": _objective,
    "mirror": _mirror_map,
    "data": _dataset,
    "topology": _topology,
    "uplink": _channel,
    "downlink": _downlink,
    "clock": _clock,
    "tracker": _tracker,
}


def _applicable(words: dict[str, bool]) -> list[str]:
    """Return the words whose condition holds."""
    return [word for word, holds in words.items() if holds]


def _convexity(cls: type) -> str:
    """Return the convexity that a class itself declares, and not its parents."""
    return {True: "convex", False: "not convex", None: "convexity not declared"}[vars(cls).get("convex")]


def _parse_value(text: str) -> Any:
    """Return the value of a text of a choice's file; 1 for a value that other keys give."""
    if "$" in text or text == "???":
        return 1.0
    try:
        return float(text)  # YAML reads 1e-3 as text
    except ValueError:
        return yaml.safe_load(text)
