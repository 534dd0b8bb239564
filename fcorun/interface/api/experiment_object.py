"""An experiment made of objects: what ``fcorun algo=... data=...`` composes from names."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fcorun.base.config import (
    AUTO,
    SECTIONS,
    CurveAxis,
    Settings,
    build,
    build_plugin,
    changes_runs,
    check_plugin,
    import_classes,
    to_plain_value,
)
from fcorun.base.errors import UserError, describe_type
from fcorun.base.picture_style import FigureStyle
from fcorun.base.records.formats import flatten
from fcorun.base.trust import class_path, public_path
from fcorun.data.datasets.dataset import Dataset
from fcorun.experiment.configuration.compose import name_sweep
from fcorun.experiment.configuration.objects import compose_for_objects
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import (
    STRENGTH_OF_DATA,
    build_plugins,
    check_metric,
    prepare_plugins,
    read_labels,
    split_settings,
)
from fcorun.experiment.tracker import Tracker
from fcorun.interface.api.combinations import combine
from fcorun.interface.api.python_words import (
    SECTION_OF_ARGUMENT,
    check_configuration,
    check_folder,
    check_list,
    check_watcher,
    name_key,
    name_keys,
    names_of_configuration,
    names_of_experiment,
    python_words,
)
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.methods.clocks.clock import Clock
from fcorun.methods.communication.aggregation import AggregationRule
from fcorun.methods.communication.contracts import Channel, Topology
from fcorun.methods.communication.faults import Faults
from fcorun.methods.communication.privacy import Privacy
from fcorun.methods.mirror_maps.mirror_map import MirrorMap
from fcorun.methods.objectives.objective import Objective
from fcorun.methods.regularizers.regularizer import Regularizer
from fcorun.runs.job import SweepWatcher, Watcher
from fcorun.runs.run_experiments import run_experiments

if TYPE_CHECKING:
    from fcorun.interface.api.run_record import RunRecord, Sweep
    from fcorun.studies.selection.selection_result import Selection
    from fcorun.studies.selection.stability import StabilityResult
    from fcorun.studies.selection.study import Result, StudyPlan


# From a configuration to its experiment, and from an experiment to one that is checked and complete.


def experiment_of_config(config: Mapping[str, Any]) -> "Experiment":
    """Return the experiment of a configuration: its objects, its root keys, and the configuration as ``defaults``.

    Raises UserError for what is wrong with the configuration itself, and not with objects that do not fit each other.
    """
    settings = build(Settings, split_settings(config))
    plugins = build_plugins(config)
    defaults = dict(config)
    for section, plugin in plugins.items():
        values = config.get(section) or SECTIONS[section].default or {}
        defaults[section] = {**values, "class": class_path(type(plugin))}  # a file may name a class as its package does
    root_keys = {
        field.name: getattr(settings, field.name) for field in fields(Experiment) if hasattr(settings, field.name)
    }
    objects = {name: plugins[section] for name, section in SECTION_OF_ARGUMENT.items()}
    return Experiment(**root_keys, **objects, defaults=defaults)


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
        elif public_path(str(values.get("class"))) == class_path(type(plugin)):
            if section == "reg" and getattr(plugin, "relative", None) is not None:
                if plugin.strength not in (AUTO, STRENGTH_OF_DATA):
                    raise UserError("relative sets the strength: give relative or strength, not both")
                values = values | {"strength": STRENGTH_OF_DATA}
            plugins[section] = check_plugin(plugin, values, section)
        else:  # a class without a configuration file
            plugins[section] = check_plugin(plugin, {}, section)
            from fcorun.data.datasets.in_memory import InMemoryTable

            name = plugin.path if isinstance(plugin, InMemoryTable) else type(plugin).__name__.lower()
            labels[section] = {"name": name, "title": type(plugin).__name__}
            continue
        labels[section] = read_labels(values)
    values = split_settings(config)
    for field in dataclasses.fields(Settings):
        value = arguments.get(field.name, AUTO)
        if not (isinstance(value, str) and value == AUTO):
            values[field.name] = str(value) if isinstance(value, Path) else to_plain_value(value)
    settings = build(Settings, values)
    return prepare_plugins(plugins, labels, settings)


# The experiment.

T = TypeVar("T")
OneOrSeveral = T | Sequence[T]


@dataclass(frozen=True, kw_only=True, repr=False)
class Experiment:
    """A federated experiment: an algorithm, data, and optionally everything else.

    What is left out, a field of this class or a field of an object in it, gets the value that the command
    ``fcorun algo=... data=...`` takes for the same choices: the objective is that of the task, rates and strengths
    suit the data. The same experiment has the same identity, whether it is made of objects or by the command, so that
    it is computed once.

    A list or an array in place of one value, here or in a field of an object, has several values: ``sweep`` runs all
    combinations.

    >>> experiment = Experiment(algorithm=FedDualAvg(client_lr=1e-3), data=Lasso(), regularizer=L1(0.1), rounds=500)
    >>> record = experiment.run("outputs/mine")

    Attributes:
        algorithm: the method, or a baseline; a list of several for ``sweep``.
        data: a data set: from_arrays(...), from_frame(...), Table(path=...), Lasso(), ...
        objective: the loss of a row. None: that of the data's task.
        regularizer: psi. None: that of the data set's configuration file, l1 for arrays and tables.
        mirror_map: h. None: the Euclidean one.
        topology: who communicates with whom. None: a star.
        uplink: what happens to uploads. None: nothing, or the compression that the algorithm consists of.
        downlink: what happens to what the server sends. None: nothing.
        aggregate: how a receiver makes one upload of those of its clients. None: by their mean.
        clock: how fast clients compute and send, for a simulated time. None: no simulated time.
        faults: which clients drop out of rounds, and which lie in what they send. None: none.
        privacy: how messages of clients are clipped, and the noise of each round. None: neither.
        tracker: another tool that receives the record. None: none.
        rounds: rounds of communication.
        clients_per_round: clients of a round; None: all; "poisson:0.1": each by this probability; "cyclic:0.1": this
            share of them, in turn.
        batch_size: rows of a local step; None: all rows of the client.
        local_epochs, local_steps: passes of a client over its rows in a round, or instead the number of local steps.
        eval_every: rounds between two evaluations.
        seed: the seed of cohorts and minibatches.
        precision: "float32" or "float64".
        client_weighting: "examples" or "uniform", the weight of a client in F.
        cutoff: the magnitude above which an entry counts as nonzero.
        start: the folder of a record whose solution is the start.
        frozen: whether the global model stays fixed.
        stop: targets that stop a run early, {"suboptimality": 1e-6}.
        reference: whether to compute the optimum first, and report the gap to it.
        gap: whether to measure the duality gap at each evaluation.
        client_metrics: whether to measure each client at each evaluation, for ``clients.parquet``.
        imputations: the number of tables with imputed gaps, whose fits are averaged; 0: gaps are filled once.
        study: how each run of a sweep chooses its strength by cross-validation on its own rows: {"strength": "cv"} or
            {"strength": "one_se"}, and "folds" and "points"; None: the strength is that of the regularizer.
        relax: the share of the lasso in the coefficients of the relaxed lasso; None: the lasso.
        tail_rounds: rounds at the end over which metrics are averaged.
        threshold: the probability from which on a row is predicted to be of the positive class: a number, or a rule
            that chooses one on validation rows: "youden", "sensitivity:0.9", "specificity:0.9".
        metric: the metric that ranks the points of a sweep.
        x: the horizontal axis of curves.
        style, width: the size of pictures, and their width in inches.
        pdf: whether selections, stability selections and comparisons write their pictures as PDF, too.
        title: the title of pictures and of the report page.
        checkpoint_every: seconds between checkpoints.
        memory: GiB that the runs of a batch may take together.
        devices: devices of a run.
        clients_at_once: clients of a cohort that are computed at once.
        save_personal: whether to save the clients' personal models.
        force: whether to compute existing records again.
        debug: whether to compute without jit, client by client.
        defaults: a configuration with the values of what is left out, as ``compose`` returns it. None: fcorun's
            configuration files of the same choices.
    """

    algorithm: OneOrSeveral[Algorithm | Baseline]
    data: OneOrSeveral[Dataset]
    objective: OneOrSeveral[Objective] | None = None
    regularizer: OneOrSeveral[Regularizer] | None = None
    mirror_map: OneOrSeveral[MirrorMap] | None = None
    topology: OneOrSeveral[Topology] | None = None
    uplink: OneOrSeveral[Channel] | None = None
    downlink: OneOrSeveral[Channel] | None = None
    aggregate: OneOrSeveral[AggregationRule] | None = None
    clock: OneOrSeveral[Clock] | None = None
    faults: OneOrSeveral[Faults] | None = None
    privacy: OneOrSeveral[Privacy] | None = None
    tracker: Tracker | None = None
    rounds: OneOrSeveral[int] | Literal["auto"] = AUTO
    clients_per_round: OneOrSeveral[int | str] | Literal["auto"] | None = AUTO
    batch_size: OneOrSeveral[int] | Literal["auto"] | None = AUTO
    local_epochs: OneOrSeveral[int] | Literal["auto"] | None = AUTO
    local_steps: OneOrSeveral[int] | Literal["auto"] | None = AUTO
    eval_every: OneOrSeveral[int] | Literal["auto"] = AUTO
    seed: OneOrSeveral[int] | Literal["auto"] = AUTO
    precision: OneOrSeveral[Literal["float32", "float64", "auto"]] = AUTO
    client_weighting: OneOrSeveral[Literal["examples", "uniform", "auto"]] = AUTO
    cutoff: OneOrSeveral[float] | Literal["auto"] = AUTO
    start: OneOrSeveral[str | Path] | Literal["auto"] | None = AUTO
    frozen: OneOrSeveral[bool] | Literal["auto"] = AUTO
    stop: OneOrSeveral[Mapping[str, float]] | Literal["auto"] | None = AUTO
    reference: OneOrSeveral[bool] | Literal["auto"] = AUTO
    gap: OneOrSeveral[bool] | Literal["auto"] = AUTO
    client_metrics: OneOrSeveral[bool] | Literal["auto"] = AUTO
    imputations: OneOrSeveral[int] | Literal["auto"] = AUTO
    study: OneOrSeveral[Mapping[str, Any]] | Literal["auto"] | None = AUTO
    relax: OneOrSeveral[float] | Literal["auto"] | None = AUTO
    tail_rounds: int | Literal["auto"] = AUTO
    threshold: float | str = AUTO
    metric: str | Literal["auto"] | None = AUTO
    x: CurveAxis | Literal["auto"] = AUTO
    style: FigureStyle | Literal["auto"] = AUTO
    width: float | Literal["auto"] | None = AUTO
    pdf: bool | Literal["auto"] = AUTO
    title: str | Literal["auto"] | None = AUTO
    checkpoint_every: float | Literal["auto"] = AUTO
    memory: float | Literal["auto"] | None = AUTO
    devices: int | Literal["auto", "all"] = AUTO
    clients_at_once: int | Literal["auto"] = AUTO
    save_personal: bool | Literal["auto"] = AUTO
    force: bool | Literal["auto"] = AUTO
    debug: bool | Literal["auto"] = AUTO
    defaults: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)

    @classmethod
    @python_words(names_of_configuration)
    def from_config(cls, config: Mapping[str, Any], trust: str | Path | None = None) -> "Experiment":
        """Return the experiment of a configuration, which the command makes of its command line.

        >>> experiment = Experiment.from_config(fcorun.compose(["algo=feddualavg", "data=lasso", "rounds=100"]))

        Args:
            config: plain values, as ``compose`` returns them or as a record's config.yaml holds them.
            trust: the folder from which classes are imported that are neither fcorun's, nor those of an installed
                plug-in package, nor imported by this program already. None: such classes are refused.

        Raises UserError for unknown or missing keys, values of the wrong type, and classes that cannot be imported.
        """
        check_configuration(config)
        check_folder(trust, "trust")
        if trust is not None:
            import_classes(config, trust)
        return experiment_of_config(config)

    @property
    @python_words(names_of_experiment)
    def prepared(self) -> PreparedExperiment:
        """The experiment with every field resolved and checked, as the code of a notebook is now.

        Raises UserError for fields of the wrong type, objects that do not fit each other, and several values.
        """
        combinations = self.combinations()
        if len(combinations) > 1:
            raise UserError(f"the experiment has {len(combinations)} combinations of values, such as "
                            f"`{combinations[0][0]}`: call sweep, or give one value of each")  # fmt: skip
        return prepare_objects(vars(self))

    def __repr__(self) -> str:
        """Return the fields that were given."""
        given = []
        for attribute in fields(self):
            value = getattr(self, attribute.name)
            is_left_out = value is None if attribute.default is None else isinstance(value, str) and value == AUTO
            if attribute.repr and not is_left_out:
                given.append(f"{attribute.name}={value!r}")
        return f"Experiment({', '.join(given)})"

    @property
    def identity(self) -> str:
        """The hash of everything that determines the numbers of the run, as in status.json of its record."""
        return self.prepared.identity

    @python_words(names_of_experiment)
    def run(
        self, folder: str | Path | None = None, *, pictures: bool = True, watch: Watcher | None = None
    ) -> "RunRecord":
        """Run the experiment to its end, and return its record.

        Args:
            folder: the folder of the record; by default outputs/DATA/ALGORITHM-IDENTITY. If it holds the finished
                record of this experiment, nothing is computed. An interrupted run is resumed.
            pictures: whether the folder gets curves.png and the other pictures, which take half a second.
            watch: callbacks that follow the run; by default a progress bar in a notebook.

        Raises UserError for errors that a user can fix.
        """
        from fcorun.interface.api.progress import follow_by_default
        from fcorun.interface.api.run_record import RunRecord

        check_folder(folder)
        check_watcher(watch, Watcher)
        (record,) = run_experiments([self.prepared], [folder], watch or follow_by_default(), pictures=pictures)
        return RunRecord(record.folder)

    @python_words(names_of_experiment)
    def sweep(
        self,
        folder: str | Path | None = None,
        *,
        axes: Mapping[str, Sequence[Any]] | None = None,
        conditions: Sequence[str] | None = None,
        metric: str | None = None,
        watch: SweepWatcher | None = None,
    ) -> "Sweep":
        """Run all combinations of the arguments that have several values; runs that differ in numbers are one program.

        >>> experiment.sweep("outputs/rates", axes={"algorithm.client_lr": [1e-3, 1e-2], "seed": [0, 1, 2]})

        Args:
            folder: the folder of the sweep: results.csv, pictures, and a record of each run. By default
                outputs/sweeps/DATA-HASH, the same with more values on an axis.
            axes: the values of arguments, and of fields of arguments, by name. A list in the place of a value makes the
                same sweep, but a type checker objects to lists in fields of numbers.
            conditions: the names of axes that say what the world is, ["data.noise"]: among their values no point is
                chosen. None: those of earlier sweeps in the folder.
            metric: ranks the runs; by default the experiment's.
            watch: callbacks that follow the sweep; by default a progress bar in a notebook.

        Raises UserError for errors that a user can fix. A run that fails does not stop the others.
        """
        from fcorun.data.datasets.in_memory import InMemoryTable
        from fcorun.interface.api.progress import follow_by_default
        from fcorun.interface.api.run_record import Sweep
        from fcorun.runs.sweep import SweepOptions, SweepPoint, merge_duplicates, run_sweep
        from fcorun.runs.sweep_conditions import check_conditions
        from fcorun.studies.selection.replicate_strengths import choose_strength

        check_folder(folder)
        check_watcher(watch, SweepWatcher)
        experiments = [(text, prepare_objects(vars(experiment))) for text, experiment in self.combinations(axes)]
        if conditions is not None:
            check_list(conditions, "conditions", "give a list of names of axes")
            conditions = [name_key(str(name)) for name in conditions]
            check_conditions(conditions, [_list_settings(experiment) for _, experiment in experiments])
        digests: dict[str, str] = {}  # of rows in memory, which no table tells apart by name and options
        for _, experiment in experiments:
            data = experiment.data
            if isinstance(data, InMemoryTable) and data.rows is not None:
                description = repr(replace(data, rows=None))
                if digests.setdefault(description, data.rows.digest) != data.rows.digest:
                    raise UserError(f"data has several data sets named '{data.path}': give each a name of its own by "
                                    "the argument name of from_arrays or from_frame")  # fmt: skip
        first = experiments[0][1]
        for _, experiment in experiments:
            check_metric(None if metric is None else str(metric), experiment)
        path = Path(folder or Path("outputs") / "sweeps" / _name_sweep([experiment for _, experiment in experiments]))
        points = []
        for text, experiment in experiments:
            run_folder = path / f"{experiment.names['algo']}-{experiment.identity[:8]}"
            points.append(SweepPoint(text, run_folder, experiment))
        settings = first.settings
        options = SweepOptions(
            force=settings.force,
            metric=metric or settings.metric,
            tail_rounds=settings.tail_rounds,
            x=settings.x,
            style=settings.style,
            width=settings.width,
            conditions=conditions,
        )
        points = merge_duplicates(points)
        run_sweep(points, path, options, watch or follow_by_default(), choose_strength=choose_strength)
        return Sweep(path, [point.folder for point in points], options.metric)

    @python_words(names_of_experiment)
    def combinations(self, axes: Mapping[str, Sequence[Any]] | None = None) -> list[tuple[str, "Experiment"]]:
        """Return the description and the experiment of each combination of the arguments that have several values.

        ``axes`` are as for ``sweep``. Raises UserError for axes that name no argument, and for lists without a value.
        """
        arguments = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "defaults"}
        combinations = combine(arguments, axes or {})
        return [(text, Experiment(**values, defaults=self.defaults)) for text, values in combinations]

    @python_words(names_of_experiment)
    def select(
        self,
        folder: str | Path | None = None,
        *,
        metric: str | None = None,
        folds: int | None = None,
        points: int = 50,
        by: Literal["rows", "clients"] = "rows",
        rule: Literal["min", "one_se"] = "min",
        fold_weights: Literal["rows", "equal"] | None = None,
        range: Sequence[float] | None = None,
        second: Mapping[str, Sequence[float]] | None = None,
        outer_folds: int | None = None,
        adaptive: Literal["ridge"] | None = None,
        relax: bool | float | Sequence[float] | None = None,
    ) -> "Selection":
        """Choose the strength, or the radius, by cross-validation, as ``fcorun select`` does.

        ``second`` has the values of a number that is chosen together with it, {"regularizer.l1_ratio": [0.1, 0.5]}.
        ``relax=True`` chooses the share of the lasso in the coefficients of the relaxed lasso, too.
        ``result.record`` is the run with the chosen value on all training rows. With ``outer_folds``,
        ``result.nested`` is the score of the whole selection by nested cross-validation. Raises UserError.
        """
        from fcorun.interface.api.progress import warn_each
        from fcorun.studies.selection.select import plan_selection
        from fcorun.studies.selection.selection_result import SelectOptions

        values = {
            "folds": folds,
            "outer_folds": outer_folds,
            "points": points,
            "by": by,
            "rule": rule,
            "fold_weights": fold_weights,
            "range": to_plain_value(range),
            "second": name_keys(second),
            "adaptive": adaptive,
            "relax": to_plain_value(relax),
        }
        check_folder(folder)
        selection = _run_study(plan_selection(self.prepared, build(SelectOptions, values), folder, metric))
        warn_each(selection.refit_warnings)
        return selection

    @python_words(names_of_experiment)
    def stability(
        self,
        folder: str | Path | None = None,
        *,
        subsamples: int = 100,
        points: int = 20,
        by: Literal["rows", "clients"] = "rows",
        threshold: float = 0.75,
        max_errors: float = 1.0,
        assumption: Literal["none", "unimodal", "r_concave"] = "none",
        refit: bool = False,
        range: Sequence[float] | None = None,
    ) -> "StabilityResult":
        """Select features by stability on halves of the rows, as ``fcorun stability`` does.

        ``result.record`` is the run of the stable columns without a penalty, if ``refit`` is true. Raises UserError.
        """
        from fcorun.studies.selection.select_stable import plan_stability
        from fcorun.studies.selection.stability import StabilityOptions

        values = {
            "subsamples": subsamples,
            "points": points,
            "by": by,
            "threshold": threshold,
            "max_errors": max_errors,
            "assumption": assumption,
            "refit": refit,
            "range": to_plain_value(range),
        }
        check_folder(folder)
        return _run_study(plan_stability(self.prepared, build(StabilityOptions, values), folder))


@python_words(names_of_configuration)
def run(
    config: Mapping[str, Any],
    folder: str | Path | None = None,
    watch: Watcher | None = None,
    trust: str | Path | None = None,
) -> "RunRecord":
    """Run one configuration to the end and return its record.

    Args:
        config: plain values, as ``compose`` returns them or as a record's config.yaml holds them.
        folder: the folder of the record; by default outputs/DATA/ALGORITHM-IDENTITY. If it holds the finished record of
            the same run, that record is returned; an interrupted run is resumed, with the numbers of an unbroken one.
        watch: the callbacks that follow the run.
        trust: the folder from which classes are imported that are neither fcorun's, nor those of an installed plug-in
            package, nor imported by this program already. None: such classes are refused, because the configuration may
            come from somebody else's record.

    Raises UserError for errors that a user can fix. Other errors are recorded as failed and raised.
    """
    from fcorun.interface.api.run_record import RunRecord

    check_configuration(config)
    check_folder(folder)
    check_folder(trust, "trust")
    check_watcher(watch, Watcher)
    (record,) = run_experiments([Experiment.from_config(config, trust).prepared], [folder], watch)
    return RunRecord(record.folder)


def _run_study(plan: "StudyPlan[Result]") -> "Result":
    """Run a study, whose warnings become Python's; return its result with the record of the refit, if any."""
    from fcorun.interface.api.progress import follow_by_default, warn_each
    from fcorun.interface.api.run_record import RunRecord

    watcher = follow_by_default()
    result = plan.run(watch=watcher)
    if result.record:
        result = replace(result, record=RunRecord(result.record.folder))
    watcher.warn(plan.study.data.warnings)  # unless the refit has shown them
    warn_each(result.warnings)
    return result


# The combinations of arguments, and of fields of these, that have several values.


def _list_settings(experiment: PreparedExperiment) -> dict[str, Any]:
    """Return the values of a run's sections, and of its keys."""
    from fcorun.data.datasets.in_memory import InMemoryTable

    settings = experiment.config | flatten(experiment.config)
    if isinstance(experiment.data, InMemoryTable) and experiment.data.rows is not None:
        settings["data.rows"] = experiment.data.rows.digest
    return settings


def _name_sweep(experiments: Sequence[PreparedExperiment]) -> str:
    """Return the name of the sweep of these runs, see ``name_sweep``; a section with several classes is one axis."""
    runs = []
    for experiment in experiments:
        settings = {key: str(value) for key, value in _list_settings(experiment).items() if key not in SECTIONS}
        runs.append({key: value for key, value in settings.items() if changes_runs(key)})
    keys = dict.fromkeys(key for settings in runs for key in settings)
    varied = {key for key in keys if len({settings.get(key) for settings in runs}) > 1}
    chosen = {section for section in SECTIONS if f"{section}.class" in varied}
    fixed = [key for key in keys if key not in varied and key.partition(".")[0] not in chosen]
    axes = chosen | {key for key in varied if key.partition(".")[0] not in chosen}
    return name_sweep(experiments[0].names["data"], [f"{key}={runs[0][key]}" for key in fixed], axes)
