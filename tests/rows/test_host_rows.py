"""Rows of own clients, on each of several hosts: together they are the whole."""

import tracemalloc
from typing import Any

import handwriting
import numpy as np
import pytest
from cli.test_choices import NEED_FILES, REST
from helpers import choice_names, fails, not_none
from table_files import write_table

from fcorun import compose
from fcorun.datasets.base import FederatedData
from fcorun.datasets.femnist import Femnist
from fcorun.datasets.lasso import Lasso
from fcorun.datasets.table import Table
from fcorun.experiment.prepare import prepare
from fcorun.rows.host_rows import HostRows, balance_clients, shard_for_host

HOSTS = 3


def together(parts: list[FederatedData], split: str) -> np.ndarray:
    """The rows of all hosts, one host's after the other's."""
    each = [getattr(part, split) for part in parts]
    return np.concatenate([np.asarray(x[x.rows]) for x in each])


def are_the_whole(parts: list[FederatedData], whole: FederatedData) -> None:
    cut = not_none(parts[0].host_bounds)
    for part in parts:
        np.testing.assert_array_equal(not_none(part.host_bounds), cut)
        for name in ("y", "offsets", "y_val", "offsets_val", "y_test", "weight"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name))
        assert part.x.shape == whole.x.shape
        assert part.x.dtype == whole.x.dtype
        part.validate()
    np.testing.assert_array_equal(together(parts, "x"), np.asarray(whole.x))
    assert parts[-1].warnings == whole.warnings
    for m, host in enumerate(parts[0].host_of_client):
        rows = slice(*whole.offsets[m : m + 2])
        np.testing.assert_array_equal(np.asarray(parts[host].x[rows]), np.asarray(whole.x[rows]))
        with fails("rows of other hosts' clients are needed here: give hosts.rows=all"):
            parts[host - 1].x[rows]
    assert [part.x_test is None for part in parts] == [whole.x_test is None] + [True] * (len(parts) - 1)
    if whole.x_val is None:
        assert parts[0].x_val is None
        return
    np.testing.assert_array_equal(together(parts, "x_val"), np.asarray(whole.x_val))
    if (ends := whole.offsets_val) is not None:
        held: list[Any] = [part.x_val for part in parts]
        assert [[x.rows.start, x.rows.stop] for x in held] == np.stack([ends[cut[:-1]], ends[cut[1:]]], axis=1).tolist()


@pytest.mark.parametrize("name", [name for name in choice_names("data") if name not in NEED_FILES])
def test_the_parts_of_every_data_set_are_the_whole(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table("rows.csv")
    rest = next((less for kind, less in REST.items() if name.startswith(kind)), [])
    data = prepare(compose([f"data={name}", *rest])).data
    whole, parts = data.load(), [data.load_shard(k, HOSTS) for k in range(HOSTS)]
    if whole.generated is not None:  # each host makes the rows that it needs
        assert all(part.host_bounds is None for part in parts)
        return
    are_the_whole(parts, whole)


def test_the_parts_of_handwriting_are_the_whole(tmp_path):
    data = Femnist(
        str(handwriting.save_tff(tmp_path, handwriting.random_writers(), handwriting.random_writers(seed=1))),
        fraction_clients=1.0,
    )
    are_the_whole([data.load_shard(k, HOSTS) for k in range(HOSTS)], data.load())


def test_the_images_of_other_hosts_writers_are_not_read(tmp_path):
    import h5py

    data = Femnist(
        str(handwriting.save_tff(tmp_path, handwriting.random_writers(), handwriting.random_writers(seed=1))),
        fraction_clients=1.0,
    )
    last = data.load().clients[-1]
    with h5py.File(tmp_path / f"{handwriting.NAME}_train.h5", "r+") as file:
        pixels: Any = file[f"examples/{last}/pixels"]
        pixels[0, 0, 0] = 2.0
    data.load_shard(0, 2)
    for part, of in ((1, 2), (0, 1)):
        with fails(f"writer {last} has pixels outside 0 to 1"):
            data.load_shard(part, of)


@pytest.mark.parametrize("name", ["lasso", "heterogeneous", "least_squares", "logistic_synthetic"])
def test_a_host_makes_room_for_the_rows_of_its_own_clients_alone(name):
    sizes = ["clients=64", "samples=64", "features=64", "test_samples=8", "validation_samples=16"]
    sizes += ["nonzeros=8"] if name == "lasso" else []
    data = prepare(compose([f"data={name}", *(f"data.{size}" for size in sizes)])).data
    whole = data.load()
    tracemalloc.start()
    try:
        data.load_shard(1, 4)
        assert tracemalloc.get_traced_memory()[1] < 0.6 * (whole.x.nbytes + not_none(whole.x_val).nbytes)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["folder", "h5"])
@pytest.mark.parametrize(
    ("resident", "standardize"), [(True, "none"), (True, "pooled"), (True, "per_client"), (False, "pooled")]
)
def test_the_parts_of_arrays_are_the_whole(kind, resident, standardize, tmp_path):
    save(tmp_path, kind, ragged_arrays())
    path = str(tmp_path / f"rows{'' if kind == 'folder' else '.h5'}")
    table = Table(path=path, test=0.1, standardize=standardize, resident=resident)
    whole = table.load()
    parts = [table.load_shard(k, HOSTS) for k in range(HOSTS)]
    if not resident or standardize != "pooled":
        are_the_whole(parts, whole)
    np.testing.assert_allclose(together(parts, "x"), np.asarray(whole.x), rtol=1e-6)
    assert all(part.on_disk == (not resident) for part in parts)
    if resident:
        assert max(part.x.nbytes for part in parts) < 0.6 * whole.x.nbytes


def ragged_arrays(rows: int = 120, features: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, features)).astype(np.float32)
    client = rng.choice(5, rows, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    return {"X": x, "y": x @ np.arange(features) + client, "client": client}


def save(folder, kind: str, arrays: dict[str, np.ndarray]) -> None:
    if kind == "folder":
        (folder / "rows").mkdir()
        for name, values in arrays.items():
            np.save(folder / "rows" / f"{name}.npy", values)
        return
    import h5py

    with h5py.File(folder / "rows.h5", "w") as file:
        for name, values in arrays.items():
            file[name] = values


@pytest.mark.parametrize("sizes", [[1, 1, 1], [100, 1, 1, 1], [1, 1, 1, 100], [5, 3, 2, 4, 6, 1, 9], [7] * 12])
@pytest.mark.parametrize("parts", [2, 3])
def test_each_host_has_a_client_and_about_as_many_rows(sizes, parts):
    offsets = np.append(0, np.cumsum(sizes))
    cut = balance_clients(offsets, parts)
    assert (np.diff(cut) > 0).all()
    assert [cut[0], cut[-1]] == [0, len(sizes)]
    most = np.diff(offsets[cut]).max()
    assert most <= offsets[-1] / parts + max(sizes)


def test_where_there_are_fewer_clients_than_hosts_all_rows_are_on_each():
    data = Lasso(clients=2, samples=3, features=4, nonzeros=1, validation_samples=0)
    assert data.load_shard(1, 3).host_bounds is None
    assert isinstance(data.load_shard(1, 2).x, HostRows)


def test_rows_are_asked_for_by_slice_number_mask_and_array():
    x = np.arange(20.0).reshape(10, 2)
    own = HostRows.take(x, np.array([0, 3, 10]), 1)
    mask = np.isin(np.arange(10), [4, 9])
    for rows in (slice(3, 10), slice(9, 3, -2), slice(5, 5), np.array([9, 3, 3]), mask, 7):
        np.testing.assert_array_equal(own[rows], x[rows])
    for rows in (slice(2, 4), slice(None), np.array([2]), ~mask, 0, -1 - 9):
        with fails("hosts.rows=all"):
            own[rows]
    with fails("hosts.rows=all"):
        np.asarray(own)
    np.testing.assert_array_equal(HostRows.take(x, np.array([0, 3, 10]), 0).values[3:], 0)


def test_a_value_that_is_not_finite_is_named_by_its_row_among_all():
    data = Lasso(clients=3, samples=4, features=5, nonzeros=1, validation_samples=0).load()
    data.x[9, 2] = np.nan
    with fails("row 9"):
        shard_for_host(data, 2, 3).validate()
