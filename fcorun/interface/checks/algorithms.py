"""Checks that ``fcorun check`` makes of an algorithm: contract, random numbers, equal numbers however runs execute."""

import contextlib
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.system.machine import use_precision
from fcorun.engine.engine import CompiledPrograms, message_bytes
from fcorun.engine.federation import Federation
from fcorun.engine.inspection import BOTH_SIDES, inspect_local
from fcorun.engine.promises import (
    changed_states,
    compute_once,
    explain_gradient_steps,
    explain_gradient_uploads,
    explain_public_uploads,
    explain_sums_messages,
)
from fcorun.engine.round import trace_message_shapes
from fcorun.experiment.build import load_data
from fcorun.experiment.experiment import minimized_metric
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks.algorithm_case import UNINTERRUPTED, AlgorithmCase
from fcorun.interface.checks.problems import (
    Config,
    RecordingProblem,
    flat,
    grid,
    minimize_squares,
    numbers_of,
    numpy_seed,
    ragged,
    record_of,
    snapshots,
    sparse_rows,
)
from fcorun.interface.checks.property_check import (
    Checked,
    NotApplicable,
    find_checks,
    require,
    require_close,
    require_finite,
    require_same_records,
    skip_unless,
)
from fcorun.interface.checks.single_uploads import check_server_of_single_uploads
from fcorun.methods.algorithms.algorithm import Baseline, LocalData
from fcorun.methods.algorithms.output_check import check_parameters
from fcorun.methods.communication.contracts import Identity, counts_uploads
from fcorun.methods.problem.operation_counts import to_arrays
from fcorun.methods.problem.problem import Problem, Vector
from fcorun.runs.job import Watcher

ROUNDS = 3000  # of a run in which an exact algorithm should reach the optimum
FALLING_ROUNDS = 60  # of a run that should lower the objective
CLIENT_SIZES = (12, 20, 16, 30)  # of the clients in that run
CLIENT_INTERCEPTS = "objective.client_intercepts=true"
LOCAL_STEPS = ("local_epochs=null", "local_steps=4")
_RATE_ADVICE = "smaller rates may do, algo.KEY=VALUE"
TOO_LARGE = 1e200  # a rate with which a loss overflows in float64 after one step, however the steps are bounded


# ---------------------------------------------------------------- functions of the algorithm


def check_contract(case: AlgorithmCase) -> None:
    """Require that each function returns the arguments of the next one, with constant shapes.

    An update of the model that has one number for an array of parameters would be added to each of them.
    """
    federation = case.engine.federation
    for upload in federation.shapes.uploads:
        if case.traits.uploads == "updates" and isinstance(upload, Vector):
            for name, shape in federation.problem.shapes.items():
                found = upload[name].shape if name in upload else shape
                require(found == shape or len(found) != len(shape),
                        f"its upload should be an update of the model, with an array {shape} as '{name}', and has an "
                        f"array {found}, which would be broadcast")  # fmt: skip


def check_initial_model(case: AlgorithmCase) -> None:
    """Require that the model before the first round is the initial one, without psi where the algorithm allows that."""
    without_psi = () if case.regularizer_overrides else ("reg=none",)
    federation = case.federation(*without_psi)
    algorithm = federation.algorithm
    problem = federation.problem

    def find_output() -> tuple[Vector, Vector]:
        zeros = problem.zeros(federation.precision)
        start = zeros.map(lambda v: v + jnp.linspace(0.1, 1, v.size, dtype=v.dtype).reshape(v.shape))
        w0 = problem.initial_point(start)
        server, _ = to_arrays(algorithm.init(replace(problem, key_bits=(0, 0)), w0))
        return algorithm.output(problem.for_side("server"), server), w0

    output, w0 = compute_once(find_output)
    for name, value in output.items():
        require_close(f"'{name}' of output() before the first round", value, w0[name], rtol=1e-4, atol=1e-5)


def check_bytes(case: AlgorithmCase) -> None:
    """Require bytes for each message that holds numbers."""
    skip_unless(not counts_uploads(case.algorithm), "its clients count the bytes that they send")
    federation = case.engine.federation
    sizes = message_bytes(federation, federation.algorithm, federation.uplink)
    messages = zip(federation.shapes[:2], (sizes.uploads, sizes.broadcasts), strict=True)
    for sent, counted in messages:
        for message, n_bytes in zip(sent, counted, strict=True):
            require(n_bytes > 0 or not jax.tree.leaves(message), "a message that holds numbers should take some bytes, "
                                                                 "and takes none")  # fmt: skip


def check_prox_steps(case: AlgorithmCase) -> None:
    """Require that the proxes of the first round have steps of at least 0."""
    federation = case.engine.federation
    problem = RecordingProblem.of(federation.problem)
    _trace(federation, problem, compute_once)
    least = min(problem.steps, default=0.0)
    require(least >= 0, f"the step t of problem.prox(w, t) should be 0 or more, and is {least:.6g} in the first round")


def check_received_model(case: AlgorithmCase) -> None:
    """Require that a client takes a gradient at the model that ``received_model`` returns.

    A site looks at that model before it answers.
    """
    solves = case.traits.proximal or case.traits.local_fits
    skip_unless(not solves, "its clients solve problems of their own")
    skip_unless(case.traits.hierarchy != "graph", "it is for a graph")
    federation = case.engine.federation
    algorithm = federation.algorithm
    problem = federation.problem.for_side("client")
    recordings = {name: RecordingProblem.of(federation.problem) for name in ("first_local", "local")}

    def find_models() -> dict[str, Vector]:
        """Return the models that ``received_model`` and ``first_received_model`` return before the recorded calls."""
        data, rows = _first_client(federation)
        data = replace(data, full_batch_steps=2).with_whole_data(jnp.asarray(rows))
        server, client = changed_states(algorithm, problem, federation.precision)
        models = {}
        if algorithm.has_two_exchanges:
            received = algorithm.first_broadcast(server)
            models["first_local"] = algorithm.first_received_model(problem, received, client, data)
            recording = recordings["first_local"].for_side("client")
            upload, client = algorithm.first_local(recording, received, client, data)
            server = algorithm.first_server(problem.for_side("server"), server, upload)
        received = algorithm.broadcast(server)
        models["local"] = algorithm.received_model(problem, received, client, data)
        algorithm.local(recordings["local"].for_side("client"), received, client, data)
        return models

    for name, model in compute_once(find_models).items():
        points = recordings[name].points
        has_point = any(np.allclose(point, flat(model), rtol=1e-4, atol=1e-5) for point in points)
        require(has_point or not points,
                f"{name}() should take a gradient at the model that received_model() returns, and takes none: a site "
                "that keeps its rows looks at that model before it answers")  # fmt: skip


def check_padding(case: AlgorithmCase) -> None:
    """Require that a client sends the same if its rows and its steps are padded, as those of a smaller client are."""
    skip_unless(case.traits.hierarchy != "graph", "it is for a graph")
    federation = case.federation("precision=float64")
    with use_precision(federation.precision):
        data, rows = _first_client(federation)
        batches = rows[: len(rows) // 2 * 2].reshape(2, -1)
        padded_rows = np.concatenate([rows, np.full(len(rows), -1, np.int32)])
        padded_batches = np.pad(batches, ((0, 1), (0, len(rows))), constant_values=-1)
        exact, padded = compute_once(lambda: [
            _uploads_of(case, federation, replace(data, rows=jnp.asarray(steps), uneven_steps=True), whole)
            for whole, steps in ((rows, batches), (padded_rows, padded_batches))
        ])  # fmt: skip
    require_close("an upload of a client whose rows and steps are padded, as those of a client smaller than others "
                  "are (data.n_rows and data.n_steps leave the padding out, len(data.whole.y) and len(data.rows) do "
                  "not),", padded, exact, rtol=1e-6, atol=1e-9)  # fmt: skip


def check_rows_in_gradients(case: AlgorithmCase) -> None:
    """Require that clients see their rows in one gradient of each local step, where their traits say so."""
    skip_unless(case.traits.gradient_steps, "its traits do not say that gradients of steps alone read rows")
    _require_promise(explain_gradient_steps, case)


def check_gradient_uploads(case: AlgorithmCase) -> None:
    """Require uploads of -client_lr times the gradient of one step, where the traits say so."""
    skip_unless(case.traits.gradient_uploads, "its traits do not say that uploads are gradients")
    _require_promise(explain_gradient_uploads, case)


def check_public_uploads(case: AlgorithmCase) -> None:
    """Require that public entries of uploads do not depend on rows, states or keys of clients."""
    skip_unless(case.traits.public_uploads, "its traits name no public entries")
    _require_promise(explain_public_uploads, case)


def check_sums_of_messages(case: AlgorithmCase) -> None:
    """Require that the server's state is the sum of messages, where the traits say so."""
    skip_unless(case.traits.sums_messages, "its traits do not say that the server sums messages")
    _require_promise(explain_sums_messages, case)


def _require_promise(explain: Callable[[Federation], str], case: AlgorithmCase) -> None:
    """Raise Violation for a promise on which privacy counts, as ``explain`` says why it is broken."""
    broken = explain(case.engine.federation)
    require(not broken, broken)


def _uploads_of(case: AlgorithmCase, federation: Federation, steps: LocalData, whole: np.ndarray) -> jax.Array:
    """Return the numbers that a client with these ``whole`` rows sends in a round that begins at changed states."""
    algorithm = federation.algorithm
    problem = federation.problem.for_side("client")
    if case.traits.deterministic:
        steps = replace(steps, full_batch_steps=2)

    data = steps.with_whole_data(jnp.asarray(whole))
    server, client = changed_states(algorithm, problem, federation.precision)
    uploads = []
    if algorithm.has_two_exchanges:
        upload, client = algorithm.first_local(problem, algorithm.first_broadcast(server), client, data)
        server = algorithm.first_server(federation.problem.for_side("server"), server, upload)
        uploads.append(upload)
    uploads.append(algorithm.local(problem, algorithm.broadcast(server), client, data)[0])
    return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(leaf) for leaf in jax.tree.leaves(uploads))])


def _first_client(federation: Federation) -> tuple[LocalData, np.ndarray]:
    """Return data of the first client alone, without rows of steps, and the numbers of its rows."""
    n_rows = int(federation.data.train.sizes[0])
    rows = np.arange(n_rows, dtype=np.int32)
    train = federation.data.train
    x, y = (jnp.asarray(v[:n_rows], federation.precision) for v in (train.x, train.y))
    return LocalData(x, y, jnp.asarray(rows[None]), federation.precision), rows


def check_random_numbers(case: AlgorithmCase) -> None:
    """Require that each trace of the functions gives the same program: random numbers come from data.key alone."""
    programs = []

    def record_program(functions: Callable) -> Any:
        program = jax.make_jaxpr(functions)()
        arrays = [const for const in program.consts if isinstance(const, (np.ndarray, jax.Array))]
        constants = [np.asarray(array).tolist() for array in arrays]
        programs.append(re.sub("0x[0-9a-f]+", "", f"{program.jaxpr} {constants}"))
        return jax.eval_shape(functions)

    for seed in (1, 2):
        federation = case.federation()
        with numpy_seed(seed):
            _trace(federation, federation.problem, record_program)
    first, second = programs
    require(first == second, "its functions, traced twice, should give the same program, and do not: they use random "
                             "numbers of NumPy or Python, or the time; draw from data.key")  # fmt: skip


def _trace(federation: Federation, problem: Problem, shape_of: Callable) -> None:
    """Trace the first round of a federation with another problem, by ``shape_of``."""
    parts = (federation.algorithm, problem, federation.data, federation.schedule)
    trace_message_shapes(*parts, dtype=federation.precision, shape_of=shape_of)


def check_local_steps(case: AlgorithmCase) -> str:
    """Require that any random numbers in local() come from data.key, and that its gradients and proxes can be counted.

    Returns the remark that both sides of a ``where`` count, if local() has one.
    """
    check_parameters(case.algorithm)
    sentences = inspect_local(case.engine.federation)
    remarks = [sentence for sentence in sentences if BOTH_SIDES in sentence]
    violations = [sentence for sentence in sentences if BOTH_SIDES not in sentence]
    require(not violations, "; ".join(violations))
    return "; ".join(remarks)


# ---------------------------------------------------------------- runs of the algorithm


class _Interruption(KeyboardInterrupt):
    """An interruption by a check instead of the user."""


class _InterruptAfter(Watcher):
    """A watcher that interrupts a run after a round."""

    def __init__(self, round_: int):
        self.round = round_

    def on_evaluation(self, job, row):
        if row["round"] == self.round:
            raise _Interruption


def check_objective_falls(case: AlgorithmCase) -> None:
    """Require that a run lowers the metric it minimizes: the objective, or the training loss of personal models."""
    config = case.config(f"rounds={FALLING_ROUNDS}")
    first, *_, last = snapshots(config, engine=replace(case.engine, rounds=FALLING_ROUNDS))
    run_name = f"a run of {FALLING_ROUNDS} rounds"
    require(
        not last.diverged[0], f"{run_name} should not diverge, and does in round {last.diverged[0]}: {_RATE_ADVICE}"
    )
    name = minimized_metric(last.metrics)
    start, end = (snapshot.metrics[name][0] for snapshot in (first, last))
    require(end < start, f"{name} should fall in {run_name}, and goes from {start:.6g} to {end:.6g}: {_RATE_ADVICE}")


def check_client_intercepts(case: AlgorithmCase) -> None:
    """Require that a run with intercepts of clients, which the clients eliminate, lowers the objective.

    The experiment may also be refused, by a sentence that names the algorithm.
    """
    options = ("objective.intercept=true", CLIENT_INTERCEPTS, "batch_size=null")
    config = case.config(*options, f"rounds={FALLING_ROUNDS}", f"eval_every={FALLING_ROUNDS}")
    try:
        prepare(config)
    except UserError as error:
        require(f"algo={case.name}" in str(error), f"a refusal of {CLIENT_INTERCEPTS} should name it, and is: {error}")
        return
    skip_unless(not case.reaches_optimum_with_intercepts, "its run to the optimum has intercepts of clients, too")
    first, last = snapshots(config)
    require(set(last.solution) == {"weights"}, "its model should have the weights alone, with no intercept")
    start, end = (snapshot.metrics["objective"][0] for snapshot in (first, last))
    require(end < start, f"objective should fall with {CLIENT_INTERCEPTS}, and goes from {start:.6g} to {end:.6g}")


def check_repeatability(case: AlgorithmCase) -> None:
    """Require that a second run gives the same numbers to the last bit."""
    with tempfile.TemporaryDirectory() as folder:
        second = record_of(case.config(*UNINTERRUPTED), Path(folder, "second"))
        require_same_records("a second run", second, case.uninterrupted)


def check_resuming(case: AlgorithmCase) -> None:
    """Require that a resumed run ends with the numbers of an uninterrupted one, to the last bit."""
    config = case.config(*UNINTERRUPTED)
    with tempfile.TemporaryDirectory() as folder:
        interrupted = Path(folder, "interrupted")
        with contextlib.suppress(_Interruption):
            record_of(config, interrupted, _InterruptAfter(2))
        resumed = record_of(config, interrupted)
        log = (resumed.folder / "run.log").read_text(encoding="utf-8")
        require("resumes after round 2" in log, "a run that was interrupted after round 2 should resume from there")
        require_same_records("a run resumed after round 2", resumed, case.uninterrupted)


def check_grid_equals_single_runs(case: AlgorithmCase) -> str:
    """Require that runs in a grid give the numbers of single runs, even if another run of the grid diverges.

    Returns a remark that names the numbers of the algorithm that lead to the same solution where they alone change.
    """
    base = case.float64_config
    values = case.float64_numbers
    require(bool(values), "an algorithm should have at least one real number, a field of type float or Positive")

    def change_number(key: str) -> Config:
        """Return a configuration with half of a number, or with twice the number where half is refused."""
        half = case.scale_numbers(1, {f"algo.{key}": [0.5 * values[key]]})
        try:
            numbers_of(half)
        except UserError:
            return case.scale_numbers(1, {f"algo.{key}": [2 * values[key]]})
        return half

    points = [case.scale_numbers(1), *map(change_number, values), *grid(base, {case.regularizer_number: [0.3]})]
    diverges = case.has_field("client_lr") and not prepare(base).privacy.acts  # messages that overflow count as 0 there
    diverging = grid(base, {"algo.client_lr": [TOO_LARGE]}) if diverges else []
    batch = snapshots(*points, *diverging)
    last = batch[-1]
    for g, round_ in enumerate(last.diverged):
        name = f"run {g + 1} of a grid of {len(last.diverged)} should"
        if g < len(points):
            require(round_ == 0, f"{name} not diverge, and does in round {round_}")
        else:
            require(round_ > 0, f"{name} diverge, since its client_lr is {TOO_LARGE:g}, and does not")
    for name, value in last.solution.items():
        require_finite(f"'{name}' in a grid, where a run that diverged stays as it was before,", value)
    tolerance = case.tolerance
    metrics = ("objective", "train_loss", "val_loss", *(metric.name for metric in case.algorithm.declared_metrics))
    for g, point in enumerate(points):
        for of_batch, single in zip(batch, snapshots(point, engine=case.float64_engine), strict=True):
            for kind in ("solution", "client_models"):
                for name, value in (getattr(single, kind) or {}).items():
                    label = f"'{name}' in a grid, compared with the single run,"
                    require_close(label, getattr(of_batch, kind)[name][g], value[0], rtol=tolerance, atol=tolerance)
            for name in metrics:
                label = f"{name} in a grid, compared with the single run,"
                pair = (of_batch.metrics[name][g], single.metrics[name][0])
                require_close(label, *pair, rtol=tolerance, atol=1e-20)  # a certificate is the square of rounding
    ends = last.client_models or last.solution
    first, *others, strong = (flat({name: value[g] for name, value in ends.items()}) for g in range(len(points)))
    require(not case.traits.psi_sides or not np.array_equal(first, strong),
            f"{case.regularizer_number}=0.3 should lead to another solution, and leads to the same: psi does not reach "
            "the run, as in a prox whose step is 0")  # fmt: skip
    without_effect = []
    for (key, value), other in zip(values.items(), others, strict=True):
        # a solver's tolerance need not be seen in the solution, nor the ridge of fits that are expanded, nor half of 0
        may_leave_same = key in ("tolerance", "ridge") or not np.any(value)
        if not may_leave_same and np.allclose(first, other, rtol=1e-9, atol=0.0):
            without_effect.append(f"algo.{key}")
    same = "leads to the same solution here: check that its functions use it"
    return f"another {' or '.join(without_effect)} {same}" if without_effect else ""


def check_sparse_rows(case: AlgorithmCase) -> str:
    """Require that sparse rows lead to the numbers of the same rows in a dense table, or are refused.

    Returns the sentence of the refusal.
    """
    options = (f"algo={case.name}", *case.required_overrides, *case.overrides, *case.exact_overrides)
    if case.algorithm.needs_equal_weights:
        options = (*options, "client_weighting=uniform")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            sparse = record_of(sparse_rows(folder, *options, "data.sparse=true"), folder / "sparse")
        except UserError as error:
            require("are sparse" in str(error), f"a refusal of sparse rows should say so, and is: {error}")
            return str(error)
        dense = record_of(sparse_rows(folder, *options, "data.sparse=false"), folder / "dense")
        tolerance = case.tolerance if case.has_field("iterations") else 1e-12
        pairs: list[tuple[dict, dict]] = [(dense.solution, sparse.solution), (dense.personal, sparse.personal)]
        n_dense, n_sparse = len(dense.rows), len(sparse.rows)
        require(n_dense == n_sparse, "sparse rows should lead to as many evaluations as dense ones, and lead to "
                                     f"{n_sparse} instead of {n_dense}")  # fmt: skip
        pairs.extend(zip(dense.rows, sparse.rows, strict=True))
        for of_dense, of_sparse in pairs:
            differing = ", ".join(sorted(of_dense.keys() ^ of_sparse.keys()))
            require(not differing, f"sparse and dense rows should lead to the same columns, and one lacks: {differing}")
            for key, expected in of_dense.items():
                if key == "seconds" or np.asarray(expected).dtype.kind != "f":
                    continue
                size = np.max(np.abs(np.nan_to_num(expected)), initial=1.0)
                label = f"{key} of sparse rows, compared with dense ones,"
                require_close(label, of_sparse[key], expected, atol=tolerance * size)
    return ""


def check_declared_metrics(case: AlgorithmCase) -> None:
    """Require finite values of the metrics that the algorithm declares, and monotone ones that never fall."""
    metrics = case.algorithm.declared_metrics
    skip_unless(metrics, "it declares no metrics")
    for metric in metrics:
        values = [row[metric.name] for row in case.uninterrupted.rows]
        require_finite(f"the metric '{metric.name}'", values[1:])  # the start may lack it
        falls = metric.monotone and bool((np.diff(values) < 0).any())
        require(not falls, f"the metric '{metric.name}' is declared monotone and should never fall, and is {values}")


def check_rounds_without_messages(case: AlgorithmCase) -> None:
    """Require that rounds in which nothing is sent change neither the model nor the counts of operations."""
    last = case.algorithm.computed_rounds
    if last is None:
        raise NotApplicable("it sends in all rounds")
    taken = snapshots(case.config("precision=float64", f"rounds={last + 2}", "eval_every=1"))
    for snapshot in taken[last + 1 :]:
        require((snapshot.work == taken[last].work).all(), "rounds in which nothing is sent should cost nothing")
        for name, value in taken[last].solution.items():
            require((snapshot.solution[name] == value).all(), f"'{name}' changed in a round in which nothing is sent")


def check_restores_domain(case: AlgorithmCase) -> None:
    """Require a point of the constraint's set from a mean of messages that lies outside, in the algorithm's states."""
    skip_unless(case.traits.restores_domain, "its traits do not say that it restores the domain")
    require_restored_domain(case)


def require_restored_domain(case: AlgorithmCase) -> None:
    """Raise Violation for a point outside of the set of reg=simplex after a mean of messages that lies outside."""
    federation = case.federation("reg=simplex", "objective.intercept=false")
    algorithm = federation.algorithm
    problem = federation.problem
    node, _ = to_arrays(algorithm.init(problem, problem.initial_point(problem.zeros(federation.precision))))
    mean = jax.tree.map(lambda v: v + jnp.sin(jnp.arange(v.size, dtype=v.dtype)).reshape(v.shape), node)
    state = algorithm.root(problem.for_side("client"), node, algorithm.edge_upload(mean))
    for name, value in algorithm.output(problem.for_side("server"), state).items():
        distance = float(problem.regularizer.violation(value))  # type: ignore[attr-defined]
        require(distance < 1e-5, f"'{name}' should be in the set of reg=simplex after a mean outside of it, for its "
                                 f"traits say restores_domain=True, and is {distance:.2g} away")  # fmt: skip


# ---------------------------------------------------------------- precision and devices


def check_float64(case: AlgorithmCase) -> None:
    """Require float64 states with precision=float64, and numbers that differ from float32 by rounding alone.

    Numbers of algorithms that draw random numbers are not compared.
    """
    config = case.config(*UNINTERRUPTED, "precision=float64", *case.exact_overrides)
    last = snapshots(config, engine=replace(case.float64_engine, rounds=config["rounds"]))[-1]
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(last.state)}
    require("float32" not in dtypes, "with precision=float64 all states should be in float64, and some are in float32")
    federation = case.engine.federation
    if federation.shapes.accessed & {"key_bits", "server_key"} or not all(
        isinstance(channel, Identity) for channel in (federation.uplink, federation.downlink)
    ):
        return  # jax.random draws other numbers in another precision
    row = case.uninterrupted.rows[-1]
    for name in {"objective", "train_loss", "personal_train_loss"} & set(row):
        require_close(f"{name} in float32, compared with float64,", row[name], last.metrics[name][0], rtol=1e-3)


def check_two_devices(case: AlgorithmCase) -> None:
    """Require the numbers and counts of one device on two devices."""
    skip_unless(jax.local_device_count() > 1, "there is only one device")
    config = case.config("precision=float64", "rounds=2")
    engine = replace(case.float64_engine, rounds=2)
    *_, one = snapshots(config, engine=engine)
    # the cohort of 3 clients is padded on two devices
    *_, two = snapshots(config, engine=replace(engine, devices=2, programs=CompiledPrograms()))
    for kind in ("solution", "metrics", "state", "client_models"):
        pairs = zip(jax.tree.leaves(getattr(two, kind)), jax.tree.leaves(getattr(one, kind)), strict=True)
        for actual, expected in pairs:
            size = np.nanmax(np.abs(np.asarray(expected, float)), initial=1e-3)
            # rounding of sums in another order, which the solves of a second-order method enlarge
            require_close(f"the {kind} of two devices", actual, expected, atol=1e-11 * size)
    allowed = 0.02 if case.has_field("tolerance") or case.has_field("iterations") else 0.0
    require_close("the gradients and proxes that two devices count", two.work, one.work, rtol=allowed)


# ---------------------------------------------------------------- the fixed point of the algorithm


def check_reaches_optimum(case: AlgorithmCase, cohorts: Sequence[str] = ("null",)) -> None:
    """Require that an exact algorithm reaches the optimum with full gradients and several steps on unlike clients.

    ``cohorts`` are values of clients_per_round to test; ``traits.exact`` promises the optimum for "null", all clients.
    """
    skip_unless(case.traits.exact, "its traits do not say that it is exact")
    for reg in {"smooth": ("none",), "composite": ("none", "l1")}[case.traits.exact]:
        for cohort in cohorts:
            _require_optimum(case, reg, cohort)
    if case.reaches_optimum_with_intercepts:
        _require_optimum(case, reg, cohort, CLIENT_INTERCEPTS, "batch_size=null")


def _require_optimum(case: AlgorithmCase, reg: str, cohort: str, *options: str) -> None:
    overrides = [f"algo={case.name}", f"reg={reg}", f"clients_per_round={cohort}", *options]
    if reg == "l1":
        overrides.append("reg.strength=0.3")
    if not case.traits.deterministic:
        overrides.extend(LOCAL_STEPS)
    overrides.extend(case.topology_overrides)
    overrides.extend([*case.overrides, f"rounds={ROUNDS}", f"eval_every={ROUNDS // 2}"])
    with tempfile.TemporaryDirectory() as folder:
        sizes = CLIENT_SIZES[-1:] * len(CLIENT_SIZES) if case.algorithm.needs_equal_weights else CLIENT_SIZES
        config = ragged(Path(folder), *overrides, sizes=sizes)
        experiment = prepare(config)
        data = load_data(experiment)
        client = data.train.known_client if CLIENT_INTERCEPTS in options else None
        optimum = minimize_squares(data.train.x, data.train.y, client, {"none": 0.0, "l1": 0.3}[reg])
        points = [
            flat({name: value[0] for name, value in snapshot.solution.items()}) for snapshot in snapshots(config)[1:]
        ]
    half, end = (float(np.abs(point - optimum).max()) for point in points)
    clients = "all clients" if cohort == "null" else f"{cohort} of {len(CLIENT_SIZES)} clients"
    advice = "it still approaches: give larger rates, algo.KEY=VALUE" if end < 0.9 * half else "it does not approach"
    require(end <= 1e-8, f"with reg={reg} and {clients} in each round, parameters should come to 1e-8 of the optimum "
                         f"in {ROUNDS} rounds, for its traits say exact={case.traits.exact}, and are {end:.2g} away "
                         f"({half:.2g} after half of the rounds): {advice}")  # fmt: skip


def check_certificate(case: AlgorithmCase) -> None:
    """Require that a run ends by the algorithm's certificate at the optimum alone, in either precision."""
    name = case.algorithm.certificate
    skip_unless(name, "it declares no certificate")
    for precision in ("float32", "float64"):
        config = case.config("rounds=30", "eval_every=1", "reference=true", f"precision={precision}")
        with tempfile.TemporaryDirectory() as folder:
            record = record_of(config, Path(folder, "run"))
            last = record.rows[-1]
            ended = "convergence" in record.summary
        gap = last["suboptimality"] / max(abs(last["objective"]), float(np.finfo(precision).tiny))
        require(not ended or gap <= 1e-5,
                f"the certificate '{name}' ends a run in {precision} in round {last['round']}, whose objective should "
                f"be the optimum to 1e-5 and is {gap:.2g} above, relative to its size")  # fmt: skip


CHECKS = (*find_checks(__name__), check_server_of_single_uploads)


def list_checks(name: str, overrides: Sequence[str]) -> Checked:
    """Yield the checks of ``algo=NAME``, of a baseline that it repeats itself."""
    case = AlgorithmCase(name, tuple(overrides))
    if isinstance(case.algorithm, Baseline):
        yield f"algo={name}, a baseline, in one place", [check_repeatability, check_sparse_rows], case
    else:
        yield f"algo={name}", CHECKS, case
