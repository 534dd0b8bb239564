"""Baselines: what is solved in one place, in the form of a run."""

import time

import jax
import numpy as np

from fcorun.algorithms.base import Baseline
from fcorun.datasets.base import FederatedData
from fcorun.engine.evaluate import Evaluation
from fcorun.experiment import reference
from fcorun.experiment.build import build_problem
from fcorun.problem import solver
from fcorun.problem.problem import Problem
from fcorun.runs.finish import finish_run
from fcorun.runs.job import Job, Watcher
from fcorun.runs.progress import Progress


def run_baseline(job: Job, data: FederatedData, watch: Watcher) -> None:
    """Run a baseline: a row a certificate, counted in iterations instead of rounds, and nothing communicated."""
    settings, algo = job.experiment.settings, job.experiment.algo
    problem = build_problem(job.experiment, data)
    assert isinstance(algo, Baseline)
    with jax.enable_x64(True):
        evaluation = Evaluation(data, settings.client_weighting, settings.cutoff)
        everyone, extra = reference.gather_rows(data, settings.client_weighting), evaluation.arrays("float64")
        given = algo.select_rows(data.offsets)
        rows = reference.gather_rows(data, settings.client_weighting, given)
        measured = jax.jit(lambda w, *rows: evaluation.measure(problem, w, *rows))  # rows as arguments, no constants
        clock, progress = time.perf_counter(), Progress()
        for now in solver.minimize(
            bind_client_problem(problem, data, given), rows, algo.tolerance, algo.max_iterations
        ):
            counters = {"round": now.iteration, "seconds": time.perf_counter() - clock}
            counters |= dict.fromkeys(("bytes_up", "bytes_down", "grad_evals", "prox_evals"), 0)
            if not np.isfinite(now.objective):
                job.divergence_round = max(now.iteration, 1)
                break
            found = evaluation.add_ranking(measured(now.w, everyone.x, everyone.y, extra))
            row = job.add_row(counters, {name: float(value) for name, value in found.items()})
            watch.on_evaluation(job, row)
            progress.log_progress([job], None)
    if not now.certified and not job.divergence_round:
        job.add_reason(f"not certified: {now.certificate_kind} {now.certificate:.3g} after {now.iteration} iterations")
    job.certificate = {"kind": now.certificate_kind, "value": now.certificate, "certified": now.certified}
    times = {"compile": 0.0, "steady": time.perf_counter() - clock, "batched_with": 1}
    finish_run(job, data, {name: np.asarray(value) for name, value in now.w.items()}, None, times=times)
    watch.on_end(job)


def bind_client_problem(problem: Problem, data: FederatedData, rows: slice) -> Problem:
    """The problem of whom these rows belong to: of one client, with its own numbers of the regularizer."""
    owner = np.flatnonzero((data.offsets[:-1] == rows.start) & (data.offsets[1:] == rows.stop))
    each = problem.regularizer.per_client or {}
    if not len(owner):
        return problem
    return problem.with_numbers({name: float(values[owner[0]]) for name, values in each.items()})
