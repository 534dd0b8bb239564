"""Reproduction of a figure: run what is missing, tune, draw, and check the claims."""

import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from fcorun.base.config import (
    SECTIONS,
    CurveAxis,
    Settings,
    build_plugin,
    changes_runs,
    field_marks,
)
from fcorun.base.errors import UserError, suggest_name
from fcorun.base.metrics import CATALOGUE, REFERENCE_METRICS, Metric, MetricCatalogue, is_baseline_row
from fcorun.base.override_text import quote_text, split_overrides
from fcorun.base.picture_style import name_picture_style
from fcorun.base.records.formats import flatten, frame_csv, json_text
from fcorun.base.records.record import Record
from fcorun.base.records.sweep_settings import load_settings, replace_conditions
from fcorun.base.system.files import write_atomically
from fcorun.base.trust import locate_user_class
from fcorun.experiment.build import load_data
from fcorun.experiment.configuration.compose import override_key
from fcorun.experiment.configuration.search_path import find_choices, header_comment, packaged_config_dir, read_yaml
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.algorithms.algorithm import Baseline
from fcorun.methods.clocks.clock import NoClock
from fcorun.reports.build_table import build_table, tabulate_plans
from fcorun.reports.pictures.drawing_processes import draw_later
from fcorun.reports.run_table import (
    REGULARIZED_METRICS,
    SEED_KEYS,
    DataFrame,
    RunTable,
    average_runs,
    describe_band,
    seed_band,
)
from fcorun.reports.unfinished import warn_unfinished
from fcorun.runs.sweep import SweepPoint
from fcorun.studies.figures import claims, drawing
from fcorun.studies.figures.figure_inputs import FigureInputs, check_one_best_point
from fcorun.studies.figures.papers import faults_race, fco, personalised, privacy_race, races
from fcorun.studies.figures.papers import fedsplit_figures as fedsplit
from fcorun.studies.figures.spec import Figure, find_figure, load_figure, remove_notes

# the values of figure.draw and figure.verdicts that need suboptimality, also where figure.panels does not list it
GAP_PICTURES = ("rates", "conditioning", "graph_race")
SOLVED_PICTURES = ("rates",)  # whose problems are solved in this process, for the verdicts, too
SMALL_GAPS = ("few_rounds", "bytes_race", "graph_race")  # pictures and verdicts down to ``races.FLOOR``
AVERAGED = ("bars", "bytes_race", "few_rounds", "graph_race", "personalised")  # of one best point of each algorithm
GAP_VERDICTS = ("bounds", "fixed_points", "conditioning", "few_rounds")
# runs ``fcorun -m`` with these arguments, has ``check`` see the points before any is run, and reports failures
SweepRunner = Callable[..., None]
ASSESSMENT_KEYS = {"metric", "tail_rounds"}  # outside the identity of runs, but they decide the best points and claims
PAPER_CHECKS: dict[str, Callable[[FigureInputs], list[dict[str, str]]]] = {
    "bounds": lambda inputs: fco.check_bounds(inputs.grid_records),
    "fixed_points": lambda inputs: fedsplit.check_fixed_points(inputs.grid_records),
    "conditioning": lambda inputs: fedsplit.check_conditioning(inputs.grid_records),
    "personalised": personalised.check_personalised,
    "few_rounds": races.check_costs,
    "faults_race": faults_race.check_faults,
    "privacy_race": privacy_race.check_privacy,
}


# the text below each picture in report.html
CAPTIONS = {
    "curves": "Each algorithm at the best point of its grid: the median over seeds, with their band.",
    "bars": "Each algorithm at the best point of its grid: the median over seeds, with their band.",
    "scatter": "Structure against quality, a mark for each point of the grid.",
    "averaging": "Solutions of single clients, the mean of these, and the models that the algorithms find.",
    "rates": "The measured gap to the optimum against the bounds of theorems 4.1 to 4.3, for each client rate.",
    "conditioning": "The gap to the optimum against rounds at three condition numbers, and the rounds to a gap of 1e-3 "
    "against all condition numbers.",
    "personalised": "Accuracy of global and personal models at the best points, sparsity against accuracy over all "
    "points of the grid, and accuracy against communication.",
    "few_rounds": "The gap to the optimum against rounds and bytes, and the error of the coefficients against bytes: "
    "medians over seeds at the best points. A curve ends where its method sends nothing more, or where the gap is a "
    "rounding error.",
    "bytes_race": "The gap to the optimum, and the F1 score of the support, against bytes up and down: medians over "
    "seeds at the best points, a column for each kind of method. A curve ends where the gap is a rounding error; the "
    "star is the method of one round.",
    "graph_race": "The gap to the optimum against rounds of each method, a curve for each graph, and the rounds to a "
    "gap of 1e-6 against the spectral gap of the graph: medians over seeds at the best points. A method has no mark "
    "for a graph on which it ends farther away.",
    "identification": "The entries that are zero in only one of the solution and the optimum, and the gap to the "
    "optimum, of one run of each algorithm at its best point. From the dot on the zeros are the optimum's, to the end.",
    "faults_race": "The gap to the optimum, the F1 score of the support and the density at the end, against the share "
    "of clients that lie (solid) or drop out of a round (dotted), a colour for each aggregation rule: medians over "
    "seeds. Points at which a run diverged are left out.",
    "privacy_race": "The F1 score of the support, the density, the objective and the accuracy on validation rows at "
    "the end against the privacy loss: medians over seeds, dotted without privacy. The choice of the best rates and "
    "clips for each epsilon is not counted in it.",
}
PICTURES: dict[str, Callable[[FigureInputs], Any]] = {
    "curves": drawing.draw_curves,
    "bars": drawing.draw_bars,
    "scatter": drawing.draw_scatter,
    "averaging": fco.draw_averaging,
    "rates": fco.draw_rates,
    "conditioning": fedsplit.draw_gaps,
    "personalised": personalised.draw_accuracies,
    "few_rounds": races.draw_costs,
    "bytes_race": races.draw_bytes,
    "graph_race": races.draw_graphs,
    "identification": races.draw_identification,
    "faults_race": faults_race.draw_faults,
    "privacy_race": privacy_race.draw_privacy,
}


class DryRun(UserError):
    """Ends a figure whose runs were to be listed, and all of which can be made."""


@dataclass(frozen=True, repr=False)
class FigureResult:
    """A figure that was made.

    Attributes:
        folder: the folder of the figure.
        rows: the rows of claims.csv.
        warnings: a sentence each, about lost seeds, runs that had not converged, and a picture that was not drawn.
        complete: whether the picture was drawn, all runs of the grid came to an end, and no other one failed.
        records: the records of the grid, and of the runs with further seeds that are done; each once.
        wants_page: whether the configuration asks for report.html.
    """

    folder: Path
    rows: list[dict]
    warnings: list[str] = field(default_factory=list)
    complete: bool = True
    records: Sequence[Record] = ()
    wants_page: bool = True

    def __repr__(self) -> str:
        return f"FigureResult('{self.folder}', {len(self.rows)} claims, {len(self.records)} runs)"


def reproduce(
    name: str, out: Path, sweep: SweepRunner, fast: bool = False, overrides: Sequence[str] = ()
) -> FigureResult:
    """Make a figure in ``out``/NAME: figure.png, figure.pdf, table.csv, claims.csv, and figure.json.

    ``sweep`` makes the records, in runs/ and seeds/ beside the figure, or beside the figure that it shares them with;
    existing records are used again. Set ``fast`` for the smaller version, in NAME-fast. ``overrides`` apply to every
    run. Overrides that change the runs, or the metric or the tail_rounds that compare them, make another figure, in
    NAME-HASH, whose picture says so. Notes on claims are about the unchanged figure, and are left out of all others.

    Raises:
        UserError: the figure does not exist, or its runs cannot be made.
    """
    figure, config = load_figure(name, _select_own(overrides))
    fast_overrides = figure.fast if fast else []
    arguments = [f"experiment={name}", *fast_overrides, *overrides]
    if fast:
        figure, config = load_figure(name, _select_own(arguments))
    data = build_plugin("data", config["data"])
    if not config["dry_run"]:
        data.fetch()
    data.fingerprint()  # once, before each point of the grid asks for it: files may be missing

    neutral_keys = {f"data.{key}" for key, marks in field_marks(type(data)).items() if "outside identity" in marks}
    changes = []
    for text in sorted(overrides):
        key = override_key(text)
        if key in ASSESSMENT_KEYS or (changes_runs(key) and key not in neutral_keys):
            changes.append(text)
    suffix = "-fast" if fast else ""
    stamp = [*(["fast version:"] if fast else []), *fast_overrides]
    if changes:
        suffix += f"-{hashlib.sha256(repr(changes).encode()).hexdigest()[:6]}"
        stamp += ["with", *changes]
    if fast:
        figure = replace(figure, seeds=figure.seeds[:2])
    if stamp:
        figure = remove_notes(figure)
    records_folder = out / f"{figure.runs or name}{suffix}"
    other_algorithms = any(re.match(r"\+*(algo(\.name)?=|hydra\.sweeper\.)", text) for text in arguments)
    check = partial(check_runs, figure, other_algorithms, config["metric"])
    is_dry = config["dry_run"]
    inputs = _run_figure(sweep, figure, config["metric"], records_folder, arguments, check=check, is_dry=is_dry)
    style = name_picture_style(config["style"], config["width"])
    draw = partial(drawing.render_figure, PICTURES[figure.draw], inputs, " ".join(stamp), style)
    wait_for_pictures = draw if figure.draw in SOLVED_PICTURES else draw_later(draw)

    changed = " ".join([*(["fast"] if fast else []), *changes])
    rows = [row | {"changed": changed} for row in _check_claims(name + suffix, figure, inputs)]
    path = find_figure(name)
    description = {
        "name": name,
        "title": figure.title,
        "about": header_comment(path),
        "changed": " ".join(stamp),
        "caption": f"{CAPTIONS[figure.draw]} {_describe_best_points(inputs)}",
        "edges": list(dict.fromkeys(edge.algo for edge in inputs.grid_view.grid_edges())),
        "ours": path.is_relative_to(packaged_config_dir()),
    }
    table = _tabulate_best(inputs)
    folder = out / f"{name}{suffix}"
    folder.mkdir(parents=True, exist_ok=True)
    pictures, not_drawn = drawing.take_pictures(wait_for_pictures, folder)
    write_atomically(folder / "table.csv", frame_csv(table))
    write_atomically(folder / "claims.csv", frame_csv(pd.DataFrame(rows, columns=list(claims.COLUMNS))))
    write_atomically(folder / "figure.json", json_text(description))
    for file, content in pictures.items():
        write_atomically(folder / file, content)
    return FigureResult(
        folder=folder,
        rows=rows,
        warnings=[*_warn_lost_seeds(inputs), *not_drawn],
        complete=bool(pictures) and not inputs.failed and not inputs.unfinished_points,
        records=inputs.records,
        wants_page=config["report"],
    )


def _check_claims(name: str, figure: Figure, inputs: FigureInputs) -> list[dict[str, Any]]:
    """Return the rows of claims.csv: the figure's own checks, its claims by condition, and the published rates."""
    rows: list[dict[str, Any]] = []
    if figure.verdicts:
        rows += [{"figure": name, **row} for row in PAPER_CHECKS[figure.verdicts](inputs)]
    for condition, part in inputs.split_by_condition():
        measurements = claims.collect_measurements(part, set(inputs.tuned.frame["algo"]))
        rows += claims.check_claims(name, figure, measurements, condition)
    rows += claims.check_published_rates(name, inputs)
    return [row | {"best_by": inputs.metric} for row in rows]


def _select_own(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of the figure itself: of root keys, data and objective, without axes of a sweep."""
    of_runs = {"hydra", "experiment", *SECTIONS} - {"data", "objective"}
    own = [text for text in overrides if re.split(r"[./=]", text.lstrip("+~"))[0] not in of_runs]
    return [text for text in own if "," not in text or "[" in text]


def _run_figure(
    sweep: SweepRunner,
    figure: Figure,
    metric: str | None,
    folder: Path,
    overrides: Sequence[str],
    *,
    check: Callable[[Sequence[PreparedExperiment], Sequence[str]], None] | None = None,
    is_dry: bool = False,
) -> FigureInputs:
    """Run the grid in ``folder``/runs, and its best points with further seeds in ``folder``/seeds.

    ``check`` receives the experiments of the grid, and its conditions, before any is run, unless one of them cannot be
    prepared.
    Raises UserError if no run came to an end; if ``is_dry``, once the grid is listed, DryRun if all of it can be made.
    """
    overrides_of: dict[Path, str] = {}  # by the folder of a point of the grid
    broken: list[SweepPoint] = []

    def note_points(points: Sequence[SweepPoint], conditions: Sequence[str]) -> None:
        overrides_of.update({point.folder: point.overrides for point in points})
        broken.extend(point for point in points if point.experiment is None)
        experiments = [point.experiment for point in points if point.experiment]
        if check is not None and not broken:
            check(experiments, conditions)
        if not is_dry:  # the figure's file says all conditions: one may have been taken out of it
            replace_conditions(folder / "runs", ())

    if is_dry:
        _start_sweep(partial(sweep, check=note_points), folder / "runs", overrides)
        kind = UserError if broken else DryRun
        raise kind("`dry_run=true` lists the runs, and draws nothing")
    grid = _run_sweep(partial(sweep, check=note_points), folder / "runs", overrides)
    grid_records = [Record(folder / "runs" / name) for name in grid.frame["folder"]]
    metric = grid.resolve_metric(metric)
    best = [row for row in grid.best_points(metric).to_dict("records") if row["seeds"]]
    if not best:
        raise UserError(f"no run came to an end; the records in {folder / 'runs'} say why")
    best_indices = [i for row in best for i in row["rows"]]
    jobs: list[str] = []
    rows_of_jobs: list[int] = []
    for row in best:
        records = [grid_records[i] for i in row["rows"]]
        jobs_of_point = _list_seed_jobs(figure, overrides_of, records)
        jobs += jobs_of_point
        rows_of_jobs += [row["rows"][0]] * len(jobs_of_point)
    points: list[SweepPoint] = []
    settings = load_settings(folder / "runs")  # tail_rounds of today: finished records keep those of their own day
    if jobs:
        keys = {override_key(text) for job in jobs for text in split_overrides(job)}
        set_by_jobs = tuple(f"{key}." for key in (*keys, *grid.varied_keys))
        fixed = [text for text in overrides if not f"{override_key(text)}.".startswith(set_by_jobs)]
        listed = ",".join(quote_text(job, "'") for job in jobs)
        empty = [f"hydra.sweeper.{name}=null" for name in ("params", "zip", "conditions")]
        further = [*fixed, *empty, f"hydra.sweeper.also=[{listed}]"]
        replace_conditions(folder / "seeds", settings.conditions)  # the sweeper would refuse those that are no axes
        _run_sweep(partial(sweep, check=lambda found, _: points.extend(found)), folder / "seeds", further)
    seed_runs = [(rows_of_jobs[job], Record(point.folder)) for point in points for job in point.combinations]
    done = [record for _, record in seed_runs if record.status.get("status") == "done"]
    seed_records = list(dict.fromkeys(done))
    # together, for the columns of the grid
    all_runs = build_table([*grid_records, *seed_records], settings.tail_rounds, conditions=settings.conditions)
    return FigureInputs(
        figure,
        metric,
        grid,
        grid_records,
        tuned=all_runs.take([*best_indices, *range(len(grid_records), len(all_runs))]),
        tuned_records=[*(grid_records[i] for i in best_indices), *seed_records],
        seed_runs=seed_runs,
    )


def _run_sweep(sweep: SweepRunner, folder: Path, overrides: Sequence[str]) -> RunTable:
    """Run a sweep like the command line, and return the table of its points. Raises UserError if nothing was run."""
    started = time.time()
    _start_sweep(sweep, folder, overrides)
    results = folder / "results.csv"
    if not results.exists() or results.stat().st_mtime < started - 1:
        raise UserError(f"the runs of {folder} are missing, for the reasons above")
    # the folder may hold further runs, of an earlier version of the figure
    settings = load_settings(folder)
    records = [Record(folder / name) for name in settings.runs]
    records = [record for record in records if record.status]
    return build_table(records, settings.tail_rounds, root=folder, conditions=settings.conditions)


def _start_sweep(sweep: SweepRunner, folder: Path, overrides: Sequence[str]) -> None:
    """Start a sweep like the command line."""
    quoted_folder = str(folder).replace("'", "\\'")
    # a figure has one page, beside its picture; fcorun plot draws the pictures of the sweep
    without_page = [text for text in overrides if override_key(text) != "report"]
    sweep([*without_page, "report=false", "hydra.launcher.pictures=false", f"hydra.sweep.dir='{quoted_folder}'"])


def _list_seed_jobs(figure: Figure, overrides_of: Mapping[Path, str], records: Sequence[Record]) -> list[str]:
    """Return the overrides of each job that runs a best point with a seed that it does not have.

    The ``records`` of the point are one for each seed of the grid, and ``overrides_of`` their overrides by folder.
    Seeds that the grid varies in pairs stay pairs. Others that the figure does not set, such as several data.seed of
    the grid, are repeated each.
    """
    if figure.seeded == "seed" and is_baseline_row(records[0].rows[-1]):
        return []  # a baseline draws nothing
    main_key = figure.seed_keys[-1]
    values = {key: {record.flat_config.get(key) for record in records} for key in SEED_KEYS}
    seed_keys = dict.fromkeys(figure.seed_keys)
    if len(values[main_key]) == len(records):  # seeds that vary, too, do so in pairs with this one
        seed_keys |= dict.fromkeys(key for key in SEED_KEYS if len(values[key]) > 1)
    run_seeds: dict[str, set[Any]] = {}  # by the overrides without the seeds that the jobs set
    for record in records:
        overrides = split_overrides(overrides_of[record.folder])
        kept = [text for text in overrides if override_key(text) not in ("experiment", *seed_keys)]
        run_seeds.setdefault(" ".join(kept), set()).add(record.flat_config.get(main_key))
    jobs = []
    for overrides, seeds in run_seeds.items():
        for seed in dict.fromkeys(figure.seeds):
            if seed not in seeds:
                jobs.append(" ".join([overrides, *(f"{key}={seed}" for key in seed_keys)]))
    return jobs


def _describe_best_points(inputs: FigureInputs) -> str:
    """Return sentences for a caption: the metric that chose the best points, and the edges of the grid at them."""
    keys: dict[str, list[str]] = {}
    for edge in inputs.grid_view.grid_edges():
        keys.setdefault(f"{edge.algo}{edge.problem}", []).append(f"{edge.key}={edge.value:g}")
    text = f"Best by {inputs.metric}."
    if keys:
        listed = "; ".join(f"{algo} ({', '.join(dict.fromkeys(values))})" for algo, values in keys.items())
        text += f" At an edge of the grid: {listed}."
    return text


def _tabulate_best(inputs: FigureInputs) -> DataFrame:
    """Return the best point of each algorithm on each problem: its rates, and the band over seeds of tail averages."""
    tuned = inputs.tuned
    problem_keys = [key for key in tuned.problem_keys(inputs.metric) if tuned.frame[key].nunique(dropna=False) > 1]
    keys = ["algo", *problem_keys]
    best_positions = {}
    for row in inputs.grid_view.best_rows():
        best_positions[_none_for_nan([row[key] for key in keys])] = row["rows"]
    # the rates, and other keys that the grid varies of an algorithm
    used = {key for record in inputs.grid_records for key in record.flat_config}
    columns_of_keys = {f"algo.{key}": key for key in claims.RATE_KEYS if f"algo.{key}" in used}
    for varied in inputs.grid.varied_by_algo.values():
        for key in varied:
            if key.startswith("algo."):
                columns_of_keys.setdefault(key, key)
    rows: list[dict[str, Any]] = []
    for values, runs in tuned.frame.groupby(keys, sort=False, dropna=False):
        repetitions = tuned.group_repetitions([*runs.index])
        row: dict[str, Any] = dict(zip(keys, values, strict=True)) | {"runs": [*runs.index]}
        positions = best_positions[_none_for_nan(values)]
        config = inputs.grid_records[positions[0]].flat_config
        row |= {column: config.get(key) for key, column in columns_of_keys.items()}
        row["seeds"] = len(repetitions)
        row["band"] = describe_band([len(repetitions)], tuned.seed_kind) if len(repetitions) > 1 else ""
        # diverged or failed: in no band and no median
        further = [record for point, record in inputs.seed_runs if point == positions[0]]
        row["seeds_lost"] = sum(record.status.get("status") != "done" for record in further)
        for name in runs:
            if name.startswith("tail_"):
                values = tuned.tail_values(name.removeprefix("tail_"))
                low, median, high = seed_band(average_runs(values, repetitions))
                row |= {name: median, f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return tuned.name_null_conditions(pd.DataFrame(rows)).drop(columns="runs")


def _none_for_nan(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return values with None for NaN and NA, which equal nothing: all are cells without a value."""
    return tuple(None if pd.isna(value) else value for value in values)


def _warn_lost_seeds(inputs: FigureInputs) -> list[str]:
    """Return warnings about runs that diverged or failed, and about algorithms that had not converged."""
    warnings = []
    if count := inputs.unfinished_points:
        runs = "1 run" if count == 1 else f"{count} runs"
        warnings.append(f"{runs} of the grid failed, for the reasons above: best points are those of the other runs")
    for end, counts in {"diverged": inputs.diverged, "failed, for the reasons above": inputs.failed}.items():
        for algo, count in counts.items():
            warnings.append(f"{algo} has {inputs.describe_seeds(algo)}: {count} of its runs {end}")
    return [*warnings, *warn_unfinished(inputs.tuned, inputs.metric)]


def read_declared_metrics(algorithms: Collection[str]) -> list[Metric]:
    """Return the metrics that the classes of these algorithms declare, given by name.

    Raises UserError for a class that cannot be imported.
    """
    metrics: list[Metric] = []
    for path in find_choices("algo").values():
        values = read_yaml(path)
        if values.get("name") in algorithms and "class" in values:
            metrics += getattr(locate_user_class(values["class"], "algo.class"), "declared_metrics", ())
    return metrics


def _check_names(names_by_key: Mapping[str, Iterable[str]], valid: Collection[str], problem: str) -> None:
    """Raise UserError for a name of a key of a figure that is not valid."""
    for key, names in names_by_key.items():
        for name in names:
            if name not in valid:
                raise UserError(f"figure.{key}={name} {problem}: {suggest_name(name, valid)}")


def check_metrics(figure: Figure, catalogue: MetricCatalogue) -> None:
    """Raise UserError if the figure names a metric that nothing declares, or an axis that is neither a counter nor
    a monotone metric.
    """
    metrics = {"panels": figure.panels, "claims.metric": [claim.metric for claim in figure.claims]}
    _check_names(metrics, catalogue, "is not a metric")
    axes = [*get_args(CurveAxis), *catalogue.axes]
    places = [place for claim in figure.claims if isinstance(claim.at, dict) for place in claim.at]
    _check_names({"x": figure.x}, axes, "is not a choice")
    _check_names({"claims.at": places}, ["largest", *axes], "is not a choice")
    for claim in figure.claims:
        if isinstance(claim.at, dict) and "largest" in claim.at and catalogue[claim.metric].higher is None:
            raise UserError(
                f"figure.claims.metric={claim.metric}: larger and smaller values are neither better, so that no point "
                "is the best, which at={largest: KEY} needs: give a metric with a direction, such as val_loss"
            )


def check_runs(
    figure: Figure,
    other_algorithms: bool,
    metric: str | None,
    experiments: Sequence[PreparedExperiment],
    conditions: Sequence[str],
) -> None:
    """Raise UserError if the experiments of a figure's runs lack what the figure draws or claims.

    ``metric`` is the one that chooses the best points, under each of the ``conditions``.

    Of ``other_algorithms`` than those of the figure's file, claims need not name the ones that run, and the metrics may
    be those that only algorithms of claims declare.
    """
    declared = []
    if other_algorithms:
        declared += read_declared_metrics({claim.algo for claim in figure.claims})
    else:
        check_algorithms(figure, {experiment.names["algo"] for experiment in experiments})
    for experiment in experiments:
        declared += experiment.declared_metrics
    check_metrics(figure, CATALOGUE.with_metrics(declared))
    settings = [experiment.settings for experiment in experiments]
    check_gap_metrics(figure, settings)
    check_drawn_functions(figure, settings)
    check_axes(figure, experiments)
    if {figure.draw, figure.verdicts} & {*AVERAGED}:
        check_averages(figure, metric, experiments, conditions)
    for experiment in experiments:
        check_printed(figure, experiment)
        if figure.seeds and figure.seeded == "data" and not hasattr(experiment.data, "seed"):
            raise UserError(f"figure.seeded=data draws other data by data.seed, which data={experiment.names['data']} "
                            "does not have: give seeded: seed; in a data set of your own, name the field that draws "
                            "the rows `seed`")  # fmt: skip
    for experiment in {experiment.fingerprint: experiment for experiment in experiments}.values():
        check_accuracy(figure, experiment)


def check_averages(
    figure: Figure, metric: str | None, experiments: Sequence[PreparedExperiment], conditions: Sequence[str]
) -> None:
    """Raise UserError if a picture or a verdict would average runs of several problems, as far as the runs tell."""
    choices = {name for experiment in experiments for name in experiment.privacy.choices}
    plans = tabulate_plans([flatten(experiment.config) for experiment in experiments], conditions, choices)
    keys = [*plans.condition_keys, *(plans.function_keys(metric) if metric else ())]
    algorithms = [name for name in dict.fromkeys(plans.frame["algo"]) if name in (figure.only or [name])]
    check_one_best_point(figure, plans, keys, algorithms)


def check_axes(figure: Figure, experiments: Sequence[PreparedExperiment]) -> None:
    """Raise UserError for an axis that an algorithm does not count, and a place of a claim that none counts."""
    counted_by_some: set[str] = {"largest"}
    for experiment in experiments:
        counted = {*get_args(CurveAxis), *experiment.metrics}
        if isinstance(experiment.clock, NoClock):
            counted.remove("simulated_seconds")
        counted_by_some |= counted
        for axis in () if isinstance(experiment.algo, Baseline) else set(figure.x) - counted:
            advice = ", or give it a clock" if axis == "simulated_seconds" else ""
            raise UserError(f"figure.x={axis}: algo={experiment.names['algo']} does not count it: leave the axis or "
                            f"the algorithm out{advice}")  # fmt: skip
    for claim in figure.claims:
        for place in set(claim.at if isinstance(claim.at, dict) else ()) - counted_by_some:
            raise UserError(f"figure.claims.at={place}: no run counts it: give the runs a clock, or claim at another "
                            "place, such as bytes")  # fmt: skip


def check_printed(figure: Figure, experiment: PreparedExperiment) -> None:
    """Raise UserError if the figure names printed rates of an algorithm that has not both."""
    algo = experiment.names["algo"]
    for key in claims.RATE_KEYS if algo in (figure.printed or {}) else ():
        if getattr(experiment.algo, key, None) is None:
            raise UserError(f"figure.printed.{algo} is [{', '.join(claims.RATE_KEYS)}], and algo={algo} has no {key}: "
                            "leave it out")  # fmt: skip


def check_gap_metrics(figure: Figure, settings: Sequence[Settings]) -> None:
    """Raise UserError if a metric of the figure needs what no run has, reference or gap, or a run lacks float64."""
    metrics = [*figure.panels, *(claim.metric for claim in figure.claims)]
    if figure.draw in GAP_PICTURES or figure.verdicts in GAP_VERDICTS:
        metrics.append("suboptimality")
    for name, meaning in REFERENCE_METRICS.items():
        if name in metrics and not any(run.reference for run in settings):
            raise UserError(f"figure: {name} {meaning}: give reference=true as well")
    if "gap" in metrics and not any(run.gap for run in settings):
        raise UserError("figure: gap is the duality gap, which takes time: give gap=true as well")
    small_gaps = [name for name in (figure.draw, figure.verdicts) if name in SMALL_GAPS]
    if small_gaps and any(run.precision != "float64" for run in settings):
        raise UserError(f"figure: {small_gaps[0]} compares gaps far below the rounding of float32: give "
                        "precision=float64 as well")  # fmt: skip


def check_drawn_functions(figure: Figure, settings: Sequence[Settings]) -> None:
    """Raise UserError if the figure draws a metric that depends on psi, and runs choose their strengths themselves."""
    drawn = [*figure.panels]
    if figure.draw in GAP_PICTURES:
        drawn.append("suboptimality")
    for name in drawn:
        if name in REGULARIZED_METRICS and any(run.strength_study for run in settings):
            raise UserError(f"figure: {name} is another function at each strength, and study.strength chooses one in "
                            "each run: draw val_loss or another metric that does not depend on psi, or leave "
                            "study.strength out")  # fmt: skip


def check_accuracy(figure: Figure, experiment: PreparedExperiment) -> None:
    """Raise UserError if the figure compares accuracies, and the data have no classes or no validation rows."""
    if "personalised" not in (figure.draw, figure.verdicts):
        return
    data = load_data(experiment)
    if not data.target_task.has_classes or data.validation is None:
        raise UserError(
            f"figure: personalised compares val_accuracy, which data={experiment.names['data']} does not give: give "
            "data with classes and validation rows"
        )


def check_algorithms(figure: Figure, algorithms: Iterable[str]) -> None:
    """Raise UserError if the figure names an algorithm that is not among those it runs."""
    valid = set(algorithms)
    if figure.draw == "averaging":
        valid |= set(fco.AVERAGING_LABELS)
    names_by_key = {
        "claims.algo": [claim.algo for claim in figure.claims],
        "claims.above": [other for claim in figure.claims for other in claim.above if isinstance(other, str)],
        "claims.below": [other for claim in figure.claims for other in claim.below if isinstance(other, str)],
        "only": figure.only,
        "printed": figure.printed or {},
    }
    _check_names(names_by_key, valid, "is no algorithm that the figure runs")
