"""Results of a finished model: coefficients, predictions, scores, calibration, survival, and intervals of them.

It imports the rooms up to ``experiment``.
"""
