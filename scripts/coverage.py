"""Measure how often the intervals of ``fcorun infer`` cover the true coefficients of simulated designs.

    python scripts/coverage.py [NAME...] [--repetitions 200]

A feature is normal, with correlation 0.5^|j - k| between features j and k. Six coefficients are not 0. The penalty is a
tenth of the smallest strength at which 0 is the solution. Rows of clusters share a term that is added to their
predictions, and each cluster has its own mean of the first feature. The script prints a row of a Markdown table for
each design: the share of intervals of a level of 95 % that cover, over all coefficients and over those that are not 0,
and the median width of intervals.
"""

import argparse
import time
from dataclasses import dataclass

import jax
import numpy as np

from fcorun.data.tables.imputation.chained_equations import IncompleteColumn, impute
from fcorun.methods.objectives import Cox, Gamma, LeastSquares, LinearModel, Logistic, Poisson
from fcorun.methods.problem.penalty import Penalty
from fcorun.results.inference.estimates import Estimates, debiased_estimates, intervals, pool_estimates, wald_estimates
from fcorun.results.inference.solution import SingularHessian, solve
from fcorun.results.inference.sums import ModelRows, PooledSums, model_based_scores

NONZERO = np.array([1.0, -1.0, 0.8, 0.5, -0.5, 0.3])


@dataclass(frozen=True)
class Design:
    """A simulated design.

    Attributes:
        objective: the losses; "heteroscedastic" is least squares whose noise grows with the first feature.
        rows, features: the size.
        method: "debiased" or "wald".
        clusters: the number of clusters that standard errors are computed by, 0 for independent rows.
        shift: the standard deviation between clients of the means of all features, with three clients.
        size: a factor on all coefficients.
        gaps: "" for none, or what becomes of gaps in three features, in 60 % of the rows with a target above the mean
            and 10 % of the others: "filled" by the mean, or "imputed" ten times.
        errors: "robust" standard errors, or those of the "model".
    """

    objective: str
    rows: int = 600
    features: int = 60
    method: str = "debiased"
    clusters: int = 0
    shift: float = 0.0
    size: float = 1.0
    gaps: str = ""
    errors: str = "robust"


DESIGNS = {
    "homoscedastic": Design("least_squares"),
    "homoscedastic, wald": Design("least_squares", method="wald"),
    "heteroscedastic": Design("heteroscedastic"),
    "heteroscedastic, wald": Design("heteroscedastic", method="wald"),
    "three clients, shifted features": Design("heteroscedastic", shift=1.0),
    "logistic": Design("logistic"),
    "logistic, strong effects": Design("logistic", size=2.0),
    "logistic, wald": Design("logistic", method="wald"),
    "logistic, 300 rows": Design("logistic", rows=300),
    "logistic, 1200 rows": Design("logistic", rows=1200),
    "logistic, 1200 rows, wald": Design("logistic", rows=1200, method="wald"),
    "poisson": Design("poisson", size=0.5),
    "gamma": Design("gamma", size=0.5),
    "cox, three clients": Design("cox", size=0.5),
    "cox, three clients, wald": Design("cox", size=0.5, method="wald"),
    "cox, three clients, wald, errors of the model": Design("cox", size=0.5, method="wald", errors="model"),
    "cox, three clients, 1800 rows": Design("cox", rows=1800, size=0.5),
    "cox, three clients, 1800 rows, wald": Design("cox", rows=1800, size=0.5, method="wald"),
    "cox, 10 features": Design("cox", features=10, size=0.5),
    "cox, 10 features, wald": Design("cox", features=10, size=0.5, method="wald"),
    "cox, 10 features, wald, errors of the model": Design("cox", features=10, size=0.5, method="wald", errors="model"),
    "half as many features as rows": Design("least_squares", rows=200, features=100),
    "as many features as rows": Design("least_squares", rows=200, features=200),
    "30 clusters, wald": Design("least_squares", features=10, method="wald", clusters=30),
    "6 clusters, wald": Design("least_squares", features=10, method="wald", clusters=6),
    "3 clusters, wald": Design("least_squares", features=10, method="wald", clusters=3),
    "gaps, filled": Design("least_squares", rows=300, features=10, method="wald", gaps="filled"),
    "gaps, imputed": Design("least_squares", rows=300, features=10, method="wald", gaps="imputed"),
    "gaps, logistic, filled": Design("logistic", features=10, method="wald", size=0.5, gaps="filled"),
    "gaps, logistic, imputed": Design("logistic", features=10, method="wald", size=0.5, gaps="imputed"),
    "more features than rows": Design("least_squares", rows=200, features=300),
    "more features than rows, logistic": Design("logistic", rows=200, features=300),
}


def draw(design: Design, rng: np.random.Generator) -> tuple[LinearModel, ModelRows, np.ndarray, np.ndarray | None]:
    """Draw the rows of a design, and return the losses, the rows, the true coefficients, and the rows' clusters."""
    n, p = design.rows, design.features
    distance = np.abs(np.subtract.outer(np.arange(p), np.arange(p)))
    x = rng.standard_normal((n, p)) @ np.linalg.cholesky(0.5**distance).T
    if design.shift:
        x = x + design.shift * rng.standard_normal((3, p))[np.arange(n) % 3]
    true = np.zeros(p)
    true[: len(NONZERO)] = design.size * NONZERO
    prediction = x @ true
    clusters = None
    if design.clusters:
        clusters = np.arange(n) % design.clusters
        x[:, 0] += rng.standard_normal(design.clusters)[clusters]
        prediction = x @ true + rng.standard_normal(design.clusters)[clusters]
    objective: LinearModel = LeastSquares()
    y = prediction + rng.standard_normal(n)
    if design.objective == "heteroscedastic":
        y = prediction + rng.standard_normal(n) * np.exp(x[:, 0] / 2)
    elif design.objective == "logistic":
        objective, y = Logistic(), (rng.random(n) < 1 / (1 + np.exp(-prediction))).astype(float)
    elif design.objective == "poisson":
        objective, y = Poisson(), rng.poisson(np.exp(prediction)).astype(float)
    elif design.objective == "gamma":
        objective, y = Gamma(), rng.gamma(2.0, np.exp(prediction) / 2)
    elif design.objective == "cox":
        return Cox(), _draw_survival(x, prediction, rng), true, None
    rows = ModelRows(np.column_stack([x, np.ones(n)]), y, np.full(n, 1 / n), np.zeros(n))
    return objective, rows, true, clusters


def _draw_survival(x: np.ndarray, prediction: np.ndarray, rng: np.random.Generator) -> ModelRows:
    """Draw times to events at three clients with baseline hazards 0.5, 1 and 2, and exponential times of censoring."""
    n = len(x)
    client = np.arange(n) % 3
    event = rng.exponential(size=n) / np.exp(prediction) / np.array([0.5, 1.0, 2.0])[client]
    censoring = rng.exponential(size=n) * 2
    y = np.where(event <= censoring, event, -censoring)
    return ModelRows(x, y, np.full(n, 1 / n), np.zeros(n), client)


def estimate(design: Design, objective: LinearModel, rows: ModelRows, clusters: np.ndarray | None) -> Estimates:
    """Return the estimates of a design's method on some rows."""
    n_parameters = rows.x.shape[1]
    has_intercept = n_parameters > design.features
    n_corrected = np.inf if isinstance(objective, Cox) or design.errors == "model" else design.rows
    sums = PooledSums(objective, rows, clusters)
    start = np.zeros(n_parameters)
    if design.method == "wald":
        solution = solve(sums, Penalty.none(n_parameters), start)
        scores = sums.scores(solution.theta)
        if design.errors == "model":
            scores = model_based_scores(solution.sums, design.rows)
        return wald_estimates(solution.theta, solution.sums, scores, n_corrected, clusters is not None)
    if has_intercept:
        only_intercept = PooledSums(objective, rows._replace(x=rows.x[:, -1:]))
        start[-1:] = solve(only_intercept, Penalty.none(1), np.zeros(1)).theta
    strength = 0.1 * np.abs(sums.derivatives(start).gradient[: design.features]).max()
    l1 = np.zeros(n_parameters)
    l1[: design.features] = strength
    penalty = Penalty(l1, np.zeros(n_parameters))
    solution = solve(sums, penalty, start)
    return debiased_estimates(
        solution.theta,
        solution.sums,
        sums.scores(solution.theta),
        rows=n_corrected,
        effective_rows=design.rows,
        clusters=clusters is not None,
        n_intercepts=int(has_intercept),
        nonzero=int((solution.theta != 0).sum()),
    )


def estimate_with_gaps(design: Design, objective: LinearModel, rows: ModelRows, rng: np.random.Generator) -> Estimates:
    """Return the estimates of a design after values of three features were lost."""
    is_high, x = rows.y > rows.y.mean(), rows.x[:, :-1].copy()
    columns = []
    for j in range(3):
        is_gap = rng.random(design.rows) < np.where(is_high, 0.6, 0.1)
        x[is_gap, j] = x[~is_gap, j].mean()
        columns.append(IncompleteColumn(str(j), np.array([j]), is_gap))
    if design.gaps == "filled":
        return estimate(design, objective, rows._replace(x=np.column_stack([x, rows.x[:, -1]])), None)
    outcome = ((rows.y - rows.y.mean()) / rows.y.std())[:, None]
    completed = [np.column_stack([impute(x, columns, outcome, rng), rows.x[:, -1]]) for _ in range(10)]
    return pool_estimates([estimate(design, objective, rows._replace(x=each), None) for each in completed])


def measure(name: str, repetitions: int) -> str:
    """Return the row of the table for a design."""
    design = DESIGNS[name]
    begun = time.perf_counter()
    shares, nonzero_shares, widths = [], [], []
    lost = 0
    for repetition in range(repetitions):
        objective, rows, true, clusters = draw(design, np.random.default_rng(repetition))
        try:
            if design.gaps:
                estimates = estimate_with_gaps(design, objective, rows, np.random.default_rng([repetition, 1]))
            else:
                estimates = estimate(design, objective, rows, clusters)
        except SingularHessian:  # separated classes: fcorun infer refuses, too
            lost += 1
            continue
        low, high, _ = intervals(estimates, 0.95)
        low, high = low[: design.features], high[: design.features]
        covers = (low <= true) & (true <= high)
        shares.append(covers.mean())
        nonzero_shares.append(covers[true != 0].mean())
        widths.append(float(np.median(high - low)))
    error = np.std(shares) / np.sqrt(len(shares))
    error_nonzero = np.std(nonzero_shares) / np.sqrt(len(shares))
    seconds = (time.perf_counter() - begun) / repetitions
    note = f", {lost} refused" if lost else ""
    return (f"| {name} | {design.rows} x {design.features} | {design.method} | {100 * np.mean(shares):.1f} ± "
            f"{100 * error:.1f} % | {100 * np.mean(nonzero_shares):.1f} ± {100 * error_nonzero:.1f} % | "
            f"{np.mean(widths):.2f} | {len(shares)}{note} | {seconds:.2f} s |")  # fmt: skip


def main() -> None:
    """Measure designs and print each row of a Markdown table when it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"designs: {'; '.join(DESIGNS)} (default: all)")
    parser.add_argument("--repetitions", type=int, default=200, metavar="N")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in DESIGNS]
    if unknown:
        parser.error(f"there is no design '{unknown[0]}'")
    if arguments.repetitions < 2:
        parser.error(f"--repetitions {arguments.repetitions}: give at least 2, for the standard errors of shares")
    print("| design | rows x features | method | all coefficients | nonzero ones | width | repetitions | each |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in arguments.names or DESIGNS:
        repetitions = arguments.repetitions
        if DESIGNS[name].features > DESIGNS[name].rows:
            repetitions = max(repetitions // 5, 2)
        with jax.enable_x64(True):
            print(measure(name, repetitions), flush=True)


if __name__ == "__main__":
    main()
