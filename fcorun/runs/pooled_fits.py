"""Fits to all rows in one place: a baseline, and the average of fits to completed tables.

The average of the linear predictors of m linear models is the linear predictor of their average coefficients, so that
predictions that are averaged on the link's scale (Wood, Royston and White, Biom. J. 2015) are those of one model.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from fcorun.base.config import numeric_fields
from fcorun.base.errors import word
from fcorun.base.metrics import COUNTERS, MORE_ROUNDS_ADVICE
from fcorun.base.records.formats import columns_csv
from fcorun.base.system.files import Keyed, check_interrupted
from fcorun.base.system.machine import use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.engine import CompiledPrograms, message_bytes
from fcorun.engine.evaluate import Evaluation
from fcorun.experiment import build
from fcorun.experiment.experiment import PreparedExperiment, measure_remaining_descent
from fcorun.experiment.optimum import resolve_strength
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.methods.problem import path_solver, solver
from fcorun.methods.problem.penalty import Penalty
from fcorun.methods.problem.problem import Batch, Problem
from fcorun.methods.problem.solver import gather_rows
from fcorun.results.models.coefficients import coefficients_from
from fcorun.results.models.inference_problem import InferenceProblem, make_model_rows
from fcorun.results.models.multiple_imputation import GapModel, prepare_imputations
from fcorun.runs.finish import finish_run
from fcorun.runs.job import Job, Progress, RunFollower, Watcher
from fcorun.runs.relaxed_run import evaluate
from fcorun.runs.run_history import RunHistory

_NO_COSTS = dict.fromkeys(("bytes_up", "bytes_down", "grad_evals", "prox_evals"), 0)  # of rows in one place


def run_baseline(job: Job, data: FederatedData, watch: Watcher) -> None:
    """Run a baseline. Each certified iterate of the solver is a row of metrics.csv, whose round is the iteration.

    The programs are compiled during the first steps, and the seconds include this.
    """
    settings, algo = job.experiment.settings, job.experiment.algo
    assert isinstance(algo, Baseline)
    with jax.enable_x64(True):
        problem = build.build_problem(job.experiment, data)
        evaluation = build.build_evaluation(job.experiment, data)
        all_rows = gather_rows(data, settings.client_weighting)
        evaluation_arrays = evaluation.arrays("float64")
        train_slice = algo.select_rows(data.train.offsets)
        train_rows = all_rows
        if train_slice != slice(None) or not data.is_informative.all():
            train_rows = _gather_informative_rows(data, settings.client_weighting, train_slice)
        key = job.experiment.law_key or job.experiment.batch_key
        constants = (numeric_fields(problem.mirror), data.train.offsets.tolist())
        measure = _compile_measure(Keyed(f"{key} {constants}", (problem, evaluation)))
        numbers = numeric_fields(problem.regularizer)
        solved_problem = bind_client_problem(problem, data, train_slice)
        compiled = solver.compile_once(Keyed(job.experiment.problem_key, solved_problem), train_rows.x.shape[1])
        start, progress = time.perf_counter(), Progress()
        for iterate in path_solver.minimize(solved_problem, train_rows, algo.tolerance, algo.max_iterations, compiled):
            counters = {"round": iterate.iteration, "seconds": time.perf_counter() - start, **_NO_COSTS}
            if not np.isfinite(iterate.objective):
                job.divergence_round = max(iterate.iteration, 1)
                break
            measured = evaluation.complete(measure(numbers, iterate.w, all_rows.x, all_rows.y, evaluation_arrays))
            metrics = {name: float(value) for name, value in measured.metrics.items()}
            row = job.add_row(counters, metrics, measured.by_client)
            watch.on_evaluation(job, row)
            progress.log_progress([job], None)
    if not iterate.certified and not job.divergence_round:
        certificate = f"{iterate.certificate_kind} {iterate.certificate:.3g}"
        job.add_reason(f"not certified: {certificate} after {iterate.iteration} iterations")
    job.certificate = {"kind": iterate.certificate_kind, "value": iterate.certificate, "certified": iterate.certified}
    times = {"steady": time.perf_counter() - start, "batched_with": 1}
    finish_run(job, data, {name: np.asarray(value) for name, value in iterate.w.items()}, None, times=times)
    watch.on_end(job)


def _gather_informative_rows(data: FederatedData, client_weighting: str, rows: slice) -> Batch:
    """Return training rows as ``gather_rows`` does, with 0 for features that the loss does not depend on."""
    train = replace(data.train, x=data.informative_features(data.train.x))
    return gather_rows(replace(data, train=train), client_weighting, rows)


@lru_cache(maxsize=2)
def _compile_measure(measured: Keyed[tuple[Problem, Evaluation]]) -> Callable[..., Any]:
    """Return the program of ``Evaluation.measure``, compiled once for each key; the numbers of psi are arguments."""
    problem, evaluation = measured.value
    return jax.jit(lambda psi, w, *rows: evaluation.measure(problem.with_numbers(psi), w, *rows))


def bind_client_problem(problem: Problem, data: FederatedData, rows: slice) -> Problem:
    """Return the problem with the client's numbers of the regularizer if ``rows`` are those of one client."""
    clients = np.flatnonzero((data.train.offsets[:-1] == rows.start) & (data.train.offsets[1:] == rows.stop))
    if not len(clients):
        return problem
    values_per_client = problem.regularizer.per_client or {}
    numbers = {name: float(values[clients[0]]) for name, values in values_per_client.items()}
    return problem.with_numbers(numbers)


# A run with ``imputations``: a fit to each of several completed tables, whose average is the model.

IMPUTATIONS_FILE = "imputations.csv"
_STATES = ("done", "falling", "not certified", "diverged")  # in which a fit ends
_NOT_ADDED = ("round", "seconds", "mean_staleness")  # all other counters add up over the fits


@dataclass
class ImputedFit(RunHistory):
    """The fit to one completed table.

    Attributes:
        solution: the parameters by name.
        state: one of _STATES.
    """

    solution: dict[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    state: str = field(default="done", kw_only=True)


def fit_table(
    experiment: PreparedExperiment, data: FederatedData, number: int, programs: CompiledPrograms
) -> ImputedFit:
    """Return the fit to the completed table with this number, by programs that are compiled for the first one."""
    of_table = experiment.with_resolved()
    vars(of_table)["fingerprint"] = f"{experiment.fingerprint} imputation {number} of {experiment.settings.seed}"
    if isinstance(experiment.algo, Baseline):
        return _solve_table(of_table, data, f"{experiment.batch_key} imputations")
    return _run_on_table(of_table, data, programs)


def _solve_table(experiment: PreparedExperiment, data: FederatedData, key: str) -> ImputedFit:
    """Solve the problem of a baseline on a completed table, by the programs of ``key``."""
    algo = experiment.algo
    assert isinstance(algo, Baseline)
    with jax.enable_x64(True):
        problem = build.build_problem(experiment, data)
        rows = _gather_informative_rows(data, experiment.settings.client_weighting, slice(None))
        compiled = solver.compile_once(Keyed(key, problem), rows.x.shape[1])
        for iterate in path_solver.minimize(problem, rows, algo.tolerance, algo.max_iterations, compiled):  # noqa: B007
            check_interrupted()
        fit = ImputedFit(experiment, rows=[{"round": iterate.iteration, **_NO_COSTS}])
        fit.solution = {name: np.asarray(values) for name, values in iterate.w.items()}
        if not np.isfinite(iterate.objective):
            fit.state = "diverged"
            fit.divergence_round = max(iterate.iteration, 1)
        elif not iterate.certified:
            fit.state = "not certified"
        return fit


def _run_on_table(experiment: PreparedExperiment, data: FederatedData, programs: CompiledPrograms) -> ImputedFit:
    """Run an algorithm on a completed table to its last round."""
    experiment = build.resolve_auto(experiment, data)[0]
    algo = experiment.algo
    assert isinstance(algo, Algorithm)
    point = experiment.numbers()
    if algo.curvature_alternatives:
        least, most = build.compute_curvature_bounds(experiment, data)
        point["curvature"] = {"least": least, "most": most}  # type: ignore[assignment]
    engine = replace(build.build_engine(experiment, data), programs=programs)
    with use_precision(engine.federation.precision):
        sent = message_bytes(engine.federation, algo, experiment.uplink, experiment.downlink)
        fit = ImputedFit(experiment, message_bytes=sent)
        for snapshot in RunFollower(engine, [fit], [point]).follow():  # noqa: B007
            pass
        fit.solution = {name: np.asarray(values[0]) for name, values in snapshot.solution.items()}
    fit.check_growth()
    if fit.divergence_round:
        fit.state = "diverged"
    elif measure_remaining_descent(fit.rows):
        fit.state = "falling"
    return fit


def prepare_tables(experiment: PreparedExperiment, data: FederatedData) -> GapModel:
    """Return the model of the gaps of the training rows. Raises UserError for gaps that cannot be imputed."""
    with jax.enable_x64(True):
        problem = build.build_problem(experiment, data)
        rows = make_model_rows(problem, gather_rows(data, experiment.settings.client_weighting), data.n_clients)
    n_parameters = rows.x.shape[1]
    objective: Any = replace(experiment.objective, ridge=0.0)  # type: ignore[call-arg]
    unpenalized = InferenceProblem(
        experiment=experiment,
        data=data,
        objective=objective,
        rows=rows,
        penalty=Penalty.none(n_parameters),
        theta=np.zeros(n_parameters),
        has_intercept_of_client=np.ones(data.n_clients, bool),
        gap=None,
    )
    return prepare_imputations(unpenalized, experiment.settings.imputations)


def complete_tables(gaps: GapModel) -> Iterator[FederatedData]:
    """Yield the data with the gaps of the training rows drawn by chained equations, once for each imputation.

    Held-out rows keep the values that fill their gaps.
    """
    settings = gaps.problem.experiment.settings
    data = gaps.problem.data
    for drawn in gaps.draw(settings.imputations, settings.seed):
        x = drawn.x[:, : data.train.x.shape[1]].astype(data.train.x.dtype)
        yield replace(data, train=replace(data.train, x=x))


def run_imputed(job: Job, data: FederatedData, watch: Watcher) -> None:
    """Run a job on each completed table, and complete its record with the average of the solutions."""
    began = time.perf_counter()
    experiment = build.bind_objective(job.experiment, data)
    experiment = experiment.with_resolved(reg=resolve_strength(experiment, data))
    job.experiment, job.depends_on_seed = experiment, True
    programs = CompiledPrograms()
    fits = []
    gaps = prepare_tables(experiment, data)
    for table in complete_tables(gaps):
        fits.append(fit_table(experiment, table, len(fits) + 1, programs))
        job.run_folder.log(f"completed table {len(fits)} of {experiment.settings.imputations}: {fits[-1].state}")
    solution = average_solutions([fit.solution for fit in fits])
    last_rows = [fit.rows[-1] if fit.rows else {"round": 0.0} for fit in fits]
    rounds = max(row["round"] for row in last_rows)  # of a baseline, iterations, which differ between the fits
    counters = {"round": rounds, "seconds": time.perf_counter() - began}
    for name in COUNTERS:
        if name not in _NOT_ADDED and any(name in row for row in last_rows):
            counters[name] = sum(row.get(name, 0) for row in last_rows)
    files = {}
    if any(fit.state == "diverged" for fit in fits):
        diverged = {k + 1: fit.divergence_round for k, fit in enumerate(fits) if fit.state == "diverged"}
        noun = "table" if len(diverged) == 1 else "tables"
        numbers = ", ".join(map(str, diverged))
        job.divergence_round = min(diverged.values())
        job.divergence_reason = f"{len(diverged)} of {len(fits)} fits to completed tables diverged ({noun} {numbers})"
    else:
        job.rows = [counters | job.experiment.metrics.sort(evaluate(experiment, data, solution))]
        files = {IMPUTATIONS_FILE: _tabulate(fits, data, experiment)}
        job.add_reason(_describe(fits, gaps))
    states = {state: sum(fit.state == state for fit in fits) for state in _STATES}
    sections = {"imputations": {"tables": len(fits), "ends": states}}
    times = {"compile": programs.compile_seconds, "steady": counters["seconds"], "batched_with": 1}
    finish_run(job, data, solution, None, times=times, files=files, sections=sections)
    watch.on_end(job)


def average_solutions(solutions: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the average of parameters by name, in the type of the parameters."""
    first = solutions[0]
    means = {name: np.mean([each[name] for each in solutions], axis=0, dtype=np.float64) for name in first}
    return {name: mean.astype(first[name].dtype) for name, mean in means.items()}


def _tabulate(fits: list[ImputedFit], data: FederatedData, experiment: PreparedExperiment) -> str:
    """Return imputations.csv: of each coefficient the average, the share of fits in which it is nonzero, each fit."""
    models = [coefficients_from(fit.solution, data, experiment) for fit in fits]
    values = np.stack([model.values for model in models])
    share = np.mean([model.values_exceed(experiment.settings.cutoff) for model in models], axis=0)
    columns = dict(zip(("parameter", "feature", "class"), zip(*models[0].labels, strict=True), strict=True))
    columns |= {"average": values.mean(axis=0).tolist(), "share_nonzero": share.tolist()}
    return columns_csv(columns | {f"fit{k + 1}": of_fit.tolist() for k, of_fit in enumerate(values)})


def _describe(fits: list[ImputedFit], gaps: GapModel) -> str:
    """Return the sentences on the model, on gaps in groups, and on fits that have not converged."""
    text = word(
        f"the model is the average of {len(fits)} fits to completed tables (gaps of training rows drawn by chained "
        f"equations, given the outcome); a coefficient is an average, and {IMPUTATIONS_FILE} has each fit; gaps of "
        "other rows are filled as `data.missing` says"
    )
    if in_groups := gaps.describe_groups():
        text += f"; {in_groups}"
    advice = {
        "falling": f"the objective was still falling at the end; {MORE_ROUNDS_ADVICE}",
        "not certified": word("a larger `algo.max_iterations` may help"),
    }
    for state, sentence in advice.items():
        count = sum(fit.state == state for fit in fits)
        if count:
            text += f"; {count} of {len(fits)} fits: {sentence}"
    return text
