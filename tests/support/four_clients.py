"""A table of four clients, rows.csv, and the folds of a selection on it."""

import numpy as np
import pandas as pd
from helpers import composed

from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.studies.selection.folds import assign_folds

RNG = np.random.default_rng(5)
OWNER = np.repeat(["a", "b", "c", "d"], [12, 20, 15, 13])
X = RNG.standard_normal((60, 8)) * [1, 2, 1, 1, 0.5, 1, 1, 1]
SCORE = X @ [1.5, -0.5, 0, 0, 1.0, 0, 0, 0] + 0.7 + 0.7 * RNG.standard_normal(60)
NAMES = ["age", "dose", *(f"x{j}" for j in range(6))]


def table(task="regression"):
    frame = pd.DataFrame(X, columns=NAMES).assign(
        site=OWNER, y=SCORE if task == "regression" else (SCORE > 0.5).astype(int)
    )
    frame.to_csv("rows.csv", index=False)


def config(*overrides, task="regression"):
    table(task)
    data = ("data=table", "data.path=rows.csv", "data.target=y", "data.client=site", f"data.task={task}")
    return composed(*data, "data.validation=0", *overrides)


def fold_of(config, options):
    data = load_data(prepare(config))
    fold = assign_folds(data, options.folds, options.by, config["seed"])
    return data, [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(options.folds)]
