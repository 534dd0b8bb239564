"""The engine: compiles programs, and alternates rounds and evaluations of a batch of runs."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcorun.base.errors import UserError
from fcorun.engine.clients import Devices
from fcorun.engine.device_rows import DeviceRows
from fcorun.engine.federation import Federation, Numbers
from fcorun.engine.round import MessageShapes
from fcorun.engine.segments.client_states import ClientStateFile, RemoteStates
from fcorun.engine.segments.row_fetching import block_length, bytes_per_round
from fcorun.engine.segments.run_loop import RunLoop, Segments, Snapshot
from fcorun.engine.traffic import Traffic
from fcorun.methods.algorithms.algorithm import Algorithm, PyTree
from fcorun.methods.communication.contracts import Channel, MessageBytes, counts_uploads
from fcorun.methods.problem.operation_counts import tree_bytes

# What is known of a run before it runs: bytes of memory (estimates), bytes sent (exact), dependence on the seed.


def _state(federation: Federation, point: Numbers) -> Any:
    """Return the shapes of the state of one run."""
    structure = jax.tree.structure(point)
    if structure not in federation.state_shapes:
        keys = federation.initial_keys([0]), federation.noise_keys([0])
        arguments = (federation.stack_numbers([point]), federation.initial_duals([0]), *keys)
        federation.state_shapes[structure] = federation.shape_of(federation.initial_state, *arguments)
    return federation.state_shapes[structure]


def state_structure(federation: Federation, point: Numbers) -> Any:
    """Return the pytree structure of the state of a run."""
    return jax.tree.structure(_state(federation, point))


def bytes_per_run(federation: Federation, point: Numbers, seeds: Sequence[int]) -> int:
    """Estimate the bytes of memory of each further run of a batch with these seeds: states, local work, predictions.

    A subset has predictions of all rows on the device.
    """
    data, subset = federation.data, federation.subset
    validation_rows = 0 if data.validation is None else len(data.validation)
    rows = len(data.train) + validation_rows if subset is None else len(subset.y)
    if federation.evaluates_blocks:
        rows = min(rows, block_length(data.train, federation.precision))
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    clients = federation.layout.chunk_width(len(seeds), len(set(seeds)) == 1)
    state = tree_bytes(_state(federation, point))
    arrays_of_rows = 8 if federation.evaluation.gap else 4
    predictions = arrays_of_rows * rows * outputs * np.dtype(federation.precision).itemsize
    uploads = clients * tree_bytes(federation.shapes.uploads)
    return (6 + clients) * state + uploads + predictions + clients * federation.layout.client_bytes()


def upload_bytes_at_once(federation: Federation) -> int:
    """Return the bytes of the uploads of the clients that are computed together."""
    return federation.layout.chunk_width(1, True) * tree_bytes(federation.shapes.uploads)


def min_bytes_per_run(federation: Federation, point: Numbers) -> int:
    """Return a lower bound on the bytes of memory of a run, as measured on a processor.

    They are three times its state: before a round, after it, and in its work; and the uploads of one chunk of clients.
    """
    return 3 * tree_bytes(_state(federation, point)) + upload_bytes_at_once(federation)


def prefetch_bytes(federation: Federation) -> int:
    """Return the bytes of rows fetched from disk for a round of one seed and for the next round, at least 1."""
    if not federation.fetches_rows:
        return 1
    whole = federation.needs_whole_data
    return 2 * bytes_per_round(federation.data, federation.schedule, federation.precision, whole)


def subset_bytes(federation: Federation, copies_rows: bool) -> int:
    """Estimate the bytes of a subset besides its runs: its clients' gathered batches, and its rows if it copies them.

    A subset copies rows that were standardized anew.
    """
    schedule, subset = federation.schedule, federation.subset
    assert subset is not None
    gathered = federation.layout.gathered_rows if schedule.full_batch_steps else 0
    rows = copies_rows * len(subset.y) + gathered
    return rows * federation.data.train.numbers_per_row * subset.x.dtype.itemsize


def message_bytes(
    federation: Federation, algorithm: Algorithm, uplink: Channel, downlink: Channel | None = None
) -> MessageBytes:
    """Return the bytes of the messages of this algorithm on this uplink and this downlink, by default the federation's.

    Raises UserError where these are no whole numbers.
    """
    shapes, cohort_size = federation.shapes, federation.schedule.cohort_size
    downlink = downlink or federation.downlink
    uploads, broadcasts = [], []
    for upload, broadcast in zip(shapes.uploads, shapes.broadcasts, strict=True):
        declared = _check_bytes(algorithm.upload_bytes_for(federation.problem, upload), "upload_bytes", algorithm)
        uploads.append(_check_bytes(uplink.upload_bytes(upload, declared), "upload_bytes", uplink))
        declared = _check_bytes(algorithm.broadcast_bytes(broadcast), "broadcast_bytes", algorithm)
        broadcasts.append(_check_bytes(downlink.upload_bytes(broadcast, declared), "upload_bytes", downlink))
    if federation.privacy.adapts_clip:  # a bit goes up, in a byte, and the clip comes down
        uploads[-1] += 1
        broadcasts[-1] += np.dtype(federation.precision).itemsize
    idle_clients = _count_idle_clients(algorithm, cohort_size)
    declared = algorithm.edge_upload_bytes(shapes.edge_upload)
    edge_upload = _check_bytes(declared, "edge_upload_bytes", algorithm)
    if federation.topology.has_nodes:
        edge_upload = _check_bytes(uplink.upload_bytes(shapes.edge_upload, edge_upload), "upload_bytes", uplink)
    edge_broadcast = algorithm.broadcast_bytes(shapes.broadcasts[-1])  # edges receive what the root sends unchanged
    return MessageBytes(tuple(uploads), tuple(broadcasts), edge_upload, edge_broadcast, idle_clients)


def counted_broadcast_bytes(federation: Federation, state: PyTree, run: int) -> int:
    """Return the bytes of broadcasts to all clients that the downlink has counted in a run."""
    if not federation.channels.has_downlink:
        return 0
    downlink, cohort_size = federation.downlink, federation.schedule.cohort_size
    n_exchanges = len(federation.shapes.broadcasts)
    downlink_memories = state["memory"][n_exchanges : 2 * n_exchanges]  # they follow those of the uplink
    memories = jax.tree.map(lambda v: np.asarray(v[run]), downlink_memories)
    listeners = federation.topology.count_listeners(federation.links)
    if listeners is None:
        by_exchange = tuple(downlink.counted_bytes(memory) for memory in memories)
        idle_clients = _count_idle_clients(federation.algorithm, cohort_size)
        return MessageBytes((), by_exchange, idle_clients=idle_clients).bytes_down(cohort_size)
    of_edges = [[jax.tree.map(lambda v, e=e: v[e], memory) for e in range(len(listeners))] for memory in memories]
    return sum(
        int(count) * downlink.counted_bytes(memory)
        for edges in of_edges
        for count, memory in zip(listeners, edges, strict=True)
    )


def counted_upload_bytes(federation: Federation, state: PyTree, run: int) -> int:
    """Return the bytes of uploads that the clients of a run have counted in their states or memories."""
    algorithm, uplink = federation.algorithm, federation.uplink
    if federation.frozen or not (counts_uploads(algorithm) or counts_uploads(uplink)):
        return 0
    states, memories, *_ = jax.tree.map(lambda v: np.asarray(v[run]), state["clients"])
    counted = _check_bytes(algorithm.counted_upload_bytes(states), "counted_upload_bytes", algorithm)
    for memory in memories[: len(federation.shapes.through_uplink(federation.topology))]:
        counted += _check_bytes(uplink.counted_upload_bytes(memory), "counted_upload_bytes", uplink)
    return counted


def _count_idle_clients(algorithm: Algorithm, cohort_size: int) -> int:
    """Return how many clients of a cohort do not communicate in the second exchange.

    Raises UserError for an algorithm that lets more clients communicate than the cohort has.
    """
    count = algorithm.count_local_clients(cohort_size)
    if not isinstance(count, (int, np.integer)) or not 0 <= count <= cohort_size:
        raise UserError(
            f"count_local_clients({cohort_size}) of {type(algorithm).__name__} must return how many of the "
            f"{cohort_size} clients of the cohort communicate in the second exchange, and returned {count!r}: return "
            f"a whole number of at most {cohort_size}"
        )
    return cohort_size - int(count)


def _check_bytes(size: object, name: str, plugin: Algorithm | Channel) -> int:
    if not isinstance(size, (int, np.integer)) or size < 0:
        raise UserError(
            f"{name}() of {type(plugin).__name__} must return a whole number, not {size!r}: round up to whole bytes"
        )
    return int(size)


def build_traffic(federation: Federation, rounds: int, seed: int) -> Traffic:
    """Return the exact counter of the bytes and the times of a run with this seed."""
    has_uneven_rounds = type(federation.algorithm).round_bytes is not Algorithm.round_bytes
    return Traffic(
        topology=federation.topology,
        links=federation.links,
        schedule=federation.schedule.with_seed(seed),
        rounds=rounds,
        frozen=federation.frozen,
        sending_rounds=federation.algorithm.computed_rounds,
        sizes_of_round=federation.algorithm.round_bytes if has_uneven_rounds else None,
    )


def needs_state_file(federation: Federation, point: Numbers) -> bool:
    """Return whether clients have states that are stored in files: those of generated clients."""
    if not federation.schedule.generated_clients:
        return False
    return bool(jax.tree.leaves(_state(federation, point)["clients"]))


def program_key(federation: Federation) -> str:
    """Return a key that is equal for subsets that share programs, given arguments of the same shapes."""
    schedule = federation.schedule
    shape = [federation.data.n_clients, schedule.cohort_size, schedule.full_batch_steps, schedule.uneven_steps]
    client_numbers = {name: values.tolist() for name, values in federation.regularizer_numbers.items()}
    links = jax.tree.map(lambda values: values.tolist(), federation.links)
    max_client_rows = None if federation.subset is None else federation.subset.max_client_rows.tolist()
    validated = None  # which clients are, for the metrics of personal models
    if federation.algorithm.has_personal_models and federation.data.validation_offsets is not None:
        validated = (federation.evaluation.validation_client_weights > 0).tolist()
    return repr(
        (
            federation.problem.shapes,
            shape,
            max_client_rows,
            client_numbers,
            client_numbers and federation.problem.regularizer,
            links,
            validated,
        )
    )


def depends_on_seed(federation: Federation) -> bool:
    """Return whether a run depends on its seed: by cohorts, minibatches, links, start, times, channels or noise.

    Shared uniforms and noise count as soon as clients access them, whatever the probabilities.
    """
    objective, schedule, rng = federation.problem.objective, federation.schedule, np.random.default_rng(0)
    initial_rng_state = rng.bit_generator.state
    if federation.w0 is None:
        objective.initial_parameters(federation.problem.shapes, rng)
    if rng.bit_generator.state != initial_rng_state:
        return True
    if not schedule.takes_all_clients or not schedule.full_batch_steps or federation.topology.redraws_links:
        return True
    if schedule.faults.acts or federation.privacy.acts:
        return True
    if schedule.times is not None and schedule.times.speeds.variation > 0:
        return True
    return any(channel.uses_key for channel in federation.channels) or not federation.shapes.accessed <= {"whole"}


# The engine: compiles programs, and alternates rounds and evaluations of a batch of runs.

RESULTS_VERSION = 14  # raise it whenever the same configuration gives other numbers, so that old records are not reused


@dataclass
class CompiledPrograms:
    """Functions of arrays, each compiled once for arguments of the same shapes, by the first thread that needs it.

    Attributes:
        compile_seconds: the time spent compiling.
        compiled: the programs, by the function's name, and the structure, shapes and dtypes of the arguments.
        shapes: the shapes of messages, once an engine that shares the programs has traced them.
        state_shapes: as of ``Federation``.
        lock: held while a thread compiles.
    """

    compile_seconds: float = 0.0
    compiled: dict = field(default_factory=dict, repr=False)
    shapes: MessageShapes | None = None
    state_shapes: dict = field(default_factory=dict, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def estimated_recompile_seconds(self) -> float:
        """Estimate the time to compile two programs, rounds and evaluation, for another number of runs."""
        return 2 * self.compile_seconds / max(len(self.compiled), 1)

    def get(self, function: Callable, *arguments: Any) -> Callable:
        """Return the program of a function for arguments of these shapes."""
        leaves, structure = jax.tree.flatten(arguments)
        key = function.__name__, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        with self.lock:
            if key not in self.compiled:
                before = time.perf_counter()
                self.compiled[key] = jax.jit(function).lower(*arguments).compile()
                self.compile_seconds += time.perf_counter() - before
            return self.compiled[key]


@dataclass(frozen=True)
class Engine:
    """Runs of a federation, evaluated every ``eval_every`` rounds.

    Several threads may call ``run`` at once; they share the compiled programs. On several ``devices``, the runs of a
    batch are sharded if each device gets equally many, else the clients of each round are. ``row_bytes_budget`` bounds
    the bytes of rows fetched from disk; None: as many as are useful.
    """

    federation: Federation
    rounds: int
    eval_every: int
    devices: int = 1
    row_bytes_budget: int | None = None
    programs: CompiledPrograms = field(default_factory=CompiledPrograms, repr=False)

    def share_programs(self, programs_of: Callable[[str], CompiledPrograms]) -> "Engine":
        """Return the engine with the programs of all engines of its ``program_key``, and the shapes that they traced.

        Call under ``use_precision``.
        """
        programs = programs_of(program_key(self.federation))
        with programs.lock:
            if programs.shapes is None:
                programs.shapes = self.federation.shapes
        vars(self.federation).update(shapes=programs.shapes, state_shapes=programs.state_shapes)
        return replace(self, programs=programs)

    def initial_state(self, points: Sequence[Numbers], seeds: Sequence[int] | None = None) -> PyTree:
        """Return the state before the first round."""
        numbers = self.federation.stack_numbers(points)
        seeds = seeds or [self.federation.schedule.seed] * len(points)
        keys = self.federation.initial_keys(seeds), self.federation.noise_keys(seeds)
        arguments = (numbers, self.federation.initial_duals(seeds), *keys)
        return self._compile(self.federation.initial_state, *arguments)(*arguments)

    def run(
        self,
        points: Sequence[Numbers],
        seeds: Sequence[int] | None = None,
        state: PyTree = None,
        rounds_done: int = 0,
        *,
        elapsed_seconds: float = 0.0,
        work: np.ndarray | None = None,
        client_states: Sequence[ClientStateFile] | None = None,
    ) -> Iterator[Snapshot]:
        """Evaluate, then alternate rounds and evaluations to the end.

        ``seeds`` holds the seed of each run, by default the schedule's. Runs of one seed share their minibatches; if
        seeds differ, each run has its own.
        With ``state``, ``rounds_done``, ``elapsed_seconds`` and ``work`` of a snapshot the same runs resume from it,
        and the first snapshot is that one again. Ends early when every run has diverged. ``client_states`` are the
        states of generated clients for each run, from ``open_client_states``; by default they are in memory.
        """
        seeds = list(seeds or [self.federation.schedule.seed] * len(points))
        state = self.initial_state(points, seeds) if state is None else jax.device_put(state)
        work = np.zeros((len(points), 2), np.int64) if work is None else work
        if client_states is None:
            client_states = self.open_client_states(points, seeds, [None] * len(points))
        loop, state = self._start_loop(points, seeds, state, client_states)
        loop.evaluate(state, only_compile=True)
        loop.started = time.perf_counter() - elapsed_seconds
        snapshot = loop.take_snapshot(state, rounds_done, work)
        segment = loop.next_segment(rounds_done)
        while True:
            paused = time.perf_counter()
            yield snapshot
            if segment is None or snapshot.diverged.all():
                return
            loop.started += time.perf_counter() - paused
            state, segment, work, rounds_done = loop.run_to_evaluation(
                snapshot.state, segment, snapshot.work, rounds_done
            )
            snapshot = loop.take_snapshot(state, rounds_done, work)

    def follow(
        self,
        points: Sequence[Numbers],
        seeds: Sequence[int],
        rounds_done: int,
        read_diverged: Callable[[], np.ndarray | None],
    ) -> None:
        """Compute a follower's part of the leader's ``run`` on the devices of all hosts, from ``rounds_done`` on.

        After each evaluation ``read_diverged`` returns the leader's ``diverged``, (G,), or None at the end.
        """
        work = np.zeros((len(points), 2), np.int64)
        remote_states = [RemoteStates(leaves) for leaves in self._initial_client_states(points, seeds)]
        loop, state = self._start_loop(points, seeds, self.initial_state(points, seeds), remote_states or None)
        loop.contribute_sums(state)
        segment = loop.next_segment(rounds_done)
        while segment is not None and (diverged := read_diverged()) is not None:
            state |= {"diverged": diverged}
            state, segment, work, rounds_done = loop.run_to_evaluation(state, segment, work, rounds_done)
            loop.contribute_sums(state)

    def put_rows_on_device(self) -> tuple[DeviceRows | None, dict[str, jax.Array]]:
        """Return the arrays of the federation; one thread puts them on the device, for all batches."""
        with self.programs.lock:
            return self.federation.arrays

    def _start_loop(
        self, points: Sequence[Numbers], seeds: Sequence[int], state: PyTree, states: Sequence[RemoteStates] | None
    ) -> tuple[RunLoop, PyTree]:
        """Return the loop of these runs, and their state on the devices."""
        federation = self.federation
        n_shards = federation.data.train.n_hosts
        devices = Devices.for_runs(1 if federation.debug else self.devices, len(points), n_shards)
        rows, extra = self.put_rows_on_device()
        x, y = (None, None) if rows is None or federation.evaluates_blocks else (rows.x, rows.y)
        numbers, state = devices.shard_by_run((federation.stack_numbers(points), state))
        segments = Segments(
            federation,
            seeds,
            states,
            devices=devices,
            rounds=self.rounds,
            eval_every=self.eval_every,
            row_bytes_budget=self.row_bytes_budget,
        )
        make_loop: type[RunLoop] = RunLoop
        if federation.data.train.stays_at_sites:
            from fcorun.engine.remote.loop import RemoteLoop as make_loop
        loop = make_loop(
            numbers=numbers,
            rows=devices.place_rows(rows),
            evaluation_rows=devices.place_for_evaluation((x, y, extra)),
            segments=segments,
            compile_for=self._compile,
        )
        return loop, loop.broadcast_from_first(state)

    def open_client_states(
        self, points: Sequence[Numbers], seeds: Sequence[int], files: Sequence[Path | None], rounds_done: int = 0
    ) -> list[ClientStateFile] | None:
        """Open the states of generated clients after ``rounds_done`` rounds, for each run with an entry in ``files``.

        States without a file are in memory. Returns None where clients have no states, or all are on the device.
        """
        # runs that fill up a program have no entry in ``files``
        initial_states = zip(files, self._initial_client_states(points, seeds), strict=False)
        n_clients = self.federation.data.n_clients
        return [ClientStateFile(file, leaves, n_clients, rounds_done) for file, leaves in initial_states] or None

    def _initial_client_states(self, points: Sequence[Numbers], seeds: Sequence[int]) -> list[list[np.ndarray]]:
        """Return for each run the leaves of the initial state of a generated client.

        Returns nothing where clients have no states, or all are on the device.
        """
        if not self.federation.schedule.generated_clients:
            return []
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self.initial_state(points, seeds)["clients"])]
        return [[leaf[g, 0] for leaf in leaves] for g in range(len(points))] if leaves else []

    def _compile(self, function: Callable, *arguments: Any) -> Callable:
        if not self.federation.debug:
            return self.programs.get(function, *arguments)

        def without_jit(*arguments: Any) -> Any:  # slow, and an error names the line where it arose
            with jax.disable_jit():
                return function(*arguments)

        return without_jit
