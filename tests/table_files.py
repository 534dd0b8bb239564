"""Small tables and their files."""

from pathlib import Path

import numpy as np
import pandas as pd

from fcorun.datasets.table import Table

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
