"""Estimate hazard ratios across sites: a piecewise-exponential model by Poisson regression with an offset.

    python scripts/hazard_ratios.py [FOLDER]

The hazard is constant in each interval of follow-up, and covariates multiply the hazard. A patient has one row for each
interval in which she was under observation. The row holds the event indicator and the logarithm of the time at risk.
The likelihood equals that of Poisson counts with this offset (Holford, Biometrics 1980; Laird and Olivier, JASA 1981).
Each site splits its own follow-up, at edges that all sites share. The script generates four sites with two relevant and
six irrelevant covariates. The sparse fit on the command line is

    fcorun data=table data.path=intervals.csv data.target=event data.client=site data.offset=log_time
           data.validation=0 objective=poisson precision=float64 rounds=4000 eval_every=100
           algo=feddualavg algo.client_lr=0.5 reg=l1 reg.strength=0.003
           'reg.factors={year 2: 0, year 3: 0, year 4: 0, year 5: 0}'

where the factors leave the baseline hazard unpenalized. exp(weight) is the hazard ratio for one unit of a covariate.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from fcorun import compose, load_records, run

EDGES = (1.0, 2.0, 3.0, 4.0)  # years, between the intervals
RATE = "algo.client_lr=0.5"
TRUE = {"treated": np.log(0.6), "age": np.log(1.4)}  # age in decades from the mean


def generate_follow_up(patients: int = 300, sites: str = "ABCD", seed: int = 0) -> pd.DataFrame:
    """Generate patients of all sites: covariates, years of follow-up (at most five), and the event indicator."""
    rng = np.random.default_rng(seed)
    count = patients * len(sites)
    frame = pd.DataFrame({"site": np.repeat([*sites], patients), "treated": rng.integers(2, size=count)})
    frame["age"] = rng.standard_normal(count)
    frame = frame.join(pd.DataFrame(rng.standard_normal((count, 6)), columns=[f"marker {k}" for k in range(1, 7)]))
    scale = np.exp(sum(frame[name] * ratio for name, ratio in TRUE.items()))
    hazard = np.array([0.08, 0.12, 0.2, 0.25, 0.3])  # per year, in each interval
    remaining_hazard = rng.exponential(size=count) / scale
    time = np.zeros(count)
    for rate, width in zip(hazard, np.diff([0, *EDGES, np.inf]), strict=True):
        time = time + np.minimum(np.maximum(remaining_hazard, 0) / rate, width)
        remaining_hazard = remaining_hazard - rate * width
    censored_at = np.minimum(rng.uniform(1, 8, count), 5.0)
    return frame.assign(time=np.minimum(time, censored_at), event=(time <= censored_at).astype(int))


def split_intervals(frame: pd.DataFrame, edges: tuple[float, ...] = EDGES) -> pd.DataFrame:
    """Return a row for each patient and each interval in which she was at risk.

    ``log_time`` is the logarithm of the time at risk in the interval, and ``event`` the event indicator of the
    interval. The columns "year 2", ... are indicators of the intervals after the first one.
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


def maximize_likelihood(frame: pd.DataFrame, covariates: list[str], edges: tuple[float, ...] = EDGES) -> np.ndarray:
    """Maximise the survival likelihood by scipy, and return the log hazard ratios.

    The log likelihood is the sum over events of the log hazard, minus the hazard accumulated by all patients.
    """
    x = frame[covariates].to_numpy(float)
    time, event = frame["time"].to_numpy(), frame["event"].to_numpy()
    time_at_risk = np.stack(
        [np.clip(time, a, b) - a for a, b in zip((0, *edges), (*edges, np.inf), strict=True)], axis=1
    )
    interval = np.searchsorted(edges, time)  # in which follow-up ends; an edge belongs to the interval before it
    events = np.zeros_like(time_at_risk)
    events[np.arange(len(time)), interval] = event

    def negative_log_likelihood(p: np.ndarray) -> tuple[float, np.ndarray]:
        log_ratio = x @ p[: x.shape[1]]
        log_rate = p[x.shape[1] :]
        expected = time_at_risk * np.exp(log_ratio[:, None] + log_rate)
        residual = expected - events
        value = expected.sum() - (events * (log_ratio[:, None] + log_rate)).sum()
        gradient = np.append(x.T @ residual.sum(axis=1), residual.sum(axis=0))
        return value / len(x), gradient / len(x)

    start = np.append(np.zeros(x.shape[1]), np.full(time_at_risk.shape[1], np.log(event.sum() / time.sum())))
    return minimize(negative_log_likelihood, start, jac=True, method="BFGS", options={"gtol": 1e-9}).x[: x.shape[1]]


def fit(path: Path, folder: Path, *overrides: str) -> dict[str, float]:
    """Run fcorun on a table and return the weights by feature."""
    config = ["data=table", f'data.path="{path}"', "data.target=event", "data.client=site", "data.offset=log_time"]
    config += ["data.validation=0", "objective=poisson", "precision=float64", *overrides]
    record: Any = run(compose(config), folder)
    if record.status["reason"]:
        print(f"{folder.name}: {record.status['reason']}")
    return dict(zip(record.summary["data"]["feature_names"], record.solution["weights"].tolist(), strict=True))


def main(folder: Path) -> pd.DataFrame:
    """Fit all models; print and return the hazard ratios, one row for each covariate."""
    folder.mkdir(parents=True, exist_ok=True)
    patients = generate_follow_up()
    path = folder / "intervals.csv"
    split_intervals(patients).to_csv(path, index=False)
    covariates = [name for name in patients if name not in ("site", "time", "event")]
    free = "{" + ",".join(f"year {k}:0" for k in range(2, len(EDGES) + 2)) + "}"
    sparse = ("reg=l1", "reg.strength=0.003", f"reg.factors={free}")
    log_ratios = {
        "likelihood, scipy": dict(zip(covariates, maximize_likelihood(patients, covariates), strict=True)),
        "all rows in one place": fit(path, folder / "centralized", "algo=centralized", "reg=none"),
        "across sites": fit(path, folder / "sites", "algo=fedavg", RATE, "reg=none", "rounds=4000", "eval_every=100"),
        "across sites, sparse": fit(path, folder / "sparse", "algo=feddualavg", RATE, "rounds=4000", "eval_every=100",
                                     *sparse),
    }  # fmt: skip
    table = pd.DataFrame({model: np.exp(pd.Series(values)[covariates]) for model, values in log_ratios.items()})
    table.insert(0, "true", np.exp(pd.Series(TRUE).reindex(covariates, fill_value=0.0)))
    rows = len(path.read_text(encoding="utf-8").splitlines()) - 1
    print(f"{len(patients)} patients of {patients['site'].nunique()} sites, {patients['event'].sum()} events, "
          f"{rows} rows\nhazard ratios\n{table.round(4).to_string()}")  # fmt: skip
    print(f"records: {', '.join(str(record.folder) for record in load_records(folder))}")
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("hazard_ratios"), help="the folder for its files")
    main(parser.parse_args().folder)
