"""Records of patients that intervals are computed for, made without a run."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from helpers import composed

from fcorun.base.records.record import Record
from fcorun.experiment.prepare import prepare
from fcorun.results.models.inference import infer
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.inference_table import build_table

CLIENTS = np.repeat([*"abcdefghijkl"], 20)


def patients() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = len(CLIENTS)
    frame = pd.DataFrame({"site": CLIENTS, "patient": np.arange(n) // 2, "age": rng.normal(60, 10, n)})
    frame["ward"] = rng.choice(["eye", "heart", "icu"], n)
    frame["dose"] = rng.normal(0, 1, n)
    frame["noise"] = rng.normal(0, 1, n)
    score = 0.08 * (frame["age"] - 60) + 1.0 * (frame["ward"] == "icu") - 0.5 * frame["dose"]
    frame["stay"] = score + rng.standard_normal(n)
    frame["died"] = np.where(score + rng.logistic(size=n) > 0.5, "yes", "no")
    frame["visits"] = rng.poisson(np.exp(0.5 * score))
    return frame


def record_of(*overrides, target="stay", frame=None, status="done", weights=None, **extra) -> Record:
    """Return a record without a run, whose parameters are zeros or ``weights``."""
    (patients() if frame is None else frame).to_csv("patients.csv", index=False)
    ignored = ",".join(["patient", *({"stay", "died", "visits"} - {target})])
    table = ["data=table", "data.path=patients.csv", f"data.target={target}", "data.client=site", "data.validation=0"]
    table += [f"data.ignore=[{ignored}]", *(["data.task=binary"] if target == "died" else [])]
    config = composed("algo=newton", *table, *overrides)
    experiment = prepare(config)
    folder = Path("record")
    folder.mkdir(exist_ok=True)
    (folder / "status.json").write_text(json.dumps({"status": status, "label": "a run"}))
    (folder / "config.yaml").write_text(yaml.safe_dump(experiment.config))
    n_features = 6 if weights is None else len(weights)
    (folder / "summary.json").write_text(json.dumps({"data": {"fingerprint": experiment.fingerprint}} | extra))
    parameters = {"weights": np.zeros(n_features) if weights is None else weights, "bias": np.zeros(())}
    np.savez(folder / "solution.npz", **parameters)
    return Record(folder)


def table_of(record, **options) -> pd.DataFrame:
    table = build_table(infer(record, InferenceOptions(**options)))
    return pd.DataFrame(table.to_rows(), columns=list(table.columns)).set_index("feature")
