"""Clients in chunks or classes are clients all at once; and take no more memory the more there are."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import fails, not_none, ragged, small

from fcorun.base.system.machine import compute_policy, empty_aligned
from fcorun.data.rows.features import to_device
from fcorun.engine import device_rows
from fcorun.engine.clients import chunk_width, chunked, vmapped
from fcorun.engine.device_rows import SubsetView, split_by_size, targets_to_device
from fcorun.experiment.build import build_engine, load_data, resolve_auto
from fcorun.experiment.prepare import prepare

on_a_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU has a copy of the rows")


@pytest.mark.parametrize("shares", [(), (3,)], ids=["star", "tree"])
@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 6, 7, 9])
def test_chunks_are_all_at_once(at_once, shares):
    rng = np.random.default_rng(0)
    each = {"a": rng.standard_normal((7, 4)), "b": rng.standard_normal(7)}
    weights = rng.random((*shares, 7))

    def local(mine):
        upload = {"up": jnp.sin(mine["a"]) + mine["b"], "half": mine["b"].astype(jnp.float16)}
        return upload, mine["a"] * 2, jnp.array([1, 2, 3])

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


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((9, 9, 9), []),
        ((40, 90, 200, 430, 600, 800, 1500), [([0, 1, 2], 200), ([3, 4], 600), ([5], 800), ([6], 1500)]),
        ((50, 3, 49, 4), [([1, 3], 4), ([2, 0], 50)]),
    ],
)
def test_classes_save_rows(sizes, expected):
    found = split_by_size(np.array(sizes), min_rows_saved=5)
    assert [(clients.tolist(), length) for clients, length in found] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_subset", "overrides"),
    [
        (True, ("algo=scaffold", "algo.client_lr=0.01")),
        (False, ("algo=fsvrg", "algo.client_lr=0.01", "batch_size=4")),
        (True, ("algo=feddualavg", "algo.client_lr=0.01", "topology=tree", "topology.edges=2")),
        (False, ("algo=feddualavg", "algo.client_lr=0.01", "topology=graph")),
    ],
    ids=str,
)
def test_runs_do_not_depend_on_classes(overrides, is_subset, tmp_path, monkeypatch):
    """Two runs of clients of very different sizes, whose rows are gathered once, of a subset, or in each round."""
    experiment, policy = prepare(ragged(tmp_path, *overrides, sizes=(30, 2, 9, 3, 2))), compute_policy()
    data, view, ends = load_data(experiment), None, []
    every = np.arange(len(data.train))
    with jax.enable_x64(True):
        if is_subset:
            x, y = (to_device(values, "float64") for values in (data.train.x, data.train.y))
            view = SubsetView(x, y, every, every[:0], data.train.sizes + 1)
        for worth in (np.inf, 1e-9):
            new = replace(policy, min_padding_saved=worth)
            monkeypatch.setattr(device_rows, "compute_policy", lambda new=new: new)
            engine = build_engine(resolve_auto(experiment, data)[0], data, view)
            assert len(engine.federation.layout.size_classes(2)) == (0 if worth > 1 else 4)
            *_, end = engine.run([experiment.numbers()] * 2)
            ends.append((end.solution, end.metrics, end.state, end.work))
    jax.tree.map(lambda f, e: np.testing.assert_allclose(f, e, rtol=1e-12, atol=1e-13), *ends)


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


@pytest.mark.parametrize("name", ["features", "targets"])
def test_numbers_that_exceed_float32_are_refused(name):
    data = load_data(prepare(small()))
    values = np.array([[1.0, -1e39]])
    with fails(f"some {name} exceed 3.4e38", "precision=float64"):
        to_device(values, "float32") if name == "features" else targets_to_device(data, values[0], "float32")
    with jax.enable_x64(True):
        assert to_device(values, "float64")[0, 1] == -1e39


@on_a_cpu
def test_synthetic_rows_are_held_once():
    experiment = prepare(small())
    data = load_data(experiment)
    rows, extra = build_engine(experiment, data).federation.arrays
    assert rows is not None
    assert rows.x.unsafe_buffer_pointer() == data.train.x.ctypes.data
    assert extra["x_val"].unsafe_buffer_pointer() == not_none(data.validation).x.ctypes.data
