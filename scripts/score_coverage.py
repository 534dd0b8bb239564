"""Measure how often the intervals of ``fcorun scores`` cover the true scores of simulated predictions.

    python scripts/score_coverage.py [NAME...] [--repetitions 400]

A model predicts the log odds of one of two classes. The true log odds are these, plus a constant that sets the
prevalence, plus a term that the rows of a cluster share. The true scores are those of a million rows. The script prints
a row of a Markdown table for each design: the share of intervals of a level of 95 % that cover the true score, by
percentiles of 1,000 samples, and for the AUC by the formula of DeLong (Obuchowski's where samples draw clusters).
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from fcorun.data.rows.row_groups import RowGroups
from fcorun.results.score_intervals.held_out_rows import HeldOutRows
from fcorun.results.score_intervals.intervals import bootstrap
from fcorun.results.score_intervals.score_table import ScoreOptions
from fcorun.results.scores.ranking import auc_covariance
from fcorun.results.scores.score import compute_scores
from fcorun.results.scores.weighted_rows import WeightedRows

SCORES = ("auc", "sensitivity", "brier", "calibration_slope")
OPTIONS = ScoreOptions()


@dataclass(frozen=True)
class Design:
    """A simulated set of rows.

    Attributes:
        rows: their number.
        shift: a constant of the log odds: 0 for a prevalence of a half, -3 for one in ten.
        clusters: the number of clusters of equal size, 0 for independent rows.
        deviation: of the term of the log odds, and of that of the predictions, that the rows of a cluster share.
        resample: what samples draw.
    """

    rows: int
    shift: float = 0.0
    clusters: int = 0
    deviation: float = 1.0
    resample: str = "rows"


DESIGNS = {
    "10 rows": Design(10),
    "20 rows": Design(20),
    "50 rows": Design(50),
    "100 rows": Design(100),
    "1000 rows": Design(1000),
    "50 rows, 1 in 10 positive": Design(50, -3.0),
    "100 rows, 1 in 10 positive": Design(100, -3.0),
    "200 rows, 1 in 10 positive": Design(200, -3.0),
    "1000 rows, 1 in 10 positive": Design(1000, -3.0),
    "100 groups of 5, samples of rows": Design(500, clusters=100),
    "100 groups of 5, samples of groups": Design(500, clusters=100, resample="groups"),
    "10 clients of 30, samples of clients": Design(300, clusters=10, resample="clients"),
    "20 clients of 30, samples of clients": Design(600, clusters=20, resample="clients"),
    "40 clients of 30, samples of clients": Design(1200, clusters=40, resample="clients"),
}


def draw(design: Design, n: int, rng: np.random.Generator) -> HeldOutRows:
    """Draw n rows of a design; their clusters are as large as those of the design."""
    size = design.rows // design.clusters if design.clusters else 1
    cluster = np.arange(n) // size
    shared = np.zeros((2, n))
    if design.clusters:
        shared = design.deviation * rng.standard_normal((2, cluster[-1] + 1))[:, cluster]
    log_odds = 1.5 * rng.standard_normal(n) + shared[0]
    y = (rng.random(n) < expit(log_odds + design.shift + shared[1])).astype(int)
    probability = expit(log_odds + design.shift)
    return HeldOutRows(
        folder=Path(),
        split="test",
        model="shared",
        task="binary",
        client=cluster,
        row=np.arange(n),
        group=cluster,
        target=y,
        prediction=(probability >= 0.5).astype(int),
        probability=probability,
        classes=("no", "yes"),
    )


def measure(design: Design, repetitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which intervals cover, and which exist, (repetitions, scores + 1), DeLong's last."""
    rng = np.random.default_rng(0)
    population = draw(design, 1_000_000, rng)
    one_group = RowGroups(np.zeros(len(population), int))
    scores = compute_scores(WeightedRows.each_once(population.to_scored_rows(one_group)))
    truth = {name: float(values[0, 0]) for name, values in scores.items()}
    covers, exists = np.zeros((2, repetitions, len(SCORES) + 1), bool)
    for repetition in range(repetitions):
        rows = draw(design, design.rows, rng)
        result = bootstrap([rows], RowGroups(np.zeros(len(rows), int)), design.resample, OPTIONS, rng)
        for i, name in enumerate(SCORES):
            low, high = result.low[name][0], result.high[name][0]
            exists[repetition, i] = np.isfinite(low)
            covers[repetition, i] = low <= truth[name] <= high
        cluster = None if design.resample == "rows" else rows.group
        area, covariance = auc_covariance(rows.target == 1, rows.log_odds[None], cluster)
        margin = norm.isf(OPTIONS.tail) * np.sqrt(covariance[0, 0])
        exists[repetition, -1] = margin > 0
        covers[repetition, -1] = abs(area[0] - truth["auc"]) <= margin
    return covers, exists


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"designs: {'; '.join(DESIGNS)} (default: all)")
    parser.add_argument("--repetitions", type=int, default=400)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in DESIGNS]
    if unknown:
        parser.error(f"there is no design '{unknown[0]}'")
    if arguments.repetitions < 1:
        parser.error(f"--repetitions {arguments.repetitions}: give at least 1")
    print(f"| design | AUC, DeLong | {' | '.join(SCORES)} | without an interval |")
    print("| --- | --- |" + " --- |" * (len(SCORES) + 1))
    for name in arguments.names or DESIGNS:
        covers, exists = measure(DESIGNS[name], arguments.repetitions)
        cells = []
        for i in (len(SCORES), *range(len(SCORES))):
            covered = covers[exists[:, i], i]
            share = covered.mean() if len(covered) else float("nan")
            cells.append(f"{100 * share:.1f} %")
        print(f"| {name} | {' | '.join(cells)} | {100 * (1 - exists.mean()):.1f} % |", flush=True)


if __name__ == "__main__":
    main()
