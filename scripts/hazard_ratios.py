"""Time to event over sites: hazard ratios of a piecewise-exponential model, by Poisson regression with an offset.

    python scripts/hazard_ratios.py [FOLDER]

The hazard is constant in each interval of follow-up, and covariates multiply it. A patient becomes one row for each
interval that she was under observation in: whether her event was in it, and the logarithm of the time at risk. The
likelihood is that of Poisson counts with this offset (Holford, Biometrics 1980; Laird and Olivier, JASA 1981). Each
site splits its own follow-up, at edges that all agree on. Four sites are made up here, with two
covariates that matter and six that do not. What is run is, on the command line,

    fcorun data=table data.path=intervals.csv data.target=event data.client=site data.offset=log_time
           objective=poisson objective.ceiling=1 algo=feddualavg reg=l1 reg.strength=0.003
           'reg.factors={year 2: 0, year 3: 0, year 4: 0, year 5: 0}'

where the factors leave the baseline hazard unpenalised. exp(weight) is a hazard ratio: of one unit of a covariate.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from fcorun import compose, load_records, run

EDGES = (1.0, 2.0, 3.0, 4.0)  # years, between the intervals
TRUE = {"treated": np.log(0.6), "age": np.log(1.4)}  # age in decades from the mean


def follow_up(patients: int = 300, sites: str = "ABCD", seed: int = 0) -> pd.DataFrame:
    """Patients of all sites: covariates, years of follow-up, at most five, and whether it ended with the event."""
    rng = np.random.default_rng(seed)
    count = patients * len(sites)
    frame = pd.DataFrame({"site": np.repeat([*sites], patients), "treated": rng.integers(2, size=count)})
    frame["age"] = rng.standard_normal(count)
    frame = frame.join(pd.DataFrame(rng.standard_normal((count, 6)), columns=[f"marker {k}" for k in range(1, 7)]))
    scale = np.exp(sum(frame[name] * ratio for name, ratio in TRUE.items()))
    hazard = np.array([0.08, 0.12, 0.2, 0.25, 0.3])  # a year, in each interval
    left, time = rng.exponential(size=count) / scale, np.zeros(count)
    for rate, width in zip(hazard, np.diff([0, *EDGES, np.inf]), strict=True):
        step = np.minimum(np.maximum(left, 0) / rate, width)
        time, left = time + step, left - rate * width
    end = np.minimum(rng.uniform(1, 8, count), 5.0)  # of observation
    return frame.assign(time=np.minimum(time, end), event=(time <= end).astype(int))


def split(frame: pd.DataFrame, edges: tuple[float, ...] = EDGES) -> pd.DataFrame:
    """A row for each patient and each interval in which she was at risk.

    ``time`` and ``event`` become ``log_time``, at risk in the interval, and whether the event was in it. The columns
    "year 2", ... say which interval after the first one a row is of.
    """
    parts = []
    for number, (start, stop) in enumerate(zip((0, *edges), (*edges, np.inf), strict=True), start=1):
        at_risk = frame.loc[frame["time"] > start]
        within = at_risk["time"] <= stop
        rows = at_risk.drop(columns="time").assign(event=at_risk["event"] * within)
        rows["log_time"] = np.log(np.minimum(at_risk["time"], stop) - start)
        for other in range(2, len(edges) + 2):
            rows[f"year {other}"] = int(other == number)
        parts.append(rows)
    return pd.concat(parts, ignore_index=True)


def likeliest(frame: pd.DataFrame, covariates: list[str], edges: tuple[float, ...] = EDGES) -> np.ndarray:
    """Log hazard ratios that maximise the survival likelihood, written down without rows: by scipy.

    The log likelihood is the sum over events of the log hazard, less the hazard accumulated by everyone.
    """
    x, time, event = frame[covariates].to_numpy(float), frame["time"].to_numpy(), frame["event"].to_numpy()
    spent = np.stack([np.clip(time, a, b) - a for a, b in zip((0, *edges), (*edges, np.inf), strict=True)], axis=1)
    interval = np.searchsorted(edges, time)  # that of the end of follow-up; an edge belongs to the one before it
    ended = np.zeros_like(spent)
    ended[np.arange(len(time)), interval] = event

    def less(p: np.ndarray) -> tuple[float, np.ndarray]:
        log_ratio, log_rate = x @ p[: x.shape[1]], p[x.shape[1] :]
        expected = spent * np.exp(log_ratio[:, None] + log_rate)
        over = expected - ended
        value = expected.sum() - (ended * (log_ratio[:, None] + log_rate)).sum()
        return value / len(x), np.append(x.T @ over.sum(axis=1), over.sum(axis=0)) / len(x)

    start = np.append(np.zeros(x.shape[1]), np.full(spent.shape[1], np.log(event.sum() / time.sum())))
    return minimize(less, start, jac=True, method="BFGS", options={"gtol": 1e-9}).x[: x.shape[1]]


def fitted(path: Path, folder: Path, *overrides: str) -> dict[str, float]:
    """The weights of a run by feature, and its last metrics."""
    given = ["data=table", f"data.path={path}", "data.target=event", "data.client=site", "data.offset=log_time"]
    given += ["data.validation=0", "objective=poisson", "objective.ceiling=1", "precision=float64", *overrides]
    record: Any = run(compose(given), folder)
    if record.status["reason"]:
        print(f"{folder.name}: {record.status['reason']}")
    return dict(zip(record.summary["data"]["feature_names"], record.solution["weights"].tolist(), strict=True))


def main(folder: Path) -> pd.DataFrame:
    """Fit, print, and return the hazard ratios, a row a covariate."""
    folder.mkdir(parents=True, exist_ok=True)
    patients = follow_up()
    path = folder / "intervals.csv"
    split(patients).to_csv(path, index=False)
    covariates = [name for name in patients if name not in ("site", "time", "event")]
    free = "{" + ",".join(f"year {k}:0" for k in range(2, len(EDGES) + 2)) + "}"
    sparse = ("reg=l1", "reg.strength=0.003", f"reg.factors={free}")
    found = {
        "likelihood, scipy": dict(zip(covariates, likeliest(patients, covariates), strict=True)),
        "all rows in one place": fitted(path, folder / "centralized", "algo=centralized", "reg=none"),
        "over sites": fitted(path, folder / "sites", "algo=fedavg", "reg=none", "rounds=4000", "eval_every=100"),
        "over sites, sparse": fitted(path, folder / "sparse", "algo=feddualavg", "rounds=4000", "eval_every=100",
                                     *sparse),
    }  # fmt: skip
    table = pd.DataFrame({way: np.exp(pd.Series(each)[covariates]) for way, each in found.items()})
    table.insert(0, "true", np.exp(pd.Series(TRUE).reindex(covariates, fill_value=0.0)))
    rows = len(path.read_text(encoding="utf-8").splitlines()) - 1
    print(f"{len(patients)} patients of {patients['site'].nunique()} sites, {patients['event'].sum()} events, "
          f"{rows} rows\nhazard ratios\n{table.round(4).to_string()}")  # fmt: skip
    print(f"records: {', '.join(str(record.folder) for record in load_records(folder))}")
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("hazard_ratios"), help="where its files go")
    main(parser.parse_args().folder)
