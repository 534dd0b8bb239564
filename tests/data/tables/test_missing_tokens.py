"""Tokens such as NA and None in tables: gaps among numbers, names among text."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import fails, not_none
from table_files import save

from fcorun.data.datasets.table import Table
from fcorun.data.tables.cells import MISSING_TOKENS
from fcorun.data.tables.readers import read_dataframe

pytestmark = pytest.mark.usefixtures("own_cache")

N = 24
DRUGS = ["None", "statin", "aspirin"]


def visits(**columns) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = {"drug": np.resize(DRUGS, N), "lab": rng.integers(500, 900, N) / 4, "site": np.repeat(["NA", "EU"], N // 2),
             "y": rng.normal(size=N)}  # fmt: skip
    return pd.DataFrame(table | columns)


def write_table(folder, name: str, table: pd.DataFrame) -> str:
    if name.endswith("xlsx"):
        pytest.importorskip("openpyxl", reason="NOT TESTED: .xlsx needs openpyxl, pip install 'fcorun[xlsx]'")
        table.to_excel(folder / name, index=False)
        return str(folder / name)
    return save(folder, name, table)


def load_visits(path: str, **options):
    return Table(path, "y", client="site", **({"validation": 0.0, "missing": "median"} | options)).load()


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.xlsx"])
def test_a_token_is_a_level_among_names_and_a_gap_among_numbers(tmp_path, name):
    table = visits()
    table["lab"] = table["lab"].astype(object)
    table.loc[[3, 5], "lab"] = "NA"
    path = write_table(tmp_path, name, table)
    data = load_visits(path)
    assert data.clients == ("EU", "NA")
    assert data.features.names == ("drug=None", "drug=aspirin", "drug=statin", "lab")
    rows = table.sort_values("site", kind="stable")
    np.testing.assert_array_equal(data.train.x[:, 0], rows["drug"] == "None")
    numbers: Any = pd.to_numeric(rows["lab"], errors="coerce")
    np.testing.assert_array_equal(data.train.x[:, 3], numbers.fillna(numbers.median()))
    where = f"data.path={path}: "
    assert data.warnings[:2] == (
        f"{where}column 'drug' has the level 'None': if that stands for a missing value, leave the cells empty, or "
        "give 'data.na=[None]'",
        f"{where}'NA' is read as a gap in column 'lab'",
    )
    warnings = load_visits(path, ignore=["drug"]).warnings
    assert not any("drug" in warning for warning in warnings)


@pytest.mark.parametrize("token", sorted(MISSING_TOKENS))
def test_numbers_in_a_column_with_a_token_are_read_as_by_pandas(tmp_path, token):
    values = np.geomspace(1e-9, 1e9, N).tolist()
    lines = (f"{value!r},{token if i % 5 else 7},a,{i}\n" for i, value in enumerate(values))
    (tmp_path / "t.csv").write_text("u,v,site,y\n" + "".join(lines) + f"{token},3,b,1\n")
    frame = read_dataframe(str(tmp_path / "t.csv"))[0]
    pd.testing.assert_frame_equal(frame, pd.read_csv(tmp_path / "t.csv", low_memory=False))
    assert f"'{token}' is read as a gap in column 'u'" in load_visits(str(tmp_path / "t.csv")).warnings[0]


def test_tokens_among_truth_values_decimal_commas_and_dates_are_gaps(tmp_path):
    lines = (f"{['True', 'NA', 'False'][i % 3]};{['1,5', 'null', '2'][i % 3]};{'NA' if i else '2024-01-05'};s;{i}\n"
             for i in range(6))  # fmt: skip
    (tmp_path / "t.csv").write_text("smokes;dose;day;site;y\n" + "".join(lines))
    data = load_visits(str(tmp_path / "t.csv"), ignore=["day"])
    assert data.train.x.tolist() == [[1, 1.5], [0.5, 1.75], [0, 2]] * 2
    with fails("column 'day' holds dates ('2024-01-05')"):
        load_visits(str(tmp_path / "t.csv"))


def test_an_empty_cell_among_names_stays_a_gap(tmp_path):
    with fails("column 'drug' is missing in row 2"):
        load_visits(save(tmp_path, "t.csv", visits(drug=["None", None, *["a"] * (N - 2)])), missing="refuse")


def test_tokens_are_labels_unless_the_target_is_numeric(tmp_path):
    path = save(tmp_path, "t.csv", visits(y=np.resize(["None", "mild"], N)))
    assert load_visits(path, task="binary").classes == ("None", "mild")
    with fails("data.target=y", "no value there"):
        load_visits(save(tmp_path, "n.csv", visits(y=["NA", *["1"] * (N - 1)])))


def test_new_rows_have_the_levels_and_gaps_of_the_record(tmp_path):
    encoding = not_none(load_visits(save(tmp_path, "t.csv", visits())).features.encoding)
    (tmp_path / "new.csv").write_text("drug,lab,site\nNone,NA,NA\nNone,NA,EU\n")
    kinds = {column.name: column for column in encoding.columns}
    frame, clients = read_dataframe(str(tmp_path / "new.csv"), "site", kinds=kinds)
    assert not_none(clients).tolist() == ["NA", "EU"]
    warnings: list[str] = []
    median = np.median(visits()["lab"])
    np.testing.assert_allclose(encoding.apply(frame, warnings), [[1, 0, 0, median]] * 2)
    assert len(warnings) == 1
    assert warnings[0].startswith("gaps are filled: 'lab' by")
