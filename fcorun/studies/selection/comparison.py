"""The comparison of models for clients: each is chosen on inner folds, and judged on outer folds.

All models share the outer folds, but for ``new_client``, whose folds are the clients.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fcorun.base.config import Count
from fcorun.base.errors import UserError, word
from fcorun.base.metrics import RANKING_METRICS
from fcorun.base.picture_style import name_picture_files
from fcorun.base.records.formats import csv_text, json_text
from fcorun.base.records.record import PERSONAL
from fcorun.base.records.record import SHARED as SHARED_MODEL
from fcorun.base.system.files import write_atomically
from fcorun.data.tasks import find_task
from fcorun.experiment.build import load_data
from fcorun.experiment.configuration.compose import override_key
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms.compared import PERSONAL_ALGORITHMS, SHARED_MODEL_ALGORITHM
from fcorun.reports.pictures.forest import axis_limits, draw_lines
from fcorun.reports.pictures.layout import COLOURS, make_figure, pt, render_picture, shorten_name, style_context
from fcorun.results.score_intervals.held_out_rows import HeldOutRows, match_rows, read_held_out_rows
from fcorun.results.score_intervals.intervals import Tabulation
from fcorun.results.score_intervals.score_table import BOOTSTRAP, IntervalRow, ScoreOptions
from fcorun.results.scores.score import all_scores, list_scores
from fcorun.studies.selection.derived_candidates import MEAN, RECALIBRATED, predict_means, write_recalibrated
from fcorun.studies.selection.folds import list_marked_folds
from fcorun.studies.selection.select import SelectionPlan, plan_selection
from fcorun.studies.selection.selection_result import Selection, SelectOptions
from fcorun.studies.selection.study import Log, delete_files

SHARED, INTERCEPTS, STANDARDIZED = "shared", "intercepts", "standardized"
LOCAL, NEW_CLIENT = "local", "new_client"
DESCRIPTIONS = {
    SHARED: "one model for all clients",
    RECALIBRATED: "the shared model, with an intercept and a slope of its linear predictor for each client",
    INTERCEPTS: "one model but for an intercept of each client",
    STANDARDIZED: "one model for all clients, of features standardized by each client",
    LOCAL: "a model of each client's rows alone, of one strength for all clients",
    MEAN: "each client's mean or share of events alone, without features",
    NEW_CLIENT: "one model of the other clients, none of whose rows are the client's",
}
Compose = Callable[[list[str]], dict[str, Any]]  # from overrides to a configuration
DEFAULT_OUTER_FOLDS = 5
# the beginnings of warnings about scores at a threshold, which a comparison does not list
_OF_SCORES_NOT_SHOWN = ("no interval of", "some scores have no interval")


@dataclass(frozen=True)
class CompareOptions:
    """Options of ``fcorun compare``, in addition to a configuration.

    Attributes:
        folds: the number of inner folds, which choose the strength of each candidate; with ``data.fold`` one for each
            marked fold.
        outer_folds: the number of outer folds, which judge the candidates. None: that of the folds that ``data.fold``
            marks, else 5 (``DEFAULT_OUTER_FOLDS``).
        points: the number of values of each path.
        rule: the rule of the choice, as in ``fcorun select``.
        range: the least and the largest strength of all candidates; None: computed for each.
        methods: algorithms with own models for clients; None: ``PERSONAL_ALGORITHMS``.
        samples: the number of bootstrap samples of an interval.
        level: the confidence level of an interval.
    """

    folds: Count = 5
    outer_folds: Count | None = None
    points: Count = 30
    rule: Literal["min", "one_se"] = "min"
    range: list[float] | None = None
    methods: list[str] | None = None
    samples: Count = 1000
    level: float = 0.95

    def __post_init__(self):
        _ = self.score_options  # refused before anything is computed
        for name in self.method_names:
            if name in DESCRIPTIONS:
                raise UserError(f"methods={name} is the name of a candidate of fcorun: leave it out")
            if not name.isidentifier():
                raise UserError(
                    f"methods={name} is no method with own models: give some of {', '.join(PERSONAL_ALGORITHMS)}, ..."
                )

    @property
    def score_options(self) -> ScoreOptions:
        """The options of the intervals. Raises UserError for numbers that give none."""
        return ScoreOptions(samples=self.samples, level=self.level)

    @property
    def method_names(self) -> tuple[str, ...]:
        """The algorithms with own models, each once."""
        return tuple(dict.fromkeys(PERSONAL_ALGORITHMS if self.methods is None else self.methods))


ALL = ""  # the client of the rows of all clients
BETTER, WORSE, UNCLEAR = "better", "worse", "cannot be told apart"
FEW_EVENTS = 10  # or rows of a client, or of a class: below, the client is named as too small for a verdict
_COLOURS = {BETTER: COLOURS[2], WORSE: COLOURS[3]}
_MARKS = {BETTER: "+", WORSE: "-", UNCLEAR: " ", "": " "}
_MAX_PRINTED = 20  # clients
_MAX_LETTERS = 30  # of a client's name
_MAX_DRAWN = 40  # clients
_ROW = 0.16  # inches of a client that is drawn


@dataclass(frozen=True)
class ComparisonRow:
    """A score of a candidate on the rows of a client, or of all clients.

    Attributes:
        of_score: the score and its interval; NaN where there is none.
        of_difference: the score minus that of the shared model, and its interval; None for the shared model.
    """

    candidate: str
    of_score: IntervalRow
    of_difference: IntervalRow | None = None

    @property
    def interval(self) -> tuple[float, float, float]:
        """The low end, the difference, and the high end; NaN where there is none."""
        if self.of_difference is None:
            return np.nan, np.nan, np.nan
        return self.of_difference.low, self.of_difference.estimate, self.of_difference.high

    @property
    def verdict(self) -> str:
        """Better or worse than the shared model, if the interval of the difference excludes 0.

        The shared model itself has the verdict "".
        """
        low, _, high = self.interval
        if self.of_difference is None:
            return ""
        if not (low > 0 or high < 0):  # nan, too
            return UNCLEAR
        return BETTER if (low > 0) == all_scores()[self.of_score.score].higher else WORSE

    def to_dict(self) -> dict:
        """Return the row of comparison.csv; "" where there is no value."""
        row = self.of_score
        cells = {"candidate": self.candidate, "client": row.client or "all", "n": row.n, "events": row.events}
        cells |= {"score": row.score, "value": row.estimate, "low": row.low, "high": row.high}
        low, difference, high = self.interval
        cells |= {"difference": difference, "difference_low": low, "difference_high": high, "verdict": self.verdict}
        cells |= row.units.to_dict()
        return {name: "" if cell is None or cell != cell else cell for name, cell in cells.items()}


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelComparison:
    """Result of ``fcorun compare``.

    Attributes:
        rows: the scores, candidate by candidate: of all rows first, then of each client.
        candidates, clients: their names in order.
        scores: the names of the scores; the first is that of the verdict.
        chosen: the numbers that each candidate chose without each outer fold.
        experiment: the experiment of the shared model.
    """

    rows: Sequence[ComparisonRow]
    candidates: Sequence[str]
    clients: Sequence[str]
    scores: Sequence[str]
    task: str
    options: CompareOptions
    folder: Path
    chosen: Mapping[str, list[dict[str, float]]]
    warnings: Sequence[str]
    experiment: PreparedExperiment
    seconds: float
    is_complete: ClassVar[bool] = True  # there is no refit

    def __repr__(self) -> str:
        return f"ModelComparison('{self.folder}')"

    @property
    def score(self) -> str:
        """The score of the verdict."""
        return self.scores[0]

    @property
    def score_label(self) -> str:
        """The score of the verdict in words."""
        return all_scores()[self.score].label

    def find(self, candidate: str, client: str) -> ComparisonRow:
        """Return the score of the verdict of a candidate and a client."""
        rows = (row for row in self.rows if row.candidate == candidate and row.of_score.client == client)
        return next(row for row in rows if row.of_score.score == self.score)

    def describe_verdict(self) -> str:
        """Say in a sentence which clients profit or lose by which model, compared with the shared one."""
        others = [name for name in self.candidates if name not in (SHARED, NEW_CLIENT)]
        clients = {client: client or "all rows" for client in (self.clients if len(self.clients) > 1 else [ALL])}
        parts = []
        unclear = dict(clients)
        for verdict, verb, preposition in ((BETTER, "profit", "from"), (WORSE, "lose", "with")):
            for name in others:
                named = [client for client in clients if self.find(name, client).verdict == verdict]
                if named:
                    who = ", ".join(clients[client] for client in named)
                    parts.append(f"{who} {verb}{'s' if len(named) == 1 else ''} {preposition} {name}")
                unclear = {client: text for client, text in unclear.items() if client not in named}
            if verdict == BETTER and not parts:
                parts.append("nobody profits from another model")
        if unclear:
            parts.append(f"for {', '.join(unclear.values())} no model can be told apart from the shared one")
        small = []
        for client in self.clients if len(self.clients) > 1 else ():
            units = self.find(SHARED, client).of_score.units
            least = units.n if units.events is None else units.events
            if find_task(self.task).has_two_classes and units.others is not None:
                least = min(least, units.others)
            if least < FEW_EVENTS:
                small.append(f"{client} ({units.format_events()})")
        if small:
            parts.append(f"too small to rely on a verdict: {', '.join(small)}")
        n_comparisons = len(others) * len(clients)
        noun = "comparison" if n_comparisons == 1 else "comparisons"
        return (
            f"compared with the shared model by the {self.score_label} ({100 * self.options.level:g} % intervals of "
            f"the differences, not corrected for {n_comparisons} {noun}): {'; '.join(parts)}"
        )

    def describe(self) -> Iterator[str]:
        """Yield a table with a row for each client and a column for each candidate, the verdict, warnings, files."""
        yield (
            f"{self.score_label} out of fold; + better and - worse than the shared model, unmarked: cannot be told "
            "apart"
        )
        of_all = self.find(SHARED, ALL).of_score
        units = of_all.units
        clients = list(self.clients) if len(self.clients) > 1 else []
        names = {client: shorten_name(client or "all", _MAX_LETTERS) for client in (ALL, *clients[:_MAX_PRINTED])}
        first_width = max(*map(len, names.values()), len("client"))
        count_width = max(len(units.events_noun) + 2, 8, len(f"{units.n:,}") + 2)
        digits = ".4f" if 0.01 <= abs(of_all.estimate) < 1000 else ".4g"
        widths = {name: max(10, len(name) + 2) for name in self.candidates}
        header = f"{'client':<{first_width}}{units.noun:>{count_width}}"
        if units.events is not None:
            header += f"{units.events_noun:>{count_width}}"
        yield header + "".join(f"{name:>{width}} " for name, width in widths.items()).rstrip()
        for client, shown in names.items():
            units = self.find(SHARED, client).of_score.units
            line = f"{shown:<{first_width}}{units.n:{count_width},}"
            if units.events is not None:
                line += f"{units.events:{count_width},}"
            for name, width in widths.items():
                cell = self.find(name, client)
                line += f"{cell.of_score.estimate:{width}{digits}}{_MARKS[cell.verdict]}"
            yield line.rstrip()
        if len(clients) > _MAX_PRINTED:
            yield f"and {len(clients) - _MAX_PRINTED} more clients, in comparison.csv"
        yield from self.warnings
        yield self.describe_verdict()
        yield f"{self.folder}/ holds comparison.csv, .json and .png, and a folder for each candidate"

    def write_files(self) -> None:
        """Write the files. comparison.csv has a row for each candidate, client and score.

        comparison.json has the verdict, the options, and the numbers that each candidate chose without each outer fold.
        """
        delete_files(self.folder, ["comparison.json", *name_picture_files("comparison")])  # drawing may fail
        rows = [row.to_dict() for score in self.scores for row in self.rows if row.of_score.score == score]
        write_atomically(self.folder / "comparison.csv", csv_text(rows))
        for name, picture in draw_comparison(self).items():
            write_atomically(self.folder / name, picture)
        content = {
            "score": self.score,
            "verdict": self.describe_verdict(),
            "candidates": self.candidates,
            "chosen": self.chosen,
            "options": vars(self.options),
            "warnings": self.warnings,
            "seconds": self.seconds,
        }
        write_atomically(self.folder / "comparison.json", json_text(content))


def order_scores(rows: Sequence[ComparisonRow], metric: str) -> list[str]:
    """Return the scores that a comparison lists, the one that ``metric`` chose by first, for the verdict."""
    present = {row.of_score.score for row in rows}
    scores = [score for score in list_scores(lambda places: places.verdict) if score.name in present]
    name = metric.removeprefix("personal_")
    return [score.name for score in sorted(scores, key=lambda score: score.metric != name)]


def draw_comparison(comparison: ModelComparison) -> dict[str, bytes]:
    """Return the contents of the picture's files: a forest plot for each candidate, on one scale.

    A plot has the difference and its interval of each client; an arrow ends an interval that leaves the axis.
    """
    names = [name for name in comparison.candidates if name != SHARED]
    clients = [ALL, *(comparison.clients[:_MAX_DRAWN] if len(comparison.clients) > 1 else [])]
    label = comparison.score_label
    units = comparison.find(SHARED, ALL).of_score.units
    counted = units.noun if units.events is None else f"{units.events_noun} / {units.noun}"
    settings = comparison.experiment.settings
    title = f"{settings.title}: " if settings.title else ""
    notes = [
        f"{title}{label} minus that of the shared model, out of fold, with "
        f"{100 * comparison.options.level:g} % intervals ({counted}). Green: better "
        "than the shared model, red-orange: worse, grey: cannot be told apart"
    ]
    notes += filter(None, [comparison.experiment.data.describe_unweighted()])
    if len(comparison.clients) > _MAX_DRAWN:
        notes.append(f"The first {_MAX_DRAWN} of {len(comparison.clients)} clients")
    across = min(4, len(names))
    with style_context(comparison.experiment.picture_style):
        labels = []
        for client in clients:
            units = comparison.find(SHARED, client).of_score.units
            size = f"{units.n:,}" if units.events is None else f"{units.events:,} / {units.n:,}"
            labels.append(f"{shorten_name(client, _MAX_LETTERS) if client else 'all'} ({size})")
        figure, axes = make_figure(len(names), across, height=_ROW * (len(clients) + 1), title=notes, wide=True)
        rows = {name: [comparison.find(name, client) for client in clients] for name in names}
        ends = np.array([row.interval for of_candidate in rows.values() for row in of_candidate])
        limits = axis_limits([np.where(np.isnan(end), ends[:, 1], end) for end in ends.T], is_ratio=False)
        sizes = np.array([4.4, *[3.6] * (len(clients) - 1)])  # all clients first
        for i, (ax, (name, of_candidate)) in enumerate(zip(axes, rows.items(), strict=True)):
            low, difference, high = np.array([row.interval for row in of_candidate]).T
            colours = [_COLOURS.get(row.verdict, "0.45") for row in of_candidate]
            positions = np.arange(len(clients))
            draw_lines(ax, [low, difference, high], positions, limits=limits, sizes=sizes, colours=colours)
            ax.axhline(0.5, color="0.8", linewidth=pt(0.5))
            ax.set_ylim(len(clients) - 0.4, -0.6)
            ax.locator_params(axis="x", nbins=3)
            ax.grid(False, axis="y")
            ax.spines["left"].set_visible(False)
            ax.set_title(name.replace("_", " "), fontsize=pt(8), parse_math=False)
            ax.set_yticks(range(len(clients)), labels if i % across == 0 else [""] * len(clients), parse_math=False)
            ax.tick_params(axis="y", length=0)
        better = "above" if all_scores()[comparison.score].higher else "below"
        text = f"difference in {label} ({better} 0: better than the shared model)"
        figure.supxlabel(text, fontsize=pt(8), parse_math=False)
        return render_picture("comparison", figure, settings)


def compose_candidates(compose: Compose, overrides: Sequence[str], options: CompareOptions) -> dict[str, dict]:
    """Return the configuration of each candidate by its name. Raises UserError."""
    sections = {text: override_key(text.lstrip("~")).partition(".")[0] for text in overrides}
    of_shared = [text for text, section in sections.items() if section == "algo"]
    common = [text for text in sections if text not in of_shared]
    shared = [*common, *(of_shared or [f"algo={SHARED_MODEL_ALGORITHM}"])]
    configs = {SHARED: compose(shared)}
    if not configs[SHARED]["objective"].get("client_intercepts"):
        configs[INTERCEPTS] = compose([*shared, "objective.client_intercepts=true", "batch_size=null"])
    data = configs[SHARED]["data"]
    if "standardize" in data and data["standardize"] != "per_client":
        own_scale = [text for text in shared if override_key(text) != "data.standardize"]
        configs[STANDARDIZED] = compose([*own_scale, "data.standardize=per_client"])
    common = [text for text in common if override_key(text) != "objective.client_intercepts"]  # own models have theirs
    of_messages = ("uplink", "downlink", "aggregate", "faults")
    of_local = [text for text in common if sections[text] not in of_messages]  # which sends nothing
    for name in (*options.method_names, LOCAL):
        given = of_local if name == LOCAL else common
        configs[name] = compose([*given, f"algo={name}", *PERSONAL_ALGORITHMS.get(name, ())])
    return configs | {NEW_CLIENT: configs[SHARED]}


def plan_candidates(
    configs: Mapping[str, Mapping[str, Any]], options: CompareOptions
) -> tuple[dict[str, SelectionPlan], list[str]]:
    """Return the selection of each candidate, and a sentence for each one that these data do not allow.

    The own models of a candidate are judged if it has some. They are chosen by their loss where the folds do not
    measure the metric of the configuration for them. An algorithm that ignores psi has nothing to choose: its folds are
    the outer ones. Raises UserError if there is no selection of the shared model.
    """
    experiment = prepare({**configs[SHARED], "metric": None})
    if n_tables := experiment.settings.imputations:
        raise UserError(f"`imputations={n_tables}` averages shared models, and compare also trains own ones of "
                        "clients, by gaps filled once: leave imputations out")  # fmt: skip
    data = load_data(experiment)
    if data.target_task.is_quantity and not hasattr(experiment.objective, "response"):
        raise UserError(f"the predictions of `objective={experiment.names['objective']}` are no expected values, whose "
                        "squared errors compare models: give another objective")  # fmt: skip
    n_marked = len(list_marked_folds(data))
    n_clients = len(data.client_names)
    n_outer = options.outer_folds or n_marked or DEFAULT_OUTER_FOLDS
    n_inner = n_outer if n_marked else options.folds
    by_rows = SelectOptions(
        folds=n_inner, outer_folds=n_outer, points=options.points, rule=options.rule, range=options.range
    )
    plans = {}
    left_out = []
    for name, config in configs.items():
        choice = by_rows
        if name == NEW_CLIENT:
            reason = "" if n_clients > 2 else "it needs three clients or more"
            if n_marked:
                reason = word("`data.fold` marks folds of rows, so that no client is held out")
            if reason:
                left_out.append(f"{name} is left out: {reason}")
                continue
            choice = replace(by_rows, by="clients", folds=min(n_inner, n_clients), outer_folds=n_clients)
        try:
            candidate = prepare({**config, "metric": None})
            metric = config.get("metric")
            if candidate.algo.has_personal_models and metric:
                metric = f"personal_val_{metric.removeprefix('personal_').removeprefix('val_')}"
                if metric not in candidate.metrics:  # the folds measure no ranking of own models
                    metric = "personal_val_loss"
            varies = candidate.applies_regularizer
            if not varies:
                choice = SelectOptions(folds=choice.outer_folds, by=choice.by)
            options_of_plan = {"metric": metric, "varies_strength": varies, "has_refit": False}
            plans[name] = plan_selection(config, choice, **options_of_plan)
        except UserError as error:
            if name == SHARED:
                raise
            of_clients = ", which holds whole clients out as select by=clients does," if name == NEW_CLIENT else ""
            left_out.append(f"{name}{of_clients} is left out: {error}")
        else:
            if name in options.method_names and not candidate.algo.has_personal_models:
                raise UserError(f"methods={name}: `algo={name}` trains no own models for clients: leave it out")
    return plans, left_out


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison that is ready to run, as a ``StudyPlan``: a selection for each candidate, without a refit.

    Attributes:
        plans: the selection of each candidate, by the candidate's name.
        left_out: a sentence for each candidate that the data do not allow.
        folder: the folder of the comparison; each candidate has a folder in it.
    """

    plans: Mapping[str, SelectionPlan]
    left_out: Sequence[str]
    options: CompareOptions
    folder: Path

    @property
    def messages(self) -> list[str]:
        """The lines to print before the comparison begins."""
        lines = ["candidates:"]
        for name in (SHARED, RECALIBRATED, *(name for name in self.plans if name != SHARED), MEAN):
            description = DESCRIPTIONS.get(name, f"each client's own model by algo={name}")
            lines.append(f"  {name}: {description}")
        return [*self.plans[SHARED].messages, *lines, *self.left_out]

    def describe_progress(self) -> list[str]:
        """Say how many fits of each candidate exist."""
        return [f"{name}: {line}" for name, plan in self.plans.items() for line in plan.describe_progress()]

    def run(self, log: Log = lambda line: None) -> ModelComparison:
        """Compute the missing fits of each candidate, compare the predictions of the outer folds, and write files.

        Raises:
            UserError: a folder cannot be used, or the shared model has no predictions.
        """
        with ExitStack() as claims:
            for plan in self.plans.values():  # all before the first fit: a folder in use is no property of the data
                claims.enter_context(plan.study.claim())
            return self._compare(log)

    def _compare(self, log: Log) -> ModelComparison:
        """Compute and compare as ``run`` says, in folders that are claimed."""
        began = time.perf_counter()
        rows: dict[str, HeldOutRows] = {}
        warnings = list(self.left_out)
        selections: dict[str, Selection] = {}
        for i, (name, plan) in enumerate(self.plans.items(), 1):
            log(f"{name}, candidate {i} of {len(self.plans)}: {len(plan.study.subsets)} fits")
            try:
                begun = time.perf_counter()
                selections[name] = plan.select_value(lambda line, name=name: log(f"{name}: {line}"))
                selections[name].write_tables()
                selections[name].write_summary(time.perf_counter() - begun)
                if not plan.study.keeps_held_out:
                    raise UserError("the rows are too many to be compared, at all values of the path: give fewer "
                                    "points")  # fmt: skip
                model = PERSONAL if plan.study.experiment.algo.has_personal_models else SHARED_MODEL
                for held_out in read_held_out_rows(plan.study.folder, plan.study.data.task):
                    if held_out.model == model:
                        rows.setdefault(name, held_out)
                if name not in rows:
                    raise UserError("some client has no model of its own in a fold")
            except UserError as error:
                if name == SHARED:
                    raise
                warnings.append(f"{name} is left out: {error}")
            if name == SHARED:
                try:
                    warnings += write_recalibrated(plan, selections[name], self.folder / RECALIBRATED)
                    rows[RECALIBRATED] = read_held_out_rows(self.folder / RECALIBRATED, plan.study.data.task)[0]
                except UserError as error:
                    warnings.append(f"{RECALIBRATED} is left out: {error}")
        shared = self.plans[SHARED]
        if shared.metric in RANKING_METRICS:
            warnings.append(word(f"mean is left out: it ranks no rows of a client, as `metric={shared.metric}` does"))
            for name, selection in selections.items():
                if selection.metric != shared.metric and selection.experiment.applies_regularizer:
                    warnings.append(f"{name}: its strength is chosen by {selection.metric}, since the folds do not "
                                    f"measure {shared.metric} of own models")  # fmt: skip
        elif getattr(shared.experiment.data, "offset", None) or find_task(rows[SHARED].task).has_events:
            warnings.append(
                word("mean is left out: it is for targets without `data.offset`, and for no times to events")
            )
        else:
            rows[MEAN] = predict_means(rows[SHARED])
        candidates: dict[str, list[str]] = {}  # by the warning about them
        for name, selection in selections.items():
            for sentence in selection.warnings:
                candidates.setdefault(sentence, []).append(name)
        warnings += [f"{', '.join(names)}: {sentence}" for sentence, names in candidates.items()]
        table, findings = compare_rows(rows, self.options, shared.experiment.settings.seed)
        chosen = {}
        for name, selection in selections.items():
            if selection.nested is not None:
                chosen[name] = [selection.path.numbers_at(index) for index in selection.nested.chosen]
        data = shared.study.data
        comparison = ModelComparison(
            rows=table,
            candidates=list(rows),
            clients=list(data.client_names),
            scores=order_scores(table, shared.metric),
            task=data.task,
            options=self.options,
            folder=self.folder,
            chosen=chosen,
            warnings=[*warnings, *findings, *filter(None, [shared.experiment.data.describe_unweighted()])],
            experiment=shared.experiment,
            seconds=time.perf_counter() - began,
        )
        comparison.write_files()
        return comparison


def plan_comparison(
    compose: Compose, overrides: Sequence[str], options: CompareOptions, out: str | Path | None = None
) -> ComparisonPlan:
    """Check a comparison, and prepare the selections of its candidates, without writing anything. Raises UserError.

    ``compose`` makes each candidate's configuration from the ``overrides``.
    """
    plans, left_out = plan_candidates(compose_candidates(compose, overrides, options), options)
    identities = "".join(plan.study.identity for plan in plans.values())
    digest = hashlib.sha256(identities.encode()).hexdigest()[:8]
    folder = Path(out or Path("outputs") / plans[SHARED].study.experiment.names["data"] / f"compare-{digest}")
    for name, plan in plans.items():
        study = replace(plan.study, folder=folder / name)
        plans[name] = replace(plan, study=study, keeps_solutions=name == SHARED)
    return ComparisonPlan(plans, left_out, options, folder)


def compare_rows(
    rows: Mapping[str, HeldOutRows], options: CompareOptions, seed: int
) -> tuple[list[ComparisonRow], list[str]]:
    """Return the scores of all candidates on the same rows, with differences to the shared model, and warnings."""
    shared = rows[SHARED]
    tabulation = Tabulation("rows" if shared.group is None else "groups", options.score_options, seed)
    table = []
    for name, candidate in rows.items():
        other_folds = name == NEW_CLIENT
        candidate, reference, _ = match_rows(replace(candidate, fold=None) if other_folds else candidate, shared)
        of_differences = [] if name == SHARED else tabulation.tabulate([candidate, reference])
        differences = {(row.client, row.score): row for row in of_differences if row.method == BOOTSTRAP}
        for row in tabulation.tabulate([candidate]):
            is_rank_of_means = name == MEAN and all_scores()[row.score].ranks_rows  # which differ by fold alone
            if row.method == BOOTSTRAP and not is_rank_of_means:
                table.append(ComparisonRow(name, row, differences.get((row.client, row.score))))
    return table, [text for text in tabulation.sentences() if not text.startswith(_OF_SCORES_NOT_SHOWN)]
