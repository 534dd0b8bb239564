"""data.labels: labels and roles of columns, by a CSV."""

from pathlib import Path

import pytest
from patient_table import patients

from fcorun.base.errors import UserError
from fcorun.data.datasets.table import Table
from fcorun.data.tables.label_file import read_label_file

LABELS = """column,label,unit,role
cost,cost of the stay,CHF,target
site,hospital,,client
lab,,,ignore
age,age,years,
smokes,smoker,,feature
"""


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    patients().to_csv("t.csv", index=False)
    Path("labels.csv").write_text(LABELS)


def test_roles_are_the_options_that_they_stand_for():
    by_file = Table("t.csv", labels="labels.csv")
    by_options = Table("t.csv", target="cost", client="site", ignore=["lab"])
    assert (by_file.target, by_file.client, by_file.ignore) == ("cost", "site", ["lab"])
    assert by_file.fingerprint() == by_options.fingerprint()
    assert Table("t.csv", labels="labels.csv", target="cost", ignore=["lab"]) == by_file


def test_labels_change_no_number_and_no_identity():
    plain = Table("t.csv", labels="labels.csv")
    before = plain.fingerprint()
    Path("labels.csv").write_text(LABELS.replace("cost of the stay", "costs"))
    assert Table("t.csv", labels="labels.csv").fingerprint() == before


def test_given_options_win():
    """A column whose role another column gets is no feature: it would tell the answer."""
    table = Table("t.csv", labels="labels.csv", target="bmi", ignore=["ward"])
    assert (table.target, table.client) == ("bmi", "site")
    assert table.ignore == ["ward", "cost", "lab"]
    only = Table("t.csv", labels="labels.csv", only=["lab", "age"])
    assert only.ignore is None
    assert only.load().features.names == ("age", "lab")


def test_features_have_labels():
    features = Table("t.csv", labels="labels.csv").load().features
    names = dict(zip(features.names, features.display_names, strict=True))
    assert names["age"] == "age (years)"
    assert names["ward=icu"] == "ward: icu"
    assert names["smokes"] == "smoker"
    without = Table("t.csv", "cost", client="site", ignore=["lab"]).load().features
    assert without.display_names == without.names == features.names


def test_a_spreadsheet_may_write_semicolons_and_a_mark():
    Path("labels.csv").write_text("\ufeffcolumn;label\nage;age, at admission\n", encoding="utf-8")
    assert read_label_file("labels.csv") == {"age": {"label": "age, at admission", "unit": "", "role": ""}}


def test_line_separators_and_empty_rows_are_no_lines():
    Path("labels.csv").write_text('\ncolumn,label\n,\nage,"age\u2028in years"\n,\n', encoding="utf-8")
    assert read_label_file("labels.csv") == {"age": {"label": "age\u2028in years", "unit": "", "role": ""}}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "name,label\nage,Age\n",
            "data.labels=labels.csv has the columns name, label: give column, label, unit",
        ),
        ("column,role\nage,outcome\n", "data.labels=labels.csv: 'age' has the role 'outcome'; "),
        ("column\nage\nage\n", "data.labels=labels.csv lists the column 'age' twice: leave one line out"),
        (
            "column,label\nage,a, b\n",
            "data.labels=labels.csv: line 2 has 3 cells and the names of the columns 2: ",
        ),
        ("column,role\nage,target\nbmi,target\n", "'age' and 'bmi' both have the role target: give the role to one of"),
        ("", "data.labels=labels.csv: cannot be read as .csv ("),
        ("column,label,label\nage,a,b\n", "data.labels=labels.csv: two columns are called 'label'"),
        (
            'column,label,role\nage,"Age,\nlab,a code,ignore\n',
            "data.labels=labels.csv: cannot be read as .csv (",
        ),
    ],
)
def test_contradictions_are_one_sentence(text, sentence):
    Path("labels.csv").write_text(text)
    with pytest.raises(UserError) as caught:
        Table("t.csv", labels="labels.csv")
    assert sentence in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(UserError, match="there is no such file"):
        Table("t.csv", labels="label.csv")
