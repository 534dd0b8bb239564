"""What comes out of a run: its coefficients in the words of the data, maps, scores, predictions, an estimator."""
