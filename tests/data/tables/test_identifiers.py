"""Names of clients, patients and folds that are whole numbers: one spelling for every format of file."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import not_none

from fcorun.base.config import build
from fcorun.data.datasets.sites import Sites
from fcorun.data.datasets.table import Table
from fcorun.data.tables.cells import names_as_text
from fcorun.data.tables.readers import read_dataframe
from fcorun.interface.api.rows_in_memory import from_arrays, from_frame
from fcorun.methods.clocks.clock import TraceClock
from fcorun.methods.communication.faults import Dropout
from fcorun.methods.communication.graph import read_edges
from fcorun.methods.communication.tree import Tree

NUMBER = np.arange(60) // 2  # of the patient, who has two rows


def visits() -> pd.DataFrame:
    """Return two visits of each patient, with names that a gap in a further row has made real numbers."""
    names = {"hospital": NUMBER % 3, "patient": NUMBER, "wave": NUMBER // 10}
    rows = {name: values.astype(float) for name, values in names.items()}
    return pd.DataFrame({"x": np.arange(60.0) % 7, "y": np.arange(60.0), **rows})


def write(name: str) -> str:
    """Write the visits in a format, and return the path of the file."""
    frame: Any = visits()
    if name == "two spellings.csv":
        whole = frame.astype({"hospital": int, "patient": int, "wave": int})
        frame = pd.concat([frame[::2].astype(str), whole[1::2].astype(str)]).sort_index()
    if name.endswith(".parquet"):
        frame.to_parquet(name)
    elif name.endswith(".xlsx"):
        pytest.importorskip("openpyxl", reason="NOT TESTED: .xlsx needs openpyxl, pip install 'fcorun[xlsx]'")
        frame.to_excel(name, index=False)
    elif name.endswith(".npz"):
        arrays: dict[str, Any] = {column: frame[column].to_numpy() for column in ("y", "patient", "wave")}
        np.savez(name, X=frame[["x"]], client=frame["hospital"].to_numpy(str), **arrays)
    else:
        frame.to_csv(name, index=False)
    return name


@pytest.mark.parametrize("name", ["t.csv", "two spellings.csv", "t.parquet", "t.xlsx", "t.npz"])
def test_every_format_has_the_same_names(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"group": "patient", "fold": "wave", "validation": ["1"]}
    if not name.endswith(".npz"):
        options |= {"target": "y", "client": "hospital", "only": ["x"]}
    data = build(Table, {"path": write(name), **options}, "data").load()
    assert (data.clients, data.held_out_clients) == (("0", "2"), ("1",))
    for rows, clients in ((data.train, [0, 2]), (data.validation, [1])):
        is_of_rows = np.isin(NUMBER % 3, clients)
        order = np.argsort((NUMBER % 3)[is_of_rows], kind="stable")
        assert not_none(rows.group).tolist() == NUMBER[is_of_rows][order].astype(str).tolist()
        assert not_none(rows.fold).tolist() == (NUMBER // 10)[is_of_rows][order].astype(str).tolist()
    clients = read_dataframe(name, "hospital")[1]
    assert not_none(clients).tolist() == (NUMBER % 3).astype(str).tolist()


def test_rows_in_memory_have_the_same_names():
    frame = visits()
    text = frame.assign(hospital=frame["hospital"].astype(str), patient=frame["patient"].astype(str))
    from_text = from_frame(text, "y", "hospital", group="patient", ignore=["wave"], validation=["1"]).load()
    of_arrays = from_arrays(
        frame[["x"]].to_numpy(),
        frame["y"].to_numpy(),
        clients=text["hospital"].to_numpy(),
        groups=frame["patient"].to_numpy(),
        validation=["1"],
    ).load()
    for data in (from_text, of_arrays):
        assert (data.clients, data.held_out_clients) == (("0", "2"), ("1",))
        assert set(not_none(not_none(data.validation).group)) == set(NUMBER[NUMBER % 3 == 1].astype(str))


def test_names_that_may_mean_something_else_are_kept():
    kept = ["007", "007.0", "1.10", "1.00", "3.000", "1.0.0", "v1.0", "2026.01.0", "1,0", ".0", "1e3", "-", ""]
    assert names_as_text(np.array(kept)).tolist() == kept
    assert names_as_text(np.array(["17.0", "17", "0.0", "-9.0", "120.0"])).tolist() == ["17", "17", "0", "-9", "120"]
    assert names_as_text(np.array([1.0, 1.5])).tolist() == ["1", "1.5"]  # new rows may have the client 1 alone
    assert names_as_text(np.array([17.0, "A3"], object)).tolist() == ["17", "A3"]


def test_kept_columns_are_repeated_as_they_are_written(tmp_path):
    Path(tmp_path / "t.csv").write_text("x,y,code\n1,2,250.0\n2,3,250\n4,5,007\n5,7,8\n3,1,9\n")
    data = Table(str(tmp_path / "t.csv"), target="y", keep=["code"], clients=1, validation=0).load()
    assert not_none(data.train.repeated_columns)[:, 0].tolist() == ["250.0", "250", "007", "8", "9"]


def test_options_and_files_beside_the_data_name_the_same_clients(tmp_path):
    clients = ["1", "2"]
    content = {
        "edges": "client,edge\n1.0,b\n2.0,a\n",
        "links": "client,neighbour\n1.0,2.0\n",
        "times": "client,gradients_per_second,bytes_per_second,latency\n1.0,1,1,0\n2.0,3,1,0\n",
        "trace": "round,client\n1,2.0\n",
    }
    path = {name: str(tmp_path / f"{name}.csv") for name in content}
    for name, text in content.items():
        Path(path[name]).write_text(text)
    assert not_none(Tree(map=path["edges"]).connect(clients, np.ones(2))).tolist() == [1, 0]
    assert read_edges(path["links"], clients).tolist() == [[0, 1]]
    assert TraceClock(path=path["times"]).speeds(clients).gradients_per_second.tolist() == [1, 3]
    assert not_none(Dropout(trace=path["trace"]).find_absences(clients, rounds=2)).tolist() == [[0, 1]]
    sites = {"target": "y", "fold": "wave", "fold_names": [1.0, 2.0], "task": "regression"}
    assert build(Sites, sites, "data").fold_names == ["1", "2"]
    visits().to_csv(tmp_path / "t.csv", index=False)
    table = {"path": str(tmp_path / "t.csv"), "target": "y", "client": "hospital", "validation": [1.0], "test": [2.0]}
    assert build(Table, table, "data").load().held_out_clients == ("1", "2")


def test_versions_that_read_other_names_have_other_fingerprints(tmp_path, monkeypatch):
    """Rows are held out by names: a record of such a version has other validation rows."""
    monkeypatch.chdir(tmp_path)
    visits().to_csv("t.csv", index=False)
    for options in ({}, {"client": "hospital"}, {"group": "patient"}, {"fold": "wave"}):
        table = build(Table, {"path": "t.csv", "target": "y", **options}, "data")
        assert (table.sources() == table._digest_rows()) == (not options)
