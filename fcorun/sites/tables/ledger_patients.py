"""The patients of the rows of a ledger, by whom the cells of plans count.

The ledger holds no weight. A row that the file of the last plan lacks has the weight of a row there with an equal token
of the column. Rows whose weight no row there has count as one patient, because one of them may outweigh all others.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fcorun.sites.plan.patients import Patients
from fcorun.sites.tables.ledger_entry import LedgerEntry
from fcorun.sites.tables.ledger_rows import PATIENTS


def list_patients(entries: Sequence[LedgerEntry], numbers: Mapping[str, np.ndarray]) -> dict[str, Patients]:
    """Return the patients of all rows: rows by themselves, "", and by each column that is the group of a plan.

    They have the weights of the last plan.

    Args:
        numbers: the number of each row of a file among all rows, by its reading.
    """
    n_rows = 1 + max((int(number.max(initial=-1)) for number in numbers.values()), default=-1)
    weight = None
    if entries and entries[-1].weights is not None:
        weight = _find_weights(entries, numbers, n_rows)
    patients = {}
    for name in sorted({entry.group for entry in entries} | {""}):
        patient = np.arange(n_rows)  # of rows of a file without the column
        columns = []
        for entry in entries:
            columns += [(entry.reading, entry.tokens[key]) for key in (name, PATIENTS + name) if key in entry.tokens]
        if columns:
            rows = np.concatenate([numbers[reading] for reading, _ in columns])
            tokens = np.concatenate([tokens for _, tokens in columns])
            patient[rows] = n_rows + np.unique(tokens, return_inverse=True)[1]
        if weight is not None:
            patient[np.isnan(weight)] = 2 * n_rows
        patients[name] = Patients(None if weight is None else np.nan_to_num(weight, nan=1.0), patient)
    return patients


def _find_weights(entries: Sequence[LedgerEntry], numbers: Mapping[str, np.ndarray], n_rows: int) -> np.ndarray:
    """Return the weight of each row by the last plan, (n_rows,); NaN of a row whose weight its file lacks."""
    import pandas as pd

    newest = entries[-1]
    tokens = {entry.reading: entry.tokens[name] for entry in entries if (name := newest.weight_column) in entry.tokens}
    of_token = pd.Series(newest.weights).groupby(tokens[newest.reading]).first()  # equal tokens are equal weights
    weight = np.ones(n_rows)  # rows of plans that have not read the column are in sums without these weights
    for reading, of_file in tokens.items():
        weight[numbers[reading]] = of_token.reindex(of_file).to_numpy()
    weight[numbers[newest.reading]] = newest.weights
    return weight


def count_patients(cells: np.ndarray, patients: Mapping[str, Patients]) -> np.ndarray:
    """Return for how many patients each cell of rows stands, the least number by any column of groups."""
    n_cells = int(cells.max(initial=-1)) + 1
    return np.min([of_column.count_parts(cells, n_cells) for of_column in patients.values()], axis=0)


def explain_small_cell(rows: np.ndarray, patients: Mapping[str, Patients], weight: str, min_rows: int) -> str:
    """Return in words why the rows of a cell, a mask, count as fewer than ``min_rows``; "" where they are fewer rows.

    Args:
        patients: those of ``list_patients``, with weights of the column ``weight``.
    """
    if rows.sum() < min_rows:
        return ""
    if patients[""].unweighted.count(rows) < min_rows:
        return f", whose weights ('{weight}') the ledger does not keep, so that they count as one patient,"
    if patients[""].count(rows) < min_rows:
        return f" that count like fewer than {min_rows} patients by their weights ('{weight}')"
    column = next(name for name, of_column in patients.items() if of_column.count(rows) < min_rows)
    return f" of fewer than {min_rows} groups of '{column}'"
