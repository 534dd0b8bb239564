"""The two ways to the objects of an experiment, and the way from these to one that is checked and complete."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fcorun.api.arguments import describe_type
from fcorun.api.messages import SECTION_OF_ARGUMENT
from fcorun.config import AUTO, SECTIONS, Settings, build, build_plugin
from fcorun.configuration.defaults import compose_for_objects
from fcorun.errors import UserError
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.full_batches import explain_ignored_batch_size
from fcorun.experiment.prepare import STRENGTH_OF_DATA, build_plugins, prepare_plugins, read_labels, split_settings
from fcorun.object_checks import check_plugin, to_plain_value


def objects_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the Experiment of a configuration: its objects, its root keys, and ``defaults``.

    Raises UserError for what is wrong with the configuration itself, and not with objects that do not fit each other.
    """
    settings = build(Settings, split_settings(config))
    plugins = build_plugins(config)
    defaults = dict(config)
    for section, plugin in plugins.items():
        values = config.get(section) or SECTIONS[section].default or {}
        defaults[section] = {**values, "class": _class_path(plugin)}  # a file may name a class as its package does
    arguments = {name: plugins[section] for name, section in SECTION_OF_ARGUMENT.items()}
    return vars(settings) | arguments | {"defaults": defaults}


def prepare_objects(arguments: Mapping[str, Any]) -> PreparedExperiment:
    """Return the experiment of the arguments of an Experiment, with every field resolved and checked.

    Raises UserError as ``Experiment.prepared``.
    """
    plugins: dict[str, Any] = {}
    for name, section in SECTION_OF_ARGUMENT.items():
        plugin = arguments[name]
        if plugin is None and name not in ("algorithm", "data"):
            continue
        if not isinstance(plugin, SECTIONS[section].base_classes):
            base_names = " or ".join(cls.__name__ for cls in SECTIONS[section].base_classes)
            if isinstance(plugin, type):
                raise UserError(
                    f"{name} is {describe_type(plugin)}: give an object of the class, {plugin.__name__}(...)"
                )
            advice = "give an object of such a class"
            if name == "data":
                advice = "from_frame makes one of a DataFrame, and from_arrays of arrays"
            raise UserError(f"{name} is {describe_type(plugin)}, and no {base_names}: {advice}")
        plugins[section] = plugin
    if "objective" in plugins:
        plugins["data"] = plugins["data"].for_tasks(plugins["objective"].tasks)
    config = arguments["defaults"] or compose_for_objects(plugins)
    labels = {}
    for section in SECTIONS:
        values = dict(config.get(section) or SECTIONS[section].default or {})
        plugin = plugins.get(section)
        if plugin is None:
            plugins[section] = build_plugin(section, values)
        elif values.get("class") == _class_path(plugin):
            if section == "reg" and getattr(plugin, "relative", None) is not None:
                if plugin.strength not in (AUTO, STRENGTH_OF_DATA):
                    raise UserError("relative sets the strength: give relative or strength, not both")
                values = values | {"strength": STRENGTH_OF_DATA}
            plugins[section] = check_plugin(plugin, values, section)
        else:  # a class without a configuration file
            plugins[section] = check_plugin(plugin, {}, section)
            from fcorun.datasets.in_memory import InMemoryTable

            name = plugin.path if isinstance(plugin, InMemoryTable) else type(plugin).__name__.lower()
            labels[section] = {"name": name, "title": type(plugin).__name__}
            continue
        labels[section] = read_labels(values)
    values = split_settings(config)
    for field in fields(Settings):
        value = arguments.get(field.name, AUTO)
        if not (isinstance(value, str) and value == AUTO):
            values[field.name] = str(value) if isinstance(value, Path) else to_plain_value(value)
    settings = build(Settings, values)
    experiment = prepare_plugins(plugins, labels, settings)
    return replace(experiment, settings_warning=explain_ignored_batch_size(config, settings, experiment))


def _class_path(plugin: Any) -> str:
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}"
