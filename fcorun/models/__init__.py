"""What comes out of a run: how good its model is, what it predicts, and the model as an estimator."""
