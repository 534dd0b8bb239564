"""Tables whose rows stay on disk: what is damaged, lacks something or takes too much is said in one sentence."""

import errno
import os
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from disk_tables import FEATURES, ROWS, arrays, frame, write_folder, write_hdf5, write_parquet
from helpers import fails

from fcorun.data.datasets.table import Table
from fcorun.data.rows import disk_matrix
from fcorun.data.tables.readers import read_dataframe


def test_rows_that_do_not_fit_into_memory_are_not_read_at_once(monkeypatch):
    disk = Table(path=write_folder(), resident=False).load()
    monkeypatch.setattr(disk_matrix, "free_host_memory", lambda: 1000)
    with fails("stay on disk", "needs all of them in memory"):
        np.asarray(disk.train.x)
    assert np.asarray(disk.train.x[:2]).shape == (2, FEATURES)


def test_what_is_not_finite_is_found():
    x = arrays()["X"]
    x[77, 2] = np.inf
    with fails("NaN or infinite value in the", "column '2'"):
        Table(path=write_folder(X=x), resident=False).load()


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
        Table(**(write_parquet(frame().assign(**change)) | given), resident=False).load()


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
        Table(**write_parquet(table), resident=resident, weight="weight" if "weight" in says else None).load()


@pytest.mark.parametrize("resident", [True, False, "auto"])
@pytest.mark.parametrize("cut", [slice(0, 30), slice(0, -12), slice(4, None), slice(200, None)], ids=str)
def test_damaged_parquet(cut, resident):
    given, file = write_parquet(frame()), Path("rows.parquet")
    file.write_bytes(file.read_bytes()[cut])
    with fails("data.path=rows.parquet: cannot be read as .parquet", "mend or rename the file"):
        Table(**given, resident=resident).load()


@pytest.mark.parametrize("resident", [True, False])
def test_hdf5_of_which_a_part_is_damaged(resident):
    path = Path(write_hdf5(compression="gzip", chunks=(ROWS, 1)))
    with h5py.File(path) as file:
        found: h5py.Dataset = file["X"]  # type: ignore[assignment]
        place = found.id.get_chunk_info(2)
    content = bytearray(path.read_bytes())
    content[place.byte_offset : place.byte_offset + place.size] = bytes(place.size)
    path.write_bytes(content)
    with fails("data.path=rows.h5: cannot be read as .h5", "mend or rename the file"):
        Table(path=str(path), resident=resident).load()


def test_parquet_of_which_a_part_is_damaged(session_cache):
    table = frame()
    given, path = write_parquet(table), Path("rows.parquet")
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
    with fails("GiB of rows cannot be written to", "No space left on device", "FCORUN_CACHE=FOLDER"):
        Table(**write_parquet(frame().assign(f0=3)), resident=False).load()


def test_folders_and_files_that_lack_arrays():
    write_folder()
    os.remove("rows/y.npy")
    with fails("there is no array 'y'"):
        Table(path="rows").load()
    Path("rows/y.npy").write_text("no array")
    with fails("cannot be read as folder of .npy"):
        Table(path="rows").load()
    np.save("rows/y.npy", np.zeros(3))
    with fails("y has shape (3,)", "X has 90 rows"):
        Table(path="rows", resident=False).load()
    with h5py.File("no.h5", "w") as file:
        file["X"] = np.zeros((2, 2))
    with fails("there is no array 'y'"):
        Table(path="no.h5").load()
    Path("text.h5").write_text("no array")
    with fails("cannot be read as .h5"):
        Table(path="text.h5").load()


def test_an_archive_named_npy():
    np.savez("archive.npz", a=np.zeros(3))
    for name in ("X", "y"):
        Path("archive.npz").replace(f"{write_folder()}/{name}.npy")
        with fails("cannot be read as folder of .npy", f"{name}.npy is an .npz"):
            Table(path="rows").load()
        np.savez("archive.npz", a=np.zeros(3))


def link(file: h5py.File, name: str) -> None:
    file[name] = h5py.ExternalLink("other.h5", name)


def link_behind_a_link(file: h5py.File, name: str) -> None:
    file["other"] = h5py.ExternalLink("other.h5", "/")
    file[name] = h5py.SoftLink(f"/other/{name}")


def link_to_nothing(file: h5py.File, name: str) -> None:
    file[name] = h5py.ExternalLink("none.h5", name)


def virtual(file: h5py.File, name: str) -> None:
    values = arrays()[name]
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource("other.h5", name, values.shape)
    file.create_virtual_dataset(name, layout)


def external(file: h5py.File, name: str) -> None:
    values = arrays()[name]
    values.tofile("values.bin")
    file.create_dataset(name, values.shape, values.dtype, external=[("values.bin", 0, values.nbytes)])


def group(file: h5py.File, name: str) -> None:
    file.create_group(name)


def empty(file: h5py.File, name: str) -> None:
    file[name] = h5py.Empty("f")


@pytest.mark.parametrize("name", ["X", "y", "client"])
@pytest.mark.parametrize("write", [link, link_behind_a_link, link_to_nothing, virtual, external, group, empty])
def test_values_that_an_hdf5_file_does_not_hold_itself(write, name):
    Path(write_hdf5()).rename("other.h5")
    with h5py.File(write_hdf5(), "a") as file:
        del file[name]
        write(file, name)
    with fails(f"data.path=rows.h5: '{name}' is no data set with values in the file itself"):
        Table(path="rows.h5", resident=False).load()
    if name != "y":
        with fails(f"rows.h5: '{name}' is no data set with values in the file itself"):
            read_dataframe("rows.h5")


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize(
    ("name", "says"), [("X", "X must be a matrix of numbers"), ("y", "y has the type object; save it as numbers")]
)
def test_references_of_hdf5_are_no_numbers(name, says, resident):
    with h5py.File(write_hdf5(), "a") as file:
        shape = arrays()[name].shape
        del file[name]
        file[name] = np.full(shape, file["client"].ref, h5py.ref_dtype)
    with fails("data.path=rows.h5", says):
        Table(path="rows.h5", resident=resident).load()
