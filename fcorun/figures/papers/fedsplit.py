"""FedGD, FedProx and FedSplit of Pathak and Wainwright (NeurIPS 2020): closed forms beside what is measured."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.experiment.build import load_data
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import prepare
from fcorun.figures.figure_inputs import FigureInputs
from fcorun.figures.rounds_to_target import RoundsToTarget, find_rounds_to_target
from fcorun.metrics import CATALOGUE
from fcorun.objectives import LeastSquares
from fcorun.problem.quadratic import scaled_features
from fcorun.records.record import Record
from fcorun.reports.pictures.layout import DASHES, add_legend, make_figure
from fcorun.reports.pictures.style import pt

_FLOOR = 1e-13  # gaps below are rounding


def compute_gradient_coefficients(data: FederatedData, objective: Any) -> tuple[np.ndarray, np.ndarray]:
    """H (M, p, p) and c (M, p) of the clients' mean losses: grad f_j(x) = H_j x - c_j. Least squares without ridge."""
    found = []
    for start, stop in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        x = objective.design(scaled_features(data, slice(start, stop)))
        found.append((2 / len(x) * x.T @ x, 2 / len(x) * x.T @ data.y[start:stop]))
    return np.array([h for h, _ in found]), np.array([c for _, c in found])


def compute_fixed_point(algo: dict, h: np.ndarray, c: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Where FedGD (equation 10) or FedProx (the display before it) ends, with clients weighted by p.

    Both are sum_j p_j Q_j (H_j x - c_j) = 0, with Q_j the sum of (I - s H_j)^k over k < e, or (H_j + mu I)^-1.
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
    """By how much the distance to the optimum shrinks a round: the root of the slope of the gaps, down to rounding."""
    gaps = np.array([row["suboptimality"] for row in rows])
    rounds = np.array([row["round"] for row in rows], float)
    good = np.flatnonzero(gaps > _FLOOR)[1:]
    last = good[-1] if len(good) else 0
    first = good[0] if len(good) else 0
    if last <= first:
        return float("nan")
    return float((gaps[last] / gaps[first]) ** (1 / (2 * (rounds[last] - rounds[first]))))


def predict_contraction(condition: float) -> float:
    """The factor of theorem 1, 1 - 2 / (sqrt(kappa) + 1)."""
    return 1 - 2 / (np.sqrt(condition) + 1)


def check_fixed_points(records: Sequence[Record]) -> list[dict[str, str]]:
    """Whether the stalled methods stand at their closed-form wrong points, and FedSplit contracts as theorem 1 says."""
    rows = []
    for record in records:
        algo = record.config["algo"]
        if not record.finished or not ({"steps", "mu", "relaxation"} & set(algo)):
            continue
        if "relaxation" in algo:
            if algo["solver"] == "exact":
                rows.append(_rate(record))
            continue
        if algo.get("steps") == 1:
            continue
        experiment, data = _of(record)
        assert isinstance(experiment.objective, LeastSquares)
        h, c = compute_gradient_coefficients(data, experiment.objective)
        p = data.sizes / data.sizes.sum()
        found = record.summary["curvature"] or {}
        used = algo | {key: found[f"algo.{key}"] for key in ("step", "mu") if f"algo.{key}" in found}
        wrong = compute_fixed_point(used, h, c, p)
        right = np.linalg.solve(np.tensordot(p, h, 1), p @ c)
        ended = np.concatenate([np.ravel(v) for v in record.solution.values()])
        distance, off = float(np.linalg.norm(ended - wrong)), float(np.linalg.norm(wrong - right))
        rows.append(_row(algo, "stands at its wrong point in closed form", f"distance {distance:.2g} from it",
                         f"below 1e-8; it is {off:.3g} from the optimum", distance < 1e-8))  # fmt: skip
    return rows


def check_conditioning(records: Sequence[Record]) -> list[dict[str, str]]:
    """Rounds to the target gap against kappa: slopes, and the printed numbers at the largest kappa."""
    rows = []
    for algo, reached in collect_rounds_to_target(records).items():
        kappas, rounds = np.array(list(reached)), np.array([found.latest for found in reached.values()])
        many = kappas >= 100
        slope = float(np.polyfit(np.log(kappas[many]), np.log(rounds[many]), 1)[0]) if many.sum() > 1 else float("nan")
        expected = 0.5 if algo == "fedsplit" else 1.0
        named = {"name": algo}
        rows.append(_row(named, "slope of log rounds in log kappa, from 100 on", f"{slope:.3f}",
                         f"about {expected:g}: within 0.15", abs(slope - expected) < 0.15))  # fmt: skip
        if kappas[-1] == 1e4:
            printed = 400 if algo == "fedsplit" else 34_000
            at_most = reached[kappas[-1]]
            close = printed / 1.5 < at_most.earliest and at_most.latest < printed * 1.5
            rows.append(_row(named, "rounds to a gap of 1e-3 at kappa = 10,000", str(at_most),
                             f"about {printed}: within a factor of 1.5", close))  # fmt: skip
    rows += [_rate(record) for record in records if record.finished and record.config["algo"]["name"] == "fedsplit"]
    return rows


def collect_rounds_to_target(records: Sequence[Record], target: float = 1e-3) -> dict[str, dict[float, RoundsToTarget]]:
    """Return, by algorithm, the rounds to a gap of ``target`` at each condition number, from the smallest on."""
    found: dict[str, dict[float, RoundsToTarget]] = {}
    for record in records:
        rows = record.rows
        reached = find_rounds_to_target(
            [row["round"] for row in rows], [row["suboptimality"] <= target for row in rows]
        )
        if record.finished and np.isfinite(reached.latest):
            found.setdefault(record.config["algo"]["name"], {})[float(record.config["data"]["condition"])] = reached
    return {name: dict(sorted(of.items())) for name, of in found.items()}


def draw_gaps(of: FigureInputs) -> Any:
    """The gap against the rounds at three condition numbers, and the rounds to a gap of 1e-3 against all of them."""
    figure, (left, right) = make_figure(2, 2, height=2.0, left=0.6)
    shown = sorted({record.config["data"]["condition"] for record in of.grid_records if record.finished})[::-1]
    shown = [kappa for kappa in shown if np.log10(kappa) % 1 == 0][:3][::-1]
    for record in of.grid_records:
        kappa, name = record.config["data"]["condition"], record.config["algo"]["name"]
        rows = record.rows[1:]
        if kappa in shown and rows:
            found = {row["round"]: row["suboptimality"] for row in rows}
            look = {"color": of.line_styles[name].colour, "linestyle": DASHES[shown.index(kappa)]}
            left.plot(list(found), list(found.values()), **look, label=f"{of.grid.algo_title(name)}, κ = {kappa:,.0f}")
    left.axhline(1e-3, color="0.6", linewidth=pt(0.6))
    gap = CATALOGUE["suboptimality"].axis_label(None)
    left.set(xscale="log", yscale="log", xlabel="communication round", ylabel=gap)
    left.set_ylim(bottom=1e-6)
    for name, reached in collect_rounds_to_target(of.grid_records).items():
        kappas, rounds = np.array(list(reached)), np.array([found.latest for found in reached.values()])
        look, slope = of.line_styles[name], 0.5 if name == "fedsplit" else 1.0
        right.plot(kappas, rounds, color=look.colour, marker=look.marker, label=of.grid.algo_title(name))
        right.plot(kappas, rounds[-1] * (kappas / kappas[-1]) ** slope, color="0.5", linestyle=":", linewidth=pt(0.8),
                   label=f"slope {slope:g}")  # fmt: skip
    right.set(xscale="log", yscale="log", xlabel="condition number κ", ylabel="rounds to a gap of 10$^{-3}$")
    right.legend(frameon=False)
    add_legend(figure, *left.get_legend_handles_labels())
    return figure


def _rate(record: Record) -> dict[str, str]:
    condition = record.summary["curvature"]["condition"]
    limit, found = predict_contraction(condition), estimate_contraction(record.rows)
    return _row(record.config["algo"], f"linear convergence at kappa = {condition:.4g}", f"factor {found:.4f} a round",
                f"at most {limit:.4f}, theorem 1", found <= limit + 1e-3)  # fmt: skip


def _row(algo: dict, says: str, measured: str, wanted: str, holds: bool) -> dict[str, str]:
    return {"algo": algo["name"], "says": says, "measured": measured, "wanted": wanted,
            "holds": "yes" if holds else "no", "test": "", "note": ""}  # fmt: skip


def _of(record: Record) -> tuple[Experiment, FederatedData]:
    experiment = prepare(record.config)
    return experiment, load_data(experiment)
