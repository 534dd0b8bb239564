"""Small tables and their files."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
from helpers import algorithm_of, plugin_class, traits_of

from fcorun.data.datasets.table import Table

X = np.array([[1.5, 2, 0], [3, 4, 5], [-1, 0, 2.25], [7, 0.125, 1], [0, 0, 3], [2, 2, 2]])
Y = np.array([0.5, 1, 2, 3, 4, 5])
CLIENT = np.array(["b", "a", "b", "a", "b", "a"])
SORTED = [1, 3, 5, 0, 2, 4]  # the rows sorted by client, in the order of the file within a client


def frame(**columns) -> pd.DataFrame:
    return pd.DataFrame(X, columns=["u", "v", "w"]).assign(**({"site": CLIENT, "price": Y} | columns))


def save(folder: Path, name: str, table: pd.DataFrame | None = None) -> str:
    table = frame() if table is None else table
    path = folder / name
    if path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if ".tsv" in name else ",")
    return str(path)


def price_table(path: str, **options) -> Table:
    return Table(path, **({"target": "price", "client": "site", "validation": 0.0} | options))


def write_table(name, task="regression", rows=60):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, 3))
    y = x @ [1.0, -1.0, 0.0] + 0.1 * rng.standard_normal(rows)
    label = {"regression": y, "binary": np.where(y > 0, "yes", "no"), "multiclass": np.digitize(y, [-1, 1])}[task]
    lines = [f"{a},{b},{c},{v},{'NSEW'[i % 4]}" for i, ((a, b, c), v) in enumerate(zip(x, label, strict=True))]
    Path(name).write_text("\n".join(["a,b,c,y,site", *lines]) + "\n")


def applies_psi(algo: str) -> bool:
    """Return whether an algorithm, or a baseline, applies psi, so that a strength can be selected for it."""
    return bool(traits_of(algo).psi_sides) or "central" in algo or algo == "one_client"


def classify(algo: str, task: str = "multiclass") -> list[str]:
    """Write a table of two or three classes; return the overrides with which an algorithm tells them apart."""
    write_table("rows.csv", task, rows=200)
    table = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.standardize=pooled"]
    overrides = [*table, f"algo={algo}", f"data.task={task}", "rounds=30", "eval_every=30"]
    overrides += {"only": ["topology=tree"], "graph": ["topology=graph"]}.get(traits_of(algo).hierarchy, [])
    overrides += ["algo.ridge=0.1"] if traits_of(algo).local_fits else []
    bounded = ["reg=l1_ball", "reg.radius=3", "reg.apply_to=[weights,bias]"]
    overrides += bounded if algorithm_of(algo).needs_bounded_domain else []
    rates = {field.name for field in fields(plugin_class("algo", algo))} & {"client_lr"}
    return [*overrides, *(f"algo.{rate}=0.3" for rate in rates)]
