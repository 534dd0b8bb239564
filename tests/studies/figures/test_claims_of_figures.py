"""The claims of all figures in a folder, in its claims.csv."""

from pathlib import Path

import pandas as pd
import pytest

from fcorun.interface.cli.commands import main
from fcorun.studies.figures.claims import COLUMNS
from fcorun.studies.figures.reproduce import FigureResult


@pytest.fixture
def figures_made(monkeypatch):
    """Replace the making of figures; return the names of those that are made. The figure fco_fig5 is interrupted."""
    names = []

    def make(name, folder, *_):
        if name == "fco_fig5":
            raise KeyboardInterrupt
        names.append(name)
        folder.mkdir(exist_ok=True)
        row = dict.fromkeys(COLUMNS, "") | {"figure": name}
        return FigureResult(folder / name, [row, row | {"algo": "fedavg"}], wants_page=False)

    monkeypatch.setattr("fcorun.interface.cli.commands.figure_command.reproduce", make)
    return names


def test_the_claims_of_each_figure_are_written_once_it_is_made(figures_made):
    figure = ["figure", "--out", "here"]
    assert main([*figure, "fco_fig3a", "fco_fig3a", "fco_fig2", "fco_fig5"]) == 130
    assert figures_made == ["fco_fig3a", "fco_fig2"]
    assert pd.read_csv("here/claims.csv")["figure"].tolist() == ["fco_fig2"] * 2 + ["fco_fig3a"] * 2
    assert main([*figure, "fco_fig3b", "fco_fig2"]) == 0
    assert pd.read_csv("here/claims.csv")["figure"].value_counts().to_dict() == dict.fromkeys(
        ["fco_fig2", "fco_fig3a", "fco_fig3b"], 2
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [("", "it is empty"), ("a,b\n1,2\n", "no column figure"), ("\xff\xfe", "it is no text in UTF-8")],
)
def test_a_file_of_other_content_is_refused_before_a_figure_is_made(figures_made, text, fault, capsys):
    Path("here").mkdir()
    Path("here/claims.csv").write_text(text, encoding="latin-1")
    assert main(["figure", "--out", "here", "fco_fig2"]) == 2
    assert f"here/claims.csv is damaged ({fault}): remove it" in capsys.readouterr().err
    assert not figures_made
