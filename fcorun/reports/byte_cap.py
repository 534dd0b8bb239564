"""Runs compared at equal bytes: what each method had when the uploads of its whole grid reached a cap."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.metrics import COUNTERS, INTEGER_COUNTERS
from fcorun.base.records.record import FINISHED_STATUSES, Record
from fcorun.reports.repetitions import Replicate
from fcorun.reports.run_table import DataFrame, RunTable, align_seeds


def read_cap(text: str) -> float:
    """Return the number of bytes of a text ``bytes=1.4e6``. Raises UserError for another text."""
    key, _, number = text.partition("=")
    try:
        cap = float(number)
    except ValueError:
        cap = np.nan
    if key != "bytes" or not 0 < cap < np.inf:
        raise UserError(f"--cap {text} is no number of bytes: give --cap bytes=1.4e6")
    return cap


def find_whole_replicates(runs: RunTable, points: DataFrame) -> set[Replicate]:
    """Return the replicates that have finished each of these points of a method, rows of ``RunTable.fold_seeds``.

    Another replicate lacks points, as where only the best one was repeated or a sweep was interrupted: fewer uploads
    went into it. A point that no replicate has finished counts for none.
    """
    statuses = runs.frame["status"].tolist()
    whole = {runs.replicates[run] for run in itertools.chain(*points["runs"])}
    for runs_of_point in points["runs"]:
        finished = {runs.replicates[run] for run in runs_of_point if statuses[run] in FINISHED_STATUSES}
        if finished:
            whole &= finished
    return whole


def cap_runs(runs: RunTable, records: Sequence[Record], cap: float, metric: str) -> tuple[RunTable, list[str]]:
    """Return the runs as they were under a cap on uploads, and remarks on methods that the cap does not bind.

    In each replicate a method advances all its points on a problem together, those that diverged as well, until the
    last evaluation at which the bytes that they have sent up are at most the cap. In the table, ``tail_METRIC`` is
    METRIC at that evaluation, and rounds, seconds and the other counters are those of that evaluation, or of the run's
    end before it. The column ``cap`` says so, and final and best metrics are left out. Runs that send nothing, such as
    baselines, have their last evaluation. The runs of replicates that lack points of others are left out. Raises
    UserError for a cap below the first evaluation after the start, and if each replicate lacks points.

    Args:
        records: the records of the runs, in their order.
        metric: the metric by which points are compared: the points on a problem are those that it compares.
    """
    import pandas as pd

    rounds_column = "rounds_done" if "rounds" in runs.varied_keys else "rounds"
    counters = {"round": rounds_column} | {name: name for name in COUNTERS[1:] if name in runs.frame}
    metrics = {name: f"tail_{name}" for name in runs.tail_metrics}
    columns = counters | metrics  # of the table, by the columns of metrics.csv
    at_cap = pd.DataFrame(np.nan, index=runs.frame.index, columns=[*columns.values()])
    statuses = runs.frame["status"].tolist()
    silent: dict[str, None] = {}
    below: dict[str, float] = {}
    grids, remarks = _list_grids(runs, metric)
    compared = sorted(itertools.chain(*(members for _, members in grids)))
    for algo, members in grids:
        measured = [run for run in members if records[run].rows]
        if not measured:
            continue
        rows_of_runs = [records[run].rows for run in measured]
        aligned = align_seeds(rows_of_runs)
        sent = np.array([[row["bytes_up"] for row in rows] for rows in aligned], float)
        sent = np.fmax.accumulate(sent, axis=1)  # a run that has ended sends no more
        together = sent.sum(0)
        within = int(np.flatnonzero(together <= cap).max(initial=0))
        if together[-1] == 0:
            silent[algo] = None
            within = len(together) - 1
        elif within == 0:
            first = max(int(np.argmax(together > 0)), 1)  # a choice of the strength counts from the start on
            first = min(first, len(together) - 1)
            raise UserError(
                f"--cap bytes={cap:g} is below the first evaluation of {algo}: its {len(measured)} "
                f"run{'s' if len(measured) > 1 else ''} of a replicate had sent {together[first]:,.0f} bytes after "
                f"{aligned[0][first]['round']:g} rounds; give a larger cap, or run with a smaller `eval_every`"
            )
        elif within == len(together) - 1:
            below[algo] = max(below.get(algo, 0.0), float(together[-1]))
        last_round = aligned[0][within]["round"]
        for run, rows in zip(measured, rows_of_runs, strict=True):
            reached = [row for row in rows if row["round"] <= last_round][-1]
            read = columns if statuses[run] == "done" else counters
            at_cap.loc[run, [*read.values()]] = [reached.get(name, np.nan) for name in read]
    for name in INTEGER_COUNTERS:
        if name in counters:
            at_cap[counters[name]] = at_cap[counters[name]].astype("Int64")
    of_ends = [name for name in runs.frame if name.startswith(("final_", "best_"))]
    frame = runs.frame.drop(columns=of_ends).assign(**at_cap, cap=cap)
    frame[["falling", "above"]] = np.nan  # of the ends of runs
    if "resolution" in frame:  # a share of the objective
        frame["resolution"] *= np.abs(frame["tail_objective"] / runs.column("final_objective"))
    if silent:
        remarks.append(f"{', '.join(silent)}: no uploads, so that the cap does not bind: the last evaluation")
    for algo, most in below.items():
        remarks.append(f"{algo}: ended at {most:,.0f} bytes at most, below the cap: more rounds could use the rest")
    capped = replace(runs, frame=frame, cap=cap, tail_rounds=None, has_stopped=False)
    return capped.take(compared), remarks


def _list_grids(runs: RunTable, metric: str) -> tuple[list[tuple[str, list[int]]], list[str]]:
    """Return each method with the runs of its points on a problem in a replicate, and remarks on what is left out."""
    grids: list[tuple[str, list[int]]] = []
    remarks = []
    sent = np.nan_to_num(runs.column("bytes_up"))
    folded = runs.fold_seeds(metric)
    for (algo, *_), points in folded.groupby(["algo", *runs.problem_keys(metric)], sort=False, dropna=False):
        runs_of_replicate: dict[Replicate, list[int]] = {}
        for run in sorted(itertools.chain(*points["runs"])):
            runs_of_replicate.setdefault(runs.replicates[run], []).append(run)
        whole = find_whole_replicates(runs, points)
        if not any(sent[members].any() for members in runs_of_replicate.values()):
            whole = set(runs_of_replicate)
        if not whole:
            raise UserError(f"--cap: each replicate of {algo} lacks points that others have, so that none had the "
                            "uploads of the whole grid: give the command of the sweep again, or leave --cap "
                            "out")  # fmt: skip
        if n_lacking := len(runs_of_replicate) - len(whole):
            remarks.append(f"{algo}: {n_lacking} of {len(runs_of_replicate)} replicates left out, which lack points "
                           "that others have: fewer uploads went into them")  # fmt: skip
        grids += [(algo, members) for replicate, members in runs_of_replicate.items() if replicate in whole]
    return grids, remarks
