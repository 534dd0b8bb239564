"""Sparse rows of a known law as a data set of benchopt's benchmarks benchmark_lasso and benchmark_logreg_l1.

``benchopt_table.py`` copies this file into the folder ``datasets`` of a benchmark, and ``make_sparse_rows.py``, whose
rows these are, into ``benchmark_utils``. Columns are compressed, as coordinate descent takes them. The LASSO takes the
classes as numbers, 1 and -1.
"""

from benchmark_utils.make_sparse_rows import make_rows  # type: ignore[import-not-found]
from benchopt import BaseDataset  # type: ignore[import-not-found]


class Dataset(BaseDataset):
    """Texts, of which about 70 words each are not 0."""

    name = "Sparse"
    parameters = {"n_samples, n_features": [(5_000, 20_000)]}

    def get_data(self):
        """Return the features (n, d) in CSC, and the targets (n,)."""
        x, y = make_rows(self.n_samples, self.n_features)
        return {"X": x.tocsc(), "y": y.astype(float)}
