"""From a figure's name to its picture and the verdict on its claims: run what is missing, tune, draw, check."""

import contextlib
import hashlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from fcorun.config import LABELS, conditions, how_keys
from fcorun.errors import UserError
from fcorun.experiment.compose import conf_dir
from fcorun.experiment.prepare import prepare
from fcorun.figures import claims, draw
from fcorun.figures.papers import fedsplit, personalised, theory
from fcorun.figures.spec import load
from fcorun.metrics import silent
from fcorun.records.formats import read_rows
from fcorun.records.record import Record
from fcorun.reports.pictures.page import STYLE, content
from fcorun.reports.results import csv_bytes
from fcorun.reports.table import SEEDS, Frame, best_points, chosen, flat_config, keys, table
from fcorun.system.files import write_whole

RATES = ("client_lr", "server_lr")


def reproduce(name: str, out: Path, fast: bool = False, overrides: Sequence[str] = ()) -> tuple[Path, list[dict]]:
    """Make a figure in ``out``/NAME: figure.png, figure.pdf, table.csv, claims.csv; the folder, the rows of the last.

    Its records stay in runs/ and seeds/ beside it, or beside the figure that it shares them with, and are used again.
    ``fast`` makes the smaller version in NAME-fast. ``overrides`` go to every run; those that change what is run make
    the figure one of our own, in NAME-HASH, and marked so. Raises UserError for a figure that is not there, or whose
    runs cannot be had.
    """
    figure, _ = load(name, _plain(overrides))
    smaller = figure.fast if fast else []
    figure, config = load(name, _plain([*smaller, *overrides]))
    experiment = prepare(config)
    _ = experiment.fingerprint  # asks for the data's files before anything is written
    places = {f"data.{key}" for key, marks in conditions(type(experiment.data)).items() if "how" in marks} | how_keys()
    own = sorted(text for text in overrides if text.lstrip("+").partition("=")[0] not in places)
    ending = ("-fast" if fast else "") + (f"-{hashlib.sha256(repr(own).encode()).hexdigest()[:6]}" if own else "")
    mark = " ".join([*(["fast version:"] if fast else []), *smaller, *(["with", *own] if own else [])])
    home, folder = out / f"{figure.runs or name}{ending}", out / f"{name}{ending}"
    common = [f"+experiment={name}", *smaller, *overrides]
    grid = _sweep(home / "runs", common)
    records = [Record(home / "runs" / place) for place in grid["folder"]]
    metric = chosen(grid, config["metric"])
    best = [row for row in best_points(grid, metric).to_dict("records") if row["seeds"]]
    if not best:
        raise UserError(f"no run came to an end; the records in {home / 'runs'} say why")
    kept = [place for row in best for place in row["rows"]]
    seeds = figure.seeds[:2] if fast else figure.seeds
    further = _with_seeds(home / "seeds", common, best, grid, seeds, figure.seeded) if seeds else []
    failed = [record for record in further if record.status.get("status") != "done"]
    lost = Counter(flat_config(record).get("algo.name") for record in failed)
    further = [record for record in further if record.status.get("status") == "done"]
    every = table([*records, *further])  # of all, so that the columns are those of the grid
    tuned = every.iloc[[*kept, *range(len(records), len(every))]].reset_index(drop=True)
    tuned.attrs, picked = every.attrs, [*(records[place] for place in kept), *further]
    of = draw.Drawing(figure, metric, grid, records, tuned, picked)
    folder.mkdir(parents=True, exist_ok=True)
    _draw(of, folder, mark)
    used = {row["algo"]: records[row["rows"][0]].config["algo"] for row in best}
    rates = {algo: tuple(own[key] for key in RATES) for algo, own in used.items() if set(RATES) <= set(own)}
    write_whole(folder / "table.csv", csv_bytes(_summary(tuned, rates, lost)))
    if figure.draw == "averaging":
        tuned = pd.concat([tuned, _averages(of)])
    runs: claims.Runs = {}
    for algo, record in zip(of.tuned["algo"], picked, strict=True):
        runs.setdefault(algo, []).append(read_rows(record.folder))
    told = {
        "bounds": lambda: theory.verdicts(records),
        "fixed_points": lambda: fedsplit.fixed_points(records),
        "conditioning": lambda: fedsplit.conditioning(records),
        "personalised": lambda: personalised.verdicts(of),
    }
    rows = [{"figure": name + ending, **row} for row in told[figure.verdicts]()] if figure.verdicts else []
    rows += claims.check(name + ending, figure, grid, tuned, runs, rates)
    write_whole(folder / "claims.csv", csv_bytes(pd.DataFrame(rows, columns=list(claims.COLUMNS))))
    return folder, rows


def _plain(overrides: Sequence[str]) -> list[str]:
    """Those that say which data there must be, how they are judged and drawn, and are no axes."""
    chosen = [text for text in overrides if text.startswith(("metric=", "x=", "data=", "data."))]
    return [text for text in chosen if "," not in text or "[" in text]


def _sweep(folder: Path, overrides: Sequence[str]) -> Frame:
    """Run a sweep as the command line would, and the table of its points. Raises UserError when nothing was run."""
    before = time.time()
    command = [sys.executable, "-m", "fcorun", "-m", *overrides, f"hydra.sweep.dir='{folder}'"]
    with subprocess.Popen(command) as child:
        while child.poll() is None:
            with contextlib.suppress(KeyboardInterrupt):  # the child is told as well, keeps checkpoints, and says so
                child.wait()
    if child.returncode in (130, -2):
        raise KeyboardInterrupt
    found = folder / "results.csv"
    if not found.exists() or found.stat().st_mtime < before - 1:
        raise UserError(f"the runs of {folder} did not come about, as said above")
    places = pd.read_csv(found, usecols=["folder"])["folder"]
    return table([Record(folder / place) for place in places], root=folder)


def _with_seeds(
    folder: Path, common: Sequence[str], best: list[dict], grid: Frame, seeds: list[int], seeded: str
) -> list[Record]:
    """The best points run again with further seeds."""
    jobs = []
    for row in best:
        record = Record(folder.parent / "runs" / grid["folder"][row["rows"][0]])
        if seeded == "seed" and silent(read_rows(record.folder)[-1]):
            continue  # a baseline draws nothing
        own = {f"algo.{key}": value for key, value in record.config["algo"].items() if key not in LABELS}
        own |= {key: row[key] for key in keys(grid) if not key.startswith("algo.") and key not in SEEDS}
        point = [
            *_chosen(record.config["algo"]),
            *(f"{key}={value}" for key, value in own.items() if value is not None and value == value),
        ]
        jobs += [" ".join([*point, f"{seeded}={seed}"]) for seed in seeds]
    if not jobs:
        return []
    listed = ",".join(f"'{job}'" for job in jobs)
    varied = {"algo", seeded, *keys(grid)}
    fixed = [text for text in common if text.lstrip("+").partition("=")[0] not in varied]
    frame = _sweep(folder, [*fixed, "hydra.sweeper.params=null", f"hydra.sweeper.also=[{listed}]"])
    return [Record(folder / place) for place in frame["folder"]]


def _chosen(algo: dict[str, Any]) -> list[str]:
    """The overrides that choose an algorithm; a variant, which has no file of its own, by that of its class."""
    files = {
        path.stem: yaml.safe_load(path.read_text())["class"] for path in (Path(conf_dir()) / "algo").glob("*.yaml")
    }
    if algo["name"] in files or algo["class"] not in files.values():
        return [f"algo={algo['name']}"]
    base = next(name for name, path in files.items() if path == algo["class"])
    return [f"algo={base}", f"algo.name={algo['name']}", f'algo.title="{algo["title"]}"']


def _draw(of: draw.Drawing, folder: Path, mark: str) -> None:
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        picture = getattr(draw, of.figure.draw)(of)
        if picture is None:
            raise UserError("its runs measured nothing to draw")
        if mark:
            draw.fast_mark(picture, mark)
        for format in ("png", "pdf"):
            write_whole(folder / f"figure.{format}", content(picture, format))


def _averages(of: draw.Drawing) -> Frame:
    """What is claimed of the solutions of single clients and of their mean, as rows of a table."""
    alone, cutoff = list(draw.solutions_alone(of).values()), of.grid.attrs["cutoff"]
    shares = {
        "mean of the clients": float(np.mean(np.abs(np.mean(alone, axis=0)) > cutoff)),
        "densest client": max(float(np.mean(np.abs(w) > cutoff)) for w in alone),
    }
    return pd.DataFrame({"algo": list(shares), "tail_density": list(shares.values())})


def _summary(tuned: Frame, rates: dict[str, tuple], lost: Counter) -> Frame:
    """The best point of each algorithm: its rates, the median and the 10-90 % band over seeds of each tail average."""
    rows: list[dict[str, Any]] = []
    for algo, own in tuned.groupby("algo", sort=False):
        row: dict[str, Any] = {"algo": algo, **dict(zip(RATES, rates.get(algo, ()), strict=False)), "seeds": len(own)}
        row["seeds_lost"] = lost[algo]  # that diverged, or failed: they are in no band and no median
        for name in (name for name in own if name.startswith("tail_")):
            low, middle, high = own[name].quantile([0.1, 0.5, 0.9])
            row |= {name: middle, f"{name}_10%": low, f"{name}_90%": high}
        rows.append(row)
    return pd.DataFrame(rows)
