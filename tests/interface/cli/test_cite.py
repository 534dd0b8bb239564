"""fcorun cite: BibTeX of records, each entry once, with the reasons for its citation."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from fake_records import fake_config, fake_record
from helpers import small

from fcorun import run
from fcorun.base.sources.catalogue import load_catalogue
from fcorun.base.system.machine import fcorun_version
from fcorun.interface.cli.commands import main

pytestmark = pytest.mark.undrawn
OPTIMISER, DUAL = "fcorun.FedOpt", "fcorun.FedDualAvg"
SOURCE = """
from dataclasses import dataclass
from fcorun.algorithms import FedAvg


@dataclass(frozen=True)
class Mine(FedAvg):
    source = "{}"
    bibtex = "{}"


@dataclass(frozen=True)
class Silent(FedAvg):
    pass
"""
ENTRY = "@article{me2026, author = {Me, A.}, title = {Mine}, year = {2026}}"


@pytest.fixture
def cite(capsys):
    """A function that cites folders, and returns the comments of each entry, the last comments, and the text."""

    def read(*folders):
        assert main(["cite", *folders]) == 0
        text = capsys.readouterr().out
        *blocks, last = text.removesuffix("\n").split("\n\n")
        blocks, rest = ([*blocks, last], "") if "@" in last else (blocks, last)
        entries = {}
        for block in blocks:
            comments, at, entry = block.partition("@")
            assert at
            assert all(line.startswith("% ") for line in comments.splitlines())
            assert entry.count("{") == entry.count("}")
            entries[entry.partition("{")[2].partition(",")[0]] = comments.removesuffix("\n").splitlines()
        assert len(entries) == len(blocks)  # each once
        assert "@" not in rest  # which would begin an entry
        assert all(line.startswith("% ") for line in rest.splitlines())
        return entries, rest, text

    return read


def test_each_entry_occurs_once_with_its_reasons(cite):
    for name in ("fedadam", "fedyogi"):
        fake_record(f"deep/down/{name}", fake_config(name, algo__class=OPTIMISER))
    fake_record("deep/dual", fake_config(algo__class=DUAL))
    fake_record("deep/dual_again", fake_config(algo__class=DUAL, seed=1))
    entries, rest, text = cite("deep")
    assert list(entries) == ["fcorun", "reddi2021", "yuan2021", "tibshirani1996"]
    assert entries["reddi2021"] == ["% algo=fedadam, algo=fedyogi: algorithm 2 of Reddi et al. (2021)"]
    assert entries["yuan2021"] == [
        "% algo=feddualavg: algorithm 3 of Yuan, Zaheer and Reddi (2021)",
        "% data=lasso: section 5.1 of Yuan, Zaheer and Reddi (2021), the law of the features reconstructed",
    ]
    assert load_catalogue()["yuan2021"].text in text
    keys = ("topology=star", "uplink=identity", "downlink=identity", "aggregate=mean", "clock=none", "faults=none",
            "privacy=none")  # fmt: skip
    assert rest.splitlines() == [f"% {key}: no entry (textbook)" for key in keys]


@pytest.mark.slow
def test_the_record_of_a_run_is_cited(cite):
    record = run(small("reg=fused_lasso", "algo=fedmid", "mirror=euclidean"), "out")
    entries, rest, text = cite("out")
    assert list(entries) == ["fcorun", "yuan2021", "tibshirani2005", "friedman2007"]
    assert entries["fcorun"] == ["% fcorun, which made this record"]
    assert f"note   = {{Version {record.summary['versions']['fcorun']}" in text
    assert rest.splitlines() == [
        f"% {key}: no entry (textbook)"
        for key in (
            *("objective=least_squares", "mirror=euclidean", "topology=star"),
            *("uplink=identity", "downlink=identity", "aggregate=mean", "clock=none", "faults=none", "privacy=none"),
        )
    ]


def test_a_users_plugin_is_cited(cite, user_module):
    user_module("own", SOURCE.format("algorithm 2 of @me2026, after @mcmahan2017", ENTRY))
    fake_record("s/a", fake_config("mine", algo__class="own.Mine"))
    fake_record("s/b", fake_config("silent", algo__class="own.Silent"))
    fake_record("s/c", fake_config("gone", algo__class="nowhere.Gone"))
    entries, rest, text = cite("s")
    assert ENTRY in text
    assert (
        entries["me2026"]
        == entries["mcmahan2017"]
        == ["% algo=mine: algorithm 2 of Me (2026), after McMahan et al. (2017)"]
    )
    assert "% algo=silent: no entry (its class names no source)" in rest
    assert (
        "% algo=gone: no entry (no run has ended, and a run stores the sources of the user's plug-ins when it ends)"
        in rest
    )


@pytest.mark.slow
def test_a_source_in_a_record_needs_no_class(cite, user_module):
    user_module("own", SOURCE.format("algorithm 2 of @me2026, after @mcmahan2017", ENTRY))
    run(small("algo=fedavg", "algo.class=own.Mine", "algo.name=mine"), "out")
    del sys.modules["own"]
    Path("own.py").unlink()
    entries, _, text = cite("out")
    assert ENTRY in text
    assert entries["mcmahan2017"] == ["% algo=mine: algorithm 2 of Me (2026), after McMahan et al. (2017)"]


def test_of_two_entries_with_one_key_the_second_is_left_out(cite, user_module):
    user_module("own", SOURCE.format("", ENTRY.replace("me2026", "yuan2021")))
    fake_record("s/a", fake_config("mine", algo__class="own.Mine"))
    entries, rest, text = cite("s")
    assert entries["yuan2021"] == ["% algo=mine: Me (2026)"]
    assert "% data=lasso names another entry yuan2021, which is left out: give it a key of its own" in rest
    assert text.count("{yuan2021,") == 1


@pytest.mark.parametrize(("source", "bibtex"), [("@nobody2020", ""), ("", "@misc{me, title = {a}")])
def test_an_invalid_source_is_named(cite, user_module, source, bibtex):
    user_module("own", SOURCE.format(source, bibtex))
    fake_record("s/a", fake_config("mine", algo__class="own.Mine"))
    entries, rest, _ = cite("s")
    assert list(entries) == ["fcorun", "yuan2021", "tibshirani1996"]
    assert f"% algo=mine: no entry (Mine.{'source: there' if source else 'bibtex: not BibTeX'}" in rest


@pytest.mark.parametrize("name", ["@misc{evil, title = {x}}", "a\n@misc{evil,\n}", "% @x", "[red]<script>"])
def test_a_name_cannot_begin_an_entry(cite, name):
    fake_record("s/a", fake_config(algo__class=DUAL, algo__name=name, data__name=name))
    entries, _, text = cite("s")
    assert list(entries) == ["fcorun", "yuan2021", "tibshirani1996"]
    assert not re.search(r"@misc\{evil", text)
    assert name.split()[-1].replace("@", "(at)") in text


def test_unfinished_records_are_cited_and_those_without_a_configuration_counted(cite):
    fake_record("s/failed", fake_config(algo__class=DUAL), status="failed")
    fake_record("s/running", fake_config(algo__class=DUAL), status="interrupted")
    for name, text in (("bad", "a: [1"), ("list", "[1]"), ("none", None)):
        folder = fake_record(f"s/{name}").folder
        Path(folder / "config.yaml").unlink()
        if text is not None:
            Path(folder / "config.yaml").write_text(text)
    entries, rest, _ = cite("s")
    assert list(entries) == ["fcorun", "yuan2021", "tibshirani1996"]
    assert rest.splitlines()[0] == "% 1 of 3 records hold no configuration that can be read"
    shutil.rmtree("s/failed")
    shutil.rmtree("s/running")
    entries, rest, _ = cite("s")
    assert list(entries) == ["fcorun"]
    assert rest == "% 1 of 1 records hold no configuration that can be read"


@pytest.mark.parametrize(
    ("versions", "git", "note"),
    [
        ({"fcorun": "0.2.dev1+g1"}, "0123456789abcdef", "Version 0.2.dev1+g1, commit 0123456789"),
        ({"fcorun": "0.2"}, "\\input{x}", "Version 0.2"),
        ({"fcorun": "0.2 \\input{x}"}, None, f"Version {fcorun_version()}"),
        ({"fcorun": "0.2}"}, None, f"Version {fcorun_version()}"),
        ({"fcorun": None}, None, f"Version {fcorun_version()}"),
    ],
)
def test_a_version_in_a_record_is_cited_without_tex(cite, versions, git, note):
    folder = fake_record("s/a", fake_config(algo__class=DUAL)).folder
    (folder / "summary.json").write_text(json.dumps({"versions": versions, "git": git}))
    _, _, text = cite("s")
    assert f"  note   = {{{note}}}," in text
