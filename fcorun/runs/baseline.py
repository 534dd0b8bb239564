"""Run a baseline: solve the problem on pooled rows, or on one client's, and record the iterates as rounds."""

import time

import jax
import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.build import build_evaluation, build_problem
from fcorun.methods.algorithms.algorithm import Baseline
from fcorun.methods.problem import solver
from fcorun.methods.problem.problem import Problem
from fcorun.methods.problem.solver import gather_rows
from fcorun.runs.finish import finish_run
from fcorun.runs.job import Job, Progress, Watcher


def run_baseline(job: Job, data: FederatedData, watch: Watcher) -> None:
    """Run a baseline. Each certified iterate of the solver is a row of metrics.csv, whose round is the iteration.

    The programs are compiled during the first steps, and the seconds include this.
    """
    settings, algo = job.experiment.settings, job.experiment.algo
    assert isinstance(algo, Baseline)
    with jax.enable_x64(True):
        problem = build_problem(job.experiment, data)
        evaluation = build_evaluation(job.experiment, data)
        all_rows = gather_rows(data, settings.client_weighting)
        evaluation_arrays = evaluation.arrays("float64")
        train_slice = algo.select_rows(data.train.offsets)
        train_rows = gather_rows(data, settings.client_weighting, train_slice)
        measure = jax.jit(lambda w, *rows: evaluation.measure(problem, w, *rows))  # rows as arguments, not constants
        solved_problem = bind_client_problem(problem, data, train_slice)
        start, progress = time.perf_counter(), Progress()
        for iterate in solver.minimize(solved_problem, train_rows, algo.tolerance, algo.max_iterations):
            counters = {"round": iterate.iteration, "seconds": time.perf_counter() - start}
            counters |= dict.fromkeys(("bytes_up", "bytes_down", "grad_evals", "prox_evals"), 0)
            if not np.isfinite(iterate.objective):
                job.divergence_round = max(iterate.iteration, 1)
                break
            metrics = evaluation.add_ranking(measure(iterate.w, all_rows.x, all_rows.y, evaluation_arrays))
            row = job.add_row(counters, {name: float(value) for name, value in metrics.items()})
            watch.on_evaluation(job, row)
            progress.log_progress([job], None)
    if not iterate.certified and not job.divergence_round:
        certificate = f"{iterate.certificate_kind} {iterate.certificate:.3g}"
        job.add_reason(f"not certified: {certificate} after {iterate.iteration} iterations")
    job.certificate = {"kind": iterate.certificate_kind, "value": iterate.certificate, "certified": iterate.certified}
    times = {"steady": time.perf_counter() - start, "batched_with": 1}
    finish_run(job, data, {name: np.asarray(value) for name, value in iterate.w.items()}, None, times=times)
    watch.on_end(job)


def bind_client_problem(problem: Problem, data: FederatedData, rows: slice) -> Problem:
    """Return the problem with the client's numbers of the regularizer if ``rows`` are those of one client."""
    clients = np.flatnonzero((data.train.offsets[:-1] == rows.start) & (data.train.offsets[1:] == rows.stop))
    if not len(clients):
        return problem
    values_per_client = problem.regularizer.per_client or {}
    numbers = {name: float(values[clients[0]]) for name, values in values_per_client.items()}
    return problem.with_numbers(numbers)
