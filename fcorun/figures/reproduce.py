"""From a figure's name to its picture and the verdict on its claims: run what is missing, tune, draw, check."""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fcorun.config import LABEL_KEYS, field_marks, keys_outside_identity
from fcorun.configuration.overrides import override_key
from fcorun.configuration.search_path import find_choices, header_comment, packaged_config_dir
from fcorun.configuration.sweep_algorithms import sweep_algorithms
from fcorun.errors import UserError
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import prepare
from fcorun.figures import checks, claims, published_rates
from fcorun.figures.draw import CAPTIONS, PICTURES, stamp_text
from fcorun.figures.figure_inputs import FigureInputs
from fcorun.figures.papers import fedsplit, personalised, theory
from fcorun.figures.published_rates import RATE_KEYS
from fcorun.figures.spec import Figure, find_figure, load_figure, remove_notes
from fcorun.metrics import is_baseline_row
from fcorun.records.formats import frame_csv, json_text
from fcorun.records.record import Record
from fcorun.records.sweep_settings import load_settings
from fcorun.reports.build_table import build_table
from fcorun.reports.pictures.layout import render_figure
from fcorun.reports.pictures.style import style_context
from fcorun.reports.run_table import SEED_KEYS, DataFrame, RunTable
from fcorun.reports.seed_bands import describe_band, seed_band
from fcorun.reports.sweep_report import warn_unfinished
from fcorun.system.files import write_atomically

SweepRunner = Callable[[list[str]], None]  # runs ``fcorun -m`` with these arguments, and says what fails
ASSESSMENT_KEYS = {"metric", "tail_rounds"}  # change no run, but what is best and all that is claimed of it
PAPER_CHECKS: dict[str, Callable[[FigureInputs], list[dict[str, str]]]] = {
    "bounds": lambda of: theory.check_bounds(of.grid_records),
    "fixed_points": lambda of: fedsplit.check_fixed_points(of.grid_records),
    "conditioning": lambda of: fedsplit.check_conditioning(of.grid_records),
    "personalised": personalised.check_personalised,
}


@dataclass(frozen=True)
class FigureResult:
    """A figure that was made: its folder, the rows of its claims, what is to be known of its runs, a sentence each,
    whether all were there, the records, and whether it is to have a page."""

    folder: Path
    rows: list[dict]
    warnings: list[str] = field(default_factory=list)
    complete: bool = True
    records: Sequence[Record] = ()
    wants_page: bool = True


def reproduce(
    name: str, out: Path, sweep: SweepRunner, fast: bool = False, overrides: Sequence[str] = ()
) -> FigureResult:
    """Make a figure in ``out``/NAME: figure.png, figure.pdf, table.csv, claims.csv, and figure.json, what it is.

    Its records stay in runs/ and seeds/ beside it, or beside the figure that it shares them with, and are used again.
    ``sweep`` makes them. ``fast`` makes the smaller version in NAME-fast. ``overrides`` go to every run; those that
    change what is run, or by what it is judged, make the figure one of our own, in NAME-HASH, and marked so. Notes on
    claims are of the paper's figure, and are left out of all others. Raises UserError for a figure that is not there,
    or whose runs cannot be had.
    """
    figure, _ = load_figure(name, _plain(overrides))
    smaller = figure.fast if fast else []
    figure, config = load_figure(name, _plain([*smaller, *overrides]))
    experiment = prepare(config)
    _check(figure, experiment, f"experiment={name}", [*smaller, *overrides])
    _ = experiment.fingerprint  # asks for the data's files before anything is written
    places = {
        f"data.{key}" for key, marks in field_marks(type(experiment.data)).items() if "outside identity" in marks
    } | keys_outside_identity()
    places -= ASSESSMENT_KEYS
    own = sorted(text for text in overrides if override_key(text) not in places)
    ending = ("-fast" if fast else "") + (f"-{hashlib.sha256(repr(own).encode()).hexdigest()[:6]}" if own else "")
    mark = " ".join([*(["fast version:"] if fast else []), *smaller, *(["with", *own] if own else [])])
    home, folder = out / f"{figure.runs or name}{ending}", out / f"{name}{ending}"
    if fast:
        figure = replace(figure, seeds=figure.seeds[:2])
    if mark:
        figure = remove_notes(figure)
    of = _measured(sweep, figure, config["metric"], home, [f"experiment={name}", *smaller, *overrides])
    pictures = _drawn(of, mark, config["style"])
    folder.mkdir(parents=True, exist_ok=True)
    best = of.grid_view.best_rows()
    used = {row["algo"]: of.grid_records[row["rows"][0]].config["algo"] for row in best}
    rates = {algo: tuple(own[key] for key in RATE_KEYS) for algo, own in used.items() if set(RATE_KEYS) <= set(own)}
    write_atomically(folder / "table.csv", frame_csv(_summary(of.tuned, of.metric, rates, of.lost_seeds)))
    rows = [{"figure": name + ending, **row} for row in PAPER_CHECKS[figure.verdicts](of)] if figure.verdicts else []
    rows += [
        *claims.check_claims(name + ending, figure, claims.collect_measurements(of)),
        *published_rates.check_published_rates(name + ending, of),
    ]
    rows = [row | {"changed": " ".join([*(["fast"] if fast else []), *own])} for row in rows]
    write_atomically(folder / "claims.csv", frame_csv(pd.DataFrame(rows, columns=list(claims.COLUMNS))))
    write_atomically(folder / "figure.json", json_text(_about(name, figure, mark)))
    for picture, drawn in pictures.items():
        write_atomically(folder / picture, drawn)
    records = [*of.grid_records, *of.tuned_records]
    return FigureResult(folder, rows, _remarks(of), not of.failed, records, wants_page=config["report"])


def _about(name: str, figure: Figure, mark: str) -> dict[str, Any]:
    """What a page says of a figure: ``ours`` is whether its file is fcorun's, ``changed`` what is not as in it."""
    path = find_figure(name)
    return {
        "name": name,
        "title": figure.title,
        "about": header_comment(path),
        "changed": mark,
        "caption": CAPTIONS[figure.draw],
        "ours": path.is_relative_to(packaged_config_dir()),
    }


def _check(figure: Figure, experiment: Experiment, file: str, overrides: Sequence[str]) -> None:
    """Refuse what a figure cannot have, before anything runs."""
    checks.check_metrics(figure, experiment.metrics)
    checks.check_reference(figure, experiment.settings.reference)
    checks.check_algorithms(figure, [*sweep_algorithms([file]), *sweep_algorithms([file, *overrides])])


def _measured(
    sweep: SweepRunner, figure: Figure, metric: str | None, home: Path, common: Sequence[str]
) -> FigureInputs:
    """What there is to draw once all is run."""
    grid = _swept(sweep, home / "runs", common)
    records = [Record(home / "runs" / place) for place in grid.frame["folder"]]
    metric = grid.resolve_metric(metric)
    best = [row for row in grid.best_points(metric).to_dict("records") if row["seeds"]]
    if not best:
        raise UserError(f"no run came to an end; the records in {home / 'runs'} say why")
    chosen = [place for row in best for place in row["rows"]]
    jobs = _with_seeds(figure, grid, [(row, records[row["rows"][0]]) for row in best])
    varied = {"algo", *figure.seed_keys, *grid.varied_keys}
    further = _swept_jobs(sweep, home / "seeds", common, [job for _, job in jobs], varied) if jobs else []
    diverged, done = (_by_algo(further, status) for status in ("diverged", "done"))
    failed = Counter(algo for algo, _ in jobs) - done - diverged  # one that cannot be composed does not say whose it is
    further = [record for record in further if record.status.get("status") == "done"]
    every = build_table([*records, *further])  # of all, so that the columns are those of the grid
    tuned = every.take([*chosen, *range(len(records), len(every))])
    return FigureInputs(figure, metric, grid, records, tuned=tuned,
                   tuned_records=[*(records[place] for place in chosen), *further],
                   diverged=diverged, failed=failed)  # fmt: skip


def _by_algo(records: Sequence[Record], status: str) -> Counter:
    """How many of these records have come to this end, by algorithm."""
    return Counter(record.flat_config["algo.name"] for record in records if record.status.get("status") == status)


def _remarks(of: FigureInputs) -> list[str]:
    """Which seeds are not there, and why; which methods had not come to an end."""
    ends = {"diverged": of.diverged, "failed, as said above": of.failed}
    lost = [(algo, count, end) for end, counts in ends.items() for algo, count in counts.items()]
    lines = [f"{algo} has {of.describe_seeds(algo)}: {count} of its runs {end}" for algo, count, end in lost]
    return [*lines, *warn_unfinished(of.tuned, of.metric)]


def _plain(overrides: Sequence[str]) -> list[str]:
    """Those that say which data there must be, how they are judged and drawn, and are no axes."""
    said = ("metric=", "x=", "style=", "report=", "data=", "data.", "objective=", "objective.")
    chosen = [text for text in overrides if text.startswith(said)]
    return [text for text in chosen if "," not in text or "[" in text]


def _swept(sweep: SweepRunner, folder: Path, overrides: Sequence[str]) -> RunTable:
    """Run a sweep as the command line would, and the table of its points. Raises UserError when nothing was run."""
    before = time.time()
    place = str(folder).replace("'", "\\'")
    given = [text for text in overrides if override_key(text) != "report"]  # a figure has one page, beside its picture
    sweep([*given, "report=false", f"hydra.sweep.dir='{place}'"])
    found = folder / "results.csv"
    if not found.exists() or found.stat().st_mtime < before - 1:
        raise UserError(f"the runs of {folder} did not come about, as said above")
    records = [
        Record(folder / place) for place in load_settings(folder).runs
    ]  # not all that an earlier version left there
    return build_table([record for record in records if record.status], root=folder)


def _with_seeds(figure: Figure, grid: RunTable, best: Sequence[tuple[dict, Record]]) -> list[tuple[str, str]]:
    """The algorithm and the overrides of each job that runs a best point again with a further seed; a point is its row
    and one of its records."""
    jobs = []
    for row, record in best:
        if figure.seeded == "seed" and is_baseline_row(record.rows[-1]):
            continue  # a baseline draws nothing
        own = {f"algo.{key}": value for key, value in record.config["algo"].items() if key not in LABEL_KEYS}
        own |= {key: row[key] for key in grid.varied_keys if not key.startswith("algo.") and key not in SEED_KEYS}
        own = {f"++{key}" if "." in key else key: value for key, value in own.items()}  # their files may not hold them
        point = [
            *_chosen(record.config["algo"]),
            *(f"{key}={value}" for key, value in own.items() if value is not None and value == value),
        ]
        for seed in figure.seeds:
            jobs.append((row["algo"], " ".join([*point, *(f"{key}={seed}" for key in figure.seed_keys)])))
    return jobs


def _swept_jobs(
    sweep: SweepRunner, folder: Path, common: Sequence[str], jobs: Sequence[str], varied: set[str]
) -> list[Record]:
    """Run these jobs, and nothing of what is ``varied`` otherwise; their records."""
    listed = ",".join(f"'{job}'" for job in jobs)
    fixed = [text for text in common if override_key(text) not in varied]
    found = _swept(sweep, folder, [*fixed, "hydra.sweeper.params=null", f"hydra.sweeper.also=[{listed}]"])
    return [Record(folder / place) for place in found.frame["folder"]]


def _chosen(algo: dict[str, Any]) -> list[str]:
    """The overrides that choose an algorithm; a variant, which has no file of its own, by that of its class."""
    files = {
        name: yaml.safe_load(path.read_text(encoding="utf-8")).get("class")
        for name, path in find_choices("algo").items()
    }
    if algo["name"] in files or algo["class"] not in files.values():
        return [f"algo={algo['name']}"]
    base = next(name for name, path in files.items() if path == algo["class"])
    title = [f'++algo.title="{algo["title"]}"'] if "title" in algo else []
    return [f"algo={base}", f"algo.name={algo['name']}", *title]


def _drawn(of: FigureInputs, mark: str, style: str) -> dict[str, bytes]:
    """Return the picture as the content of each of its files. Raises UserError where there is nothing to draw."""
    with style_context(style):
        picture = PICTURES[of.figure.draw](of)
        if picture is None:
            raise UserError("its runs measured nothing to draw")
        if mark:
            stamp_text(picture, mark)
        return {f"figure.{format}": render_figure(picture, format) for format in ("png", "pdf")}


def _summary(tuned: RunTable, metric: str, rates: dict[str, tuple], lost: Counter) -> DataFrame:
    """The best point of each algorithm on each problem: its rates, the median and the band over seeds of each tail
    average."""
    rows: list[dict[str, Any]] = []
    apart = [key for key in tuned.problem_keys(metric) if tuned.frame[key].nunique() > 1]
    for (algo, *values), own in tuned.frame.groupby(["algo", *apart], sort=False, dropna=False):
        row: dict[str, Any] = {"algo": algo, **dict(zip(apart, values, strict=True))}
        row |= {**dict(zip(RATE_KEYS, rates.get(algo, ()), strict=False)), "seeds": len(own)}
        row["band"] = describe_band([len(own)], tuned.seed_kind) if len(own) > 1 else ""
        row["seeds_lost"] = lost[algo]  # that diverged, or failed: they are in no band and no median
        for name in (name for name in own if name.startswith("tail_")):
            low, middle, high = seed_band(own[name].to_numpy(float))
            row |= {name: middle, f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return pd.DataFrame(rows)
