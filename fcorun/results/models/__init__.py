"""The model of a finished run: coefficients by feature, images, scores, predictions, an estimator."""
