"""The checks of a site's sums of scores: whether the rows that the site has described can have them."""

import math
from dataclasses import dataclass

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.record import PERSONAL, SHARED
from fcorun.data.tasks import Task
from fcorun.methods.objectives.objective import Objective, score_names, score_range
from fcorun.results.scores.auc_interval import BINS, N_BINS
from fcorun.results.scores.weighted_rows import list_terms

_ROUNDING = 1e-3  # of a sum over n rows, relative to n
_OF_PERSONAL = f"{PERSONAL}_"  # begins the names of sums of the clients' personal models


def set_prefix(split: str, model: str) -> str:
    """Return the text that begins the names of the sums of a model over the rows of a split.

    >>> set_prefix("train", SHARED), set_prefix("train", PERSONAL)
    ('train', 'personal_train')
    """
    return split if model == SHARED else _OF_PERSONAL + split


def parse_sum_name(key: str) -> tuple[str, str, str]:
    """Return the split, the model and the name of a sum whose name begins with ``set_prefix``.

    >>> parse_sum_name("personal_train_loss")
    ('train', 'personal', 'loss')
    """
    model = PERSONAL if key.startswith(_OF_PERSONAL) else SHARED
    split, _, name = key.removeprefix(_OF_PERSONAL).partition("_")
    return split, model, name


@dataclass(frozen=True)
class ExpectedSum:
    """The form of a sum over rows.

    Attributes:
        shape: the shape of the sum's array.
        is_count: whether the sum counts rows.
        least, most: the bounds on what a row adds to each entry.
    """

    shape: tuple[int, ...] = ()
    is_count: bool = False
    least: float = -math.inf
    most: float = math.inf

    def fits(self, values: np.ndarray, n_rows: int, error: float) -> bool:
        """Return whether the values can be the sum over so many rows, each up to an ``error``."""
        if values.shape != self.shape or values.dtype.kind != ("i" if self.is_count else "f"):
            return False
        slack = 0.0 if self.is_count else error + _ROUNDING * n_rows
        low, high = self.least * n_rows - slack, self.most * n_rows + slack
        return bool((np.isfinite(values) & (values >= low) & (values <= high)).all())


def expected_sums(objective: Objective, task: Task, n_classes: int, *, secure: bool) -> dict[str, ExpectedSum]:
    """Return the forms of the sums that an answer has for a split, by name."""
    # In secure sums the site spreads its merged cells itself, to the lowest and the highest bins; else the server does.
    bins = (2, N_BINS) if secure else (N_BINS,)
    sums = {"n": ExpectedSum(is_count=True, least=1.0, most=1.0)}
    for name in score_names(objective, n_classes if n_classes > 2 else 1):
        least, most = score_range(objective, name)
        sums[name] = ExpectedSum(least=least, most=most)
    if task.is_quantity and not hasattr(objective, "response"):
        return sums
    for name, term in list_terms(task).items():
        if term.needs_probability and not hasattr(objective, "probabilities"):
            continue
        shape = (n_classes,) if term.by_class else ()
        sums[name] = ExpectedSum(shape, is_count=term.is_count, least=term.least, most=term.most)
    if task.has_two_classes:
        sums |= dict.fromkeys(BINS, ExpectedSum(bins, is_count=True, least=0.0, most=1.0))
    elif task.has_events:
        sums |= dict.fromkeys(("pairs", "concordant_twice"), ExpectedSum(is_count=True, least=0.0))
    return sums


def check_sums(
    site: str, key: str, sums: dict[str, np.ndarray], expected: dict[str, ExpectedSum], *, n_rows: int, error: float
) -> None:
    """Raise UserError, which names the site, for sums that ``n_rows`` rows of a set cannot have.

    ``key`` is the set, as sites name it in their messages.
    """
    split = key.removeprefix(_OF_PERSONAL)
    if set(sums) != set(expected):
        raise UserError(f"site '{site}' sent other sums of scores of its {split} rows than the plan has: use the same "
                        "version of fcorun at the server and at all sites")  # fmt: skip
    if sums["n"].shape == () and sums["n"].dtype.kind == "i" and int(sums["n"]) != n_rows:
        raise UserError(f"site '{site}' scored {int(sums['n'])} {split} rows, and has described {n_rows}: begin the "
                        "run anew")  # fmt: skip
    for name, form in expected.items():
        if not form.fits(sums[name], n_rows, error):
            raise UserError(f"site '{site}' sent as '{key}_{name}' what is no sum of scores of {n_rows} rows: see "
                            "the log of that site")  # fmt: skip
    if "pairs" in sums:
        pairs = int(sums["pairs"])
        if int(sums["concordant_twice"]) > 2 * pairs or 2 * pairs > n_rows * (n_rows - 1):
            raise UserError(f"site '{site}' counted more pairs of its {split} rows than it has: see the log of that "
                            "site")  # fmt: skip
    if "positive" in sums:
        positive, negative = int(sums["positive"]), n_rows - int(sums["positive"])
        fits = int(sums["true_positive"]) <= positive and int(sums["true_negative"]) <= negative
    elif "class_rows" in sums:
        total = int(sums["class_rows"].sum())
        if total != n_rows:
            raise UserError(f"site '{site}' counted {total} {split} rows in its classes, and has described {n_rows}: "
                            "see the log of that site")  # fmt: skip
        fits = (sums["class_hits"] <= sums["class_rows"]).all()
    else:
        fits = True
    if not fits:
        raise UserError(f"site '{site}' sent more correct predictions of its {split} rows than rows of a class: see "
                        "the log of that site")  # fmt: skip


def calibration_sums_fit(sums: np.ndarray, n_rows: int, error: float) -> bool:
    """Return whether sums of a calibration can be those of ``n_rows`` rows.

    The sums are those of ``sum_calibration``, (2, 6), where nan stands for withheld sums, or, for a regression, the
    sums of x^2, x y and y^2 of targets x and predictions y, (3,), without nan.
    """
    slack = error + _ROUNDING * n_rows
    if sums.ndim == 1:
        limit = math.sqrt(max(sums[0], 0.0) * max(sums[2], 0.0))
        return bool(np.isfinite(sums).all() and min(sums[0], sums[2]) >= -slack and abs(sums[1]) <= limit + slack)
    for of_model in sums:
        if np.isnan(of_model).all():
            continue
        loss, gradient_a, _, curvature_aa, _, curvature_bb = of_model.tolist()
        fits = np.isfinite(of_model).all() and min(loss, curvature_aa, curvature_bb) >= -slack
        if not (fits and abs(gradient_a) <= n_rows + slack and curvature_aa <= n_rows / 4 + slack):
            return False
    return True
