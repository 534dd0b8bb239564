"""scores.csv of a model whose rows stay at sites: means of losses and scores from the sites' sums."""

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError
from fcorun.models.forward import Arrays
from fcorun.models.predictions import SHARED
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
    known = {split: of_split.n_rows for split, of_split in data.splits.items()}
    totals: dict[str, float] = {}
    for site, answer in rows.request("scores", arrays=dict(solution)).items():
        for name, value in answer.arrays.items():
            if value.shape != () or not np.isfinite(value):
                raise UserError(f"site '{site}' sent no sum of scores as '{name}': see the log of that site")
            totals[name] = totals.get(name, 0.0) + float(value)
    counted = {split: int(totals.get(f"{split}_n", 0)) for split in known}
    if counted != known:
        raise UserError(f"the sites scored {counted} rows, and have described {known}: begin the run anew")
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
