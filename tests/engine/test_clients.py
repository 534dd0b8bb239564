"""Clients in chunks are clients all at once, whatever the width; and take no more memory the more there are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import not_none, small

from fcorun.engine.arrays import to_device
from fcorun.engine.clients import chunk_width, chunked, vmapped
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare
from fcorun.system.arrays import empty_aligned

on_a_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU has a copy of the rows")


@pytest.mark.parametrize("shares", [(), (3,)], ids=["star", "tree"])
@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 6, 7, 9])
def test_chunks_are_all_at_once(at_once, shares):
    rng = np.random.default_rng(0)
    each = {"a": rng.standard_normal((7, 4)), "b": rng.standard_normal(7)}
    weights = rng.random((*shares, 7))

    def local(mine):
        return {"up": jnp.sin(mine["a"]) + mine["b"]}, mine["a"] * 2, jnp.array([1, 2, 3])

    found, expected = (kind(local, (each,), jnp.asarray(weights)) for kind in (chunked(at_once), vmapped))
    jax.tree.map(lambda f, e: np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-5), found, expected)
    np.testing.assert_allclose(found[0]["up"], weights @ (np.sin(each["a"]) + each["b"][:, None]), rtol=1e-4)
    np.testing.assert_array_equal(found[2], np.tile([1, 2, 3], (7, 1)))


@pytest.mark.parametrize(
    ("count", "most", "expected"), [(64, 95, 64), (4096, 95, 64), (10, 9, 5), (10, 0, 1), (7, 5, 4), (97, 10, 7)]
)
def test_chunks_are_of_one_width_and_waste_little(count, most, expected):
    assert chunk_width(count, most) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("algo=scaffold", "algo.client_lr=0.001"),
        ("algo=scaffold", "algo.client_lr=0.001", "clients_per_round=null"),
        ("algo=fedgd", "algo.step=0.01", "batch_size=null"),
        ("algo=fedprox", "algo.mu=1", "reg=none", "batch_size=null", "clients_per_round=null"),
        ("algo=feddualavg", "topology=tree", "topology.edges=2"),
    ],
    ids=" ".join,
)
def test_runs_do_not_depend_on_clients_at_once(overrides):
    with jax.enable_x64(True):
        experiments = [
            prepare(small(*overrides, "precision=float64", f"clients_at_once={n}")) for n in (1, 2, 5, "auto")
        ]
        assert len({experiment.identity for experiment in experiments}) == 1
        ends = []
        for experiment in experiments:
            *_, end = build_engine(experiment, load_data(experiment)).run([experiment.numbers()])
            ends.append((end.solution, end.metrics, end.state, end.work))
    for end in ends[1:]:
        jax.tree.map(lambda f, e: np.testing.assert_allclose(f, e, rtol=1e-12, atol=1e-12), end, ends[0])


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["5", "null"])
@pytest.mark.parametrize("cohort", ["30", "null"])
def test_only_a_chunk_of_the_rows_is_gathered_at_once(batch, cohort):
    """The program's temporary memory is smaller with 2 of 32 clients computed at once than with all."""
    held = {}
    for at_once in (2, 32):
        sizes = ["data.clients=32", "data.features=400", "data.nonzeros=5", "rounds=1", "eval_every=1"]
        one = prepare(
            small(
                "algo=fedgd",
                "algo.step=0.01",
                *sizes,
                f"clients_per_round={cohort}",
                f"batch_size={batch}",
                f"clients_at_once={at_once}",
            )
        )
        engine = build_engine(one, load_data(one))
        numbers, rows = engine.federation.stack_numbers([one.numbers()]), engine.federation.arrays[0]
        given = (
            numbers,
            engine.initial_state([one.numbers()]),
            rows,
            engine.federation.schedule.draw_rounds(0, 1),
            np.int32(0),
        )
        program = jax.jit(engine.federation.advance).lower(*given).compile()
        analysis = program.memory_analysis()
        assert analysis is not None
        held[at_once] = analysis.temp_size_in_bytes
    assert held[2] < held[32] / 2


@on_a_cpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_aligned_rows_are_held_once(dtype):
    x = empty_aligned((5, 7), dtype)
    x[:] = np.arange(35).reshape(5, 7)
    with jax.enable_x64(dtype == "float64"):
        on = to_device(x, dtype)
    assert on.unsafe_buffer_pointer() == x.ctypes.data
    np.testing.assert_array_equal(on, np.arange(35).reshape(5, 7))


@on_a_cpu
def test_synthetic_rows_are_held_once():
    experiment = prepare(small())
    data = load_data(experiment)
    rows, extra = build_engine(experiment, data).federation.arrays
    assert rows is not None
    assert rows.x.unsafe_buffer_pointer() == data.train.x.ctypes.data
    assert extra["x_val"].unsafe_buffer_pointer() == not_none(data.validation).x.ctypes.data
