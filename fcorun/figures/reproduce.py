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

from fcorun.composing.algorithms import algorithms
from fcorun.composing.folders import choices, conf_dir, head
from fcorun.composing.overrides import key_of
from fcorun.config import LABELS, conditions, how_keys
from fcorun.errors import UserError
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import prepare
from fcorun.figures import checks, claims, printed
from fcorun.figures.draw import CAPTIONS, PICTURES, fast_mark
from fcorun.figures.drawing import Drawing
from fcorun.figures.papers import fedsplit, personalised, theory
from fcorun.figures.printed import RATES
from fcorun.figures.spec import Figure, find, load, without_notes
from fcorun.metrics import silent
from fcorun.records.formats import frame_csv, json_text
from fcorun.records.record import Record
from fcorun.records.sweeps import kept
from fcorun.reports.collect import table
from fcorun.reports.pictures.page import content
from fcorun.reports.pictures.style import drawn_in
from fcorun.reports.results import unfinished
from fcorun.reports.spread import band, over
from fcorun.reports.table import SEEDS, Frame, Table
from fcorun.system.files import write_whole

Sweep = Callable[[list[str]], None]  # runs ``fcorun -m`` with these arguments, and says what fails
JUDGED = {"metric", "tail_rounds"}  # change no run, but what is best and all that is claimed of it
VERDICTS: dict[str, Callable[[Drawing], list[dict[str, str]]]] = {
    "bounds": lambda of: theory.verdicts(of.grid_records),
    "fixed_points": lambda of: fedsplit.fixed_points(of.grid_records),
    "conditioning": lambda of: fedsplit.conditioning(of.grid_records),
    "personalised": personalised.verdicts,
}


@dataclass(frozen=True)
class Made:
    """A figure that was made: its folder, the rows of its claims, what is to be known of its runs, a sentence each,
    whether all were there, the records, and whether it is to have a page."""

    folder: Path
    rows: list[dict]
    remarks: list[str] = field(default_factory=list)
    whole: bool = True
    records: Sequence[Record] = ()
    page: bool = True


def reproduce(name: str, out: Path, sweep: Sweep, fast: bool = False, overrides: Sequence[str] = ()) -> Made:
    """Make a figure in ``out``/NAME: figure.png, figure.pdf, table.csv, claims.csv, and figure.json, what it is.

    Its records stay in runs/ and seeds/ beside it, or beside the figure that it shares them with, and are used again.
    ``sweep`` makes them. ``fast`` makes the smaller version in NAME-fast. ``overrides`` go to every run; those that
    change what is run, or by what it is judged, make the figure one of our own, in NAME-HASH, and marked so. Notes on
    claims are of the paper's figure, and are left out of all others. Raises UserError for a figure that is not there,
    or whose runs cannot be had.
    """
    figure, _ = load(name, _plain(overrides))
    smaller = figure.fast if fast else []
    figure, config = load(name, _plain([*smaller, *overrides]))
    experiment = prepare(config)
    _check(figure, experiment, f"experiment={name}", [*smaller, *overrides])
    _ = experiment.fingerprint  # asks for the data's files before anything is written
    places = {f"data.{key}" for key, marks in conditions(type(experiment.data)).items() if "how" in marks} | how_keys()
    places -= JUDGED
    own = sorted(text for text in overrides if key_of(text) not in places)
    ending = ("-fast" if fast else "") + (f"-{hashlib.sha256(repr(own).encode()).hexdigest()[:6]}" if own else "")
    mark = " ".join([*(["fast version:"] if fast else []), *smaller, *(["with", *own] if own else [])])
    home, folder = out / f"{figure.runs or name}{ending}", out / f"{name}{ending}"
    if fast:
        figure = replace(figure, seeds=figure.seeds[:2])
    if mark:
        figure = without_notes(figure)
    of = _measured(sweep, figure, config["metric"], home, [f"experiment={name}", *smaller, *overrides])
    pictures = _drawn(of, mark, config["style"])
    folder.mkdir(parents=True, exist_ok=True)
    best = of.points.best_rows()
    used = {row["algo"]: of.grid_records[row["rows"][0]].config["algo"] for row in best}
    rates = {algo: tuple(own[key] for key in RATES) for algo, own in used.items() if set(RATES) <= set(own)}
    write_whole(folder / "table.csv", frame_csv(_summary(of.tuned, of.metric, rates, of.lost)))
    rows = [{"figure": name + ending, **row} for row in VERDICTS[figure.verdicts](of)] if figure.verdicts else []
    rows += [*claims.check(name + ending, figure, claims.measured(of)), *printed.check(name + ending, of)]
    rows = [row | {"changed": " ".join([*(["fast"] if fast else []), *own])} for row in rows]
    write_whole(folder / "claims.csv", frame_csv(pd.DataFrame(rows, columns=list(claims.COLUMNS))))
    write_whole(folder / "figure.json", json_text(_about(name, figure, mark)))
    for picture, drawn in pictures.items():
        write_whole(folder / picture, drawn)
    records = [*of.grid_records, *of.tuned_records]
    return Made(folder, rows, _remarks(of), not of.failed, records, page=config["report"])


def _about(name: str, figure: Figure, mark: str) -> dict[str, Any]:
    """What a page says of a figure: ``ours`` is whether its file is fcorun's, ``changed`` what is not as in it."""
    path = find(name)
    return {"name": name, "title": figure.title, "about": head(path), "changed": mark, "caption": CAPTIONS[figure.draw],
            "ours": path.is_relative_to(conf_dir())}  # fmt: skip


def _check(figure: Figure, experiment: Experiment, file: str, overrides: Sequence[str]) -> None:
    """Refuse what a figure cannot have, before anything runs."""
    checks.metrics(figure, experiment.metrics)
    checks.reference(figure, experiment.settings.reference)
    checks.algorithms(figure, [*algorithms([file]), *algorithms([file, *overrides])])


def _measured(sweep: Sweep, figure: Figure, metric: str | None, home: Path, common: Sequence[str]) -> Drawing:
    """What there is to draw once all is run."""
    grid = _swept(sweep, home / "runs", common)
    records = [Record(home / "runs" / place) for place in grid.frame["folder"]]
    metric = grid.chosen(metric)
    best = [row for row in grid.best(metric).to_dict("records") if row["seeds"]]
    if not best:
        raise UserError(f"no run came to an end; the records in {home / 'runs'} say why")
    chosen = [place for row in best for place in row["rows"]]
    jobs = _with_seeds(figure, grid, [(row, records[row["rows"][0]]) for row in best])
    varied = {"algo", *figure.seed_keys, *grid.keys}
    further = _swept_jobs(sweep, home / "seeds", common, [job for _, job in jobs], varied) if jobs else []
    diverged, done = (_by_algo(further, status) for status in ("diverged", "done"))
    failed = Counter(algo for algo, _ in jobs) - done - diverged  # one that cannot be composed does not say whose it is
    further = [record for record in further if record.status.get("status") == "done"]
    every = table([*records, *further])  # of all, so that the columns are those of the grid
    tuned = every.take([*chosen, *range(len(records), len(every))])
    return Drawing(figure, metric, grid, records, tuned=tuned,
                   tuned_records=[*(records[place] for place in chosen), *further],
                   diverged=diverged, failed=failed)  # fmt: skip


def _by_algo(records: Sequence[Record], status: str) -> Counter:
    """How many of these records have come to this end, by algorithm."""
    return Counter(record.flat_config["algo.name"] for record in records if record.status.get("status") == status)


def _remarks(of: Drawing) -> list[str]:
    """Which seeds are not there, and why; which methods had not come to an end."""
    ends = {"diverged": of.diverged, "failed, as said above": of.failed}
    lost = [(algo, count, end) for end, counts in ends.items() for algo, count in counts.items()]
    lines = [f"{algo} has {of.seeds(algo)}: {count} of its runs {end}" for algo, count, end in lost]
    return [*lines, *unfinished(of.tuned, of.metric)]


def _plain(overrides: Sequence[str]) -> list[str]:
    """Those that say which data there must be, how they are judged and drawn, and are no axes."""
    said = ("metric=", "x=", "style=", "report=", "data=", "data.", "objective=", "objective.")
    chosen = [text for text in overrides if text.startswith(said)]
    return [text for text in chosen if "," not in text or "[" in text]


def _swept(sweep: Sweep, folder: Path, overrides: Sequence[str]) -> Table:
    """Run a sweep as the command line would, and the table of its points. Raises UserError when nothing was run."""
    before = time.time()
    place = str(folder).replace("'", "\\'")
    given = [text for text in overrides if key_of(text) != "report"]  # a figure has one page, beside its picture
    sweep([*given, "report=false", f"hydra.sweep.dir='{place}'"])
    found = folder / "results.csv"
    if not found.exists() or found.stat().st_mtime < before - 1:
        raise UserError(f"the runs of {folder} did not come about, as said above")
    records = [Record(folder / place) for place in kept(folder).runs]  # not all that an earlier version left there
    return table([record for record in records if record.status], root=folder)


def _with_seeds(figure: Figure, grid: Table, best: Sequence[tuple[dict, Record]]) -> list[tuple[str, str]]:
    """The algorithm and the overrides of each job that runs a best point again with a further seed; a point is its row
    and one of its records."""
    jobs = []
    for row, record in best:
        if figure.seeded == "seed" and silent(record.rows[-1]):
            continue  # a baseline draws nothing
        own = {f"algo.{key}": value for key, value in record.config["algo"].items() if key not in LABELS}
        own |= {key: row[key] for key in grid.keys if not key.startswith("algo.") and key not in SEEDS}
        own = {f"++{key}" if "." in key else key: value for key, value in own.items()}  # their files may not hold them
        point = [
            *_chosen(record.config["algo"]),
            *(f"{key}={value}" for key, value in own.items() if value is not None and value == value),
        ]
        for seed in figure.seeds:
            jobs.append((row["algo"], " ".join([*point, *(f"{key}={seed}" for key in figure.seed_keys)])))
    return jobs


def _swept_jobs(
    sweep: Sweep, folder: Path, common: Sequence[str], jobs: Sequence[str], varied: set[str]
) -> list[Record]:
    """Run these jobs, and nothing of what is ``varied`` otherwise; their records."""
    listed = ",".join(f"'{job}'" for job in jobs)
    fixed = [text for text in common if key_of(text) not in varied]
    found = _swept(sweep, folder, [*fixed, "hydra.sweeper.params=null", f"hydra.sweeper.also=[{listed}]"])
    return [Record(folder / place) for place in found.frame["folder"]]


def _chosen(algo: dict[str, Any]) -> list[str]:
    """The overrides that choose an algorithm; a variant, which has no file of its own, by that of its class."""
    files = {
        name: yaml.safe_load(path.read_text(encoding="utf-8")).get("class") for name, path in choices("algo").items()
    }
    if algo["name"] in files or algo["class"] not in files.values():
        return [f"algo={algo['name']}"]
    base = next(name for name, path in files.items() if path == algo["class"])
    title = [f'++algo.title="{algo["title"]}"'] if "title" in algo else []
    return [f"algo={base}", f"algo.name={algo['name']}", *title]


def _drawn(of: Drawing, mark: str, style: str) -> dict[str, bytes]:
    """Return the picture as the content of each of its files. Raises UserError where there is nothing to draw."""
    with drawn_in(style):
        picture = PICTURES[of.figure.draw](of)
        if picture is None:
            raise UserError("its runs measured nothing to draw")
        if mark:
            fast_mark(picture, mark)
        return {f"figure.{format}": content(picture, format) for format in ("png", "pdf")}


def _summary(tuned: Table, metric: str, rates: dict[str, tuple], lost: Counter) -> Frame:
    """The best point of each algorithm on each problem: its rates, the median and the band over seeds of each tail
    average."""
    rows: list[dict[str, Any]] = []
    apart = [key for key in tuned.apart(metric) if tuned.frame[key].nunique() > 1]
    for (algo, *values), own in tuned.frame.groupby(["algo", *apart], sort=False, dropna=False):
        row: dict[str, Any] = {"algo": algo, **dict(zip(apart, values, strict=True))}
        row |= {**dict(zip(RATES, rates.get(algo, ()), strict=False)), "seeds": len(own)}
        row["band"] = over([len(own)], tuned.seed_kind) if len(own) > 1 else ""
        row["seeds_lost"] = lost[algo]  # that diverged, or failed: they are in no band and no median
        for name in (name for name in own if name.startswith("tail_")):
            low, middle, high = band(own[name].to_numpy(float))
            row |= {name: middle, f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return pd.DataFrame(rows)
