"""The page of fcorun report in a browser: scripts, hostile names, addresses, colours."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import pytest
from browser import RenderedPage, print_pdf, screenshot
from fake_records import fake_config, fake_grid, fake_record, fake_rows

from fcorun.base.metrics import Metric
from fcorun.base.records.formats import csv_text

MARK_HIT = "document.documentElement.dataset.hit=1"
EVIL = f"<img src=x onerror={MARK_HIT}></script><script>{MARK_HIT}"


class Tags(HTMLParser):
    """A parser that lists the elements of a page with their attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))


def write_evil_record(folder):
    """Write a record in which every name attempts to run a script."""
    settings = fake_config(EVIL, EVIL, algo__title=EVIL, reg__name=EVIL, algo__client_lr=EVIL)
    metric = Metric(EVIL, EVIL, higher=False, priority=0)
    name = EVIL.replace("/", "&")
    record = fake_record(
        f"{folder}/{name}", settings, [row | {EVIL: 1.0} for row in fake_rows()], reason=EVIL, metrics=[metric]
    )
    summary = json.loads((record.folder / "summary.json").read_text())
    summary |= {"versions": {EVIL: EVIL}, "git": EVIL, "device": EVIL, "platform": EVIL}
    (record.folder / "summary.json").write_text(json.dumps(summary))
    line = {"parameter": "weights", "feature": EVIL, "class": EVIL, "value": 1.0, "value_original": 2.0}
    (record.folder / "coefficients.csv").write_text(csv_text([line]))
    (record.folder / "scores.csv").write_text(csv_text([{"set": EVIL, "model": EVIL, "client": "", "n": 3}]))
    values = {
        "param_name": EVIL,
        "label": EVIL,
        "status": EVIL,
        "metric": EVIL,
        "warnings": [EVIL],
        "rule": EVIL,
        "by": EVIL,
    }
    values |= {"threshold": EVIL}
    for kind, table in (("selection", "curve"), ("stability", "stability")):
        study_folder = Path(folder, kind)
        study_folder.mkdir()
        (study_folder / f"{kind}.json").write_text(json.dumps(values))
        row = {"feature": EVIL, EVIL: 1.0, f"{EVIL}_mean": 1.0, "mark": EVIL, f"{EVIL}=0.1": 0.5, f"{EVIL}=0.2": 1.0}
        (study_folder / f"{table}.csv").write_text(csv_text([row]))
    Path(folder, "figure").mkdir()
    Path(folder, "figure", "figure.png").write_bytes(b"\x89PNG")
    claim = dict.fromkeys(("figure", "algo", "says", "measured", "wanted", "holds", "test", "note"), EVIL)
    Path(folder, "figure", "claims.csv").write_text(csv_text([claim]))
    values = dict.fromkeys(("title", "about", "changed", "caption"), EVIL)
    Path(folder, "figure", "figure.json").write_text(json.dumps(values))


@pytest.mark.slow
def test_names_are_text_everywhere(report):
    write_evil_record("s")
    text = report("s")
    tags = Tags(text).elements
    assert [name for name, _ in tags].count("script") == 3
    assert not [of for _, of in tags if any(key.startswith("on") for key in of) or of.get("src") == "x"]
    assert text.count("&lt;img src=x") > 20  # the names are shown as text
    assert "</script><script>doc" not in text


@pytest.mark.slow
def test_names_run_nothing_in_a_browser(report):
    write_evil_record("s")
    fake_grid("s/more", seeds=(0,))
    report("s")
    rendered = RenderedPage(Path("page.html"))
    assert rendered.console == []
    assert "hit" not in rendered.data
    assert '<img src="x"' not in rendered.text
    assert int(rendered.data["ready"]) > 5


@pytest.mark.slow
def test_the_page_in_a_browser(report):
    """The page has no errors, and sorts, filters and switches axes by its address."""
    fake_grid("s")
    report("s")
    page = Path("page.html")
    plain = RenderedPage(page)
    assert plain.console == []
    assert (plain.data["errors"], plain.data["x"], plain.data["curves"]) == ("0", "rounds", "6")
    assert int(plain.data["ready"]) >= 6  # curves, two maps, structure
    assert 'aria-sort="ascending"' not in plain.text.partition("</table>")[0]

    rendered = RenderedPage(page, "#sort=objective,desc&x=bytes&xscale=log&show=all&metric=objective")
    assert rendered.console == []
    assert (rendered.data["x"], rendered.data["curves"]) == ("bytes", "36")
    assert 'aria-sort="descending" data-key="objective"' in rendered.text
    values = [float(cell) for cell in rendered.column("objective") if cell]
    assert values == sorted(values, reverse=True) != [float(c) for c in plain.column("objective") if c]
    assert [bool(cell) for cell in rendered.column("objective")] == [True] * 24 + [
        False
    ] * 12  # diverged ones come last
    assert "communication, up and down (B)" in rendered.text
    assert "communication round" not in rendered.text.partition("<script")[0]

    rendered = RenderedPage(page, "#filter=algo%3Dfedmid+algo.client_lr%3D0.2&show=table")
    assert rendered.data["curves"] == "6"
    assert set(rendered.column("algo", hidden=False)) == {"fedmid"}
    assert len(rendered.rows(hidden=False)) == 6 < len(rendered.rows())


@pytest.mark.slow
def test_a_value_is_found_as_it_was_typed_in_the_sweep(report):
    for i, rate in enumerate((0.31622776, 0.31618)):  # both are shown as 0.3162
        fake_record(f"s/{i}", fake_config(algo__client_lr=rate))
    report("s")
    for text, n_found in (("0.31622776", 1), ("0.3162", 2)):
        rendered = RenderedPage(Path("page.html"), f"#filter=algo.client_lr%3D{text}")
        assert rendered.column("algo.client_lr", hidden=False) == ["0.3162"] * n_found


@pytest.mark.slow
def test_a_run_that_is_done_with_a_note_is_done(report):
    for i in range(3):
        record = fake_record(f"s/{i}", fake_config(seed=i), status="done" if i < 2 else "diverged")
        if i == 1:
            file = record.folder / "summary.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"unfinished": {"fell": 0.1}}))
    report("s")
    rendered = RenderedPage(Path("page.html"), "#filter=status%3Ddone")
    assert rendered.column("status", hidden=False) == ["done", "done, falling"]


def write_figure(folder, algos=13, claims=24):
    """Write a figure as large as those of the package, with a picture of the same shape; return its folder."""
    import matplotlib.pyplot as plt

    figure_folder = Path(folder)
    fake_grid(f"{folder}/runs", algos=[f"algorithm_{i}" for i in range(algos)], seeds=(0,))
    row = {"figure": "mine", "algo": "algorithm_1", "says": "it is better", "holds": "yes"}
    row |= {"measured": "support_f1 0.9981 [0.9971, 0.9982]", "wanted": "above algorithm_2 (0.6801 [0.6782, 0.6812])"}
    row |= {"test": "the same sign in each of 5 seeds", "note": "still falling at the end: algorithm_2, algorithm_3"}
    holds = ["no" if i % 9 == 8 else "yes" for i in range(claims)]
    claims_table = [row | {"says": f"claim {i} is no short sentence", "holds": each} for i, each in enumerate(holds)]
    (figure_folder / "claims.csv").write_text(csv_text(claims_table))
    (figure_folder / "table.csv").write_text(csv_text([{"algo": "algorithm_1", "tail_objective": 1.0}]))
    values = {"title": "A title that says what is drawn, in a line", "about": "What it is. " * 25, "changed": "",
             "ours": True, "caption": "How it is drawn."}  # fmt: skip
    (figure_folder / "figure.json").write_text(json.dumps(values))
    plt.imsave(figure_folder / "figure.png", [[[1.0, 1.0, 1.0]] * 140] * 70)
    return figure_folder


@pytest.mark.slow
def test_a_figure_is_printed_on_four_sheets(report):
    """Claims, picture, best points and configuration are printed; the table of all runs is collapsed."""
    write_figure("f")
    text = report("f")
    assert text.count("<tr data-run=") == 78
    assert '<section id="runs-table" class="collapsed"' in text
    sheets = print_pdf(Path("page.html"), Path("page.pdf").resolve())
    assert len(re.findall(rb"/Type\s*/Page\b", sheets)) <= 4
    if shutil.which("pdftotext") is None:
        pytest.skip("NOT TESTED: what stands on each sheet needs pdftotext, of poppler")
    process = subprocess.run(["pdftotext", "-layout", "page.pdf", "-"], capture_output=True, check=True)
    sheets = process.stdout.decode().split("\f")[:-1]
    assert "22 of 24 claims hold" in sheets[0]
    assert "How it is drawn." in sheets[0]
    heads = ["wanted" in sheet for sheet in sheets if "the same sign" in sheet]
    assert heads == [True, True]  # the table of 24 rows goes over two sheets
    assert not re.search("BibTeX|Coefficients|All 78 runs", "".join(sheets))


@pytest.mark.slow
def test_the_page_follows_light_and_dark_mode(report):
    fake_grid("s", seeds=(0,))
    report("s")
    for dark, wanted in ((False, 1.0), (True, 0.1)):
        picture = matplotlib.image.imread(screenshot(Path("page.html"), Path("page.png").resolve(), dark=dark))
        assert abs(float(picture[2, 2, :3].mean()) - wanted) < 0.05
        text = picture[:200, :400, :3].mean(axis=2)
        assert abs(text.max() - text.min()) > 0.6  # the text contrasts with the background


@pytest.mark.slow
def test_errors_of_the_page_are_reported_to_the_browser(report):
    fake_grid("s", seeds=(0,))
    Path("page.html").write_text(report("s").replace('"arrays":', '"lost":'))
    rendered = RenderedPage(Path("page.html"))
    assert "ready" not in rendered.data
    assert rendered.data["errors"] != "0"
    assert rendered.console


@pytest.mark.slow
def test_the_page_needs_no_network(report):
    fake_grid("s", seeds=(0,))
    tags = Tags(report("s")).elements
    links = [link for _, of in tags for key in ("src", "href") if (link := of.get(key))]
    assert all(link.startswith(("data:", "#")) for link in links)
