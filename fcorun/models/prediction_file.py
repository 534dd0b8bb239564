"""Names and limits of predictions.csv, for those who write the file and those who read it."""

PREDICTIONS_FILE = "predictions.csv"
MAX_PREDICTED_ROWS = 1_000_000  # held-out rows of predictions.csv, some 100 MB
SHARED, PERSONAL = "shared", "personal"  # the model of all clients; the personal models of the clients
TRAIN, OUT_OF_FOLD = "train", "out_of_fold"  # sets of rows
