"""Tables whose rows stay on disk: what is read of them is what is read of them in memory."""

import errno
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers import fails

from fcorun.datasets import on_disk, parquet, stored
from fcorun.datasets.base import FederatedData
from fcorun.datasets.on_disk import OnDisk
from fcorun.datasets.remarks import identifiers
from fcorun.datasets.scaling import Scaling
from fcorun.datasets.table import Table

ROWS, FEATURES = 90, 4


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of a few rows."""
    for module in (on_disk, stored, parquet):
        monkeypatch.setattr(module, "AT_ONCE", 200)


def arrays(dtype="float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = (100 * rng.random((ROWS, FEATURES))).astype(dtype)
    return {"X": x, "y": rng.standard_normal(ROWS), "client": rng.integers(0, 4, ROWS)}


def folder(**changed) -> str:
    Path("rows").mkdir(exist_ok=True)
    for name, values in (arrays() | changed).items():
        np.save(f"rows/{name}.npy", values)
    return "rows"


def hdf5(**how) -> str:
    with h5py.File("rows.h5", "w") as file:
        for name, values in arrays().items():
            file.create_dataset(name, data=values, **(how if name == "X" else {}))
    return "rows.h5"


def frame() -> pd.DataFrame:
    found = arrays()
    x = found.pop("X")
    return pd.DataFrame(found | {f"f{k}": x[:, k] for k in range(FEATURES)})


def parquet_of(table: pd.DataFrame) -> dict:
    table.to_parquet("rows.parquet")
    return {"path": "rows.parquet", "target": "y", "client": "client"}


def both(**given) -> tuple[FederatedData, FederatedData]:
    return Table(**given, resident=True).load(), Table(**given, resident=False).load()


def alike(memory: FederatedData, disk: FederatedData) -> None:
    assert disk.on_disk
    assert not memory.on_disk
    for field in fields(FederatedData):
        one, other = getattr(memory, field.name), getattr(disk, field.name)
        if field.name == "remarks":
            assert [line for line in other if "stay on disk" not in line] == list(one)
        elif isinstance(one, dict):
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
    alike(*both(path=folder(), standardize=standardize, test=test))


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "float64", "int64"])
def test_rows_have_the_type_that_they_are_stored_in(dtype):
    memory, disk = both(path=folder(**arrays(dtype)))
    alike(memory, disk)
    assert disk.x.dtype == (np.int8 if dtype == "bool" else dtype)


def test_folders_without_clients_are_dealt_out():
    os.remove(f"{folder()}/client.npy")
    alike(*both(path="rows", clients=3, partition="sorted"))


@pytest.mark.parametrize("how", [{}, {"compression": "gzip"}, {"chunks": (7, 2)}], ids=str)
def test_hdf5(how):
    alike(*both(path=hdf5(**how)))


def test_parquet(session_cache):
    given = parquet_of(frame().assign(w=np.linspace(1, 2, ROWS), whole=np.arange(ROWS, dtype=np.int16) // 7))
    alike(*both(**given, weight="w", ignore=["f1"]))
    kept = set((session_cache / "rows").glob("*.npy"))
    times = {path: path.stat().st_mtime_ns for path in kept}
    Table(**given, weight="w", ignore=["f1"], resident=False).load()
    assert {path: path.stat().st_mtime_ns for path in (session_cache / "rows").glob("*.npy")} == times


@pytest.mark.parametrize("name", [None, "patient"])
def test_an_index_of_pandas_is_no_feature(name):
    memory, disk = both(**parquet_of(frame().sample(frac=1, random_state=0).rename_axis(name)))
    assert disk.features == tuple(f"f{k}" for k in range(FEATURES))
    alike(memory, disk)


def test_columns_that_are_numbered():
    parquet_of(frame().set_axis(range(2 + FEATURES), axis=1))
    memory, disk = both(path="rows.parquet", target="0", client="1")
    assert disk.features == tuple(str(2 + k) for k in range(FEATURES))
    alike(memory, disk)


def test_of_what_takes_much_auto_leaves_the_rows_on_disk(monkeypatch):
    assert not Table(path=folder()).load().on_disk
    monkeypatch.setattr(stored, "free_memory", lambda: 2 * ROWS * FEATURES * 4)
    assert Table(path=folder()).load().on_disk


def test_the_identity_does_not_depend_on_where_rows_are():
    path = folder()
    ways: list = [True, False, "auto"]
    prints = {Table(path=path, resident=way).fingerprint() for way in ways}
    assert len(prints) == 1
    folder(y=np.zeros(ROWS))
    assert Table(path=path).fingerprint() not in prints


def test_a_large_file_is_digested_once(monkeypatch):
    folder()
    known = stored.digest(Path("rows/X.npy"))
    monkeypatch.setattr(stored, "_HASHED", 0)
    read, whole = [], stored._sha256
    monkeypatch.setattr(stored, "_sha256", lambda file: read.append(file.name) or whole(file))
    assert [stored.digest(Path("rows/X.npy")) for _ in range(3)] == [known] * 3
    assert read == ["X.npy"]
    folder(X=arrays()["X"] + 1)
    assert stored.digest(Path("rows/X.npy")) != known
    assert len(read) == 2


def test_blocks_are_of_a_few_rows(monkeypatch):
    kept, blocks = stored.kept, []

    def counted(key, shape, dtype, found):
        return kept([*key, "blocks"], shape, dtype, (blocks.append(len(block)) or block for block in found))

    for module in (stored, parquet):
        monkeypatch.setattr(module, "kept", counted)
    tables: list[dict] = [parquet_of(frame()), {"path": hdf5(compression="gzip")}]
    for given in tables:
        blocks.clear()
        x: Any = Table(**given, resident=False).load().x
        assert sum(blocks) == ROWS
        assert max(blocks) * FEATURES * 4 <= 200
        parts = [part.stop - part.start for part in x.parts()]
        assert sum(parts) == len(x)
        assert max(parts) * FEATURES * 4 <= 200


def test_rows_are_those_of_the_array_in_any_order():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((500, 3))
    np.save("v.npy", values)
    whole = OnDisk.of(np.load("v.npy", mmap_mode="r"))
    some = [rng.permutation(500), [3, 3, 499, 0], [0, 0, 2], np.r_[400:420, 10:30, 7]]
    for rows in (*some, slice(5, 80), values[:, 0] > 1, []):
        some = whole[rows]
        np.testing.assert_array_equal(np.asarray(some), values[rows])
        np.testing.assert_array_equal(some[:7].astype(np.float32), values[rows][:7].astype(np.float32))
        assert (len(some), some.shape, some.size) == (len(values[rows]), values[rows].shape, values[rows].size)
    np.testing.assert_array_equal(whole[4], values[4])
    np.testing.assert_array_equal(whole[:, 1], values[:, 1])
    found, wanted = Scaling.of(whole[::-3]), Scaling.of(values[::-3])
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-12)
    np.testing.assert_allclose(found.deviation, wanted.deviation, rtol=1e-12)
    np.testing.assert_array_equal([whole.min(), whole.max()], [values.min(axis=0), values.max(axis=0)])


def test_rows_that_do_not_fit_into_memory_are_not_read_at_once(monkeypatch):
    disk = Table(path=folder(), resident=False).load()
    monkeypatch.setattr(on_disk, "free_memory", lambda: 1000)
    with fails("stay on disk", "needs all of them in memory"):
        np.asarray(disk.x)
    assert np.asarray(disk.x[:2]).shape == (2, FEATURES)


def test_what_is_not_finite_is_found():
    x = arrays()["X"]
    x[77, 2] = np.inf
    with fails("NaN or infinite value in the", "column '2'"):
        Table(path=folder(X=x), resident=False).load()


@pytest.mark.parametrize(
    ("change", "given", "says"),
    [
        ({"note": "text"}, {}, "columns must be numbers, and 'note' is"),
        ({"f1": [None, *range(ROWS - 1)]}, {}, "column 'f1' has gaps"),
        ({}, {"target": "z"}, "data.target=z: there is no such column"),
        ({}, {"ignore": ["g"]}, "data.ignore: rows.parquet has no column 'g'"),
        ({}, {"standardize": "per_client"}, "data.standardize=per_client needs rows in memory"),
    ],
)
def test_what_is_not_done_on_disk_is_refused(change, given, says):
    with fails(says):
        Table(**(parquet_of(frame().assign(**change)) | given), resident=False).load()


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize(
    ("table", "says"),
    [
        (frame().head(0), "the file has no rows"),
        (frame()[["y", "client"]], "the file has no feature columns"),
        (frame().assign(y=np.inf), "target 'y' is missing or infinite in row 1"),
        (frame().assign(w=1.0), "data.weight=weight: there is no such column"),
        (frame().rename(columns={"f0": "Unnamed: 2"}), "column 2 (from 0) has no name"),
    ],
)
def test_parquet_is_checked_on_disk_as_in_memory(table, says, resident):
    with fails("rows.parquet", says):
        Table(**parquet_of(table), resident=resident, weight="weight" if "weight" in says else None).load()


@pytest.mark.parametrize("resident", [True, False, "auto"])
@pytest.mark.parametrize("cut", [slice(0, 30), slice(0, -12), slice(4, None), slice(200, None)], ids=str)
def test_damaged_parquet(cut, resident):
    given, file = parquet_of(frame()), Path("rows.parquet")
    file.write_bytes(file.read_bytes()[cut])
    with fails("data.path=rows.parquet: cannot be read as .parquet", "mend or rename the file"):
        Table(**given, resident=resident).load()


@pytest.mark.parametrize(("dtype", "times"), [("int32", 3), ("float64", 3), ("int8", 0)])
def test_columns_that_number_the_rows_are_found_in_few_readings(dtype, times, monkeypatch):
    rng, taken, rows = np.random.default_rng(2), on_disk._taken, []
    numbers = np.stack([*(rng.permutation(300) for _ in range(20)), rng.integers(0, 200, 300)], axis=1).astype(dtype)
    numbers[200:, 3] = numbers[100, 3]
    np.save("v.npy", numbers)
    disk = OnDisk.of(np.load("v.npy", mmap_mode="r"))
    monkeypatch.setattr(on_disk, "_taken", lambda values, places: rows.append(len(places)) or taken(values, places))
    found = identifiers(disk)
    assert sum(rows) <= times * 300
    assert found == identifiers(numbers)
    if times:
        assert "in column 0 (from 0), column 1 (from 0), column 2 (from 0) and 16 more" in found[0]


@pytest.mark.parametrize("resident", [True, False])
def test_hdf5_of_which_a_part_is_damaged(resident):
    path = Path(hdf5(compression="gzip", chunks=(ROWS, 1)))
    with h5py.File(path) as file:
        found: h5py.Dataset = file["X"]  # type: ignore[assignment]
        place = found.id.get_chunk_info(2)
    content = bytearray(path.read_bytes())
    content[place.byte_offset : place.byte_offset + place.size] = bytes(place.size)
    path.write_bytes(content)
    with fails("data.path=rows.h5: cannot be read as HDF5", "mend or rename the file"):
        Table(path=str(path), resident=resident).load()


def test_parquet_of_which_a_part_is_damaged(session_cache):
    table = frame()
    given, path = parquet_of(table), Path("rows.parquet")
    about = pq.read_metadata(path).row_group(0).column(2)
    content = bytearray(path.read_bytes())
    start = about.dictionary_page_offset or about.data_page_offset
    content[start : start + about.total_compressed_size] = bytes(about.total_compressed_size)
    path.write_bytes(content)
    with fails("data.path=rows.parquet: cannot be read as .parquet", "mend or rename the file"):
        Table(**given, resident=False).load()
    assert not list((session_cache / "rows").glob(".*.tmp"))


def test_a_full_disk_is_called_that(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with fails("has no room for", "No space left on device", "FCORUN_CACHE=FOLDER"):
        Table(**parquet_of(frame().assign(f0=3)), resident=False).load()


def test_folders_and_files_that_lack_arrays():
    folder()
    os.remove("rows/y.npy")
    with fails("the folder has no y.npy"):
        Table(path="rows").load()
    Path("rows/y.npy").write_text("no array")
    with fails("cannot be read as .npy"):
        Table(path="rows").load()
    np.save("rows/y.npy", np.zeros(3))
    with fails("y has shape (3,)", "X has 90 rows"):
        Table(path="rows", resident=False).load()
    with h5py.File("no.h5", "w") as file:
        file["X"] = np.zeros((2, 2))
    with fails("there is no data set 'y'"):
        Table(path="no.h5").load()
    Path("text.h5").write_text("no array")
    with fails("cannot be read as HDF5"):
        Table(path="text.h5").load()
