"""The way from a plain configuration to an experiment: checked plug-ins that fit each other."""

import dataclasses
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any, get_args

from fcorun.base.config import (
    IDENTITY_SECTIONS,
    SECTIONS,
    CurveAxis,
    Settings,
    build,
    build_plugin,
    check_value,
    field_marks,
    type_hints,
)
from fcorun.base.errors import MetricError, UserError, suggest_name
from fcorun.base.metrics import (
    CATALOGUE,
    CLIENT_SUFFIXES,
    COUNTERS,
    EPSILON,
    PERSONAL_PREFIX,
    REFERENCE_METRICS,
    TEST_METRIC_REFUSAL,
    TEST_PREFIX,
    custom_metrics,
    without_client_metrics,
)
from fcorun.base.picture_style import name_picture_style
from fcorun.base.trust import class_path
from fcorun.experiment.experiment import RELATIVE_CHANGE, PreparedExperiment
from fcorun.experiment.linear_fits import check_linear_fit
from fcorun.experiment.requirements import (
    check_client_intercepts,
    check_clock,
    check_convex_psi,
    check_counted_uploads,
    check_divided_cohort,
    check_optimum,
    check_participation,
    check_required_psi,
)
from fcorun.experiment.tracker import NoTracker
from fcorun.methods.algorithms.algorithm import Baseline, Method, Traits
from fcorun.methods.clocks.clock import NoClock
from fcorun.methods.communication.aggregation import WeightedMean, check_server_all
from fcorun.methods.communication.contracts import Identity, Star
from fcorun.methods.mirror_maps.mirror_map import Euclidean
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.methods.objectives.objective import Objective, is_linear_model
from fcorun.methods.problem.duality_gap import explain_missing_conjugate
from fcorun.methods.regularizers.regularizer import Regularizer

STRENGTH_OF_DATA = 0.0  # a placeholder in a regularizer with ``relative``, whose strength follows from the data


def prepare(config: Mapping[str, Any] | PreparedExperiment) -> PreparedExperiment:
    """Build the experiment of a configuration: one plug-in for each section, and the settings of the root keys.

    An experiment that is prepared already is returned. Raises UserError for an unknown or missing key, a value of the
    wrong type or out of range, a plug-in that cannot be found, and plug-ins that do not fit each other. Reads and
    writes no files.
    """
    if isinstance(config, PreparedExperiment):
        return config
    settings = build(Settings, split_settings(config))
    plugins = build_plugins(config)
    labels = {name: read_labels(config.get(name) or SECTIONS[name].default or {}) for name in plugins}
    return prepare_plugins(plugins, labels, settings)


def split_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the root keys of a configuration, without its sections."""
    return {key: value for key, value in config.items() if key not in (*SECTIONS, "figure")}


def read_labels(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the name and the title of a plug-in, as far as the values of its section have them."""
    return {key: str(values[key]) for key in ("name", "title") if values.get(key)}


def build_plugins(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plug-in of each section of a configuration. Raises UserError, as ``prepare``."""
    plugins: dict[str, Any] = {}
    for name, section in SECTIONS.items():
        values = config.get(name) or section.default
        if not isinstance(values, Mapping):
            raise UserError(f"the section '{name}' is missing: give {name}=NAME")
        if name == "reg" and values.get("relative") is not None:
            values = {**values, "strength": STRENGTH_OF_DATA}
        plugins[name] = plugin = build_plugin(name, values)
        if not isinstance(plugin, section.base_classes):
            base_names = " or ".join(path.rpartition(".")[2] for path in section.base_class_paths)
            raise UserError(f"{name}.class={values['class']} is no {base_names}; "
                            f"derive the class from {section.base_class_paths[0]}")  # fmt: skip
    return plugins


def prepare_plugins(
    plugins: Mapping[str, Any], labels: Mapping[str, Mapping[str, str]], settings: Settings
) -> PreparedExperiment:
    """Return the experiment of plug-ins, one for each section, that are checked one by one. Raises UserError.

    Args:
        labels: the "name" of each section's plug-in, by default that of its class, and the "title" in figures, if any.
    """
    plugins = dict(plugins)
    names = {section: labels[section].get("name", type(plugins[section]).__name__.lower()) for section in plugins}
    settings = _resolve_settings(settings, plugins["algo"], names["algo"])
    message_traits = plugins["topology"].traits_of_messages(plugins["algo"].traits)
    plugins["uplink"] = plugins["uplink"].resolve_auto(message_traits)
    plugins["downlink"] = plugins["downlink"].resolve_auto(Traits(feedback="ef21"))
    check_compatibility(plugins, names)
    if not isinstance(plugins["tracker"], NoTracker):
        plugins["tracker"].check_modules()
    check_start(plugins, names, settings)
    check_communication(plugins, names, settings)
    check_client_intercepts(plugins, names)
    check_optimum(plugins, names, settings)
    check_convex_psi(plugins, names)
    if (study := settings.strength_study) and plugins["reg"].relative_or_none is not None:
        raise UserError(f"`study.strength={study.strength}` chooses the strength, and `reg.relative` sets it: give one "
                        "of them")  # fmt: skip
    if settings.relax is not None or settings.imputations:
        check_linear_fit(plugins, names, settings)
    resolved_config = asdict(settings)
    del resolved_config["hosts"]  # hosts belong to one invocation, not to the experiment
    for section in IDENTITY_SECTIONS:
        resolved_config[section] = plugin_to_config(plugins[section], names[section], labels[section].get("title"))
    if settings.start:
        plugins["data"] = plugins["data"].with_record_encoding(settings.start)
    experiment = PreparedExperiment(**plugins, settings=settings, config=resolved_config, names=names)
    check_declared_metrics(experiment)
    check_metric(settings.metric, experiment)
    check_axis(settings.x, experiment)
    check_stop(experiment)
    check_gap(experiment)
    for key, is_given in {"relax": settings.relax is not None, "imputations": settings.imputations}.items():
        if settings.client_metrics and is_given:
            raise UserError("`client_metrics=true` measures each evaluation of a run, and "
                            f"{key} makes another model of its end: leave one of them out")  # fmt: skip
    return experiment


def replace_plugins(
    experiment: PreparedExperiment, settings: Settings, names: Mapping[str, str] | None = None, **plugins: Any
) -> PreparedExperiment:
    """Return the experiment with other settings, and other plug-ins in some sections. Raises UserError.

    ``names`` are those of plug-ins of other choices, by section.
    """
    labels = {}
    for section in SECTIONS:
        labels[section] = {"name": experiment.names[section]}
        title = experiment.config.get(section, {}).get("title")
        if title:
            labels[section]["title"] = title
    for section, name in (names or {}).items():
        labels[section] = {"name": name}
    changed = prepare_plugins(
        {section: getattr(experiment, section) for section in SECTIONS} | plugins, labels, settings
    )
    if "fingerprint" in vars(experiment) and changed.data == experiment.data:  # the files are not read again
        vars(changed)["fingerprint"] = experiment.fingerprint
    return changed


def check_metric(metric: str | None, experiment: PreparedExperiment) -> None:
    """Refuse a metric by which runs cannot be compared.

    Such metrics are unknown to the catalogue and the objective, are better in no direction, belong to the test rows,
    or are the gap to a reference optimum that the experiment does not compute. Raises MetricError.
    """
    if metric is None:
        return
    if metric.removeprefix(PERSONAL_PREFIX).startswith(TEST_PREFIX):
        raise MetricError(f"`metric={metric}` is refused: {TEST_METRIC_REFUSAL}")
    if metric not in experiment.metrics.comparable:
        choices = without_client_metrics(experiment.metrics.comparable)
        raise MetricError(f"`metric={metric}` is not a choice: {suggest_name(metric, choices)}")
    if metric in REFERENCE_METRICS and not experiment.settings.reference:
        raise MetricError(f"`metric={metric}` {REFERENCE_METRICS[metric]}: give `reference=true` as well")


def check_declared_metrics(experiment: PreparedExperiment) -> None:
    """Refuse metrics of the algorithm whose columns metrics.csv has already, and a certificate that is none of them.

    Raises UserError.
    """
    known = {*COUNTERS, *get_args(CurveAxis), *CATALOGUE}
    known |= {metric.name for metric in custom_metrics(experiment.objective.metrics)}
    for name in experiment.algorithm_metrics:
        if name in known or name.startswith((PERSONAL_PREFIX, TEST_PREFIX)):
            raise UserError(f"`algo={experiment.names['algo']}` declares the metric '{name}', a name that fcorun uses "
                            "itself: give it another name")  # fmt: skip
    certificate = getattr(experiment.algo, "certificate", "")
    falling = [metric.name for metric in getattr(experiment.algo, "declared_metrics", ()) if metric.higher is False]
    if certificate and certificate not in falling:
        raise UserError(f"`algo={experiment.names['algo']}` has certificate = '{certificate}', which its "
                        f"declared_metrics lack: declare Metric('{certificate}', ..., higher=False)")  # fmt: skip


def check_axis(x: str, experiment: PreparedExperiment) -> None:
    """Refuse an axis of curves that is neither a counter nor a monotone metric. Raises MetricError.

    A baseline measures no monotone metric: curves of other algorithms are drawn against that, and its level line.
    """
    if x in get_args(CurveAxis) or isinstance(experiment.algo, Baseline):
        return
    if x == EPSILON and x not in experiment.metrics:
        raise MetricError("`x=epsilon` draws curves of private runs, and this run is not private: give "
                          "`privacy=gaussian`, or another x, such as rounds")  # fmt: skip
    choices = [*get_args(CurveAxis), *experiment.metrics.axes]
    if x not in experiment.metrics:
        raise MetricError(f"`x={x}` is not a choice: {suggest_name(x, choices)}")
    if not experiment.metrics[x].monotone:
        raise MetricError(f"`x={x}` is a metric that may fall again, so that no curve can be drawn against it: choose "
                            f"{', '.join(choices)}")  # fmt: skip


def _resolve_settings(settings: Settings, algo: Method, name: str) -> Settings:
    """Return the settings with one of ``local_epochs`` and ``local_steps`` None, and what a named metric needs.

    The precision is float64 where the algorithm needs that. An algorithm whose clients take all their data at once
    counts its own steps, and has no ``batch_size``. Raises UserError.
    """
    name_picture_style(settings.style, settings.width)  # refuses some widths
    named = [name for name in (settings.metric, *(settings.stop or {})) if name]
    if "gap" in named:
        settings = replace(settings, gap=True)
    if any(name.endswith(tuple(CLIENT_SUFFIXES)) for name in named):
        settings = replace(settings, client_metrics=True)
    if algo.needs_float64:
        settings = replace(settings, precision="float64")
    if settings.local_steps is not None:
        if settings.local_epochs not in (None, 1):
            raise UserError("local_epochs and local_steps exclude each other: set one of them to `null`")
        settings = replace(settings, local_epochs=None)
    elif settings.local_epochs is None:
        raise UserError("local_epochs and local_steps are both `null`: set one of them")
    if not algo.traits.deterministic:
        return settings
    if settings.local_epochs != 1:
        raise UserError(f"`algo={name}` takes all data of a client and counts its own steps: leave local_epochs and "
                        "local_steps out, and see the keys of `algo`")  # fmt: skip
    return replace(settings, batch_size=None)


def plugin_to_config(plugin: Any, name: str, title: str | None = None) -> dict[str, Any]:
    """Return a plug-in with its name and its title in figures as plain values, from which it can be built again."""
    config = {"name": name, "class": class_path(type(plugin))}
    if title:
        config["title"] = title
    marks = field_marks(type(plugin))
    fields = {}
    for field in dataclasses.fields(plugin):
        if "in memory" not in marks.get(field.name, ()):
            fields[field.name] = deepcopy(getattr(plugin, field.name))
    if isinstance(plugin, Regularizer) and plugin.relative_or_none is not None:
        del fields["strength"]
    return config | fields


def check_gap(experiment: PreparedExperiment) -> None:
    """Refuse a duality gap of a problem without conjugates, or of a run without a shared model. Raises UserError."""
    names = experiment.names
    if not experiment.settings.gap:
        return
    if not experiment.has_shared_model:
        raise UserError(
            f"`gap=true` measures a model for all clients, and `algo={names['algo']}` makes none: leave gap out"
        )
    reason = explain_missing_conjugate(experiment.objective, experiment.reg)
    if reason:
        raise UserError(f"`gap=true` needs the duality gap of `objective={names['objective']}` with "
                        f"`reg={names['reg']}`: {reason}; leave gap out, or give `reference=true`")  # fmt: skip


def check_start(plugins: dict[str, Any], names: dict[str, str], settings: Settings) -> None:
    """Refuse ``start`` or ``frozen`` without effect. Raises UserError."""
    algo = plugins["algo"]
    if settings.start == "":
        raise UserError("start= names no folder: give a record, or leave start out")
    if isinstance(algo, Baseline):
        unused = {
            "start": settings.start,
            "frozen": settings.frozen,
            "topology": not isinstance(plugins["topology"], Star),
            "uplink": not isinstance(plugins["uplink"], Identity),
            "downlink": not isinstance(plugins["downlink"], Identity),
            "aggregate": not isinstance(plugins["aggregate"], WeightedMean),
            "clock": not isinstance(plugins["clock"], NoClock),
            "faults": plugins["faults"].acts,
            "privacy": plugins["privacy"].acts,
        }
        for key, given in unused.items():
            if given:
                raise UserError(
                    f"`algo={names['algo']}` solves the problem on all rows in one place, from any start: leave "
                    f"{key} out, or give this run the default of {key}"
                )
    if settings.frozen and not settings.start:
        raise UserError("`frozen=true` trains no server's model: give `start=FOLDER`, a record that has one")
    if settings.frozen and not algo.has_personal_models:
        raise UserError(f"`frozen=true` leaves nothing to do for `algo={names['algo']}`, which has no personal models; "
                        "choose an `algo` that has: `fcorun list algo` shows which have")  # fmt: skip


def check_communication(plugins: dict[str, Any], names: dict[str, str], settings: Settings) -> None:
    """Refuse what the topology, the uplink or the downlink does not support. Raises UserError."""
    if isinstance(plugins["algo"], Baseline):
        return
    plugins["topology"].check(plugins, names, settings)
    check_participation(plugins, names, settings)
    check_divided_cohort(plugins, names)
    check_counted_uploads(plugins, names)
    for section in ("uplink", "downlink"):
        if settings.frozen and not isinstance(plugins[section], Identity):
            raise UserError(f"`frozen=true` sends nothing: leave `{section}={names[section]}` out")
    if not (plugins["topology"].has_downlink or isinstance(plugins["downlink"], Identity)):
        raise UserError(f"`topology={names['topology']}` sends no broadcasts of one server: leave "
                        f"`downlink={names['downlink']}` out")  # fmt: skip
    plugins["uplink"].check(plugins, names, settings)
    plugins["downlink"].check_downlink(plugins, names, settings)
    plugins["aggregate"].check(plugins, names, settings)
    check_server_all(plugins, names)
    check_clock(plugins, names, settings)
    plugins["faults"].check(plugins, names, settings)
    plugins["privacy"].check(plugins, names, settings)


def check_compatibility(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse plug-ins that cannot work with each other. Raises UserError."""
    algo, reg, mirror = plugins["algo"], plugins["reg"], plugins["mirror"]
    traits = algo.traits
    if not traits.mirrored and not isinstance(mirror, Euclidean):
        raise UserError(f"`algo={names['algo']}` knows no mirror maps: leave `mirror={names['mirror']}` out")
    _check_curvature(plugins, names)
    _check_hessian(plugins["objective"], algo, names)
    check_required_psi(plugins, names)
    if not mirror.supports(reg):
        class_names = [cls.__name__ for cls in mirror.retrieve_functions]  # as conf/ spells L1Box: l1_box
        supported = ", ".join(sorted(re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() for name in class_names))
        raise UserError(
            f"`mirror={names['mirror']}` has no way to retrieve with `reg={names['reg']}`; it knows `reg=none`, "
            f"{supported}: choose one of them, or `mirror=euclidean`, which takes any"
        )
    if reg.apply_to == []:
        raise UserError("`reg.apply_to=[]` leaves psi nothing to act on: name parameters, or give `reg=none`")
    psi_sides = () if isinstance(algo, Baseline) else traits.psi_sides
    if reg.applied_by != "both" and psi_sides and reg.applied_by not in psi_sides:
        raise UserError(f"`reg.applied_by={reg.applied_by}`: `algo={names['algo']}` applies psi on the {psi_sides[0]} "
                        "only; give both")  # fmt: skip
    pulls_to_output = algo.has_personal_models and traits.restores_domain  # on clients; Ditto with solver=feddualavg
    if reg.applied_by != "both" and len(psi_sides) == 2 and (traits.exact or pulls_to_output):
        raise UserError(f"`reg.applied_by={reg.applied_by}`: `algo={names['algo']}` goes wrong unless clients and "
                        "server apply psi; give both")  # fmt: skip
    _check_factors(reg, names["reg"], "" if isinstance(mirror, Euclidean) else names["mirror"])
    for name, values in (reg.per_client or {}).items():
        if name not in reg.across_clients:
            allowed = ", ".join(reg.across_clients) or "none"
            raise UserError(
                f"`reg.per_client`: '{name}' of `reg={names['reg']}` cannot differ between clients; {allowed} can"
            )
        for value in values:
            check_value(value, type_hints(type(reg))[name], f"reg.per_client.{name}")
    if reg.relative_or_none is not None and not hasattr(reg, "strength_max"):
        raise UserError(f"`reg.relative` needs a largest useful strength, which `reg={names['reg']}` does not have; "
                        "give `reg.strength`")  # fmt: skip


def _check_curvature(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse steps that are "auto" where the losses have no curvature bounds to resolve them from. Raises UserError."""
    objective, mirror = plugins["objective"], plugins["mirror"]
    alternatives = " and ".join(plugins["algo"].curvature_alternatives)
    if not alternatives:
        return
    if not objective.has_curvature_bound:
        raise UserError(f"`algo={names['algo']}` needs bounds on the curvature of the losses, which "
                        f"`objective={names['objective']}` does not have; give {alternatives}")  # fmt: skip
    if not isinstance(mirror, Euclidean):
        raise UserError(f"`algo={names['algo']}` works out its rates for `mirror=euclidean`: with "
                        f"`mirror={names['mirror']}`, give {alternatives}")  # fmt: skip


def _check_hessian(objective: Objective, algo: Method, names: dict[str, str]) -> None:
    """Refuse objectives without the Hessian that the algorithm needs. Raises UserError."""
    if algo.needs_quadratic_losses and not isinstance(objective, LeastSquares):
        raise UserError(f"`algo={names['algo']}` needs a Hessian that does not depend on w, which "
                        f"`objective={names['objective']}` does not have: choose another `algo`")  # fmt: skip
    smooth = is_linear_model(type(objective)) and objective.has_hessian  # type: ignore[attr-defined]
    if (algo.traits.hessian or algo.traits.local_fits) and not smooth:
        raise UserError(f"`algo={names['algo']}` needs the Hessian of a linear model whose loss has a positive second "
                        f"derivative, and `objective={names['objective']}` has none: choose another "
                        "`algo`")  # fmt: skip


def _check_factors(reg: Regularizer, name: str, mirror: str) -> None:
    """Refuse ``factors`` without a sum over features or with a mirror map, and strengths that are given twice.

    Args:
        name: of the regularizer.
        mirror: the name of the mirror map; empty for the Euclidean one.
    """
    if reg.per_client and reg.relative_or_none is not None:
        raise UserError("`reg.relative` and `reg.per_client` exclude each other: set one of them to `null`")
    if reg.factors and not vars(type(reg)).get("separable"):
        raise UserError(f"`reg.factors` weighs the penalties of single features, of which `reg={name}` is no sum: "
                        "choose `reg=l1, elastic_net, l2 or group_lasso`")  # fmt: skip
    if reg.factors and mirror:
        raise UserError(f"`reg.factors` goes with `mirror=euclidean`, and `mirror={mirror}` knows no factors: leave "
                        "one of them out")  # fmt: skip


def check_stop(experiment: PreparedExperiment) -> None:
    """Refuse targets of ``stop`` that are unknown, or that this run does not measure. Raises UserError."""
    stop, names = experiment.settings.stop, experiment.names
    if not stop or isinstance(experiment.algo, Baseline):  # a baseline ends by its certificate
        return
    reasons = {}  # why this run does not measure a metric, by its name
    if not experiment.settings.reference:
        reasons |= dict.fromkeys(REFERENCE_METRICS, "give `reference=true`")
    if not hasattr(experiment.reg, "violation"):
        reasons["violation"] = f"`reg={names['reg']}` is no constraint"
    for name, target in stop.items():
        if name.removeprefix(PERSONAL_PREFIX).startswith(TEST_PREFIX):
            raise UserError(f"`stop.{name}` is refused: {TEST_METRIC_REFUSAL}")
        if name == EPSILON and name not in experiment.metrics:
            raise UserError("`stop.epsilon` limits what a private run costs, and this run is not private: give "
                            "`privacy=gaussian`, or leave stop.epsilon out")  # fmt: skip
        if name != RELATIVE_CHANGE and name not in experiment.metrics.targets:
            choices = [RELATIVE_CHANGE, *without_client_metrics(experiment.metrics.targets)]
            raise UserError(f"stop: '{name}' is not a choice: {suggest_name(name, choices)}")
        if name == EPSILON and experiment.privacy.acts:
            first = min(experiment.settings.eval_every, experiment.settings.rounds)
            if (cost := experiment.epsilon_after(first)) > target:
                raise UserError(f"`stop.epsilon={target:g}` is passed before the first evaluation: {first} rounds cost "
                                f"{cost:.3g}; raise `privacy.noise`, or lower `eval_every`")  # fmt: skip
        if name == RELATIVE_CHANGE and target < 0:
            raise UserError(f"`stop.change={target:g}` must be non-negative")
        if name.startswith(PERSONAL_PREFIX):
            if not experiment.algo.has_personal_models:
                reasons[name] = f"`algo={names['algo']}` has no personal models"
        elif name not in (RELATIVE_CHANGE, *experiment.algorithm_metrics) and not experiment.has_shared_model:
            reasons[name] = f"`algo={names['algo']}` makes no model for all clients"
        if name in reasons:
            raise UserError(f"stop: this run does not measure {name}: {reasons[name]}")
