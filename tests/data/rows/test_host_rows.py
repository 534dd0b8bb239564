"""Rows sharded by client over several hosts: the shards together are the whole data set."""

import tracemalloc
from typing import Any

import handwriting
import numpy as np
import pytest
from helpers import choice_names, fails, not_none
from interface.cli.test_choices import NEED_FILES, SMALLER
from table_files import write_table

from fcorun import compose
from fcorun.data.datasets.dataset import FederatedData, shard_for_host
from fcorun.data.datasets.femnist import Femnist
from fcorun.data.datasets.lasso import Lasso
from fcorun.data.datasets.table import Table
from fcorun.data.rows.rows import HostMatrix, balance_clients
from fcorun.experiment.prepare import prepare

HOSTS = 3


def concatenate_shards(shards: list[FederatedData], split: str) -> np.ndarray:
    """Concatenate the rows of a split that each host stores."""
    matrices: list[Any] = [shard.splits[split].x for shard in shards]
    return np.concatenate([np.asarray(x[x.row_range]) for x in matrices])


def assert_shards_make(whole: FederatedData, shards: list[FederatedData]) -> None:
    host_offsets = shards[0].train.host_offsets
    for shard in shards:
        np.testing.assert_array_equal(shard.train.host_offsets, host_offsets)
        for split, rows in shard.splits.items():
            for name in ("y", "client", "weight"):
                np.testing.assert_array_equal(getattr(rows, name), getattr(whole.splits[split], name))
        assert shard.train.x.shape == whole.train.x.shape
        assert shard.train.x.dtype == whole.train.x.dtype
        shard.validate()
    np.testing.assert_array_equal(concatenate_shards(shards, "train"), np.asarray(whole.train.x))
    assert shards[-1].warnings == whole.warnings
    for m, host in enumerate(shards[0].train.host_of_client):
        rows = slice(*whole.train.offsets[m : m + 2])
        np.testing.assert_array_equal(np.asarray(shards[host].train.x[rows]), np.asarray(whole.train.x[rows]))
        with fails("rows of other hosts' clients are needed here: give hosts.rows=all"):
            shards[host - 1].train.x[rows]
    assert [shard.test is None for shard in shards] == [whole.test is None] + [True] * (len(shards) - 1)
    if whole.validation is None:
        assert shards[0].validation is None
        return
    np.testing.assert_array_equal(concatenate_shards(shards, "validation"), np.asarray(whole.validation.x))
    if (bounds := whole.validation_offsets) is not None:
        validation: list[Any] = [not_none(shard.validation).x for shard in shards]
        expected = np.stack([bounds[host_offsets[:-1]], bounds[host_offsets[1:]]], axis=1)
        assert [[x.row_range.start, x.row_range.stop] for x in validation] == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in choice_names("data") if name not in NEED_FILES])
def test_the_shards_of_every_data_set_make_the_whole(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table("rows.csv")
    options = next((options for prefix, options in SMALLER.items() if name.startswith(prefix)), [])
    data = prepare(compose([f"data={name}", *options])).data
    whole, shards = data.load(), [data.load_shard(k, HOSTS) for k in range(HOSTS)]
    if whole.train.n_generated_clients:  # each host generates the rows that it needs
        assert all(shard.train.n_hosts == 1 for shard in shards)
        return
    assert_shards_make(whole, shards)


def test_the_shards_of_handwriting_make_the_whole(tmp_path):
    data = Femnist(
        str(handwriting.save_tff(tmp_path, handwriting.random_writers(), handwriting.random_writers(seed=1))),
        fraction_clients=1.0,
    )
    assert_shards_make(data.load(), [data.load_shard(k, HOSTS) for k in range(HOSTS)])


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
    for host, n_hosts in ((1, 2), (0, 1)):
        with fails(f"writer {last} has pixels outside 0 to 1"):
            data.load_shard(host, n_hosts)


@pytest.mark.parametrize("name", ["lasso", "heterogeneous", "least_squares", "logistic_synthetic"])
def test_a_host_allocates_the_rows_of_its_own_clients_only(name):
    sizes = ["clients=64", "samples=64", "features=64", "test_samples=8", "validation_samples=16"]
    sizes += ["nonzeros=8"] if name == "lasso" else []
    data = prepare(compose([f"data={name}", *(f"data.{size}" for size in sizes)])).data
    whole = data.load()
    tracemalloc.start()
    try:
        data.load_shard(1, 4)
        assert tracemalloc.get_traced_memory()[1] < 0.6 * (whole.train.x.nbytes + not_none(whole.validation).x.nbytes)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["folder", "h5"])
@pytest.mark.parametrize(
    ("resident", "standardize"), [(True, "none"), (True, "pooled"), (True, "per_client"), (False, "pooled")]
)
def test_the_shards_of_arrays_make_the_whole(kind, resident, standardize, tmp_path):
    save(tmp_path, kind, ragged_arrays())
    path = str(tmp_path / f"rows{'' if kind == 'folder' else '.h5'}")
    table = Table(path=path, test=0.1, standardize=standardize, resident=resident)
    whole = table.load()
    shards = [table.load_shard(k, HOSTS) for k in range(HOSTS)]
    if not resident or standardize != "pooled":
        assert_shards_make(whole, shards)
    np.testing.assert_allclose(concatenate_shards(shards, "train"), np.asarray(whole.train.x), rtol=1e-6)
    assert all(shard.train.streamed == (not resident) for shard in shards)
    if resident:
        assert max(shard.train.x.nbytes for shard in shards) < 0.6 * whole.train.x.nbytes


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
@pytest.mark.parametrize("n_hosts", [2, 3])
def test_each_host_has_a_client_and_about_as_many_rows(sizes, n_hosts):
    offsets = np.append(0, np.cumsum(sizes))
    bounds = balance_clients(offsets, n_hosts)
    assert (np.diff(bounds) > 0).all()
    assert [bounds[0], bounds[-1]] == [0, len(sizes)]
    most = np.diff(offsets[bounds]).max()
    assert most <= offsets[-1] / n_hosts + max(sizes)


def test_fewer_clients_than_hosts_are_not_sharded():
    data = Lasso(clients=2, samples=3, features=4, nonzeros=1, validation_samples=0)
    assert data.load_shard(1, 3).train.n_hosts == 1
    assert isinstance(data.load_shard(1, 2).train.x, HostMatrix)


def test_rows_are_indexed_by_slice_number_mask_and_array():
    x = np.arange(20.0).reshape(10, 2)
    host_rows = HostMatrix.take(x, np.array([0, 3, 10]), 1)
    mask = np.isin(np.arange(10), [4, 9])
    for rows in (slice(3, 10), slice(9, 3, -2), slice(5, 5), np.array([9, 3, 3]), mask, 7):
        np.testing.assert_array_equal(host_rows[rows], x[rows])
    for rows in (slice(2, 4), slice(None), np.array([2]), ~mask, 0, -1 - 9):
        with fails("hosts.rows=all"):
            host_rows[rows]
    with fails("hosts.rows=all"):
        np.asarray(host_rows)
    np.testing.assert_array_equal(HostMatrix.take(x, np.array([0, 3, 10]), 0).values[3:], 0)


def test_a_nonfinite_value_is_reported_by_its_row_in_the_whole():
    data = Lasso(clients=3, samples=4, features=5, nonzeros=1, validation_samples=0).load()
    data.train.x[9, 2] = np.nan
    with fails("row 9"):
        shard_for_host(data, 2, 3).validate()
