"""Gradient of squared losses whose rows are clipped one by one, to compare with."""

import numpy as np


def clip_by_loop(x, y, w, clip, ridge, intercept=True):
    """Return the mean gradient of squared losses, row by row, and how many rows were clipped."""
    total, n_clipped = np.zeros(len(w)), 0
    for features, target in zip(x, y, strict=True):
        row = np.append(features, 1) if intercept else features
        gradient = 2 * (row @ w - target) * row
        length = np.linalg.norm(gradient)
        total += gradient * min(1, clip / length)
        n_clipped += length > clip
    return total / len(x) + ridge * np.append(w[:-1], 0), n_clipped
