"""Checks of topologies, channels, rules, faults and privacy: their contract, and equal numbers however runs execute."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any

import jax
import numpy as np

from fcorun.base.config import build_plugin, numeric_fields
from fcorun.base.errors import UserError
from fcorun.engine.engine import Engine, build_traffic, message_bytes
from fcorun.engine.promises import clipped_length, explain_clip, explain_noise
from fcorun.experiment.build import load_data
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import algorithms, single_uploads
from fcorun.interface.checks.problems import engine_of, grid, small, snapshots
from fcorun.interface.checks.property_check import (
    Check,
    Checked,
    require,
    require_close,
    require_seed_draws,
    skip_unless,
)
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.clocks.clock import Clock, NoClock
from fcorun.methods.communication.aggregation import AggregationRule
from fcorun.methods.communication.contracts import Channel, MessageBytes, Topology
from fcorun.methods.communication.faults import Faults
from fcorun.methods.communication.privacy import LEAST_CLIENTS, CountedMessage, Privacy

# the overrides of cohorts among which each plug-in finds one that it accepts
_COHORTS = (
    (),
    ("clients_per_round=null",),
    ("clients_per_round=null", "clock=lognormal"),
    ("clients_per_round=cyclic:0.2",),
)


@dataclass(frozen=True)
class CommunicationCase:
    """A topology, a channel, a rule, faults or privacy in a run.

    Attributes:
        section: "topology", "uplink", "downlink", "aggregate", "faults" or "privacy".
        overrides: overrides of its keys.
    """

    section: str
    name: str
    overrides: tuple[str, ...] = ()

    @cached_property
    def data(self) -> tuple[str, ...]:
        """The overrides that choose enough clients for privacy, or, where faults change the targets, classes and losses
        that can diverge.
        """
        if self.section == "privacy":
            return (f"data.clients={LEAST_CLIENTS}",)
        if self.section != "faults":
            return ()
        faults = build_plugin("faults", small(f"faults={self.name}")["faults"])
        return ("data=heterogeneous", "objective.ridge=0.1") if faults.changes_targets else ()

    @cached_property
    def run(self) -> algorithms.AlgorithmCase:
        """The first algorithm that the plug-in accepts, with the plug-in. Raises UserError if none is accepted."""
        error = UserError(f"{self.section}={self.name} accepts no algorithm")
        for algo in ("fedavg", *find_choices("algo")):
            for cohort in _COHORTS:
                case = algorithms.AlgorithmCase(
                    algo, (f"{self.section}={self.name}", *self.data, *cohort, *self.overrides)
                )
                try:
                    needs_all = prepare(case.config()).topology.has_nodes and not cohort
                except UserError as refusal:
                    needs_more = "clock=lognormal" in str(refusal)  # a cohort below has a clock
                    error = refusal if algo == "fedavg" and not (cohort and needs_more) else error
                else:
                    if not needs_all:  # nodes without a server all take part
                        return case
        raise error

    @property
    def plugin(self) -> Topology | Channel | AggregationRule | Faults | Privacy:
        return getattr(prepare(self.run.config()), self.section)

    @cached_property
    def engine(self) -> Engine:
        """The engine of a run in float64."""
        return engine_of(self.run.config("precision=float64", "rounds=3", "eval_every=1"))


def _sizes(case: CommunicationCase) -> MessageBytes:
    """Return the bytes of the messages of a run. Raises UserError where these are no whole numbers."""
    federation = case.engine.federation
    with jax.enable_x64(True):
        return message_bytes(federation, federation.algorithm, federation.uplink)


# ---------------------------------------------------------------- topologies


def check_initial_model(case: CommunicationCase) -> None:
    """Require that the model before the first round is the one that the algorithm starts from."""
    engine = case.engine
    with jax.enable_x64(True):
        first = next(engine.run([prepare(case.run.config()).numbers()]))
        problem = engine.federation.problem
        start = problem.initial_point(jax.tree.map(lambda v: v[0], engine.federation.initial_duals([0])))
    for name, value in start.items():
        label = f"'{name}' before the first round, compared with the start of the algorithm,"
        require_close(label, first.solution[name][0], value, atol=1e-12)


def check_topology_bytes(case: CommunicationCase) -> None:
    """Require whole numbers of bytes, and equal ones for cohorts of one size unless they may depend on the cohort."""
    federation = case.engine.federation
    sizes = _sizes(case)
    traffic = build_traffic(federation, 5, 0)
    draw_cohort = federation.schedule.draw_cohort
    counts = [
        federation.topology.round_bytes(draw_cohort(number), traffic.links_in_round(number), sizes)
        for number in range(5)
    ]
    for name, value in counts[0].items():
        whole = isinstance(value, (int, np.integer)) and value >= 0
        require(whole, f"round_bytes() should return whole numbers of bytes, and {name} is {value!r}")
    require({"bytes_up", "bytes_down"} <= set(counts[0]), "round_bytes() should return bytes_up and bytes_down")
    if not (federation.topology.bytes_depend_on_cohort or federation.topology.redraws_links):
        require(all(count == counts[0] for count in counts), "with bytes_depend_on_cohort = False, all cohorts of one "
                                                             "size should send equally many bytes")  # fmt: skip
    total = traffic.bytes_after(5, sizes)
    expected = {name: sum(count[name] for count in counts) for name in counts[0]}
    require(total == expected, f"the bytes of 5 rounds should be {expected} and are {total}")


def check_topology_seed(case: CommunicationCase) -> None:
    """Require that another seed of the topology draws other links."""
    data = load_data(prepare(case.run.config()))

    def draw_links(topology: Topology) -> Any:
        return topology.connect(data.client_names, np.full(data.n_clients, 1 / data.n_clients))

    require_seed_draws(case.plugin, "links", draw_links)


# ---------------------------------------------------------------- clocks


def check_clock_seed(clock: Clock) -> None:
    """Require that another seed of the clock draws other speeds."""
    require_seed_draws(clock, "speeds", lambda clock: vars(clock.speeds([f"client {number}" for number in range(4)])))


def check_speeds(clock: Clock) -> None:
    """Require speeds of each client: positive numbers, and the same ones each time. NoClock has none."""
    if isinstance(clock, NoClock):
        return
    names = [f"client {number}" for number in range(4)]
    first = clock.speeds(names)
    second = clock.speeds(names)
    for name in ("gradients_per_second", "bytes_per_second", "latency"):
        values = np.asarray(getattr(first, name))
        again = np.asarray(getattr(second, name))
        require(values.shape == (len(names),), f"{name} should have the shape ({len(names)},), not {values.shape}")
        least = 0 if name == "latency" else np.nextafter(0, 1)
        require(bool(np.isfinite(values).all() and (values >= least).all()), f"{name} should be finite and positive")
        require(bool((values == again).all()), f"{name} should be the same at each call")
    require(bool(np.isfinite(first.variation) and first.variation >= 0), "variation should not be negative")


# ---------------------------------------------------------------- channels


def check_channel_contract(case: CommunicationCase) -> None:
    """Require that messages and memories keep their shapes, and depend on the key only if ``uses_key`` is True."""
    engine = case.engine
    channel = case.plugin
    assert isinstance(channel, Channel)
    with jax.enable_x64(True):
        shapes = engine.federation.shapes
        if case.section == "downlink":
            broadcast = shapes.broadcasts[-1]
            if not channel.uses_key:
                _require_no_key(channel.send, broadcast, channel.client_memory(broadcast))
            return _require_same_shapes(
                channel.send, broadcast, jax.eval_shape(lambda: channel.client_memory(broadcast))
            )
        upload = shapes.uploads[-1]
        for method, initial in ((channel.send, channel.client_memory), (channel.receive, channel.server_memory)):
            _require_same_shapes(method, upload, jax.eval_shape(lambda initial=initial: initial(upload)))
            if not channel.uses_key:
                _require_no_key(method, upload, initial(upload))


def check_channel_bytes(case: CommunicationCase) -> None:
    """Require bytes of all arrays that arrive unchanged, and of others a bit for each number but 0."""
    federation, channel = case.engine.federation, case.plugin
    assert isinstance(channel, Channel)
    sizes, shapes = _sizes(case), federation.shapes
    with jax.enable_x64(True):
        message = (shapes.broadcasts if case.section == "downlink" else shapes.uploads)[-1]
        sample = _draw_like(message)
        sent, memory = channel.send(sample, channel.client_memory(message), jax.random.key(0))
        if case.section == "downlink":
            declared = federation.algorithm.broadcast_bytes(message)
            n_bytes = sizes.broadcasts[-1] + channel.counted_bytes(memory)
        else:
            declared = federation.algorithm.upload_bytes_for(federation.problem, message)
            memories = jax.tree.map(lambda values: np.asarray(values)[None], memory)
            n_bytes = sizes.uploads[-1] + channel.counted_upload_bytes(memories)
    n_bits = 0
    for before, after in zip(jax.tree.leaves(sample), jax.tree.leaves(sent), strict=True):
        arrives_unchanged = np.array_equal(before, after)
        n_bits += 8 * before.nbytes if arrives_unchanged else np.count_nonzero(after)
    least = min(int(np.ceil(n_bits / 8)), declared)
    require(n_bytes >= least, f"what arrives of a message of {declared} bytes takes {least} bytes or more, and "
                              f"upload_bytes() says {n_bytes}")  # fmt: skip


def _draw_like(upload: Any) -> Any:
    """Draw arrays of normal numbers, of the shapes and types of an upload."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: np.asarray(rng.standard_normal(leaf.shape), leaf.dtype), upload)


def _require_no_key(method: Callable[..., Any], upload: Any, memory: Any) -> None:
    sample = _draw_like(upload)
    results = [jax.tree.leaves(method(sample, memory, jax.random.key(seed))) for seed in (0, 1)]
    for first, second in zip(*results, strict=True):
        require_close(f"{method.__name__}() with another key, since uses_key is False,", second, first)


def _require_same_shapes(method: Callable[..., Any], upload: Any, memory: Any) -> None:
    result = jax.eval_shape(lambda upload, memory: method(upload, memory, jax.random.key(0)), upload, memory)
    require(isinstance(result, tuple) and len(result) == 2, f"{method.__name__}() should return two values, a message "
                                                            "and a memory")  # fmt: skip
    for name, actual, expected in zip(("message", "memory"), result, (upload, memory), strict=True):
        same = jax.tree.structure(actual) == jax.tree.structure(expected)
        same = same and jax.tree.all(
            jax.tree.map(lambda a, b: a.shape == b.shape and a.dtype == b.dtype, *(actual, expected))
        )
        require(same, f"the {name} of {method.__name__}() should have the shapes and types of the one given")


def check_grid_of_numbers(case: CommunicationCase) -> None:
    """Require that the plug-in's numbers in a grid give the numbers of single runs."""
    numbers = numeric_fields(case.plugin)
    skip_unless(numbers, "it has no real number")
    base = case.run.config("precision=float64")
    halves = {f"{case.section}.{name}": [0.5 * value] for name, value in numbers.items()}
    points = [base, *grid(base, halves)]
    batch = snapshots(*points)
    for g, point in enumerate(points):
        for of_batch, single in zip(batch, snapshots(point), strict=True):
            for name, value in single.solution.items():
                label = f"'{name}' in a grid, compared with the single run,"
                require_close(label, of_batch.solution[name][g], value[0], rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------- faults


def check_lies(case: CommunicationCase) -> None:
    """Require that lies and memories keep the shapes and types of what an honest client sends."""
    faults = case.plugin
    assert isinstance(faults, Faults)
    with jax.enable_x64(True):
        upload = case.engine.federation.shapes.uploads[-1]
        memories = jax.eval_shape(lambda: faults.client_memory((upload,)))
        _require_same_shapes(faults.lie, upload, memories[0] if memories else None)


def check_lies_change_messages(case: CommunicationCase) -> None:
    """Require that a liar sends other numbers than its own, in the second round at the latest."""
    faults = case.plugin
    assert isinstance(faults, Faults)
    lies = faults.has_liars and not faults.changes_targets
    skip_unless(lies, "its clients send what they have computed")
    with jax.enable_x64(True):
        upload = case.engine.federation.shapes.uploads[-1]
        memories = faults.client_memory((upload,))
        first = _draw_like(upload)
        _, memory = faults.lie(first, memories[0] if memories else None, jax.random.key(0))
        second = jax.tree.map(lambda values: 2 * values, first)
        for number in range(1, 101):  # liars may lie at random
            sent, _ = faults.lie(second, memory, jax.random.key(number))
            if not jax.tree.all(jax.tree.map(np.array_equal, sent, second)):
                return
    require(False, "lie() should return something else than the upload of the client, and returns that")


def check_fault_bytes(case: CommunicationCase) -> None:
    """Require the bytes of what was sent: of uploads that arrive, and of broadcasts to clients that receive them."""
    federation, sizes = case.engine.federation, _sizes(case)
    draws = federation.draw_rounds(0, 0, 5)
    is_present = np.ones(draws.cohort.shape, bool)
    faults = federation.schedule.faults
    if draws.faults is not None and draws.faults.dropout_level is not None:
        is_present = draws.faults.dropout_level >= np.float32(faults.dropout_threshold)
    n_receivers = is_present.sum() if faults.drops_before else is_present.size
    expected = {
        "bytes_up": is_present.sum() * sum(sizes.uploads),
        "bytes_down": n_receivers * sum(sizes.broadcasts),
    }
    total = build_traffic(federation, 5, 0).bytes_after(5, sizes)
    require(total == expected, f"the bytes of 5 rounds should be {expected} and are {total}")


def check_run_without_faults(case: CommunicationCase) -> None:
    """Require the numbers of a run without the section where nobody lies and drops out."""
    off = [f"faults.{name}=0" for name in ("liars", "dropout") if hasattr(case.plugin, name)]
    skip_unless(off, "it has no number that turns it off")
    with_none = CommunicationCase(case.section, case.name, (*case.overrides, *off)).run
    without = algorithms.AlgorithmCase(with_none.name, case.data)
    double = "precision=float64"
    pairs = zip(snapshots(with_none.config(double)), snapshots(without.config(double)), strict=True)
    for of_case, of_none in pairs:
        for name, value in of_none.solution.items():
            require_close(f"'{name}' without faults,", of_case.solution[name], value, rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------- privacy


def _resolved_privacy(case: CommunicationCase) -> Privacy:
    return prepare(case.run.config()).resolved_privacy


def _draw_messages(count: int) -> list[dict[str, jax.Array]]:
    """Draw messages of two arrays, of very different lengths."""
    rng = np.random.default_rng(0)
    lengths = 10.0 ** rng.uniform(-3, 3, count)
    shapes = {"weights": (40,), "bias": ()}
    return [{name: length * rng.standard_normal(shape) for name, shape in shapes.items()} for length in lengths]


def check_clipping(case: CommunicationCase) -> None:
    """Require that no message gets longer or turns back, and that a clipped one stays; compared with NumPy."""
    privacy = _resolved_privacy(case)
    with jax.enable_x64(True):
        for message in _draw_messages(20):
            clipped = privacy.clip_message(message)
            long, short = (np.concatenate([tree["weights"], [tree["bias"]]]) for tree in (message, clipped))
            length, most = np.linalg.norm(short), np.linalg.norm(long)
            require(length <= most * (1 + 1e-12), f"a message of the norm {most:g} was made longer, {length:g}")
            require(long @ short >= 0, "a clipped message points away from the message")
            for name, value in privacy.clip_message(clipped).items():
                require_close(f"'{name}' of a message that is clipped twice", value, clipped[name], rtol=1e-12)


def check_bound_of_messages(case: CommunicationCase) -> None:
    """Require a bound for messages, however long they were, and a smaller one for half of the clip."""
    privacy = _resolved_privacy(case)
    skip_unless(privacy.acts, "it hides nothing")
    broken = explain_clip(privacy)
    require(not broken, broken)
    if "clip" in numeric_fields(privacy) and not privacy.hides_rows:
        halved = replace(privacy, clip=privacy.clip / 2)  # type: ignore[attr-defined, call-arg]
        lengths = [clipped_length(one, 1e15) for one in (halved, privacy)]
        require(lengths[0] < lengths[1],
                f"half of the clip should make long messages shorter, and they are {lengths[0]:g} and were "
                f"{lengths[1]:g} long")  # fmt: skip


def check_noise_of_rounds(case: CommunicationCase) -> None:
    """Require unlike noise in two rounds."""
    privacy = _resolved_privacy(case)
    skip_unless(privacy.acts, "it adds no noise")
    broken = explain_noise(privacy, rounds=2)
    require(not broken, broken)


def check_messages_that_overflow(case: CommunicationCase) -> None:
    """Require that a message or a state that is not finite counts as no message, and that no clip overflows."""
    privacy = _resolved_privacy(case)
    skip_unless(privacy.acts, "it hides nothing")
    message = {"weights": np.zeros(3, np.float32), "bias": np.zeros((), np.float32)}

    def protect(weights, new_state):
        changed = message | {"weights": np.array(weights, np.float32)}
        sent, state = privacy.protect(changed, (2.0, new_state), Traits(public_uploads=()), (3, 5), 1)
        return (sent.message if isinstance(sent, CountedMessage) else sent), state

    nothing, _ = protect([0, 0, 0], 3.0)
    for value, new_state in ((np.nan, 3.0), (np.inf, 3.0), (-np.inf, 3.0), (0.0, np.nan)):
        sent, state = protect([1, value, -1], new_state)
        require(state == 2, f"a client with a message of {value:g} and a new state of {new_state:g} keeps {state:g}")
        for name in message:
            require_close(f"'{name}' of a message with {value:g}", sent[name], nothing[name])
    sent, state = protect([1, 1e30, -1], 3.0)
    require(state == 3, f"a client with a long message has the state {state:g} in place of 3")
    require(bool(np.isfinite(sent["weights"]).all()), f"a message with 1e30 is clipped to {sent['weights']}")


def check_noise(case: CommunicationCase) -> None:
    """Require noise without a mean, which follows from the key and the round, and is another one for other keys."""
    privacy = _resolved_privacy(case)
    skip_unless(privacy.acts, "it adds no noise")
    message, key = {"weights": np.zeros(50_000, np.float32), "bias": np.zeros((), np.float32)}, (3, 5)
    first, again, of_other = (privacy.draw_noise(message, bits, 1) for bits in (key, key, (3, 6)))
    for name in message:
        require_close(f"the noise of '{name}', drawn twice from a key,", first[name], again[name])
    values, others = np.asarray(first["weights"]), np.asarray(of_other["weights"])
    spread = values.std()
    require(abs(values.mean()) < 5 * spread / np.sqrt(values.size), f"the noise has the mean {values.mean():g}")
    correlation = np.corrcoef(values, others)[0, 1]
    require(abs(correlation) < 5 / np.sqrt(values.size), f"the noise of two keys has the correlation {correlation:g}")
    if "noise" in numeric_fields(privacy):
        louder = replace(privacy, noise=2 * privacy.noise)  # type: ignore[attr-defined, call-arg]
        louder_spread = np.std(louder.draw_noise(message, key, 1)["weights"])
        require(
            louder_spread > spread, f"twice the noise has the deviation {louder_spread:g}, and the noise {spread:g}"
        )


def check_epsilon(case: CommunicationCase) -> None:
    """Require that no round costs nothing, and that more rounds cost no less."""
    privacy = _resolved_privacy(case)
    for clients_per_round in (None, "poisson:0.3", "cyclic:0.3"):
        costs = [privacy.find_epsilon(rounds, clients_per_round) for rounds in (0, 1, 2, 10)]
        require(costs[0] == 0, f"epsilon of no round is {costs[0]:g}")
        require(costs == sorted(costs), f"epsilon of 0, 1, 2 and 10 rounds falls: {costs}")


def check_bytes_without_privacy(case: CommunicationCase) -> None:
    """Require messages of the bytes that they have without privacy."""
    skip_unless(not _resolved_privacy(case).adapts_clip, "the clip and what it follows from are sent, too")
    without = CommunicationCase(case.section, "none")
    require(_sizes(case) == _sizes(without), f"messages are {_sizes(case)}, and without privacy {_sizes(without)}")


# ---------------------------------------------------------------- runs with any of them


def check_chunks(case: CommunicationCase) -> None:
    """Require the numbers of all clients at once, if clients are computed one at a time or without a trace."""
    at_once, single, untraced = (
        snapshots(case.run.config("precision=float64", "rounds=2", option))[-1]
        for option in ("clients_at_once=100", "clients_at_once=1", "debug=true")
    )
    for name, value in at_once.solution.items():
        for label, other in (("one client at a time", single), ("debug=true", untraced)):
            require_close(f"'{name}' with {label}", other.solution[name], value, rtol=1e-10, atol=1e-10)


def _of_rule(check: Check) -> Check:
    """Return a check of a rule as one of a case."""
    return wraps(check)(lambda case: check(case.plugin))


def _of_run(check: Check) -> Check:
    """Return a check of an algorithm as one of the plug-in that the algorithm runs with."""
    return wraps(check)(lambda case: check(case.run))


_RUN_CHECKS = (
    _of_run(algorithms.check_repeatability),
    _of_run(algorithms.check_resuming),
    _of_run(algorithms.check_grid_equals_single_runs),
    check_chunks,
    _of_run(algorithms.check_float64),
    _of_run(algorithms.check_two_devices),
)
TOPOLOGY_CHECKS = (check_initial_model, check_topology_bytes, check_topology_seed, *_RUN_CHECKS)
CHANNEL_CHECKS = (check_channel_contract, check_channel_bytes, *_RUN_CHECKS, check_grid_of_numbers)
FAULT_CHECKS = (
    check_lies,
    check_lies_change_messages,
    check_fault_bytes,
    check_run_without_faults,
    *_RUN_CHECKS,
    check_grid_of_numbers,
)
PRIVACY_CHECKS = (
    check_clipping,
    check_bound_of_messages,
    check_messages_that_overflow,
    check_noise,
    check_noise_of_rounds,
    check_epsilon,
    check_bytes_without_privacy,
    *_RUN_CHECKS,
    check_grid_of_numbers,
)
RULE_CHECKS = (*map(_of_rule, single_uploads.RULE_CHECKS), *_RUN_CHECKS, check_grid_of_numbers)
_CHECKS = {
    "topology": TOPOLOGY_CHECKS,
    "faults": FAULT_CHECKS,
    "aggregate": RULE_CHECKS,
    "privacy": PRIVACY_CHECKS,
}


def list_checks(section: str, name: str, overrides: Sequence[str]) -> Checked:
    """Yield the checks of a plug-in of communication. Raises UserError for one that no algorithm can use."""
    case = CommunicationCase(section, name, tuple(overrides))
    checks = _CHECKS.get(section, CHANNEL_CHECKS)
    yield f"{section}={name} algo={case.run.name}", checks, case


def list_clock_checks(name: str, overrides: Sequence[str]) -> Checked:
    """Yield the checks of ``clock=NAME``."""
    clock = build_plugin("clock", small(f"clock={name}", *overrides)["clock"])
    yield f"clock={name}", [check_speeds, check_clock_seed], clock
