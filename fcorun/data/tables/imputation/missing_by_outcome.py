"""Missing values by outcome: how often a column has a gap among training rows with and without the outcome.

The tests compare rows within each client, so that a client with more gaps and more events does not look like a
dependence. All numbers are sums over clients. Given each client's numbers of gaps and of events, the number of gaps
among events is a sum of hypergeometric numbers if gaps do not depend on the outcome: the test is exact, and with one
client it is Fisher's (Fisher, Statistical Methods for Research Workers, 1934; by stratum Mantel and Haenszel, J. Natl.
Cancer Inst. 1959). For a target that is a number, the sum of the targets of rows with gaps is compared with its moments
over all permutations within clients.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from fcorun.base.errors import abbreviate, word
from fcorun.data.rows.row_groups import has_dependent_rows
from fcorun.data.tasks.task import Task

MISSING_FILE = "missing.csv"  # in the folder of a record
# of the tests of all columns together, for one outcome: each of K columns is tested at the level 0.01 / K
_SIGNIFICANCE = 0.01
_LARGE_SHARE = 0.05  # a smaller difference of two shares is not warned of
_LARGE_EFFECT = 0.2  # nor is a smaller difference of two means, in standard deviations
_MAX_CLIENTS = 200  # with more clients, missing.csv has no rows by client
_FEW_ROWS = 5  # rows with or without a gap for which the normal distribution is no approximation
_NEGLIGIBLE = 1e-20  # probabilities below this share of the largest are left out
_ROUNDING = 1e-9  # two probabilities that differ by less are equal


def compare_gaps(
    gaps: Mapping[str, Bool[np.ndarray, " N"]],
    y: Shaped[np.ndarray, " N"],
    offsets: Int[np.ndarray, " M+1"],
    *,
    task: Task,
    classes: Sequence,
    client_names: Sequence[str],
    group: Shaped[np.ndarray, " N"] | None = None,
) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    """Count the gaps of each column by outcome, over all clients and for each client with a gap, and test both.

    Returns the rows of missing.csv, and a warning if gaps depend on the outcome. There are no rows by client for more
    than 200 clients, and no tests, as a warning says, where groups have several rows, which the tests take as
    independent.

    Args:
        gaps: the mask of the gaps of each column, over N training rows sorted by client.
        y: the targets: class indices, numbers, or signed times.
        offsets: the bounds of the clients' rows.
        task: the task, whose outcomes are compared. Of more than two classes, each is compared with all others.
        classes: the labels by class index.
        client_names: the names of the clients.
        group: the group of each row, or None.
    """
    outcomes = task.outcomes(y, classes) or {"": y.astype(np.float64)}
    clients = [slice(start, stop) for start, stop in pairwise(offsets.tolist())]
    rows = []
    for column, is_gap in gaps.items():
        if not is_gap.any():
            continue
        for outcome, values in outcomes.items():
            compare = _compare_shares if outcome else _compare_means
            rows.append({"column": column, "client": "", "outcome": outcome, **compare(is_gap, values, clients)})
            if len(clients) > _MAX_CLIENTS:
                continue
            for name, client_slice in zip(client_names, clients, strict=True):
                if is_gap[client_slice].any():
                    counts = compare(is_gap[client_slice], values[client_slice], [slice(None)])
                    rows.append({"column": column, "client": name, "outcome": outcome, **counts})
    if rows and has_dependent_rows(group):
        untested = tuple(row | {"p_value": None} for row in rows)
        return untested, [word("gaps by outcome have no p value, since tests take rows of a group (`data.group`) as "
                               f"independent: {MISSING_FILE} of the record has the numbers")]  # fmt: skip
    return tuple(rows), _warn_of_gaps([row for row in rows if not row["client"]])


def _compare_shares(is_gap: np.ndarray, is_event: np.ndarray, clients: Sequence[slice]) -> dict[str, Any]:
    """Return the numbers and shares of gaps among events and other rows, and the p value of the exact test."""
    counts = {"rows": len(is_gap), "missing": int(is_gap.sum())}
    for name, mask in (("events", is_event), ("others", ~is_event)):
        n_rows = int(mask.sum())
        n_missing = int((mask & is_gap).sum())
        share = n_missing / n_rows if n_rows else None
        counts |= {name: n_rows, f"missing_among_{name}": n_missing, f"share_among_{name}": share}
    return counts | {"p_value": exact_p_value(is_gap, is_event, clients)}


def _compare_means(is_gap: np.ndarray, y: np.ndarray, clients: Sequence[slice]) -> dict[str, Any]:
    """Return the means of the target in rows with and without a gap, its deviation, and the p value of the test."""
    counts: dict[str, Any] = {"rows": len(is_gap), "missing": int(is_gap.sum())}
    for name, mask in (("missing", is_gap), ("present", ~is_gap)):
        counts[f"mean_where_{name}"] = float(y[mask].mean()) if mask.any() else None
    counts["deviation"] = float(y.std(ddof=1)) if len(y) > 1 else None
    return counts | {"p_value": permutation_p_value(is_gap, y, clients)}


def exact_p_value(
    is_gap: Bool[np.ndarray, " N"], is_event: Bool[np.ndarray, " N"], clients: Sequence[slice]
) -> float | None:
    """Return the two-sided p value of the exact test of independence within clients; None if no count can vary.

    The p value is the probability of all numbers of gaps among events that are not more probable than the observed one.
    """
    from scipy.stats import hypergeom

    probability = np.ones(1)  # of ``least`` gaps among events, one more, and so on
    least = 0
    for client_slice in clients:
        n_rows = len(is_gap[client_slice])
        n_events = int(is_event[client_slice].sum())
        n_gaps = int(is_gap[client_slice].sum())
        first = max(0, n_events + n_gaps - n_rows)
        counts = np.arange(first, min(n_events, n_gaps) + 1)
        probability = np.convolve(probability, hypergeom.pmf(counts, n_rows, n_events, n_gaps))
        counted = np.flatnonzero(probability > _NEGLIGIBLE * probability.max())
        probability = probability[counted[0] : counted[-1] + 1]
        least += first + int(counted[0])
    if len(probability) == 1:
        return None
    observed = int((is_gap & is_event).sum()) - least
    if not 0 <= observed < len(probability):
        return _NEGLIGIBLE
    is_as_extreme = probability <= probability[observed] * (1 + _ROUNDING)
    return min(1.0, float(probability[is_as_extreme].sum() / probability.sum()))


def permutation_p_value(
    is_gap: Bool[np.ndarray, " N"], y: Shaped[np.ndarray, " N"], clients: Sequence[slice]
) -> float | None:
    """Return the two-sided p value of the permutation test within clients, by its normal approximation.

    Returns None with fewer than 5 rows with a gap, or without one, at clients that have both, and where targets do not
    vary.
    """
    difference = variance = 0.0
    n_missing = n_present = 0
    for client_slice in clients:
        targets = y[client_slice]
        missing = is_gap[client_slice]
        n = len(targets)
        k = int(missing.sum())
        if k in (0, n):
            continue
        n_missing = n_missing + k
        n_present = n_present + n - k
        if targets.min() == targets.max():  # whose variance is 0 but for rounding
            continue
        difference += float((targets[missing] - targets.mean()).sum())
        variance += float(k * (n - k) / n * targets.var(ddof=1))
    if min(n_missing, n_present) < _FEW_ROWS or variance <= 0:
        return None
    return math.erfc(abs(difference) / math.sqrt(2 * variance))


def _warn_of_gaps(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a warning about the columns whose gaps depend much on the outcome, from the rows on all clients."""
    n_columns = len({row["column"] for row in rows})
    descriptions: dict[str, str] = {}
    for row in rows:
        p_value = row["p_value"]
        if row["column"] in descriptions or p_value is None or p_value > _SIGNIFICANCE / n_columns:
            continue
        if not row["outcome"]:
            means = row["mean_where_missing"], row["mean_where_present"]
            is_large = abs(means[0] - means[1]) >= _LARGE_EFFECT * row["deviation"]
            description = (f"where '{row['column']}' is missing, the mean of the target is {means[0]:.3g}, and "
                           f"{means[1]:.3g} elsewhere")  # fmt: skip
        else:
            shares = row["share_among_events"], row["share_among_others"]
            is_large = abs(shares[0] - shares[1]) >= _LARGE_SHARE
            outcome = "events" if row["outcome"] == "event" else f"rows of '{row['outcome']}'"
            description = (
                f"'{row['column']}' is missing in {shares[0]:.0%} of {outcome} and {shares[1]:.0%} of the others"
            )
        if is_large:
            descriptions[row["column"]] = f"{description}, p = {p_value:.1g}"
    if not descriptions:
        return []
    kind = "exact" if rows[0]["outcome"] else "permutation"
    return [
        f"gaps depend on the outcome: {abbreviate(list(descriptions.values()))} ({kind} test within clients on the "
        "training rows): a filled value then says something about the outcome, and coefficients of these columns may "
        f"be biased; {MISSING_FILE} of the record has the numbers"
    ]
