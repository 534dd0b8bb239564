"""Fixtures: a table of three hospitals with features in their own units, and records on that table."""

import numpy as np
import pandas as pd
import pytest

from fcorun import compose, run

SITES = ("Aachen", "Bonn", "Celle")


@pytest.fixture
def visits(tmp_path):
    """A function that writes visits.csv, 40 rows a site, for a task, and returns the frame."""

    def write(task="binary", path=tmp_path / "visits.csv"):
        rng = np.random.default_rng(5)
        site = np.repeat(SITES, 40)
        age, crp = rng.normal(60, 12, 120) + np.repeat([0, 5, -5], 40), rng.lognormal(1, 1, 120)
        score = 0.06 * (age - 60) + 0.2 * crp - 0.7 + rng.standard_normal(120)
        y = {"binary": np.where(score > 0, "ill", "fit"), "multiclass": np.digitize(score, [-1, 1]) * 10}
        table = pd.DataFrame({"site": site, "age": age, "crp": crp, "y": y.get(task, 100 + 7 * score)})
        table.to_csv(path, index=False)
        return table

    return write


@pytest.fixture
def trained(visits):
    """A function that runs an algorithm on visits.csv for a task, and returns the record."""

    def train(task="binary", *more, algo="centralized"):
        visits(task)
        data = ["data=table", "data.path=visits.csv", "data.target=y", "data.client=site", f"data.task={task}"]
        few_rounds = ["rounds=3", "precision=float64", "batch_size=null"] if algo != "centralized" else []
        return run(compose([f"algo={algo}", *data, *few_rounds, *more]))

    return train
