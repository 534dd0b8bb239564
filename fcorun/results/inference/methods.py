"""The names and the sources of the methods that intervals are computed by."""

INTERVALS_FILE = "inference.csv"  # in a record
INTERVALS_TEXT = "inference.txt"  # what was computed, and warnings
CLIENT_ESTIMATES_FILE = "client_estimates.csv"  # in the record of a meta-analysis
META_ANALYSIS = "meta-analysis"
SOURCES = {
    META_ANALYSIS: "@dersimonian1986",
    "debiased": "@vandegeer2014 and @lee2017, with strengths by the rule of @zhang2014",
    "wald": "",
    "split": "data splitting of @cox1975",
    "robust": "robust standard errors of @white1980",
    "debiased hazards": "@kong2021, with strengths by the rule of @zhang2014",
    "robust hazards": "robust standard errors of @lin1989",
    "clusters": "standard errors by cluster of @liang1986",
    "holm": "@holm1979",
    "imputations": "chained equations of @vanbuuren2011, Rubin's rules with the degrees of freedom of @barnard1999",
}
AFTER_SELECTION = (
    "the same rows chose the features, so that intervals on these rows are too narrow and p values too small; for "
    "valid ones give fcorun infer a record with the penalty (`method=debiased` or split)"
)
WITH_ADAPTIVE_WEIGHTS = (
    "the weights of the adaptive lasso are taken as given, although the same rows chose them: how often such intervals "
    "cover the true coefficient is not measured; a record without adaptive has measured ones"
)
METHODS = {"debiased": "debiased lasso", "wald": "Wald", "split": "Wald on the second half"}
MODEL_ERRORS = ", errors of the model"  # after a method, in the column method


def find_sources(method: str, *, is_robust: bool, has_baseline_hazards: bool) -> list[str]:
    """Return the texts of ``SOURCES`` for a method and its standard errors, for Cox's model with baseline hazards."""
    kind = " hazards" if has_baseline_hazards else ""
    if method == "debiased":
        return [SOURCES[method + kind]]
    return [text for text in (SOURCES[method], SOURCES["robust" + kind] if is_robust else "") if text]
