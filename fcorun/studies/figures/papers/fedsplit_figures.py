"""FedGD, FedProx and FedSplit of Pathak and Wainwright (NeurIPS 2020): closed forms and measurements."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.metrics import CATALOGUE
from fcorun.base.records.record import Record
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.build import load_data
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms.fedavg import FedGD
from fcorun.methods.algorithms.fedsplit import FedSplit
from fcorun.methods.algorithms.proximal import FedProx
from fcorun.methods.objectives import LeastSquares
from fcorun.methods.problem.curvature import scaled_features
from fcorun.methods.regularizers.regularizer import NoRegularizer
from fcorun.reports.pictures.layout import DASHES, add_legend, collect_entries, make_figure, pt
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.seed_comparison import RoundsToTarget, find_rounds_to_target, verdict_row

_FLOOR = 1e-13  # smaller gaps are rounding errors
_SLOPES = {FedGD: 1.0, FedSplit: 0.5}  # of log rounds in log kappa, as the theorems say
_PRINTED = {FedGD: 34_000, FedSplit: 400}  # rounds to a gap of 1e-3 at kappa = 10,000


def compute_gradient_coefficients(data: FederatedData, objective: Any) -> tuple[np.ndarray, np.ndarray]:
    """Compute H (M, p, p) and c (M, p) of the gradients H_j x - c_j of least-squares losses without ridge."""
    hessians = []
    constants = []
    for start, stop in zip(data.train.offsets[:-1], data.train.offsets[1:], strict=True):
        x = objective.design(scaled_features(data, slice(start, stop)))
        hessians.append(2 / len(x) * x.T @ x)
        constants.append(2 / len(x) * x.T @ data.train.y[start:stop])
    return np.array(hessians), np.array(constants)


def compute_fixed_point(algo: dict, h: np.ndarray, c: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Compute the fixed point of FedGD (equation 10) or FedProx (the display before it), with clients weighted by p.

    The fixed point solves sum_j p_j Q_j (H_j x - c_j) = 0, with Q_j the sum of (I - s H_j)^k over k < e, or
    (H_j + mu I)^-1.
    """
    eye = np.eye(h.shape[1])
    if "mu" in algo:
        weights = np.linalg.inv(h + algo["mu"] * eye)
    else:
        powers = [np.broadcast_to(eye, h.shape)]
        for _ in range(algo["steps"] - 1):
            powers.append(powers[-1] @ (eye - algo["step"] * h))
        weights = sum(powers)
    return np.linalg.solve(np.tensordot(p, weights @ h, 1), np.einsum("m,mij,mj->i", p, weights, c))


def estimate_contraction(rows: list[dict[str, float]]) -> float:
    """Estimate the factor by which the distance to the optimum shrinks in a round, from gaps above rounding errors."""
    gaps = np.array([row["suboptimality"] for row in rows])
    rounds = np.array([row["round"] for row in rows], float)
    usable = np.flatnonzero(gaps > _FLOOR)[1:]
    if len(usable) < 2:
        return float("nan")
    first, last = usable[0], usable[-1]
    return float((gaps[last] / gaps[first]) ** (1 / (2 * (rounds[last] - rounds[first]))))


def predict_contraction(condition: float) -> float:
    """Return the contraction factor of theorem 1, 1 - 2 / (sqrt(kappa) + 1)."""
    return 1 - 2 / (np.sqrt(condition) + 1)


def check_fixed_points(records: Sequence[Record]) -> list[dict[str, str]]:
    """Check that FedGD and FedProx end at their wrong fixed points, and that FedSplit contracts as theorem 1 says.

    Raises UserError as ``_check_problem``.
    """
    rows = []
    for record in records:
        if not record.finished:  # its configuration may be missing
            continue
        algo = record.config["algo"]
        experiment = prepare(record.config)
        if type(experiment.algo) not in (FedGD, FedProx, FedSplit):
            continue
        _check_problem(experiment)
        if type(experiment.algo) is FedSplit:
            if algo["solver"] == "exact":
                rows.append(_check_contraction(record))
            continue
        if algo.get("steps") == 1:  # gradient descent, which has no bias
            continue
        data = load_data(experiment)
        h, c = compute_gradient_coefficients(data, experiment.objective)
        p = data.train.sizes / data.train.sizes.sum()
        resolved = dict(algo)  # step and mu may be auto
        for key in ("step", "mu"):
            if f"algo.{key}" in (record.summary["curvature"] or {}):
                resolved[key] = record.summary["curvature"][f"algo.{key}"]
        fixed_point = compute_fixed_point(resolved, h, c, p)
        optimum = np.linalg.solve(np.tensordot(p, h, 1), p @ c)
        solution = np.concatenate([np.ravel(v) for v in record.solution.values()])
        distance = float(np.linalg.norm(solution - fixed_point))
        bias = float(np.linalg.norm(fixed_point - optimum))
        claim = "converges to its biased fixed point in closed form"
        rows.append(verdict_row(algo["name"], claim, f"distance {distance:.2g} from it",
                         f"below 1e-8; it is {bias:.3g} from the optimum", distance < 1e-8))  # fmt: skip
    return rows


def _check_problem(experiment: PreparedExperiment) -> None:
    """Refuse problems other than least squares without psi and ridge. Raises UserError."""
    objective = experiment.objective
    is_plain = isinstance(objective, LeastSquares) and not objective.ridge and isinstance(experiment.reg, NoRegularizer)
    if not is_plain or experiment.settings.client_weighting != "examples":
        raise UserError("figure: the theorems on FedGD, FedProx and FedSplit are checked for objective=least_squares "
                        "without a ridge, reg=none and client_weighting=examples alone")  # fmt: skip


def check_conditioning(records: Sequence[Record]) -> list[dict[str, str]]:
    """Check rounds of FedGD and FedSplit to the target gap against kappa, and the printed ones at the largest kappa.

    Rounds should grow with kappa as the theorems say, and each run of FedSplit contract as theorem 1 says. Raises
    UserError as ``_check_problem``, and for data without a condition number.
    """
    rows = []
    methods = _find_methods(records)
    for algo, rounds_by_kappa in collect_rounds_to_target(records).items():
        method = methods[algo]
        if method not in _SLOPES:
            continue
        kappas, rounds = _list_reached(rounds_by_kappa)
        missed = [f"{kappa:,g}" for kappa in rounds_by_kappa if kappa not in kappas]
        is_large = kappas >= 100
        slope = float("nan")
        if is_large.sum() > 1:
            slope = float(np.polyfit(np.log(kappas[is_large]), np.log(rounds[is_large]), 1)[0])
        holds = None if np.isnan(slope) else abs(slope - _SLOPES[method]) < 0.15
        row = verdict_row(algo, "slope of log rounds in log kappa, from 100 on", f"{slope:.3f}",
                   f"about {_SLOPES[method]:g}: within 0.15", holds)  # fmt: skip
        if missed:
            row["note"] = f"the gap is not reached at kappa = {', '.join(missed)}"
        rows.append(row)
        if measured := rounds_by_kappa.get(1e4):
            printed = _PRINTED[method]
            is_close = printed / 1.5 < measured.earliest and measured.latest < printed * 1.5
            rows.append(verdict_row(algo, "rounds to a gap of 1e-3 at kappa = 10,000", str(measured),
                             f"about {printed}: within a factor of 1.5", is_close))  # fmt: skip
    for record in records:
        if record.finished and methods[record.config["algo"]["name"]] is FedSplit:
            rows.append(_check_contraction(record))
    return rows


def _find_methods(records: Sequence[Record]) -> dict[str, type]:
    """Return the class of each algorithm by name. Raises UserError as ``_check_problem`` for those with a theorem."""
    methods = {}
    for record in records:
        if record.finished:
            experiment = prepare(record.config)
            methods[record.config["algo"]["name"]] = type(experiment.algo)
            if type(experiment.algo) in _SLOPES:
                _check_problem(experiment)
    return methods


def collect_rounds_to_target(records: Sequence[Record], target: float = 1e-3) -> dict[str, dict[float, RoundsToTarget]]:
    """Return, by algorithm, the rounds to a gap of ``target`` at each condition number, from the smallest on.

    Of an algorithm's runs at one condition number, such as those with several step sizes, the fastest counts.
    Raises UserError for data without a condition number.
    """
    rounds_by_algorithm: dict[str, dict[float, RoundsToTarget]] = {}
    for record in records:
        if record.finished:
            rows = record.rows
            reached = find_rounds_to_target(
                [row["round"] for row in rows], [row["suboptimality"] <= target for row in rows]
            )
            rounds = rounds_by_algorithm.setdefault(record.config["algo"]["name"], {})
            kappa = _read_condition(record)
            if kappa not in rounds or reached.latest < rounds[kappa].latest:
                rounds[kappa] = reached
    return {name: dict(sorted(rounds.items())) for name, rounds in rounds_by_algorithm.items()}


def _list_reached(rounds_by_kappa: dict[float, RoundsToTarget]) -> tuple[np.ndarray, np.ndarray]:
    """Return the condition numbers at which the target is reached, and the last possible round at each of them."""
    reached = {kappa: bounds.latest for kappa, bounds in rounds_by_kappa.items() if np.isfinite(bounds.latest)}
    return np.array(list(reached)), np.array(list(reached.values()))


def _read_condition(record: Record) -> float:
    """Return the condition number of a run's data. Raises UserError for data without one."""
    data = record.config["data"]
    if "condition" not in data:
        raise UserError(f"figure: conditioning needs data.condition, which data={data['name']} lacks: give "
                        "data=least_squares_conditioned")  # fmt: skip
    return float(data["condition"])


def draw_gaps(inputs: FigureInputs) -> Any:
    """Draw the gap against rounds at three condition numbers, and rounds to a gap of 1e-3 against all of them."""
    figure, (left, right) = make_figure(2, 2, height=2.0)
    finished = [record for record in inputs.grid_records if record.finished]
    shown = sorted({_read_condition(record) for record in finished})[::-1]
    shown = [kappa for kappa in shown if np.log10(kappa) % 1 == 0][:3][::-1]
    for record in finished:
        kappa = _read_condition(record)
        name = record.config["algo"]["name"]
        rows = record.rows[1:]
        if kappa in shown and rows:
            gaps = {row["round"]: row["suboptimality"] for row in rows}
            style = {"color": inputs.line_styles[name].colour, "linestyle": DASHES[shown.index(kappa)]}
            left.plot(
                list(gaps), list(gaps.values()), **style, label=f"{inputs.grid_view.algo_title(name)}, κ = {kappa:,.0f}"
            )
    left.axhline(1e-3, color="0.6", linewidth=pt(0.6))
    gap_label = CATALOGUE["suboptimality"].axis_label(None)
    left.set(xscale="log", yscale="log", xlabel="communication round", ylabel=gap_label)
    left.set_ylim(bottom=1e-6)
    methods = _find_methods(finished)
    for name, rounds_by_kappa in collect_rounds_to_target(finished).items():
        kappas, rounds = _list_reached(rounds_by_kappa)
        style = inputs.line_styles[name]
        right.plot(kappas, rounds, color=style.colour, marker=style.marker, label=inputs.grid_view.algo_title(name))
        slope = _SLOPES.get(methods[name])
        if slope is None or not len(kappas):
            continue
        right.plot(kappas, rounds[-1] * (kappas / kappas[-1]) ** slope, color="0.5", linestyle=":", linewidth=pt(0.8),
                   label=f"slope {slope:g}")  # fmt: skip
    right.set(xscale="log", yscale="log", xlabel="condition number κ", ylabel="rounds to a gap of 10$^{-3}$")
    right.legend(frameon=False)
    add_legend(figure, collect_entries([left]))
    return figure


def _check_contraction(record: Record) -> dict[str, str]:
    """Check the linear convergence of FedSplit against theorem 1."""
    algo = record.config["algo"]["name"]
    condition = (record.summary["curvature"] or {}).get("condition", float("nan"))
    limit = predict_contraction(condition)
    factor = estimate_contraction(record.rows)
    return verdict_row(
        algo,
        f"linear convergence at kappa = {condition:.4g}",
        f"factor {factor:.4f} a round",
        f"at most {limit:.4f}, theorem 1",
        factor <= limit + 1e-3 if np.isfinite(factor - limit) else None,
    )
