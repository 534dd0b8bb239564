"""Forms of files that other programs write: separators, encodings, rows above the header, far cells of workbooks."""

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from table_files import SORTED, X, Y, frame, price_table

from fcorun.data.tables.readers import read_dataframe

pytestmark = pytest.mark.usefixtures("own_cache")

NEEDS_OPENPYXL = "NOT TESTED: .xlsx needs openpyxl, pip install 'fcorun[xlsx]'"


def text_of_frame(separator: str = ",", **columns) -> str:
    return frame(**columns).to_csv(None, index=False, sep=separator)


def add_cells(text: str, header: str, row: str) -> str:
    """Return a text with cells at the end of its first line, and of all others."""
    first, *rest = text.splitlines()
    return "\n".join([first + header, *(line + row for line in rest)]) + "\n"


@pytest.mark.parametrize(
    "content",
    [
        ("sep=;\n" + text_of_frame(";")).encode(),
        ('"sep=;"\r\n' + text_of_frame(";")).encode(),
        ("sep=|\n" + text_of_frame("|")).encode(),
        ("sep=\t\n" + text_of_frame("\t")).encode(),
        text_of_frame("\t").encode(),
        text_of_frame().encode("utf-16"),
        b"\xff\xfe" + text_of_frame(";").encode("utf-16-le"),
        b"\xfe\xff" + text_of_frame("\t").encode("utf-16-be"),
        add_cells(text_of_frame(), ",,", ",,").encode(),
        add_cells(text_of_frame(), "", ",").encode(),
        add_cells(text_of_frame(), ",", ", ").encode(),
    ],
)
def test_a_csv_is_read_right_whatever_program_wrote_it(tmp_path, content):
    (tmp_path / "t.csv").write_bytes(content)
    data = price_table(str(tmp_path / "t.csv")).load()
    np.testing.assert_array_equal(data.train.x, X[SORTED])
    np.testing.assert_array_equal(data.train.y, Y[SORTED])
    assert (data.features.names, data.clients, data.warnings) == (("u", "v", "w"), ("a", "b"), ())


@pytest.mark.parametrize("title", ["Visits of 2024\n", "# made by hand\n\n\n", "Visits,,,,\n", "Visits; 2024\n"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_rows_above_the_names_of_columns_are_refused(tmp_path, title, separator):
    path = tmp_path / "t.csv"
    path.write_text(title + text_of_frame(separator))
    row = title.count("\n") + 1
    with fails(f"data.path={path}: row {row} seems to name the columns (u, v, w and 2 more)", "in row 1 is before it"):
        price_table(str(path)).load()


@pytest.mark.parametrize(
    "notes",
    [
        ["pain; nausea; fever; rash", "none", "none"],
        ["pain; nausea; fever; rash"] * 3,
        ['"Admitted at night.\nfever, rash, cough, nausea, pain, chills"', "none", '"no; pain"'],
        ["pain\tnausea\tfever\trash", "", "none"],
    ],
)
@pytest.mark.parametrize("end", ["", "0\n"])  # a row that ends early
def test_notes_with_other_separators_are_no_names_of_columns(tmp_path, notes, end):
    path = tmp_path / "t.csv"
    path.write_text("y,note\n" + "".join(f"{i},{note}\n" for i, note in enumerate(notes)) + end)
    table = read_dataframe(str(path))[0]
    assert table.columns.tolist() == ["y", "note"]
    assert table["note"].fillna("").tolist()[:3] == [note.strip('"') for note in notes]


def test_a_quote_that_never_ends_is_no_traceback(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('u,"price\n' + "1,2\n" * 100_000)
    with fails("t.csv: cannot be read as .csv", "mend or rename the file"):
        price_table(str(path)).load()


def test_a_column_without_a_name_but_with_values_is_still_refused(tmp_path):
    path = tmp_path / "t.csv"
    frame().to_csv(path)
    with fails("column 0 (from 0) has no name and may be a saved row number"):
        price_table(str(path)).load()


def test_a_row_longer_than_the_header_is_named_by_its_line(tmp_path):
    (tmp_path / "t.csv").write_text("\nu,price\n1,2,3\n3,4,5\n")
    with fails("t.csv: line 3 has 3 cells and the names of the columns 2: give each column a name, or quote cells"):
        price_table(str(tmp_path / "t.csv")).load()


def test_utf_16_without_a_mark_is_told_and_read_by_the_option(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(text_of_frame().encode("utf-16-le"))
    with fails(f"data.path={path} has zero bytes", "give data.encoding=utf-16-le"):
        price_table(str(path)).load()
    np.testing.assert_array_equal(price_table(str(path), encoding="utf-16-le").load().train.x, X[SORTED])


@pytest.mark.parametrize("encoding", ["latin-1", "windows-1252", "cp1250"])
def test_the_encoding_of_characters_is_an_option_and_utf_8_wins(tmp_path, encoding):
    text = text_of_frame(site=["Zürich", "Köln"] * 3)
    (tmp_path / "old.csv").write_bytes(text.encode(encoding))
    (tmp_path / "new.csv").write_bytes(text.encode())
    for name in ("old.csv", "new.csv"):
        for option in ("encoding", "file_encoding"):
            data = price_table(str(tmp_path / name), **{option: encoding}).load()
            assert data.clients == ("Köln", "Zürich")
    assert price_table("t.csv", encoding=encoding) == price_table("t.csv", file_encoding=encoding)


def test_an_option_of_another_format_and_an_unknown_encoding_are_refused(tmp_path):
    frame().to_csv(tmp_path / "t.csv", index=False)
    with fails("data.encoding=latn-1 is no encoding of characters: give utf-8, utf-16, latin-1 or windows-1252"):
        price_table(str(tmp_path / "t.csv"), file_encoding="latn-1").load()
    with fails("data.encoding=latn-1 is no record of a table", "or an encoding of characters such as latin-1"):
        price_table(str(tmp_path / "t.csv"), encoding="latn-1").load()
    with fails("data.sheet=visits is for .xlsx, and the file is .csv: leave data.sheet out"):
        price_table(str(tmp_path / "t.csv"), sheet="visits").load()
    frame().to_parquet(tmp_path / "t.parquet")
    with fails("data.encoding=latin-1 is for .csv, .tsv, and the file is .parquet"):
        price_table(str(tmp_path / "t.parquet"), encoding="latin-1").load()
    with fails("data.na=['-9'] needs rows in memory", "give data.resident=true"):
        price_table(str(tmp_path / "t.parquet"), na=["-9"], resident=False).load()


# ---------------------------------------------------------------- workbooks


def write_sheet(path: Path, rows: str) -> None:
    """Write a workbook whose sheet has these XML rows, by replacing those of an empty workbook."""
    pd.DataFrame({"u": [1.0]}).to_excel(path, index=False)
    with zipfile.ZipFile(path) as book:
        parts = {name: book.read(name) for name in book.namelist()}
    sheet = parts["xl/worksheets/sheet1.xml"].decode()
    start = sheet.index("<sheetData>")
    end = sheet.index("</sheetData>")
    parts["xl/worksheets/sheet1.xml"] = (sheet[:start] + "<sheetData>" + rows + sheet[end:]).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        for name, content in parts.items():
            book.writestr(name, content)


@pytest.mark.parametrize(
    ("rows", "size"),
    [
        ('<row r="1048576"><c r="XFD1048576"><v>2</v></c></row>', "2 values in 1,048,576 rows and 16,384 columns"),
        ("".join(f'<row r="{i}"><c r="XFD{i}"><v>2</v></c></row>' for i in range(2, 90)), "rows and 16,384 columns"),
    ],
)
def test_a_far_cell_of_a_workbook_is_refused_before_it_fills_the_memory(tmp_path, rows, size):
    pytest.importorskip("openpyxl", reason=NEEDS_OPENPYXL)
    write_sheet(tmp_path / "t.xlsx", '<row r="1"><c r="A1" t="inlineStr"><is><t>u</t></is></c></row>' + rows)
    assert (tmp_path / "t.xlsx").stat().st_size < 10_000
    with fails("data.path=", "the sheet 'Sheet1' has", size, "delete the cells far from the table"):
        price_table(str(tmp_path / "t.xlsx")).load()


def test_empty_rows_around_a_sheet_and_a_title_in_it(tmp_path):
    pytest.importorskip("openpyxl", reason=NEEDS_OPENPYXL)
    path = tmp_path / "t.xlsx"
    frame().to_excel(path, index=False, startrow=3)
    np.testing.assert_array_equal(price_table(str(path)).load().train.x, X[SORTED])
    with pd.ExcelWriter(path) as book:
        frame().to_excel(book, index=False, startrow=2)
        book.sheets["Sheet1"]["A1"] = "Visits of 2024"
    with fails(
        f"data.path={path}: row 3 seems to name the columns (u, v, w and 2 more), and 'Visits of 2024' in row 1"
    ):
        price_table(str(path)).load()


def test_a_sheet_keeps_types_gaps_and_errors_of_formulas(tmp_path):
    pytest.importorskip("openpyxl", reason=NEEDS_OPENPYXL)
    path = tmp_path / "t.xlsx"
    table = pd.DataFrame({"whole": [1, 2, None], "real": [0.5, None, 2.0], "truth": [True, False, True],
                          "text": ["a", "#DIV/0!", "b"], 2020: [1, 2, 3]})  # fmt: skip
    table.to_excel(path, index=False)
    result = read_dataframe(str(path))[0]
    assert result.columns.tolist() == ["whole", "real", "truth", "text", "2020"]
    assert result.dtypes.astype(str).tolist()[:3] == ["float64", "float64", "bool"]
    assert result["text"].isna().tolist() == [False, True, False]
    assert result["real"].tolist()[::2] == [0.5, 2.0]
