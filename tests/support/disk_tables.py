"""A small table in each format whose rows may stay on disk, written into the current folder."""

from pathlib import Path

import h5py
import numpy as np
import pandas as pd

ROWS, FEATURES = 90, 4


def arrays(dtype="float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = (100 * rng.random((ROWS, FEATURES))).astype(dtype)
    return {"X": x, "y": rng.standard_normal(ROWS), "client": rng.integers(0, 4, ROWS)}


def write_folder(**changes) -> str:
    Path("rows").mkdir(exist_ok=True)
    for name, values in (arrays() | changes).items():
        np.save(f"rows/{name}.npy", values)
    return "rows"


def write_hdf5(columns: dict[str, np.ndarray] | None = None, **options) -> str:
    with h5py.File("rows.h5", "w") as file:
        for name, values in (columns or arrays()).items():
            file.create_dataset(name, data=values, **(options if name == "X" else {}))
    return "rows.h5"


def frame() -> pd.DataFrame:
    columns = arrays()
    x = columns.pop("X")
    return pd.DataFrame(columns | {f"f{k}": x[:, k] for k in range(FEATURES)})


def write_parquet(table: pd.DataFrame) -> dict:
    table.to_parquet("rows.parquet")
    return {"path": "rows.parquet", "target": "y", "client": "client"}
