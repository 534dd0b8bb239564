"""Numbers that stand for missing values: remarks with a cure, and the option data.na."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import fails, not_none
from table_files import save

from fcorun import L2, Experiment, Newton, compose, from_frame
from fcorun.base.config import build
from fcorun.data.datasets.table import Table
from fcorun.data.tables.data_warnings import (
    find_missing_codes,
    warn_huge_numbers,
    warn_missing_codes,
    warn_serial_dates,
)
from fcorun.data.tables.parsed_table import FileOptions
from fcorun.data.tables.readers import read_dataframe

pytestmark = pytest.mark.usefixtures("own_cache")

N = 60
WEIGHTS = np.resize(np.arange(36, 114), N * 2)[::2].astype(float)  # kg


def patients(**columns) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = {"wgt": WEIGHTS, "smoke": np.resize([0, 1], N), "ward": np.resize(["a", "b", "c"], N),
             "y": rng.normal(size=N)}  # fmt: skip
    return pd.DataFrame(table | columns)


def with_codes(values, *codes: float) -> np.ndarray:
    values = np.array(values, float)
    values[3 : 3 + len(codes)] = codes
    return values


def load(path: str, **options):
    return Table(path, "y", clients=1, **({"validation": 0.0, "missing": "mean"} | options)).load()


@pytest.mark.parametrize(
    ("others", "codes"),
    [
        (WEIGHTS, [0]),
        (WEIGHTS, [-1]),
        (WEIGHTS, [-9, 0]),
        (WEIGHTS, [-9, -1, 0]),
        (WEIGHTS, [999]),
        (WEIGHTS, [-9, 0, 999]),
        (np.random.default_rng(1).normal(74, 12, N).clip(36, 113), [-9, 0]),
        (np.resize([0, 1], N), [9]),
        (np.resize([0, 1], N), [-9, 9]),
        (np.resize([1, 2], N), [9]),
        (np.resize([0, 1, 2, 3], N), [8, 9]),
        (np.resize([1, 2, 3, 4, 5], N), [9]),
        (np.resize([0, 1], N), [99]),
        (np.linspace(18, 80, N), [-9]),
    ],
)
def test_codes_far_from_all_others_are_found(others, codes):
    assert find_missing_codes(with_codes(others, *codes))[0] == codes


@pytest.mark.parametrize(
    "values",
    [
        np.resize([-1, 0, 1], N),
        np.resize([0, 1, 2, 3, 4], N),
        np.resize([0, 100, 200], N),  # doses
        np.resize([0, 50, 60, 70], N),
        np.resize(np.arange(10), N),
        with_codes(np.linspace(5, 60, N), 0, 0, 0),  # years of smoking
        with_codes(np.random.default_rng(0).exponential(30, N), 0),
        np.random.default_rng(0).poisson(2, N),
        with_codes(np.linspace(18, 98, N), 99),  # ages
        with_codes(np.linspace(20, 60, N), 77),
        with_codes(np.linspace(-0.5, 3.5, N), 9),
        np.linspace(-9, 9, N),
    ],
)
def test_ordinary_values_are_no_codes(values):
    assert find_missing_codes(np.asarray(values, float))[0] == []
    assert warn_missing_codes(np.asarray(values, float)[:, None], ["v"]) == []


def test_the_remark_has_a_cure_that_works_when_typed(tmp_path, monkeypatch, capsys):
    from fcorun.base.records.record import Record
    from fcorun.interface.cli.commands import main
    from fcorun.interface.cli.main import main as fcorun

    monkeypatch.chdir(tmp_path)
    columns = {"wgt at birth": with_codes(WEIGHTS, -9, 0), "smoke": with_codes(np.resize([0, 1], N), 9)}
    save(Path(), "t.csv", patients(**columns).drop(columns="wgt"))
    command = ["fcorun", "data=table", "data.path=t.csv", "data.target=y", "data.clients=2", "data.missing=mean"]

    def run(*options: str) -> str:
        monkeypatch.setattr("sys.argv", [*command, "rounds=1", *options])
        fcorun()
        return capsys.readouterr().out

    out = run()
    remark = next(line for line in out.splitlines() if "if that stands for" in line)
    assert "'wgt at birth' has -9 and 0 in 2 rows (4, 5), all others lie between 36 and 112" in remark
    assert "'smoke' has 9 in row 4, all others lie between 0 and 1" in remark
    (cure,) = shlex.split(remark[remark.index("'data.na=") :])
    out = run(cure, "out=cured")
    assert "if that stands for" not in out
    assert "'-9' and '0' is read as a gap in column 'wgt at birth'" in out
    assert "'9' is read as a gap in column 'smoke'" in out
    record = Record(tmp_path / "cured")
    assert record.config["data"]["na"] == {"wgt at birth": ["-9", "0"], "smoke": ["9"]}
    Path("new.csv").write_text("wgt at birth,smoke,ward\n-9,1,a\n,1,a\n50,9,a\n50,,a\n")
    assert main(["predict", "cured", "new.csv"]) == 0
    predictions = [line.split(",")[-1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert predictions[0] == predictions[1]
    assert predictions[2] == predictions[3]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.xlsx", "t.parquet"])
def test_codes_are_gaps_in_all_columns_or_in_one(tmp_path, name):
    table = patients(wgt=with_codes(WEIGHTS, -9, 9), smoke=with_codes(np.resize([0, 1], N), -9, 9),
                     ward=[*["-9", "unknown"], *np.resize(["a", "b"], N - 2)])  # fmt: skip
    path = str(tmp_path / name)
    if name.endswith("xlsx"):
        pytest.importorskip("openpyxl", reason="NOT TESTED: .xlsx needs openpyxl, pip install 'fcorun[xlsx]'")
        table.to_excel(path, index=False)
    else:
        save(tmp_path, name, table)
    data = load(path, na=["-9", "9", "unknown"])
    assert data.features.gaps == {"wgt": 2, "smoke": 2, "ward": 2}
    assert data.features.names == ("wgt", "smoke", "ward=b")
    kept = np.r_[WEIGHTS[:3], WEIGHTS[5:]]
    np.testing.assert_allclose(data.train.x[3:5, 0], kept.mean())
    data = load(path, na={"wgt": ["-9"]})
    assert data.features.gaps["wgt"] == 1
    assert "smoke" not in data.features.gaps
    assert "ward=-9" in data.features.names
    with fails("data.na names 'wgth', which is no column of the file: did you mean 'wgt'?"):
        load(path, na={"wgth": ["-9"]})
    assert any("no cell holds '77', which data.na gives" in text for text in load(path, na=["-9", "77"]).warnings)


@pytest.mark.parametrize("na", [["9", "-9"], {"sex": ["9"], "wgt": ["-9"]}])
def test_a_code_is_a_gap_however_its_number_is_written(tmp_path, na):
    table = patients(sex=np.resize(["01", "02"], N).astype(object), wgt=WEIGHTS.astype(int).astype(str).astype(object))
    table.loc[3, ["sex", "wgt"]] = ["09", "-9.0"]
    table.loc[4, "wgt"] = "NA"
    path = save(tmp_path, "t.csv", table)
    data = load(path, na=na)
    assert data.features.gaps == {"sex": 1, "wgt": 2}
    assert {"sex=02", "wgt"} < set(data.features.names)
    assert "sex=09" not in data.features.names
    assert not any("no cell holds" in text for text in data.warnings)
    kinds = {column.name: column for column in not_none(data.features.encoding).columns}
    new_rows = read_dataframe(path, kinds=kinds, options=Table(path, "y", missing="mean", na=na).file_options)[0]
    assert np.flatnonzero(new_rows["sex"].isna()).tolist() == [3]
    assert np.flatnonzero(new_rows["wgt"].isna()).tolist() == [3, 4]


def test_codes_of_text_among_numbers_decimal_commas_and_in_the_target(tmp_path):
    lines = "".join(f"{'unbekannt' if i == 4 else f'{i},5'};{i};{i / 8}\n".replace(".", ",") for i in range(N))
    (tmp_path / "t.csv").write_text("lab;patient;y\n" + lines)
    data = load(str(tmp_path / "t.csv"), na=["unbekannt", "-9"], keep=["patient"])
    assert data.features.gaps == {"lab": 1}
    assert data.train.x[5, 0] == 5.5
    save(tmp_path, "y.csv", patients(y=with_codes(np.arange(N), -9)))
    with fails("data.target=y: row 4", "has no value there; fill it in or drop it"):
        load(str(tmp_path / "y.csv"), na=["-9"])
    (tmp_path / "y.csv").write_text("x,y\n" + "".join(f"{i},{'?' if i == 4 else i}\n" for i in range(N)))
    with fails("data.target=y: row 5", "has no value there"):
        load(str(tmp_path / "y.csv"), na=["?"])


def test_codes_that_are_no_list_are_refused_with_the_form():
    forms = [
        (-9, "data.na=[-9]"),
        (True, """'data.na=["true"]'"""),
        ({"wgt": -9, "größe": [0]}, """'data.na={wgt:[-9],"größe":[0]}'"""),
        ({"wgt": "[-9,no]", "age": True}, """'data.na={wgt:[-9,no],age:["true"]}'"""),
    ]
    for value, form in forms:
        with fails(f"must be a list: give {form}"):
            build(Table, {"path": "t.csv", "na": value}, "data")
        typed = compose(["data=table", "data.path=t.csv", *shlex.split(form)])["data"]["na"]
        build(Table, {"path": "t.csv", "na": typed}, "data")  # the cure is taken
    assert build(Table, {"path": "t.csv", "na": {"wgt": [-9, 0.5]}}, "data").na == {"wgt": ["-9", "0.5"]}


def test_names_of_clients_and_kept_columns_are_no_codes(tmp_path):
    table = patients(site=np.repeat(["9", "10"], N // 2), number=np.arange(N))
    path = save(tmp_path, "t.csv", table)
    data = Table(path, "y", client="site", keep=["number"], validation=0.0, missing="mean", na=["9"]).load()
    assert data.clients == ("9", "10")
    with fails("data.client=site: row 1", "has no value there"):
        Table(path, "y", client="site", na={"site": ["9"]}).load()


def test_na_as_r_writes_it_is_missing_where_gaps_are_filled(tmp_path):
    path = save(tmp_path, "t.csv", patients(ward=np.resize(["NA", "a", "b"], N)))
    data = load(path)
    assert data.features.names == ("wgt", "smoke", "ward=b")
    assert data.features.gaps["ward"] == N // 3
    assert any(text.endswith("'NA' is read as a gap in column 'ward'") for text in data.warnings)
    data = load(path, missing="refuse")
    assert "ward=NA" in data.features.names
    (warning,) = [text for text in data.warnings if "has the level 'NA'" in text]
    (cure,) = shlex.split(warning[warning.index("'data.na=") :])
    assert cure == "data.na=[NA]"
    with fails("column 'ward' is missing in row 1"):
        load(path, missing="refuse", na=["NA"])
    encoding = not_none(load(path).features.encoding)
    kinds = {column.name: column for column in encoding.columns}
    assert (
        read_dataframe(path, kinds=kinds, options=Table(path, "y", missing="mean").file_options)[0]["ward"].isna().sum()
        == N // 3
    )


def test_codes_of_a_frame_in_memory():
    table = patients(wgt=with_codes(WEIGHTS, -9))
    data = from_frame(table, "y", na={"wgt": ["-9"]}, missing="mean", validation=0.0).load()
    assert data.features.gaps["wgt"] == 1
    assert table["wgt"].min() == -9
    assert from_frame(table, "y", na=[-9], missing="mean", validation=0.0).load().features.gaps == {"wgt": 1}


@pytest.mark.parametrize("day", [44000, 45000])
def test_days_as_excel_stores_them_are_named(tmp_path, day):
    days = day + np.random.default_rng(0).integers(0, 500, N)
    data = load(save(tmp_path, "t.csv", patients(admitted=days)))
    (warning,) = [text for text in data.warnings if "Excel" in text]
    date = {44000: "2020-06-18", 45000: "2023-03-15"}[day]
    assert f"in 'admitted' ({days[0]} is " in warning
    assert warn_serial_dates(np.r_[day, days][:, None].astype(float), ["d"])[0].split(" is ")[1].startswith(date)
    filled = np.where(np.arange(N) % 3 == 0, days.mean(), days)
    assert len(warn_serial_dates(filled[:, None])) == 1
    assert warn_serial_dates(filled[:, None] + 0.5) == []
    assert warn_serial_dates(np.r_[days, 100][:, None]) == []
    assert warn_serial_dates(np.full((N, 1), 44100)) == []


@pytest.mark.parametrize("value", [1e30, -1e20, 9.96921e36])
def test_huge_numbers_are_named_before_training(tmp_path, value):
    table = patients()
    table.loc[6, "wgt"] = value
    (warning,) = [text for text in load(save(tmp_path, "t.csv", table)).warnings if "no training copes" in text]
    assert f"'wgt' has {value:g} in row 7: no training copes with such numbers" in warning
    assert warn_huge_numbers(np.array([[1e17], [2.0]])) == []


def test_codes_of_a_record_may_be_absent_from_new_rows_and_given_ones_may_not(tmp_path):
    """Codes of the record name its outcome, too; what is given replaces the record's codes, characters and sheet."""
    path = save(tmp_path, "new.csv", patients(wgt=with_codes(WEIGHTS, -1)).drop(columns="y"))
    record_data = {"na": {"y": ["-9"], "wgt": ["-9"]}, "missing": "mean", "sheet": "2023", "encoding": "outputs/run"}
    warnings: list[str] = []
    frame = read_dataframe(path, options=FileOptions.for_new_rows(record_data), warnings=warnings)[0]
    assert frame["wgt"][3] == -1
    assert not warnings
    options = FileOptions.for_new_rows(record_data, na=[-1, 77])
    frame = read_dataframe(path, options=options, warnings=warnings)[0]
    assert np.flatnonzero(frame["wgt"].isna()).tolist() == [3]
    assert warnings == [f"{path}: no cell holds '77', which data.na gives: check how the file writes gaps"]
    with fails("data.na names 'y', which is no column of the file"):
        read_dataframe(path, options=FileOptions.for_new_rows(record_data, na={"y": [-9]}))
    with fails("data.sheet=2024 is for .xlsx, and the file is .csv: leave data.sheet out"):
        read_dataframe(path, options=FileOptions.for_new_rows(record_data, sheet=2024))
    with fails("data.na=-9 must be a list: give data.na=[-9]"):
        FileOptions.for_new_rows(record_data, na=-9)
    (tmp_path / "new.csv").write_bytes("wgt,ort\n70,Zürich\n".encode("latin-1"))
    with fails("give data.encoding=windows-1252"):
        read_dataframe(path, options=FileOptions.for_new_rows(record_data))
    options = FileOptions.for_new_rows(record_data, encoding="latin-1")
    assert read_dataframe(path, options=options)[0]["ort"].tolist() == ["Zürich"]


@pytest.mark.parametrize("content", ["wgt,ort\n70,Zürich\n".encode(), "wgt,ort\n70,Bern\n".encode("utf-8-sig")])
def test_new_rows_in_utf8_are_read_as_such_and_told(tmp_path, content):
    """The mark at the start of a file, as Excel writes it, tells of UTF-8 also where all letters are ASCII."""
    path = tmp_path / "new.csv"
    path.write_bytes(content)
    for record_data, told in (({"encoding": "latin-1"}, True), ({"file_encoding": "utf8"}, False), ({}, False)):
        warnings: list[str] = []
        options = FileOptions.for_new_rows(record_data)
        frame = read_dataframe(str(path), options=options, warnings=warnings)[0]
        assert frame.to_dict("list") in ({"wgt": [70], "ort": ["Zürich"]}, {"wgt": [70], "ort": ["Bern"]})
        sentence = f"{path}: the characters are UTF-8, and read as such, not as latin-1 as in the record"
        assert warnings == [sentence] * told
    options = FileOptions.for_new_rows({}, encoding="latin-1")
    read_dataframe(str(path), options=options, warnings=warnings)
    assert not warnings


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fcorun.ExperimentWarning")
def test_codes_are_gaps_in_rows_that_python_predicts(tmp_path):
    frame = patients(wgt=with_codes(WEIGHTS, -9))
    data = from_frame(frame, "y", clients=1, na=[-9], missing="mean")
    record = Experiment(algorithm=Newton(), data=data, regularizer=L2(0.1), rounds=2).run(tmp_path / "run")
    new = frame.drop(columns="y").head(5)
    gaps = new.assign(wgt=new["wgt"].replace(-9, np.nan))
    assert record.predict(new)["prediction"].equals(record.predict(gaps)["prediction"])
    assert new["wgt"][3] == -9


@pytest.mark.parametrize("name", ["größe", "size (cm)", "it's", "a:b"])
def test_the_cure_of_codes_can_be_typed_for_any_name_of_a_column(name, tmp_path):
    path = save(tmp_path, "t.csv", patients(wgt=with_codes(WEIGHTS, -9)).rename(columns={"wgt": name}))
    (remark,) = [text for text in load(path).warnings if "data.na=" in text]
    (cure,) = shlex.split(remark[remark.index("'data.na=") :])
    na = compose(["data=table", f"data.path={path}", "data.target=y", cure])["data"]["na"]
    assert na == {name: [-9]}
    assert load(path, na={name: ["-9"]}).features.gaps == {name: 1}
