"""The file of the report page, and the pages that figures and sweeps write."""

import json
from pathlib import Path

import pandas as pd
import pytest
from fake_records import fake_grid
from sweeps import RATES, run_sweep_command

import fcorun
from fcorun.base.records.formats import csv_text
from fcorun.interface.cli.commands import main
from fcorun.studies.figures.reproduce import FigureResult


@pytest.mark.slow
def test_the_file_of_the_page(capsys):
    fake_grid("s", seeds=(0,))
    assert main(["report", "s"]) == 0
    assert Path("s/report.html").stat().st_size < 6e6
    assert main(["report", "s"]) == 0  # its own file is replaced
    Path("mine.html").write_text("mine")
    assert main(["report", "s", "--out", "mine.html"]) == 2
    assert "mine.html exists; give --force to replace it" in capsys.readouterr().err
    assert Path("mine.html").read_text() == "mine"
    assert main(["report", "s", "s"]) == 2
    assert "give --out FILE.html" in capsys.readouterr().err


def test_a_folder_without_records_is_refused(capsys):
    Path("empty").mkdir()
    for argv, sentence in (
        (["nowhere"], "there is no folder nowhere; give one that holds records"),
        (["empty"], "empty holds no records; give a folder that fcorun has written, such as outputs"),
        (["empty", "--out", "a.pdf"], "--out a.pdf must end in .html or .htm"),
        (["empty", "--out", "no/a.html"], "--out no/a.html: there is no folder no; make it, or give another name"),
    ):
        assert main(["report", *argv]) == 2
        assert capsys.readouterr().err == f"fcorun: {sentence}\n"
    fake_grid("s", seeds=(0,))
    assert main(["report", "s", "--metric", "nothing"]) == 2
    assert list(Path("empty").iterdir()) == []
    assert not Path("s/report.html").exists()


@pytest.mark.drawn
@pytest.mark.parametrize("wants_page", [False, True])
@pytest.mark.parametrize("make", [lambda: main(["figure", "fco_fig3a", "--out", "figures"]),
                                  lambda: fcorun.figure("fco_fig3a", "figures")])  # fmt: skip
def test_a_figure_writes_its_page(monkeypatch, wants_page, make):
    """The page shows the figure's claims and records, which may lie in another folder. No page of before stays."""
    claim = {"figure": "mine", "algo": "fedmid", "says": "it is the best", "measured": "1", "wanted": "2"}
    claim |= {"holds": "no", "test": "in each of 3 seeds", "note": ""}
    folder, records = Path("figures", "fco_fig3a"), fake_grid("figures/shared/runs", seeds=(0,))

    def reproduce(*_):
        folder.mkdir()
        (folder / "report.html").write_text("earlier verdicts")
        (folder / "figure.png").write_bytes(b"\x89PNG")
        (folder / "claims.csv").write_text(csv_text([claim]))
        about = {"title": "A title", "about": "What it is.", "changed": "with metric=a", "ours": True}
        about |= {"caption": "How it is drawn.", "edges": ["fedmid"]}
        (folder / "figure.json").write_text(json.dumps(about))
        return FigureResult(folder, [claim], records=records, wants_page=wants_page)

    monkeypatch.setattr("fcorun.interface.cli.commands.figure_command.reproduce", reproduce)
    make()
    assert pd.read_csv("figures/claims.csv")["says"].tolist() == ["it is the best"]
    assert (folder / "report.html").exists() == wants_page
    if wants_page:
        text = (folder / "report.html").read_text()
        assert "12 runs of feddualavg and fedmid on lasso" in text
        assert "0 of 1 claims hold; best at an edge of the grid: fedmid</h2>" in text
        assert '<p class="overline">Figure fco_fig3a</p>\n<h1>A title</h1>' in text
        assert "<p>What it is.</p><p>The figure differs from its file: with metric=a.</p>" in text
        assert "fcorun&#39;s own choice" in text
        assert 'it is the best <span class="result">does not hold</span>' in text
        assert "<figcaption>How it is drawn.</figcaption>" in text
        assert "<td>no</td><td>fedmid</td><td>it is the best</td><td>1</td>" in text


@pytest.mark.slow
@pytest.mark.drawn
def test_a_sweep_writes_its_page(monkeypatch):
    monkeypatch.setattr("fcorun.reports.sweep_report.draw_sweep", lambda *_, **__: [])
    assert run_sweep_command(*RATES, "hydra.sweep.dir=s", "report=false") == 0
    assert not Path("s/report.html").exists()
    assert run_sweep_command(*RATES, "hydra.sweep.dir=s", "dry_run=true") == 0
    assert not Path("s/report.html").exists()
    assert run_sweep_command(*RATES, "hydra.sweep.dir=s") == 0
    assert "6 runs of FedDualAvg on lasso (6 clients, " in Path("s/report.html").read_text()
    assert run_sweep_command(*RATES, "hydra.sweep.dir=s", "report=false") == 0
    assert not Path("s/report.html").exists()
