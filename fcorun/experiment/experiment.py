"""An experiment: checked plug-ins that fit each other, an identity, and how runs of it have ended."""

import hashlib
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fcorun.base.config import (
    AUTO,
    BASELINE_SETTINGS,
    GRID_SECTIONS,
    IDENTITY_SECTIONS,
    SECTIONS,
    Settings,
    code_identifier,
    find_user_code,
    identity_fields,
    numeric_fields,
)
from fcorun.base.errors import UserError, word
from fcorun.base.metrics import (
    CATALOGUE,
    EPSILON,
    IGNORES_PSI,
    MORE_ROUNDS_ADVICE,
    Metric,
    MetricCatalogue,
    custom_metrics,
)
from fcorun.base.picture_style import name_picture_style
from fcorun.base.plugin_code import PluginCode
from fcorun.base.records.record import Record
from fcorun.base.trust import class_path
from fcorun.data.datasets.dataset import Dataset, FederatedData
from fcorun.data.tables.scaling import Scaling
from fcorun.engine.engine import RESULTS_VERSION
from fcorun.engine.federation import Numbers
from fcorun.experiment.tracker import Tracker
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.methods.clocks.clock import Clock, NoClock
from fcorun.methods.communication.aggregation import AggregationRule, WeightedMean
from fcorun.methods.communication.compressor import Compressor
from fcorun.methods.communication.contracts import Channel, Star, Topology
from fcorun.methods.communication.faults import Faults
from fcorun.methods.communication.privacy import Privacy
from fcorun.methods.mirror_maps.mirror_map import MirrorMap
from fcorun.methods.objectives.objective import Objective
from fcorun.methods.problem import solver
from fcorun.methods.problem.problem import Problem, Vector
from fcorun.methods.regularizers.regularizer import NoRegularizer, Regularizer

# The end of a run, judged by its rows: an objective that grew without bounds, or was still falling.

MetricRows = Sequence[Mapping[str, float]]

RELATIVE_CHANGE = "change"  # the target of ``stop`` on the relative change of the minimized metric between evaluations
MIN_EVALUATIONS = 10  # fewer evaluations lie too far apart to tell a fall at the end from one long before
_MIN_FALL = 0.01  # a larger fall, relative to the metric, counts as still falling
_MIN_FALL_OF_GAIN = 0.05  # and so does a larger fall relative to the whole decrease since the start
_ROUNDING = 1e-6  # the rounding of float32, relative to the largest value
_DIVERGENCE_FACTOR = 1000  # a rise by more than this factor is divergence
_SMALL_OBJECTIVE = 1e-3  # a rise from below this value, of a model that fits all rows, is no divergence


def minimized_metric(row: Mapping[str, Any]) -> str:
    """Return the metric that a run minimizes: the objective, or the training loss of personal models."""
    return "personal_train_loss" if "personal_train_loss" in row else "objective"


def metric_phrase(metric: str) -> str:
    """Return the name of the minimized metric as sentences use it."""
    return "objective" if metric == "objective" else "personal models' training loss"


def explain_growth(rows: MetricRows) -> str:
    """Return a sentence on why a run whose state is finite has diverged; empty if it has not diverged.

    A run has diverged if its minimized metric rose, from the first evaluation to the last, by more than 1,000 times
    its size at the start or at its lowest, whichever is larger, and 0.001 at least.
    """
    if not rows:
        return ""
    metric = minimized_metric(rows[-1])
    if metric not in rows[-1]:
        return ""
    first, last, lowest = rows[0][metric], rows[-1][metric], min(row[metric] for row in rows)
    if last - first <= _DIVERGENCE_FACTOR * max(abs(first), abs(lowest), _SMALL_OBJECTIVE):
        return ""
    size = f"more than {_DIVERGENCE_FACTOR:,} times its size at the start"
    return f"the {metric_phrase(metric)} rose from {first:.3g} to {last:.3g}, by {size}"


def measure_remaining_descent(rows: MetricRows) -> dict | None:
    """Measure how fast the minimized metric was still falling when a run ended; None if it had come to rest.

    The mean over the last tenth of the evaluations is compared with the mean over the tenth before. The metric was
    falling if the difference is over 1 % of the metric, or over 5 % of the whole decrease (a run that has hardly
    begun), and over the noise: three times the largest rise from one evaluation to the next in the second half of the
    run, divided by the root of the number of evaluations in a mean. Returns None for fewer than ten evaluations.

    Returns "metric", "evaluations" (a tenth of them), "fell" and "of_gain" (the two shares).
    """
    if len(rows) < MIN_EVALUATIONS:
        return None
    metric = minimized_metric(rows[-1])
    values = np.array([row[metric] for row in rows])
    before, last, noise = _compare_tenths(values)
    fall, gain = before - last, values[0] - last
    size = max(abs(before), abs(last))
    still_falling = gain > 0 and fall > max(noise, min(_MIN_FALL * size, _MIN_FALL_OF_GAIN * gain))
    if not still_falling:
        return None
    return {"metric": metric, "evaluations": len(rows) // 10, "fell": float(fall / size), "of_gain": float(fall / gain)}


def describe_few_evaluations(rows: MetricRows) -> str:
    """Return a sentence if the metric fell at the last of too few evaluations to tell when it fell, else "".

    A run that was evaluated at its start and its end alone has fallen in between, whenever that was.
    """
    metric = minimized_metric(rows[-1])
    if len(rows) >= MIN_EVALUATIONS or len(rows) < 3:
        return ""
    before, last = rows[-2][metric], rows[-1][metric]
    share = (before - last) / max(abs(before), abs(last), 1e-300)
    if share <= _MIN_FALL:
        return ""
    return (f"not judged: the {metric_phrase(metric)} was {100 * share:.2g} % lower than at the evaluation before, and "
            f"{len(rows)} evaluations are too few to tell whether it had come to rest: give more `rounds`, or a "
            "smaller `eval_every`")  # fmt: skip


def is_descending(rows: MetricRows) -> bool:
    """Return whether the minimized metric fell at the end by more than noise, however little."""
    metric = minimized_metric(rows[-1])
    before, last, noise = _compare_tenths(np.array([row[metric] for row in rows]))
    return bool(before - last > noise)


def _compare_tenths(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean over the last tenth but one of the values, the mean over the last tenth, and the noise."""
    count = max(len(values) // 10, 1)
    rises = np.diff(values[len(values) // 2 :])
    noise = max(3 * rises.max(initial=0) / np.sqrt(count), _ROUNDING * np.abs(values).max())
    return float(values[-2 * count : -count].mean()), float(values[-count:].mean()), float(noise)


def describe_remaining_descent(descent: Mapping) -> str:
    """Return a sentence on the result of ``measure_remaining_descent``."""
    count = descent["evaluations"]
    if count > 1:
        period, previous_period = f"over the last {count} evaluations", f"over the {count} before"
    else:
        period, previous_period = "at the last evaluation", "at the one before"
    fall, share_of_gain = 100 * descent["fell"], 100 * descent["of_gain"]
    return (f"not finished: {period} the {metric_phrase(descent['metric'])} was {fall:.2g} % lower than "
            f"{previous_period}, {share_of_gain:.2g} % of all it gained: {MORE_ROUNDS_ADVICE}")  # fmt: skip


# Warm starts: runs that start from the solution of a record.


@dataclass(frozen=True)
class WarmStart:
    """The record whose solution a run starts from.

    Attributes:
        record: the record.
        digest: the first 16 hex digits of the SHA-256 of the parameters' names and numbers.
    """

    record: Record
    digest: str

    def solution_for(self, problem: Problem, data: FederatedData) -> dict[str, np.ndarray]:
        """Return the record's parameters.

        Raises UserError if they are not finite, do not fit the problem or the domain of the mirror map, or if the
        record's data had other features, labels or standardization than these data.
        """
        solution, folder = dict(self.record.solution), self.record.folder
        solution.pop("client_intercepts", None)
        if problem.objective.client_intercepts:  # which follow from the other parameters
            solution.pop("bias", None)
        if not all(np.isfinite(value).all() for value in solution.values()):
            raise UserError(f"`start={folder}` has parameters that are not finite: give another record")
        shapes = {name: value.shape for name, value in solution.items()}
        if shapes != problem.shapes:
            raise UserError(f"`start={folder}` has parameters {_format_shapes(shapes)}, and this problem "
                            f"{_format_shapes(problem.shapes)}: they must be the same")  # fmt: skip
        dual = problem.to_dual(Vector({name: jnp.asarray(value) for name, value in solution.items()}))
        if not all(bool(jnp.isfinite(value).all()) for value in dual.values()):
            raise UserError(f"`start={folder}` lies outside of the domain of the mirror map: leave `mirror` out")
        self._check_features(data)
        labels = self.record.summary["data"]["classes"]
        data_labels = [str(label) for label in data.classes]
        if labels != data_labels:
            swapped = len(labels) == 2 and labels == data_labels[::-1]
            advice = f"; give `data.positive={labels[1]}`" if swapped else ""
            raise UserError(f"`start={folder}` knows the classes {', '.join(labels) or 'none'}, and these data have "
                            f"{', '.join(data_labels) or 'none'}: they must be the same{advice}")  # fmt: skip
        return solution

    def _check_features(self, data: FederatedData) -> None:
        """Refuse data whose features, or their standardization, differ from the record's. Raises UserError."""
        summary, folder = self.record.summary["data"], self.record.folder
        names, data_names = summary["feature_names"], list(data.features.names)
        if names and data_names and names != data_names:
            pairs = zip(names, data_names, strict=True)
            difference = next((f"'{name}' and '{other}'" for name, other in pairs if name != other), "")
            raise UserError(f"`start={folder}` has other features than these data, {difference} at one position: give "
                            "the same columns in the same order")  # fmt: skip
        standardized = summary.get("standardized")
        mode = standardized["by"] if standardized else "none"
        given_mode = mode
        if mode == "pooled" and not standardized.get("centred", True):
            given_mode = "scale"
        same = mode == data.features.standardized_by
        if same and data.features.standardized:
            same = _same_standardization(standardized, data.features.standardized)
        if not same:
            scaling = f" data.scaling={folder}" if mode == "pooled" else ""
            raise UserError(f"`start={folder}` is of features that were standardized otherwise: give "
                            f"`data.standardize={given_mode}{scaling}`")  # fmt: skip


def _format_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the names and shapes of parameters as text, sorted by name."""
    return ", ".join(f"{name} {list(shapes[name])}" for name in sorted(shapes))


def _same_standardization(first: dict, second: dict) -> bool:
    """Return whether features were standardized alike: by each client, or by the same means and deviations."""
    if second["by"] != "pooled":
        return True
    scaling, other = Scaling.from_dict(first), Scaling.from_dict(second)
    shift = (scaling.mean - other.mean) * scaling.factor  # in deviations
    return bool((np.abs(shift) <= 1e-9).all()) and np.allclose(scaling.factor, other.factor, rtol=1e-9, atol=0)


def load_warm_start(folder: str) -> WarmStart:
    """Load the warm start from a record. Raises UserError if the folder holds no record of a run that is done."""
    record = Record(Path(folder))
    status = record.status.get("status", "no status.json")
    if status != "done":
        raise UserError(f"`start={folder}` holds no run that is done ({status}): "
                        "give the folder of a run that is done, with its status.json")  # fmt: skip
    try:
        digest = hashlib.sha256()
        for name, value in sorted(record.solution.items()):
            digest.update(name.encode() + value.tobytes())
        about = record.summary["data"]  # what is compared with the data of a run
        _ = about["classes"], about["feature_names"]
        Scaling.from_pooled(about.get("standardized"))
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f"`start={folder}` has lost its solution.npz or summary.json, or they are damaged: give "
                        "another record") from error  # fmt: skip
    return WarmStart(record, digest.hexdigest()[:16])


# An experiment: checked plug-ins that fit each other, and an identity.


@dataclass(frozen=True, kw_only=True)
class PreparedExperiment:
    """A configuration made into objects. Two experiments with the same ``identity`` are the same experiment.

    Attributes:
        config: the configuration as plain values, fit for YAML, from which the same experiment can be built again.
        names: the name of the plug-in of each section, as in ``algo=NAME``.
        tracker: receives the complete record. The tracker is no part of the identity, nor of ``config``.
    """

    algo: Algorithm | Baseline
    data: Dataset
    reg: Regularizer
    objective: Objective
    mirror: MirrorMap
    topology: Topology
    uplink: Channel
    downlink: Channel
    aggregate: AggregationRule
    clock: Clock
    faults: Faults
    privacy: Privacy
    tracker: Tracker
    settings: Settings
    config: dict[str, Any]
    names: dict[str, str]

    @cached_property
    def identity(self) -> str:
        """The hash of everything that determines the numbers of the run.

        The contents of the data are part of the hash; paths and the presentation of results are not.
        """
        content: dict[str, Any] = {}
        for section in IDENTITY_SECTIONS:
            plugin = getattr(self, section)
            if section != "data" and not _is_outside_identity(section, plugin):
                content[section] = [code_identifier(plugin), identity_fields(plugin)]
        settings = identity_fields(self.settings)
        chooses_strength = self.settings.strength_study is not None
        if not chooses_strength:
            settings.pop("study")
        if chooses_strength or self.reg.relative_or_none is not None:
            content["reg"][1].pop("strength", None)
        if self.settings.stop is None:  # stop=null has the identity of a configuration without the key
            settings.pop("stop")
        if isinstance(self.algo, Baseline):
            setting_names = BASELINE_SETTINGS
            if self.settings.imputations or chooses_strength:  # the seed draws the missing values, or the folds
                setting_names += ("seed",)
            settings = {key: settings[key] for key in setting_names if key in settings}
        if self.warm_start:
            settings["start"] = self.warm_start.digest
        file_digest = self.topology.sources()
        if file_digest is not None:
            content["topology"][1][self.topology.file_field] = file_digest
        for section in ("clock", "faults"):
            file_digest = getattr(self, section).sources()
            if file_digest is not None:
                content[section].append(file_digest)
        content["data"] = self.fingerprint
        content["settings"] = settings
        content["versions"] = [RESULTS_VERSION, solver.VERSION]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    @cached_property
    def plugin_code(self) -> dict[str, PluginCode]:
        """The code of the plug-ins outside of fcorun, by section."""
        codes = {}
        for section in IDENTITY_SECTIONS:
            code = find_user_code(type(getattr(self, section)))
            if code is not None:
                codes[section] = code
        return codes

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the data, computed once. Downloads missing files unless ``dry_run`` is set."""
        if not self.settings.dry_run:
            self.data.fetch()
        return self.data.fingerprint()

    @cached_property
    def warm_start(self) -> WarmStart | None:
        """The record whose solution the run starts from; None unless ``start`` is set."""
        return load_warm_start(self.settings.start) if self.settings.start else None

    def with_resolved(self, **plugins: Any) -> "PreparedExperiment":
        """Return the experiment with plug-ins whose numbers are resolved. Its data and its start are not read again."""
        resolved = replace(self, **plugins)
        vars(resolved).update({name: vars(self)[name] for name in ("fingerprint", "warm_start") if name in vars(self)})
        return resolved

    @property
    def default_folder(self) -> Path:
        """The folder outputs/DATA/ALGORITHM-IDENTITY under the current folder."""
        return Path("outputs") / self.names["data"] / f"{self.names['algo']}-{self.identity[:8]}"

    @cached_property
    def batch_key(self) -> str:
        """A key shared by the experiments that one program can run together: they differ in numbers and seed only."""
        return self._describe_programs(self.data, self.fingerprint)

    @cached_property
    def law_key(self) -> str | None:
        """A key shared by the experiments that differ in numbers, seed and ``Dataset.law`` alone; None without a law.

        Their programs are the same, unless the algorithm reads bounds on the curvature.
        """
        law = self.data.law()
        return law and self._describe_programs(law, law.fingerprint())

    @cached_property
    def problem_key(self) -> str:
        """A key shared by the experiments that minimize one F + psi on data of one law, with any numbers of psi."""
        law = self.data.law()
        numbers = sorted(numeric_fields(self.reg))
        static = {name: value for name, value in identity_fields(self.reg).items() if name not in numbers}
        content = [
            [code_identifier(plugin) for plugin in (self.objective, self.reg, self.mirror)],
            [identity_fields(self.objective), static, numbers, identity_fields(self.mirror)],
            law.fingerprint() if law else self.fingerprint,
        ]
        return json.dumps(content, sort_keys=True, default=str)

    def _describe_programs(self, data: Dataset, fingerprint: str) -> str:
        """Return all that the programs of the run depend on, with these data, but for numbers and seed."""
        plugins: list = []
        for section in IDENTITY_SECTIONS:
            plugin = data if section == "data" else getattr(self, section)
            traced = set(numeric_fields(plugin)) if section in GRID_SECTIONS else set()
            if section == "uplink" and not self.topology.waits_for_cohort:
                traced = set()  # the bytes of messages decide when they arrive, and so who takes part
            if section == "algo" and self._counts_bytes_of_batch():
                traced = set()
            if section == "reg" and self.reg.relative_or_none is not None:
                traced.add("relative")
            static = {name: value for name, value in identity_fields(plugin).items() if name not in traced}
            plugins.append([code_identifier(plugin), static, sorted(traced)])
        settings = asdict(self.settings)
        if isinstance(self.algo, Algorithm):
            settings["seed"] = None
        start = self.warm_start and self.warm_start.digest
        files = [plugin.sources() for plugin in (self.topology, self.clock, self.faults)]
        content = [plugins, settings, fingerprint, start, *files]
        return json.dumps(content, sort_keys=True, default=str)

    def _counts_bytes_of_batch(self) -> bool:
        """Return whether the algorithm counts, perhaps by its numbers, bytes that are counted once for a batch."""
        counts = ["round_bytes"]
        if not self.topology.waits_for_cohort:
            counts += ["upload_bytes", "upload_bytes_for", "broadcast_bytes"]
        is_algorithm = isinstance(self.algo, Algorithm)
        return is_algorithm and any(getattr(type(self.algo), name) is not getattr(Algorithm, name) for name in counts)

    @property
    def picture_style(self) -> str:
        """The name of the style of pictures. Raises UserError as ``name_picture_style``."""
        return name_picture_style(self.settings.style, self.settings.width)

    @property
    def label(self) -> str:
        """The plug-ins and numbers of the run in one line, as logs and tables show them."""
        words = [f"{section}={self.names[section]}" for section in ("algo", "data", "reg")]
        if not isinstance(self.topology, Star):
            words.append(f"topology={self.names['topology']}")
            for field in fields(self.topology):
                value = getattr(self.topology, field.name)
                if isinstance(value, (str, int, float)) and value != field.default:
                    words.append(f"{field.name}={value}")
        for section in ("uplink", "downlink", "aggregate"):
            if not _is_outside_identity(section, getattr(self, section)):
                words.append(f"{section}={self.names[section]}")
        if not isinstance(self.clock, NoClock):
            words.append(f"clock={self.names['clock']}")
        if self.faults.acts:
            words.append(f"faults={self.names['faults']}")
        if self.privacy.acts:
            words.append(f"privacy={self.names['privacy']}")
        if self.settings.start:
            words.append(f"start={Path(self.settings.start).name}")
        if self.settings.frozen:
            words.append("frozen")
        if self.settings.relax is not None:
            words.append(f"relax={self.settings.relax:g}")
        if self.settings.imputations:
            words.append(f"imputations={self.settings.imputations}")
        numbers = self.numbers()
        if self.reg.relative_or_none is not None or self.settings.strength_study:
            numbers["reg"].pop("strength", None)
        if study := self.settings.strength_study:
            words.append(f"study.strength={study.strength}")
        for values in numbers.values():
            words += [f"{name}={value:g}" for name, value in values.items()]
        words += [f"{name}={AUTO}" for name in getattr(self.algo, "auto_fields", ())]
        return " ".join(words)

    def numbers(self) -> Numbers:
        """Return the numbers that a grid may vary, by section and field."""
        return {section: numeric_fields(getattr(self, section)) for section in GRID_SECTIONS}

    @cached_property
    def metrics(self) -> MetricCatalogue:
        """The catalogue of metrics, extended by the metrics that the objective and the algorithm declare."""
        return CATALOGUE.with_metrics(self.declared_metrics)

    @property
    def declared_metrics(self) -> list[Metric]:
        """The metrics that the objective, the algorithm, the topology and privacy declare."""
        metrics = [*custom_metrics(self.objective.metrics), *self.algorithm_metrics.values()]
        if isinstance(self.algo, Baseline):
            return metrics
        return [*metrics, *self.topology.declared_metrics, *self.privacy.declared_metrics]

    @property
    def algorithm_metrics(self) -> dict[str, Metric]:
        """The metrics that the algorithm declares, by name."""
        declared = self.algo.declared_metrics if isinstance(self.algo, Algorithm) else ()
        return {metric.name: metric for metric in declared}

    @property
    def warning(self) -> str:
        """Warnings about this combination of plug-ins and settings before the run begins; empty for none."""
        off_optimum = ""
        if not isinstance(self.aggregate, WeightedMean):
            off_optimum = word(
                f"`aggregate={self.names['aggregate']}` takes no mean of uploads: where clients differ, the run ends "
                "off the optimum of F + psi"
            )
        uncancelled_noise = ""
        if self.privacy.correlates_rounds and self.algo.traits.loses_sum_of_messages:
            uncancelled_noise = word(
                f"`privacy={self.names['privacy']}` is for servers that sum messages, where its noise cancels, and "
                f"that of `algo={self.names['algo']}` applies psi in each round: methods of dual averaging keep a sum"
            )
        return "; ".join(filter(None, (self._method_warning, off_optimum, uncancelled_noise)))

    @property
    def _method_warning(self) -> str:
        """A warning about the method with the other plug-ins; empty for none."""
        if isinstance(self.algo, Baseline) and self.settings.stop:
            return word(f"`algo={self.names['algo']}` ends by its certificate, whatever stop is")
        if self.ignores_regularizer:
            return word(
                f"`algo={self.names['algo']}` {IGNORES_PSI}: its solution does not minimize F + psi "
                f"with `reg={self.names['reg']}`"
            )
        if isinstance(self.downlink, Compressor) and self.algo.traits.growing_broadcasts:
            return word(
                f"`algo={self.names['algo']}` sends sums that grow with the rounds, of which "
                f"`downlink={self.names['downlink']}` always lacks a part: the solution may stay off the optimum"
            )
        if self.algo.is_reconstructed:
            return word(
                f"`algo={self.names['algo']}` is our reconstruction from the abstract of the paper: its steps, first "
                "round and constants may differ from the paper's"
            )
        return ""

    @property
    def noise_times(self) -> int:
        """Number of times a round that noise must hide a client or a row: on a tree in each round of an edge."""
        return self.privacy.count_noise(self.settings) * (self.topology.edge_rounds or 1)

    @property
    def resolved_privacy(self) -> Privacy:
        """Privacy with numbers for the fields that follow from the settings. Raises UserError."""
        return self.privacy.resolve(self.settings, self.noise_times)

    def epsilon_after(self, rounds: int) -> float:
        """Return the privacy loss of so many rounds. Raises UserError."""
        return self.resolved_privacy.find_epsilon(rounds, self.settings.clients_per_round, self.noise_times)

    def describe_privacy(self, rounds: int) -> tuple[str, dict[str, Any]]:
        """Return a sentence and a section of summary.json, as ``Privacy.describe``, after so many rounds."""
        return self.privacy.describe(rounds, self.settings, self.noise_times)

    @property
    def planned_epsilon(self) -> float:
        """The privacy loss of a run that ends in its last round, or before it passes ``stop.epsilon``.

        Raises UserError.
        """
        limit = (self.settings.stop or {}).get(EPSILON, math.inf)
        return min(self.epsilon_after(self.settings.rounds), limit)

    @property
    def ignores_regularizer(self) -> bool:
        """True if the problem has a regularizer that the algorithm does not apply."""
        return not self.applies_regularizer and not isinstance(self.reg, NoRegularizer)

    @property
    def picture_title(self) -> str:
        """Return the title of pictures of a study: the key ``title``, else the method, the data and psi."""
        if self.settings.title:
            return self.settings.title
        method = self.config["algo"].get("title") or self.names["algo"].replace("_", " ").capitalize()
        data_file = getattr(self.data, "path", None)
        data = Path(data_file).stem if data_file else self.names["data"]
        kind = "" if self.names["reg"].endswith("ball") else " penalty"
        return f"{method} on {data.replace('_', ' ')}, {self.names['reg'].replace('_', ' ')}{kind}"

    @property
    def has_shared_model(self) -> bool:
        """True if the run has one model for all clients: the algorithm trains one, or the run starts from one."""
        return self.algo.trains_shared_model or self.settings.start is not None

    @property
    def needs_curvature_bounds(self) -> bool:
        """Return whether the algorithm uses bounds on the curvature of all clients' losses."""
        if not isinstance(self.algo, Algorithm):
            return False
        checks_strong_convexity = self.algo.traits.needs_strong_convexity and self.objective.has_curvature_bound
        return bool(self.algo.curvature_alternatives or checks_strong_convexity)

    @property
    def applies_regularizer(self) -> bool:
        """True if the algorithm applies the regularizer psi."""
        return isinstance(self.algo, Baseline) or bool(self.algo.traits.psi_sides)

    @property
    def chooses_strength(self) -> bool:
        """Return whether the run chooses its strength: an algorithm that ignores psi has none to choose."""
        return self.settings.strength_study is not None and self.applies_regularizer


def _is_outside_identity(section: str, plugin: Any) -> bool:
    """Return whether a plug-in is no part of a run's identity, since the run is as it is without the section."""
    defaults = SECTIONS[section].default
    if defaults is None or SECTIONS[section].default_in_identity:
        return False
    return class_path(type(plugin)) == defaults["class"]
