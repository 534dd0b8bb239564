"""Generate rows like those of texts in a LIBSVM file: make_sparse_rows.py [--rows 20242] [--out FILE]

By default the rows have the shape of rcv1.binary: 20,242 x 47,236 with about 1.5 million nonzeros. A row is a text,
whose words follow Zipf's law: the probability of the k-th most frequent word is proportional to 1 / (k + 10). Lengths
are lognormal. The value of a word is (1 + log count) log(rows / rows with the word), and the norm of a row is 1, as in
Lewis, Yang, Rose and Li (J. Mach. Learn. Res. 2004). The classes 1 and -1 are logistic in 200 of the more frequent
words. The order of columns is random. The numbers depend on --rows, --columns and --seed alone.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

WORDS = 70  # of a text, the median; they are about 74 different ones
WORDS_DEVIATION = 0.45  # of the logarithm
N_TRUE = 200  # columns with a coefficient
SPREAD = 3.0  # of the log odds, the standard deviation


def draw_counts(rows: int, columns: int, rng: np.random.Generator) -> Any:
    """Draw how often each word is in each text, (rows, columns), the most frequent word first."""
    lengths = np.ceil(rng.lognormal(np.log(WORDS), WORDS_DEVIATION, rows)).astype(int)
    share = 1 / (np.arange(columns) + 10.0)
    words = np.searchsorted(np.cumsum(share / share.sum()), rng.random(lengths.sum()))
    texts = np.repeat(np.arange(rows, dtype=np.int32), lengths)
    words = np.minimum(words, columns - 1).astype(np.int32)
    return sparse.coo_array((np.ones(len(words)), (texts, words)), (rows, columns)).tocsr()


def weigh_counts(counts: Any) -> Any:
    """Return the values of words for their counts, each row of norm 1 but for digits that float32 does not have."""
    rows = counts.shape[0]
    texts_with_word = np.bincount(counts.indices, minlength=counts.shape[1])
    x = counts.copy()
    x.data = (1 + np.log(counts.data)) * np.log((rows + 1) / texts_with_word[counts.indices])
    row_of_value = np.repeat(np.arange(rows), np.diff(x.indptr))
    x.data /= np.sqrt(np.bincount(row_of_value, x.data**2))[row_of_value]
    x.data = x.data.astype(np.float32).astype(np.float64)
    return x


def make_rows(rows: int = 20_242, columns: int = 47_236, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Return the rows (rows, columns) in CSR, and their classes, 1 or -1, (rows,)."""
    rng = np.random.default_rng(seed)
    x = weigh_counts(draw_counts(rows, columns, rng))
    truth = np.zeros(columns)
    frequent = max(columns // 20, 1)
    truth[rng.permutation(frequent)[:N_TRUE]] = rng.standard_normal(min(N_TRUE, frequent))
    log_odds = x @ truth
    log_odds *= SPREAD / log_odds.std()
    y = np.where(rng.random(rows) < 1 / (1 + np.exp(-log_odds)), 1, -1)
    x.indices = rng.permutation(columns).astype(np.int32)[x.indices]
    x.has_sorted_indices = False
    x.sort_indices()
    return x, y


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_242, help="default: %(default)s")
    parser.add_argument("--columns", type=int, default=47_236, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("rows.svm"), help="default: %(default)s")
    arguments = parser.parse_args()
    for name, least in {"rows": 2, "columns": 2, "seed": 0}.items():
        if getattr(arguments, name) < least:
            parser.error(f"--{name} {getattr(arguments, name)}: give {least} or a larger number")
    x, y = make_rows(arguments.rows, arguments.columns, arguments.seed)
    try:
        dump_svmlight_file(x, y, str(arguments.out), zero_based=False)
    except OSError as error:
        parser.error(f"--out {arguments.out}: {error.strerror or error}; choose another path")
    print(
        f"{arguments.out}: {x.shape[0]} rows x {x.shape[1]} columns, {x.nnz} nonzeros, {np.mean(y > 0):.0%} of class 1"
    )


if __name__ == "__main__":
    main()
