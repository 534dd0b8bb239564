"""The evaluations of a run as its record has them, with targets, certificates and divergence."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, suggest_name, word
from fcorun.base.metrics import EPSILON, GAP_RESOLUTION, PERSONAL_PREFIX
from fcorun.engine.engine import Snapshot
from fcorun.experiment.experiment import RELATIVE_CHANGE, PreparedExperiment, explain_growth, minimized_metric
from fcorun.experiment.optimum import identification_metrics
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.methods.communication.contracts import MessageBytes
from fcorun.runs.client_history import ClientHistory, summarize_clients

# a certificate of the objective counts as rounding below this power of the precision's epsilon, relative to the
# objective: epsilon itself would leave errors of its root in the coefficients, and its square is noise
_CERTIFICATE_ROUNDING = 1.25
_STALLED = 1e-6  # a certificate above this share of the objective that stands still is told
_EVALUATIONS_OF_STALL = 4  # over which it has not halved


@dataclass
class RunHistory:
    """The evaluations of a run, as its record has them.

    Attributes:
        rows: the evaluations, with their counters and metrics.
        clients: the losses and scores of each client at the evaluations, with ``client_metrics``.
        optimum: the result of ``fcorun.experiment.optimum.compute_optimum``; None without ``reference``.
        divergence_round: the round in which the state stopped being finite, or after which the objective had grown
            without bounds; 0 if the run has not diverged.
        divergence_reason: a sentence on an objective that grew without bounds, or empty.
        divergence_origin: the client at which a run diverged first, and the line of code, if known (``debug``).
        reason: the sentences on a run that go into status.json.
        stopped: whether the run has met a target of ``stop``, which is then the reason, or has converged.
        spent: whether the run has spent what ``stop`` allows of a cost; its end is then as that of the last round.
        convergence: a sentence on the certificate of a run that ended because that was rounding; else empty.
        message_bytes: the bytes of the messages of a round; None: the rows have no costs.
        selection: the choice of the run's strength, with its ``cost`` in bytes, at which the run's own begin.
    """

    experiment: PreparedExperiment
    rows: list[dict[str, float]] = field(default_factory=list, kw_only=True)
    clients: ClientHistory = field(default_factory=ClientHistory, kw_only=True)
    optimum: dict | None = field(default=None, kw_only=True)
    divergence_round: int = field(default=0, kw_only=True)
    divergence_reason: str = field(default="", kw_only=True)
    divergence_origin: str = field(default="", kw_only=True)
    reason: str = field(default="", kw_only=True)
    stopped: bool = field(default=False, kw_only=True)
    spent: bool = field(default=False, kw_only=True)
    convergence: str = field(default="", kw_only=True)
    message_bytes: MessageBytes | None = field(default=None, kw_only=True)
    selection: dict[str, Any] | None = field(default=None, kw_only=True)

    def add_snapshot(
        self, snapshot: Snapshot, index: int, traffic: Mapping[str, float], seconds: float
    ) -> dict[str, float]:
        """Add the evaluation of the run at ``index`` in its batch, and return the new row.

        Args:
            traffic: the bytes that the run has sent so far, and its simulated time, by counter.
        """
        evaluations = dict(zip(("grad_evals", "prox_evals"), snapshot.work[index].tolist(), strict=True))
        spent = (self.selection or {}).get("cost", {})
        traffic = {name: value + spent.get(name, 0) for name, value in traffic.items()}
        counters = {"round": snapshot.round, "seconds": seconds, **traffic, **evaluations}
        metrics = {name: float(values[index]) for name, values in snapshot.metrics.items()}
        if self.experiment.privacy.acts:
            metrics[EPSILON] = self.experiment.epsilon_after(snapshot.round)
        pattern = (self.optimum or {}).get("pattern")
        if pattern is not None and self.experiment.has_shared_model:
            solution = {name: np.asarray(snapshot.solution[name][index]) for name in pattern}
            metrics |= identification_metrics(pattern, solution, self.rows, snapshot.round)
        by_client = {name: values[index] for name, values in snapshot.by_client.items()}
        return self.add_row(counters, metrics, by_client)

    def add_row(
        self, counters: dict[str, float], metrics: dict[str, float], by_client: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """Add an evaluation, with the gap to the reference optimum if that is known, and return the new row.

        Metrics of a shared model are left out if the run has no such model.

        Args:
            by_client: losses and scores of each client, as of ``Measured``.
        """
        if not self.experiment.has_shared_model:
            by_client = {name: values for name, values in by_client.items() if name.startswith(PERSONAL_PREFIX)}
            algorithm_metrics = self.experiment.algorithm_metrics
            metrics = {
                k: value for k, value in metrics.items() if k.startswith(PERSONAL_PREFIX) or k in algorithm_metrics
            }
        elif self.optimum is not None:
            metrics["suboptimality"] = metrics["objective"] - self.optimum["objective"]
        if by_client:
            self.clients.add(int(counters["round"]), by_client)
            metrics |= summarize_clients(by_client, self.experiment.metrics)
        self.rows.append(counters | self.experiment.metrics.sort(metrics))
        return self.rows[-1]

    def resolution(self, objective: float) -> float:
        """Return the smallest gap to the optimum that the run's precision resolves at this objective."""
        precision = "float64" if isinstance(self.experiment.algo, Baseline) else self.experiment.settings.precision
        return GAP_RESOLUTION[precision] * abs(objective)

    @property
    def ended(self) -> bool:
        """True if the run has ended by ``stop``, or has converged."""
        return self.stopped or self.spent

    def check_targets(self) -> bool:
        """Return whether the run has ended by ``stop``; the last evaluation may have just met a target, or a limit.

        The start meets no target: there all clients agree, and a model of zeros violates no constraint. Raises
        UserError for a target on a metric that was not measured.
        """
        if self.experiment.settings.stop and self.rows[-1]["round"] > 0:
            self._check_measured_targets()
            sentence = self._describe_unresolved_gap() or self._describe_met_target()
            self.stopped = bool(sentence)
            if not self.stopped:
                sentence = self._describe_spent_cost()
                self.spent = bool(sentence)
            self.add_reason(sentence)
        return self.ended

    @property
    def has_converged(self) -> bool:
        """Return whether the certificate of the algorithm was rounding at the last evaluation.

        With ``stop`` the user's targets count instead.
        """
        name, row = self._certificate, self.rows[-1]
        if not name:
            return False
        rounding = float(np.finfo(self.experiment.settings.precision).eps) ** _CERTIFICATE_ROUNDING
        return 0 <= row[name] <= rounding * abs(row["objective"])  # NaN before the first round

    def end_converged(self) -> None:
        """End a run that has converged, and note its certificate."""
        name, row = self.experiment.algo.certificate, self.rows[-1]  # type: ignore[union-attr]
        label = self.experiment.metrics[name].label
        self.stopped = True
        self.convergence = (f"ended in round {row['round']}: the {label}, {row[name]:.2g}, is rounding in "
                            f"{self.experiment.settings.precision}")  # fmt: skip

    @property
    def _certificate(self) -> str:
        """The name of the certificate that ends the run; empty without one, or with ``stop``."""
        return "" if self.experiment.settings.stop is not None else getattr(self.experiment.algo, "certificate", "")

    def describe_stalled_certificate(self) -> str:
        """Return a sentence on a certificate that no longer falls, far above rounding; empty for others.

        Rounding of the features' sizes then keeps the run from the optimum, and more rounds do not help.
        """
        name = self._certificate
        if not name or self.stopped or len(self.rows) < _EVALUATIONS_OF_STALL:
            return ""
        values = [row[name] for row in self.rows[-_EVALUATIONS_OF_STALL:]]
        last = self.rows[-1]
        if not values[-1] > _STALLED * abs(last["objective"]) or values[-1] < min(values[:-1]) / 2:
            return ""
        cures = []
        if self.experiment.settings.precision == "float32":
            cures.append("`precision=float64`")
        if getattr(self.experiment.data, "standardize", "") == "none":
            cures.append("`data.standardize=pooled`")
        advice = f": {' or '.join(cures)} may help" if cures else ""
        label = self.experiment.metrics[name].label
        return word(f"the {label} is {values[-1]:.2g} after {last['round']} rounds and no longer falls, so that the "
                    f"run may be far from the optimum{advice}")  # fmt: skip

    def _describe_unresolved_gap(self) -> str:
        """Return a sentence on a duality gap that is rounding, and a target below rounding; empty otherwise.

        More rounds would show no smaller gap, and the target can be neither met nor missed.
        """
        target = (self.experiment.settings.stop or {}).get("gap", np.inf)
        row = self.rows[-1]
        resolution = self.resolution(row.get("objective", 0.0))
        if target >= resolution or not row.get("gap", np.inf) <= resolution:  # NaN while a site is away
            return ""
        return word(f"stopped in round {row['round']}: gap {row['gap']:.3g} is rounding, and `stop.gap={target:g}` is "
                    f"below the rounding of the objective, {resolution:.1g}; give a larger target, or "
                    "`precision=float64`")  # fmt: skip

    def _check_measured_targets(self) -> None:
        """Raise UserError for a target on a metric that was not measured."""
        row = self.rows[-1]
        for name in self.experiment.settings.stop or {}:
            if name != RELATIVE_CHANGE and name not in row:
                measured = [metric for metric in self.experiment.metrics.targets if metric in row]
                raise UserError(
                    f"stop: this run does not measure '{name}': {suggest_name(name, (RELATIVE_CHANGE, *measured))}"
                )

    @property
    def _targets(self) -> dict[str, float]:
        """The targets of ``stop`` that say how good the model is, by metric."""
        stop, metrics = self.experiment.settings.stop or {}, self.experiment.metrics
        return {name: target for name, target in stop.items() if not metrics.is_cost(name)}

    def _describe_spent_cost(self) -> str:
        """Return a sentence on the first cost of which ``stop`` allows no more; empty if there is none.

        Epsilon is bounded: the rounds up to the next evaluation must not pass its limit. Other costs are known when
        they are spent.
        """
        row, settings = self.rows[-1], self.experiment.settings
        for name, limit in (settings.stop or {}).items():
            if not self.experiment.metrics.is_cost(name):
                continue
            if name == EPSILON and self.experiment.privacy.acts:
                ahead = self.experiment.epsilon_after(min(int(row["round"]) + settings.eval_every, settings.rounds))
                if ahead > limit:
                    return f"stopped in round {row['round']}: epsilon {row[name]:.3g}, next {ahead:.3g} > {limit:g}"
            elif row[name] >= limit:
                return f"stopped in round {row['round']}: {name} {row[name]:.3g} >= {limit:g}"
        return ""

    def _describe_met_target(self) -> str:
        """Return a sentence on the first target that the last evaluation has met; empty if it met none."""
        rows, row = self.rows, self.rows[-1]
        for name, target in self._targets.items():
            value = self._target_value(name)
            if self._rises(name):
                met, relation = value >= target, ">="
            else:
                met, relation = value <= target, "<="
            if met:
                sentence = f"stopped in round {row['round']}: {name} {value:.3g} {relation} {target:g}"
                if name != RELATIVE_CHANGE and len(rows) >= 2 and row["round"] - rows[-2]["round"] >= 2:
                    sentence += f", not yet in round {rows[-2]['round']}, the evaluation before"
                return sentence
        return ""

    def describe_missed_targets(self) -> str:
        """Return a sentence on the final values of the targets of ``stop``, all missed; empty for no targets."""
        clauses = []
        for name, target in self._targets.items():
            if name == RELATIVE_CHANGE and self._waits_for_upload:
                clauses.append("change is not known at the end, for no client had uploaded since the evaluation before")
                continue
            side = "below" if self._rises(name) else "above"
            clauses.append(f"{name} was {self._target_value(name):.3g} at the end, {side} {target:g}")
        return f"stop: {', '.join(clauses)}" if clauses else ""

    def _rises(self, name: str) -> bool:
        """Return whether a target is met by values at or above it, of a metric to maximize."""
        return name != RELATIVE_CHANGE and bool(self.experiment.metrics[name].higher)

    def _target_value(self, name: str) -> float:
        """Return the value of a target's metric at the last evaluation.

        The relative change is inf at the first one, and where the run waits for an upload: a model that nobody has
        trained has not come to rest.
        """
        if name != RELATIVE_CHANGE:
            return self.rows[-1][name]
        if len(self.rows) < 2 or self._waits_for_upload:
            return float("inf")
        metric = minimized_metric(self.rows[-1])
        before, now = self.rows[-2][metric], self.rows[-1][metric]
        if now == before:
            return 0.0
        return abs(now - before) / max(abs(now), abs(before))

    @property
    def _waits_for_upload(self) -> bool:
        """True if no client has uploaded since the evaluation before, in rounds in which clients upload."""
        algo, sent = self.experiment.algo, self.message_bytes
        if sent is None or not any(sent.uploads) or len(self.rows) < 2:
            return False
        before, now = self.rows[-2:]
        uploads = isinstance(algo, Algorithm) and algo.computes_round(int(before["round"]))
        return uploads and before["bytes_up"] == now["bytes_up"]

    def check_growth(self) -> None:
        """Mark a run that is over as diverged if its objective grew without bounds."""
        if self.divergence_round or self.stopped:
            return
        sentence = explain_growth(self.rows)
        if sentence:
            self.divergence_reason = sentence
            self.divergence_round = int(self.rows[-1]["round"])

    def add_reason(self, sentence: str) -> None:
        """Add a sentence to the reason, unless it is empty."""
        self.reason = "; ".join(filter(None, (self.reason, sentence)))
