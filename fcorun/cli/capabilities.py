"""What plug-ins need and can do, in a few words each, from what their classes say."""

from typing import Any

import yaml

from fcorun.cli.key_docs import ChoiceDoc, plugin_class, read_choice
from fcorun.config import build
from fcorun.configuration.search_path import find_choices
from fcorun.errors import UserError

_SIDES = {"client": "clients", "server": "the server"}


def capabilities(group: str, found: ChoiceDoc) -> list[str]:
    """What a choice needs and can do; nothing where its class cannot be imported."""
    needs = [f"needs {key}" for key, about in found.keys.items() if about.value == "???"]
    try:
        kind = plugin_class(group, found)
        return needs if kind is None or group not in _OF else [*needs, *_OF[group](kind, found)]
    except UserError:
        return needs


def _algo(kind: type, found: ChoiceDoc) -> list[str]:
    from fcorun.algorithms.base import Algorithm, Baseline

    if issubclass(kind, Baseline):
        return ["baseline, in one place", "certified optimum"]
    made: Algorithm = build(kind, _values(kind, "algo", found), "algo")
    traits, sides = made.traits, made.traits.psi_sides
    told = {
        f"psi on {' and '.join(_SIDES[side] for side in sides)}": sides,
        "leaves psi out": not sides,
        f"needs the {' and '.join(traits.needs)} of reg": traits.needs,
        "models of clients": made.has_personal_models,
        "all clients in every round": not traits.partial,
        "all data at once": traits.deterministic,
        "mirror maps": traits.mirrored,
        "topology=tree": traits.hierarchy == "some",
        "needs topology=tree": traits.hierarchy == "only",
        "exact": traits.exact == "composite",
        "exact for psi = 0": traits.exact == "smooth",
    }
    return [words for words, true in told.items() if true]


def _reg(kind: type, found: ChoiceDoc) -> list[str]:
    from fcorun.regularizers.base import Constraint

    told = {
        "constraint": issubclass(kind, Constraint),
        "sparse": getattr(kind, "sparse", False),
        "reg.relative": hasattr(kind, "strength_max") and "reg.relative" in found.keys,
        "subgradient": hasattr(kind, "subgradient"),
        "duality gap": hasattr(kind, "conjugate") and hasattr(kind, "dual_scale"),
    }
    return [_convex(kind), *(words for words, true in told.items() if true)]


def _objective(kind: type, found: ChoiceDoc) -> list[str]:
    told = {"client prox in closed form": hasattr(kind, "quadratic"), "rates auto": hasattr(kind, "curvature")}
    return [_convex(kind), " and ".join(getattr(kind, "tasks", ())), *(words for words, true in told.items() if true)]


def _mirror(kind: type, found: ChoiceDoc) -> list[str]:
    from fcorun.mirror_maps.euclidean import Euclidean

    if issubclass(kind, Euclidean):
        return ["any reg"]
    takes = getattr(kind, "pairs", {})
    return [f"reg=none,{','.join(name for name, reg in _classes('reg').items() if reg in takes)}"]


def _data(kind: type, found: ChoiceDoc) -> list[str]:
    from fcorun.datasets.base import Dataset

    told = {"reads files": "sources", "downloads what is missing": "fetch"}
    return [words for words, name in told.items() if getattr(kind, name) is not getattr(Dataset, name)]


def _topology(kind: type, found: ChoiceDoc) -> list[str]:
    from fcorun.communication.base import Topology

    return ["edges: an algo for trees"] if kind.edge_rounds is not Topology.edge_rounds else []  # type: ignore[attr-defined]


def _tracker(kind: type, found: ChoiceDoc) -> list[str]:
    return [f"needs pip install 'fcorun[{kind.pip_extra}]'"] if getattr(kind, "extra", "") else []


LEGENDS = {
    "algo": "exact: at the optimum of F + psi in the end, given full gradients and exact solves",
    "reg": "reg.relative: its strength may be a fraction of the largest useful one; duality gap: certifies optima",
    "objective": "rates auto: the curvature of the losses has bounds, from which rates may be worked out",
    "mirror": "reg: the regularizers that it retrieves the primal with",
}
_OF = {"algo": _algo, "reg": _reg, "objective": _objective, "mirror": _mirror, "data": _data, "topology": _topology,
       "tracker": _tracker}  # fmt: skip


def _convex(kind: type) -> str:
    """Whether a class itself says that it is convex."""
    return {True: "convex", False: "not convex", None: "convex? not said"}[vars(kind).get("convex")]


def _classes(group: str) -> dict[str, type | None]:
    """The class of each choice of a group."""
    found = {}
    for name in find_choices(group):
        try:
            found[name] = plugin_class(group, read_choice(group, name))
        except UserError:
            found[name] = None
    return found


def _values(kind: type, section: str, found: ChoiceDoc) -> dict[str, Any]:
    """Values for the fields of a class: those of its file, and 1 for what other keys are to say."""
    given = {key.removeprefix(f"{section}."): about.value for key, about in found.keys.items()}
    return {name: _value(text) for name, text in given.items() if name in kind.__dataclass_fields__}  # type: ignore[attr-defined]


def _value(text: str) -> Any:
    if "$" in text or text == "???":
        return 1.0
    try:
        return float(text)  # 1e-3 is a text to YAML
    except ValueError:
        return yaml.safe_load(text)
