"""A table of patients of four sites, with text, missing values and columns that are no features."""

from typing import Any

import numpy as np
import pandas as pd

from fcorun.data.datasets.table import Table

WARDS = {"a": ["icu", "er"], "b": ["er", "heart", "icu"], "c": ["eye", "icu"], "held": ["icu", "eye", "lung"]}


def patients(rows: int = 60) -> pd.DataFrame:
    """Return rows of four sites with different wards; only the last site has the ward lung."""
    rng = np.random.default_rng(3)
    site = np.repeat(list(WARDS), rows // 4)
    table = pd.DataFrame(
        {
            "age": rng.integers(20, 95, rows),
            "ward": [rng.choice(WARDS[s]) for s in site],
            "lab": np.round(rng.lognormal(4, 0.4, rows), 1),
            "sex": rng.choice(["F", "M"], rows),
            "bmi": np.round(rng.normal(26, 4, rows), 2),
            "smokes": rng.choice([True, False], rows),
            "site": site,
            "cost": rng.standard_normal(rows),
        }
    )
    return table.sample(frac=1, random_state=0, ignore_index=True)


def patients_with_gaps() -> pd.DataFrame:
    table = patients()
    rng = np.random.default_rng(5)
    for name, missing_share in (("lab", 0.2), ("ward", 0.1), ("sex", 0.15), ("bmi", 0.3), ("smokes", 0.2)):
        table[name] = table[name].astype(object).where(rng.random(len(table)) >= missing_share)
    return table


def load_patients(path: str, **options):
    """Return the data with the site "held" held out for validation."""
    all_options: dict[str, Any] = {"validation": ["held"]} | options
    return Table(path, "cost", client="site", **all_options).load()


def by_site(table: pd.DataFrame) -> tuple[Any, Any]:
    """Return the training rows and the held-out rows in the order of the clients."""
    table = table.sort_values("site", kind="stable")
    return table[table["site"] != "held"], table[table["site"] == "held"]


def columns_of(data, x=None) -> dict[str, np.ndarray]:
    return dict(zip(data.features.names, (data.train.x if x is None else x).T, strict=True))
