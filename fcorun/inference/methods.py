"""The names and the sources of the methods that intervals are computed by."""

INTERVALS_FILE = "inference.csv"  # in a record
INTERVALS_TEXT = "inference.txt"  # what was computed, and warnings
SOURCES = {
    "debiased": "@vandegeer2014 and @lee2017, with strengths by the rule of @zhang2014",
    "wald": "robust standard errors of @white1980",
    "split": "data splitting of @cox1975, robust standard errors of @white1980",
    "clusters": "standard errors by cluster of @liang1986",
    "holm": "@holm1979",
}
AFTER_SELECTION = (
    "the same rows chose the features, so that intervals on these rows are too narrow and p values too small; for "
    "valid ones give fcorun infer a record with the penalty (method=debiased or split)"
)
METHODS = {"debiased": "debiased lasso", "wald": "Wald", "split": "Wald on the second half"}
