"""Choices and intervals of a table of seven hospitals: nested cross-validation, bootstrap of scores, debiased lasso."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import FCORUN, measure_command

ROWS_OF_HOSPITALS = (40, 90, 200, 430, 600, 800, 1500)
EVENT_RATE = 0.08
TABLE = ["data=table", "data.path=hospitals.npz", "data.task=binary", "data.standardize=pooled", "verbose=false"]


def write_hospitals(folder: Path, n_features: int) -> None:
    """Write hospitals.npz: two classes, 3,660 rows of seven hospitals of very different sizes, 8 % events."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(len(ROWS_OF_HOSPITALS)), ROWS_OF_HOSPITALS)
    x = rng.standard_normal((len(client), n_features)) + 0.3 * rng.standard_normal((7, n_features))[client]
    score = x[:, :8] @ [0.8, -0.8, 0.6, -0.6, 0.5, 0.4, 0.3, 0.3] + rng.logistic(size=len(client))
    y = (score > np.quantile(score, 1 - EVENT_RATE)).astype(int)
    np.savez(folder / "hospitals.npz", X=x, y=y, client=client)


def nested() -> Iterator[str]:
    """Measure nested cross-validation, 5 x 5 folds x 30 strengths, seven hospitals, 3,660 rows x 79 features."""
    for algo in (["algo=feddualavg"], ["algo=newton", "rounds=20"]):
        with tempfile.TemporaryDirectory() as top:
            write_hospitals(Path(top), 79)
            command = [*FCORUN, "select", *algo, *TABLE, "points=30", "folds=5", "outer_folds=5"]
            yield _row(f"nested 5 x 5 folds x 30 strengths, 3,660 rows x 79, `{' '.join(algo)}`", command, top)


def scores() -> Iterator[str]:
    """Measure 1,000 bootstrap samples of all scores of 3,660 rows, for all and for each of seven hospitals."""
    with tempfile.TemporaryDirectory() as top:
        write_hospitals(Path(top), 79)
        choose = [*FCORUN, "select", "algo=newton", *TABLE, "points=5", "rounds=10", "data.validation=0", "out=s"]
        measure_command(choose, Path(top), Path(top, "cache"))
        yield _row("`fcorun scores`: 1,000 bootstrap samples, 3,660 rows", [*FCORUN, "scores", "s"], top, out=False)


def debiased() -> Iterator[str]:
    """Measure debiased intervals of 200 features, 3,660 rows of seven hospitals."""
    with tempfile.TemporaryDirectory() as top:
        write_hospitals(Path(top), 200)
        fit = [*FCORUN, "algo=newton", *TABLE, "reg.strength=0.005", "rounds=20", "hydra.run.dir=r"]
        measure_command(fit, Path(top), Path(top, "cache"))
        yield _row("`fcorun infer`: debiased intervals of 200 features", [*FCORUN, "infer", "r"], top, out=False)


def _row(label: str, command: list[str], top: str, out: bool = True) -> str:
    """Return the row of a command: the least wall time, and the least processor time, of two runs."""
    found = [
        measure_command([*command, f"out=out{i}"] if out else command, Path(top), Path(top, "cache")) for i in range(2)
    ]
    wall, memory = min((seconds, peak) for seconds, peak, _ in found)
    processor = min(seconds for _, _, seconds in found)
    return f"| {label} | {wall:.1f} s | processor {processor:.1f} s, peak {memory:.0f} MiB |"
