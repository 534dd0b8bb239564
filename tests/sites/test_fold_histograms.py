"""Histograms of the rows that folds leave: no difference of two of them is the count of few rows."""

import numpy as np
import pytest

from fcorun.sites.tables.fold_encoding import FoldHistogram

MIN_CELL, N_BINS = 3, 50


def draw_bins(n_rows=150, seed=0):
    """Return the bin of each row, -1 of every tenth, and the fold that holds the row out."""
    rng = np.random.default_rng(seed)
    bins = np.clip(rng.normal(25, 8, n_rows).astype(int), 0, N_BINS - 1)
    return np.where(np.arange(n_rows) % 10 == 0, -1, bins), rng.permutation(n_rows) % 5


@pytest.mark.parametrize("seed", range(3))
def test_no_cell_has_few_rows_in_a_fold_or_outside(seed):
    bins, fold = draw_bins(seed=seed)
    histogram = FoldHistogram.join(bins, fold, N_BINS, MIN_CELL)
    assert len(set(histogram.cell_of_bin.tolist())) > 3
    starts = np.flatnonzero(np.diff(histogram.cell_of_bin, prepend=-1))
    for k in range(5):
        counts = histogram.count(fold != k)
        assert counts.sum() == ((bins >= 0) & (fold != k)).sum()
        outside, inside = (np.add.reduceat(values, starts) for values in (counts, histogram.all_rows - counts))
        for cells in (outside, inside):
            assert ((cells == 0) | (cells >= MIN_CELL)).all()
        exact = np.median(bins[(bins >= 0) & (fold != k)])
        assert abs(int(np.searchsorted(np.cumsum(counts), counts.sum() / 2)) - exact) <= 2


def test_counts_follow_from_those_of_the_joined_cells_alone():
    """Rows that change their folds within a joined cell change no histogram."""
    bins, fold = draw_bins()
    histogram = FoldHistogram.join(bins, fold, N_BINS, MIN_CELL)
    moved, rng = fold.copy(), np.random.default_rng(1)
    for cell in range(histogram.cell_of_row.max() + 1):
        rows = np.flatnonzero(histogram.cell_of_row == cell)
        moved[rows] = fold[rng.permutation(rows)]
    assert (moved != fold).any()
    for k in range(5):
        np.testing.assert_array_equal(histogram.count(moved != k), histogram.count(fold != k))


def test_cells_that_every_fold_leaves_large_have_the_counts_of_the_rows():
    bins = np.repeat([2, 7, 30], 20)
    fold = np.arange(60) % 4
    histogram = FoldHistogram.join(bins, fold, N_BINS, MIN_CELL)
    np.testing.assert_array_equal(histogram.count(fold != 1), np.bincount(bins[fold != 1], minlength=N_BINS))
    of_one_client = FoldHistogram.join(bins, np.zeros(60, int), N_BINS, MIN_CELL)
    np.testing.assert_array_equal(of_one_client.count(np.ones(60, bool)), np.bincount(bins, minlength=N_BINS))


def test_what_is_left_at_the_end_joins_the_cells_before_and_few_rows_make_no_cell():
    bins, fold = np.array([1] * 6 + [4] * 6 + [9] * 3), np.array([0, 1] * 6 + [0, 0, 1])
    histogram = FoldHistogram.join(bins, fold, 10, MIN_CELL)
    assert histogram.cell_of_bin.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert histogram.all_rows.tolist() == [0, 6, 0, 0, 6, 0, 0, 0, 0, 3]
    for few in (bins[:2], bins[:4]):
        assert not FoldHistogram.join(few, fold[: len(few)], 10, MIN_CELL).count(np.ones(len(few), bool)).any()
