"""Tables whose rows stay on disk equal the same tables read into memory."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from disk_tables import FEATURES, ROWS, arrays, frame, write_folder, write_hdf5, write_parquet

from fcorun import UserError
from fcorun.base.system import files
from fcorun.data.datasets.dataset import Features, FederatedData
from fcorun.data.datasets.table import Table
from fcorun.data.rows import disk_matrix
from fcorun.data.rows.disk_matrix import DiskMatrix
from fcorun.data.rows.features import find_nonfinite
from fcorun.data.rows.rows import Rows
from fcorun.data.tables import array_files
from fcorun.data.tables.data_warnings import warn_identifiers
from fcorun.data.tables.readers import read_dataframe
from fcorun.data.tables.scaling import Scaling


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Read blocks of a few rows, so that a table has several."""
    for module in (disk_matrix, array_files):
        monkeypatch.setattr(module, "READ_BYTES", 200)


def both(**given) -> tuple[FederatedData, FederatedData]:
    return Table(**given, resident=True).load(), Table(**given, resident=False).load()


def alike(memory: FederatedData, disk: FederatedData) -> None:
    assert disk.train.streamed
    assert not memory.train.streamed
    assert [line for line in disk.warnings if "stay on disk" not in line] == list(memory.warnings)
    assert list(disk.splits) == list(memory.splits)
    for split, rows in memory.splits.items():
        for field in fields(Rows):
            one, other = getattr(rows, field.name), getattr(disk.splits[split], field.name)
            if one is None:
                assert other is None
            else:
                assert other.dtype == one.dtype
                close(other, one)
    for field in fields(Features):
        one, other = getattr(memory.features, field.name), getattr(disk.features, field.name)
        if isinstance(one, dict):
            for key in {*one} | {*other}:
                close(other[key], one[key])
        elif isinstance(one, np.ndarray):
            assert other.dtype == one.dtype
            close(other, one)
        else:
            assert one == other


def close(found, wanted) -> None:
    """Equal, real numbers to rounding."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, wanted, rtol=1e-6 if found.dtype == np.float32 else 1e-12, atol=1e-7)
    else:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("standardize", ["none", "pooled"])
@pytest.mark.parametrize("test", [0.0, 0.3])
def test_folders(standardize, test):
    alike(*both(path=write_folder(), standardize=standardize, test=test))


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "float64", "int64"])
def test_rows_have_the_type_that_they_are_stored_in(dtype):
    memory, disk = both(path=write_folder(**arrays(dtype)))
    alike(memory, disk)
    assert disk.train.x.dtype == (np.int8 if dtype == "bool" else dtype)


def halved(values: np.ndarray) -> np.ndarray:
    return values.astype(jnp.bfloat16)


@pytest.mark.parametrize("form", ["C", "F", "contiguous", "chunks"])
@pytest.mark.parametrize("standardize", ["none", "pooled"])
def test_bfloat16_is_read_as_float32(form, standardize):
    given = {"y": np.arange(ROWS) % 3.0, "X": arrays()["X"], "client": np.arange(ROWS) % 4.0}
    given = {name: halved(values) for name, values in given.items()}
    single = {name: values.astype(np.float32) for name, values in given.items()}
    wide = Table(path=write_folder(**single), standardize=standardize, task="multiclass").load()
    path = "rows"
    if form in ("C", "F"):
        write_folder(**given | {"X": np.asarray(given["X"], order=form)})
    else:  # without a type, as .npy has them
        plain = {name: values.view("V2") for name, values in given.items()}
        path = write_hdf5(plain, **({"chunks": (7, 2)} if form == "chunks" else {}))
    memory, disk = both(path=path, standardize=standardize, task="multiclass")
    alike(memory, disk)
    alike(wide, disk)
    assert disk.train.x.dtype == np.float32
    on_file: Any = disk.train.x
    assert on_file.values.nbytes == 2 * ROWS * FEATURES
    assert list(disk.classes) == [0, 1, 2]


def test_bfloat16_is_predicted_for_and_judged_by_what_it_takes(monkeypatch):
    x = halved(arrays()["X"])
    np.savez("new.npz", X=x, client=halved(np.arange(ROWS) % 4.0))
    frame, owner = read_dataframe("new.npz", None, FEATURES, {})
    np.testing.assert_array_equal(frame.to_numpy(), x.astype(np.float32))
    assert owner is not None
    assert list(owner[:5]) == ["0", "1", "2", "3", "0"]
    asked = []
    monkeypatch.setattr(array_files, "stays_on_disk", lambda size, _: asked.append(size) or False)
    Table(path=write_folder(X=x)).load()
    assert asked == [4 * x.size]


def test_types_that_numpy_does_not_know_are_refused():
    with pytest.raises(UserError, match="y has the type"):
        Table(path=write_folder(y=np.zeros(ROWS, np.uint8).view("V1")), task="binary").load()


def test_folders_without_clients_are_dealt_out():
    os.remove(f"{write_folder()}/client.npy")
    alike(*both(path="rows", clients=3, partition="sorted"))


@pytest.mark.parametrize("how", [{}, {"compression": "gzip"}, {"chunks": (7, 2)}], ids=str)
def test_hdf5(how):
    alike(*both(path=write_hdf5(**how)))


def test_parquet(session_cache):
    given = write_parquet(frame().assign(w=np.linspace(1, 2, ROWS), whole=np.arange(ROWS, 0, -1, dtype=np.int16) // 7))
    alike(*both(**given, weight="w", ignore=["f1"]))
    kept = set((session_cache / "rows").glob("*.npy"))
    times = {path: path.stat().st_mtime_ns for path in kept}
    Table(**given, weight="w", ignore=["f1"], resident=False).load()
    assert {path: path.stat().st_mtime_ns for path in (session_cache / "rows").glob("*.npy")} == times


@pytest.mark.parametrize("name", [None, "patient"])
def test_an_index_of_pandas_is_no_feature(name):
    memory, disk = both(**write_parquet(frame().sample(frac=1, random_state=0).rename_axis(name)))
    assert disk.features.names == tuple(f"f{k}" for k in range(FEATURES))
    alike(memory, disk)


def test_columns_that_are_numbered():
    write_parquet(frame().set_axis(range(2 + FEATURES), axis=1))
    memory, disk = both(path="rows.parquet", target="0", client="1")
    assert disk.features.names == tuple(str(2 + k) for k in range(FEATURES))
    alike(memory, disk)


def test_of_what_takes_much_auto_leaves_the_rows_on_disk(monkeypatch):
    assert not Table(path=write_folder()).load().train.streamed
    monkeypatch.setattr(array_files, "free_memory_for_rows", lambda: 2 * ROWS * FEATURES * 4)
    assert Table(path=write_folder()).load().train.streamed


def test_the_identity_does_not_depend_on_where_rows_are():
    path = write_folder()
    ways: list = [True, False, "auto"]
    prints = {Table(path=path, resident=way).fingerprint() for way in ways}
    assert len(prints) == 1
    write_folder(y=np.zeros(ROWS))
    assert Table(path=path).fingerprint() not in prints


def test_a_large_file_is_digested_once(monkeypatch):
    write_folder()
    known = files.file_digest(Path("rows/X.npy"))
    monkeypatch.setattr(files, "_CACHED_DIGEST_BYTES", 0)
    read, whole = [], files._sha256
    monkeypatch.setattr(files, "_sha256", lambda file: read.append(file.name) or whole(file))
    assert [files.file_digest(Path("rows/X.npy")) for _ in range(3)] == [known] * 3
    assert read == ["X.npy"]
    write_folder(X=arrays()["X"] + 1)
    assert files.file_digest(Path("rows/X.npy")) != known
    assert len(read) == 2


def test_rows_that_a_killed_process_began_to_write_leave_the_cache(monkeypatch):
    table: dict = write_parquet(frame())
    monkeypatch.setenv("FCORUN_CACHE", "cache")
    Table(**table, resident=False).load()
    (rows,) = Path("cache", "rows").iterdir()
    rows.unlink()
    old, new = (rows.with_name(f".{rows.name}.{digit * 16}.tmp") for digit in "01")
    for temporary in (old, new):
        temporary.touch()
    os.utime(old, (0, 0))
    Table(**table, resident=False).load()
    assert set(rows.parent.iterdir()) == {rows, new}


def test_blocks_are_of_a_few_rows(monkeypatch):
    cache_blocks, blocks = array_files.cache_blocks, []

    def counted(key, shape, dtype, content):
        return cache_blocks([*key, "blocks"], shape, dtype, (blocks.append(len(block)) or block for block in content))

    monkeypatch.setattr(array_files, "cache_blocks", counted)
    tables: list[dict] = [write_parquet(frame()), {"path": write_hdf5(compression="gzip")}]
    for given in tables:
        blocks.clear()
        x: Any = Table(**given, resident=False).load().train.x
        assert sum(blocks) == ROWS
        assert max(blocks) * FEATURES * 4 <= 200
        lengths = [block.stop - block.start for block in x.slices()]
        assert sum(lengths) == len(x)
        assert max(lengths) * FEATURES * 4 <= 200


def test_rows_are_those_of_the_array_in_any_order():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((500, 3))
    np.save("v.npy", values)
    whole = DiskMatrix.from_memmap(np.load("v.npy", mmap_mode="r"))
    indices = [rng.permutation(500), [3, 3, 499, 0], [0, 0, 2], np.r_[400:420, 10:30, 7]]
    for rows in (*indices, slice(5, 80), values[:, 0] > 1, []):
        some = whole[rows]
        np.testing.assert_array_equal(np.asarray(some), values[rows])
        np.testing.assert_array_equal(some[:7].astype(np.float32), values[rows][:7].astype(np.float32))
        assert (len(some), some.shape, some.size) == (len(values[rows]), values[rows].shape, values[rows].size)
        assert find_nonfinite(some) is None
    np.testing.assert_array_equal(whole[4], values[4])
    assert whole[4, 2] == values[4, 2]
    np.testing.assert_array_equal(whole[:, 1], values[:, 1])
    client = np.arange(len(whole[::-3])) // 50
    on_disk_scaling, expected = Scaling.fit(whole[::-3], client), Scaling.fit(values[::-3], client)
    np.testing.assert_allclose(on_disk_scaling.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(on_disk_scaling.deviation, expected.deviation, rtol=1e-12)
    np.testing.assert_array_equal([whole.min(), whole.max()], [values.min(axis=0), values.max(axis=0)])


@pytest.mark.parametrize(("dtype", "times"), [("int32", 3), ("float64", 3), ("int8", 0)])
def test_columns_that_number_the_rows_are_found_in_few_readings(dtype, times, monkeypatch):
    rng, read_rows, rows = np.random.default_rng(2), disk_matrix._read_rows, []
    numbers = np.stack([*(rng.permutation(300) for _ in range(20)), rng.integers(0, 200, 300)], axis=1).astype(dtype)
    numbers[200:, 3] = numbers[100, 3]
    np.save("v.npy", numbers)
    disk = DiskMatrix.from_memmap(np.load("v.npy", mmap_mode="r"))
    monkeypatch.setattr(disk_matrix, "_read_rows", lambda values, at: rows.append(len(at)) or read_rows(values, at))
    found = warn_identifiers(disk)
    assert sum(rows) <= times * 300
    assert found == warn_identifiers(numbers)
    if times:
        assert "in column 0 (from 0), column 1 (from 0), column 2 (from 0) and 16 more" in found[0]
