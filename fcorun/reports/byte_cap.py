"""Runs compared at equal bytes: what each method had when the uploads of its whole grid reached a cap."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.metrics import COUNTERS, INTEGER_COUNTERS
from fcorun.base.records.record import Record
from fcorun.reports.run_table import SEED_KEYS, RunTable, align_seeds


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


def cap_runs(runs: RunTable, records: Sequence[Record], cap: float, metric: str) -> tuple[RunTable, list[str]]:
    """Return the runs as they were under a cap on uploads, and remarks on methods that the cap does not bind.

    In each replicate a method advances all its points on a problem together, those that diverged as well, until the
    last evaluation at which the bytes that they have sent up are at most the cap. In the table, ``tail_METRIC`` is
    METRIC at that evaluation, and rounds, seconds and the other counters are those of that evaluation, or of the run's
    end before it. The column ``cap`` says so, and final and best metrics are left out. Runs that send nothing, such as
    baselines, have their last evaluation. Raises UserError for a cap below the first evaluation after the start.

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
    seeds = [key for key in SEED_KEYS if key in runs.frame]
    silent: dict[str, None] = {}
    below: dict[str, float] = {}
    for (algo, *_), group in runs.frame.groupby(["algo", *runs.problem_keys(metric), *seeds], sort=False, dropna=False):
        measured = [run for run in group.index if records[run].rows]
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
    remarks = []
    if silent:
        remarks.append(f"{', '.join(silent)}: no uploads, so that the cap does not bind: the last evaluation")
    for algo, most in below.items():
        remarks.append(f"{algo}: ended at {most:,.0f} bytes at most, below the cap: more rounds could use the rest")
    return replace(runs, frame=frame, cap=cap, tail_rounds=None, has_stopped=False), remarks
