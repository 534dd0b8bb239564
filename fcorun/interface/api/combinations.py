"""The combinations of the values of an experiment's arguments and of the fields of its objects."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fcorun.base.config import FEDERATED_SECTIONS, Settings, has_several_values, to_plain_value, type_hints
from fcorun.base.errors import UserError, suggest_name
from fcorun.interface.api.python_words import SECTION_OF_ARGUMENT, check_axes
from fcorun.methods.algorithms.algorithm import Baseline


def combine(arguments: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the description and the arguments of each combination of values.

    Args:
        arguments: the arguments of an Experiment, of which some, or some fields of them, are lists of values.
        axes: further lists of values, by the name of an argument, "seed", or of its field, "algorithm.client_lr".

    A baseline is without the arguments of clients and server, such as uplink, if these or the algorithm vary.

    Raises UserError for axes that name no argument or field, and for lists without a value.
    """
    check_axes(axes)
    arguments = dict(arguments)
    field_axes: dict[str, dict[str, Sequence[Any]]] = {}
    for name, values in sorted(axes.items(), key=lambda axis: "." in axis[0]):  # objects before their fields
        argument, _, field_name = name.partition(".")
        if argument not in arguments:
            owners = [owner for owner, value in arguments.items() if argument in _field_names(value)]
            suggestion = f"did you mean '{owners[0]}.{argument}'?" if owners else suggest_name(argument, arguments)
            raise UserError(f"axes: an experiment has no argument '{argument}': {suggestion}")
        if field_name:
            value = arguments[argument]
            if argument not in SECTION_OF_ARGUMENT:
                raise UserError(f"axes: {argument} is no object with fields: give axes={{'{argument}': [...]}}")
            if value is None:
                raise UserError(
                    f"axes: {argument} has no object with the field {field_name}: give one to the experiment"
                )
            known = _field_names(value)
            if field_name not in known:
                raise UserError(f"axes: {argument} has no field '{field_name}': {suggest_name(field_name, known)}")
            field_axes.setdefault(argument, {})[field_name] = values
        else:
            arguments[argument] = list(values)
    variants = []
    for name, value in arguments.items():
        if name in SECTION_OF_ARGUMENT:
            variants.append(_expand_plugins(name, value, field_axes.get(name, {})))
        elif has_several_values(value, type_hints(Settings)[name]):
            values = to_plain_value(_listed(value, name))
            variants.append([(f"{name}={item}" if len(values) > 1 else "", item) for item in values])
        else:
            variants.append([("", value)])
    federated = [argument for argument, section in SECTION_OF_ARGUMENT.items() if section in FEDERATED_SECTIONS]
    varied = {name for name, choices in zip(arguments, variants, strict=True) if len(choices) > 1}
    compares_baselines = not varied.isdisjoint(["algorithm", *federated])  # else a baseline is refused with these
    combinations = []
    for combination in itertools.product(*variants):
        chosen = dict(zip(arguments, combination, strict=True))
        if compares_baselines and isinstance(chosen["algorithm"][1], Baseline):
            chosen |= dict.fromkeys(federated, ("", None))
        text = " ".join(part for part, _ in chosen.values() if part)
        combinations.append((text, {name: value for name, (_, value) in chosen.items()}))
    return combinations


def _field_names(value: object) -> set[str]:
    """Return the names of the fields of an object, or of several."""
    names = set()
    for plugin in value if isinstance(value, (list, tuple)) else [value]:
        if dataclasses.is_dataclass(plugin):
            names |= {field.name for field in dataclasses.fields(plugin)}
    return names


def _expand_plugins(name: str, value: Any, axes: Mapping[str, Sequence[Any]]) -> list[tuple[str, Any]]:
    """Return the description and the object of each combination of the objects of an argument and their fields."""
    plugins = _listed(value, name) if isinstance(value, (list, tuple)) else [value]
    section = SECTION_OF_ARGUMENT[name]
    variants = []
    for plugin in plugins:
        label = f"{section}={type(plugin).__name__.lower()}" if len(plugins) > 1 else ""
        for text, variant in _expand_fields(section, plugin, axes):
            variants.append((f"{label} {text}".strip(), variant))
    return variants


def _expand_fields(section: str, plugin: Any, axes: Mapping[str, Sequence[Any]]) -> list[tuple[str, Any]]:
    """Return the description and a copy of a plug-in for each combination of the values of its fields.

    Fields with several values, and those of ``axes``, vary. A field of ``axes`` that the plug-in lacks is left out, as
    the command leaves out keys that an algorithm lacks.
    """
    if not dataclasses.is_dataclass(plugin) or isinstance(plugin, type):
        return [("", plugin)]
    hints = type_hints(type(plugin))
    values_of_field = {}
    for field in dataclasses.fields(plugin):
        value = axes.get(field.name, getattr(plugin, field.name))
        if field.init and (field.name in axes or has_several_values(value, hints[field.name])):
            values_of_field[field.name] = to_plain_value(_listed(value, f"{section}.{field.name}"))
    variants = []
    for values in itertools.product(*values_of_field.values()):
        changes = dict(zip(values_of_field, values, strict=True))
        text = " ".join(f"{section}.{name}={value}" for name, value in changes.items())
        variants.append((text, dataclasses.replace(plugin, **changes) if changes else plugin))
    return variants


def _listed(values: Any, name: str) -> list[Any]:
    """Return several values as a list. Raises UserError for none."""
    if not len(values):
        raise UserError(f"{name} has no values: give at least one")
    return list(values)
