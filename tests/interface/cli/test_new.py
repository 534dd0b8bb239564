"""fcorun new: the files of a plug-in, which work as they are."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fcorun import Record
from fcorun.interface.cli.commands.new_command import KINDS
from fcorun.results.scores import score as score_shelf


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "score"])
def test_a_new_plug_in_passes_its_checks(kind, call):
    name = f"own_{kind}"
    code, out, err = call("new", kind, name, "--config-dir", "own")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"wrote {name}.py and {Path('own', kind, name)}.yaml",
        f"fcorun check --config-dir own {kind}={name} tests it",
    ]
    assert "TEMPLATE" not in Path(f"{name}.py").read_text() + Path(f"own/{kind}/{name}.yaml").read_text()
    code, out, err = call("check", "--config-dir", "own", f"{kind}={name}")
    assert (code, err) == (0, ""), out


def test_a_new_score_passes_its_checks_once_its_package_is_installed(call, monkeypatch):
    code, out, _ = call("new", "score", "own_score")
    assert code == 0
    assert "pip install -e ./own_score" in out
    package = tomllib.loads(Path("own_score/pyproject.toml").read_text())
    named = package["project"]["entry-points"]["fcorun.scores"]
    points = [EntryPoint(name, value, "fcorun.scores") for name, value in named.items()]
    monkeypatch.syspath_prepend("own_score")
    monkeypatch.setattr(score_shelf, "entry_points", lambda group: points)
    score_shelf.all_scores.cache_clear()
    try:
        code, out, err = call("check", "score=own_score")
        assert (code, err) == (0, ""), out
        assert "score=own_score of a task that is regression" in out
        assert "there is no score=own" in call("check", "score=own")[2]
    finally:
        monkeypatch.undo()
        score_shelf.all_scores.cache_clear()


@pytest.mark.slow
def test_a_run_on_a_new_data_set_has_a_record_that_each_command_reads(call, fcorun):
    assert call("new", "data", "own_rows")[0] == 0
    fcorun("--config-dir", "myconf", "data=own_rows", "rounds=2", "hydra.run.dir=run")
    assert Record(Path("run")).config["data"]["samples"] == 32
    for command in ("results", "report"):
        code, _, err = call(command, "run")
        assert (code, err) == (0, "")


def test_an_option_of_a_new_plug_in_is_explained_by_help(call):
    assert call("new", "reg", "own_penalty")[0] == 0
    code, out, _ = call("help", "--config-dir", "myconf", "reg=own_penalty")
    assert code == 0
    assert "reg.strength=the value of data.natural.strength, else 0.01: " in out


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        ("reg", "Mine", "the name 'Mine' is none of a module: give lower-case letters, digits and _"),
        ("reg", "l1", "reg=l1 exists; give another name"),
        ("reg", "json", "an installed module is called json, and would be imported instead; give another name"),
        ("reg", "there", "there.py exists; give another name, or remove the file"),
        ("regularizer", "mine", "invalid choice: 'regularizer'"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_written(kind, name, sentence, call):
    Path("there.py").write_text("")
    code, out, err = call("new", kind, name)
    assert (code, out) == (2, "")
    assert sentence in err
    assert not Path("myconf").exists()
