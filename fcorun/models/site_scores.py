"""scores.csv of a model whose rows stay at sites: means of losses and scores from the sites' sums."""

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.models.forward import Arrays
from fcorun.models.scores import SHARED
from fcorun.rows.site_rows import SiteRows

_SPLITS = ("train", "validation", "test")


def compute_site_scores(data: FederatedData, solution: Arrays) -> list[dict[str, object]]:
    """Return a row of scores.csv for each split that has rows, of all clients together; each row of data counts once.

    Returns no rows if nothing is held out, or if the model is not finite.
    """
    rows = data.train
    assert isinstance(rows, SiteRows)
    if not all(np.isfinite(value).all() for value in solution.values()):
        return []
    totals: dict[str, float] = {}
    for answer in rows.request("scores", arrays=dict(solution)).values():
        for name, value in answer.arrays.items():
            totals[name] = totals.get(name, 0.0) + float(value)
    scores = []
    for split in _SPLITS:
        n = totals.get(f"{split}_n", 0.0)
        if not n:
            continue
        row: dict[str, object] = {"set": split, "model": SHARED, "client": ""}
        if data.task == "binary":
            row["positive"] = str(data.classes[1])
        row["n"] = int(n)
        for name in totals:
            of_split, _, score = name.partition("_")
            if of_split == split and score != "n":
                row[score] = totals[name] / n
        scores.append(row)
    return scores if len(scores) > 1 else []
