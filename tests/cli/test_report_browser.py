"""The page of fcorun report as a browser takes it: scripts, names that try to be one, addresses, colours."""

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

from fcorun.metrics import Metric
from fcorun.records.formats import csv_text

HIT = "document.documentElement.dataset.hit=1"
EVIL = f"<img src=x onerror={HIT}></script><script>{HIT}"


class Tags(HTMLParser):
    """The elements of a page, each with its attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def evil(folder):
    """A record whose every name is an attempt to run a script."""
    settings = fake_config(EVIL, EVIL, algo__title=EVIL, reg__name=EVIL, algo__client_lr=EVIL)
    own = Metric(EVIL, EVIL, higher=False, priority=0)
    name = EVIL.replace("/", "&")
    found = fake_record(
        f"{folder}/{name}", settings, [row | {EVIL: 1.0} for row in fake_rows()], reason=EVIL, metrics=[own]
    )
    summary = json.loads((found.folder / "summary.json").read_text())
    summary |= {"versions": {EVIL: EVIL}, "git": EVIL, "device": EVIL, "platform": EVIL}
    (found.folder / "summary.json").write_text(json.dumps(summary))
    line = {"parameter": "weights", "feature": EVIL, "class": EVIL, "value": 1.0, "value_original": 2.0}
    (found.folder / "coefficients.csv").write_text(csv_text([line]))
    (found.folder / "scores.csv").write_text(csv_text([{"set": EVIL, "model": EVIL, "client": "", "n": 3}]))
    about = {"number": EVIL, "label": EVIL, "status": EVIL, "metric": EVIL, "remarks": [EVIL], "rule": EVIL, "by": EVIL}
    about |= {"threshold": EVIL}
    for kind, table in (("selection", "curve"), ("stability", "stability")):
        place = Path(folder, kind)
        place.mkdir()
        (place / f"{kind}.json").write_text(json.dumps(about))
        row = {"feature": EVIL, EVIL: 1.0, f"{EVIL}_mean": 1.0, "mark": EVIL, f"{EVIL}=0.1": 0.5, f"{EVIL}=0.2": 1.0}
        (place / f"{table}.csv").write_text(csv_text([row]))
    Path(folder, "figure").mkdir()
    Path(folder, "figure", "figure.png").write_bytes(b"\x89PNG")
    claim = dict.fromkeys(("figure", "algo", "says", "measured", "wanted", "holds", "test", "note"), EVIL)
    Path(folder, "figure", "claims.csv").write_text(csv_text([claim]))
    about = dict.fromkeys(("title", "about", "changed", "caption"), EVIL)
    Path(folder, "figure", "figure.json").write_text(json.dumps(about))


def test_names_are_text_wherever_they_stand(report):
    evil("s")
    text = report("s")
    tags = Tags(text).found
    assert [name for name, _ in tags].count("script") == 3
    assert not [of for _, of in tags if any(key.startswith("on") for key in of) or of.get("src") == "x"]
    assert text.count("&lt;img src=x") > 20  # they are there, as text
    assert "</script><script>doc" not in text


def test_names_run_nothing_in_a_browser(report):
    evil("s")
    fake_grid("s/more", seeds=(0,))
    report("s")
    seen = RenderedPage(Path("page.html"))
    assert seen.console == []
    assert "hit" not in seen.data
    assert '<img src="x"' not in seen.text
    assert int(seen.data["ready"]) > 5


def test_the_page_in_a_browser(report):
    """No error; it sorts, filters and switches axes by its address."""
    fake_grid("s")
    report("s")
    page = Path("page.html")
    plain = RenderedPage(page)
    assert plain.console == []
    assert (plain.data["errors"], plain.data["x"], plain.data["curves"]) == ("0", "rounds", "6")
    assert int(plain.data["ready"]) >= 6  # curves, two maps, structure
    assert 'aria-sort="ascending"' not in plain.text.partition("</table>")[0]

    seen = RenderedPage(page, "#sort=objective,desc&x=bytes&xscale=log&show=all&metric=objective")
    assert seen.console == []
    assert (seen.data["x"], seen.data["curves"]) == ("bytes", "36")
    assert 'aria-sort="descending" data-key="objective"' in seen.text
    values = [float(cell) for cell in seen.column("objective") if cell]
    assert values == sorted(values, reverse=True) != [float(c) for c in plain.column("objective") if c]
    assert [bool(cell) for cell in seen.column("objective")] == [True] * 24 + [False] * 12  # diverged ones come last
    assert "communication, up and down (B)" in seen.text
    assert "communication round" not in seen.text.partition("<script")[0]

    seen = RenderedPage(page, "#filter=algo%3Dfedmid+algo.client_lr%3D0.2&show=table")
    assert seen.data["curves"] == "6"
    assert set(seen.column("algo", hidden=False)) == {"fedmid"}
    assert len(seen.rows(hidden=False)) == 6 < len(seen.rows())


def figure(folder, algos=13, claims=24):
    """A figure as large as those of the package are, with a picture of their shape."""
    import matplotlib.pyplot as plt

    place = Path(folder)
    fake_grid(f"{folder}/runs", algos=[f"algorithm_{i}" for i in range(algos)], seeds=(0,))
    row = {"figure": "mine", "algo": "algorithm_1", "says": "it is better", "holds": "yes"}
    row |= {"measured": "support_f1 0.9981 [0.9971, 0.9982]", "wanted": "above algorithm_2 (0.6801 [0.6782, 0.6812])"}
    row |= {"test": "the same sign in each of 5 seeds", "note": "still falling at the end: algorithm_2, algorithm_3"}
    holds = ["no" if i % 9 == 8 else "yes" for i in range(claims)]
    told = [row | {"says": f"claim {i} is no short sentence", "holds": each} for i, each in enumerate(holds)]
    (place / "claims.csv").write_text(csv_text(told))
    (place / "table.csv").write_text(csv_text([{"algo": "algorithm_1", "tail_objective": 1.0}]))
    about = {"title": "A title that says what is drawn, in a line", "about": "What it is. " * 25, "changed": "",
             "ours": True, "caption": "How it is drawn."}  # fmt: skip
    (place / "figure.json").write_text(json.dumps(about))
    plt.imsave(place / "figure.png", [[[1.0, 1.0, 1.0]] * 140] * 70)
    return place


def test_a_figure_is_printed_on_four_sheets(report):
    """Verdicts, picture, the best points and the configuration are on paper; all runs are in the file, folded."""
    figure("f")
    text = report("f")
    assert text.count("<tr data-run=") == 78
    assert '<section id="runs-table" class="folded"' in text
    sheets = print_pdf(Path("page.html"), Path("page.pdf").resolve())
    assert len(re.findall(rb"/Type\s*/Page\b", sheets)) <= 4
    if shutil.which("pdftotext") is None:
        pytest.skip("NOT TESTED: what stands on each sheet needs pdftotext, of poppler")
    told = subprocess.run(["pdftotext", "-layout", "page.pdf", "-"], capture_output=True, check=True)
    sheets = told.stdout.decode().split("\f")[:-1]
    assert "22 of 24 claims hold" in sheets[0]
    assert "How it is drawn." in sheets[0]
    heads = ["wanted" in sheet for sheet in sheets if "the same sign" in sheet]
    assert heads == [True, True]  # the table of 24 rows goes over two sheets
    assert not re.search("BibTeX|Coefficients|All 78 runs", "".join(sheets))


def test_light_and_dark(report):
    fake_grid("s", seeds=(0,))
    report("s")
    for dark, wanted in ((False, 1.0), (True, 0.1)):
        picture = matplotlib.image.imread(screenshot(Path("page.html"), Path("page.png").resolve(), dark=dark))
        assert abs(float(picture[2, 2, :3].mean()) - wanted) < 0.05
        text = picture[:200, :400, :3].mean(axis=2)
        assert abs(text.max() - text.min()) > 0.6  # it can be read on that


def test_the_browser_hears_what_goes_wrong(report):
    fake_grid("s", seeds=(0,))
    Path("page.html").write_text(report("s").replace('"arrays":', '"lost":'))
    seen = RenderedPage(Path("page.html"))
    assert "ready" not in seen.data
    assert seen.data["errors"] != "0"
    assert seen.console


def test_it_needs_no_network(report):
    fake_grid("s", seeds=(0,))
    tags = Tags(report("s")).found
    links = [link for _, of in tags for key in ("src", "href") if (link := of.get(key))]
    assert all(link.startswith(("data:", "#")) for link in links)
