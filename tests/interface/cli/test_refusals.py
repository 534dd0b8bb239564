"""Bad input is refused by the command line in one line."""

import csv
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import SMALL, choice_names
from table_files import write_table

from fcorun import UserError, compose, load_records

# The arguments, the exit code, whether a failed record is written, and the sentence. SMALL stands for small data, and
# ALGORITHMS for the names of all algorithms.
REFUSALS = Path(__file__).with_name("refusals.csv")
with REFUSALS.open(newline="") as file:
    BAD = [tuple(row.values()) for row in csv.DictReader(file)]


@pytest.mark.parametrize(("arguments", "code", "leaves", "sentence"), BAD, ids=[bad[0] for bad in BAD])
def test_bad_input_is_refused_in_one_line(fcorun, arguments, code, leaves, sentence, tmp_path):
    write_table("rows.csv")
    Path("plain.csv").write_text("a,y\n" + "".join(f"{i},{i}\n" for i in range(60)))
    odd_rows = (f"P{i},2024-01-{i % 28 + 1:02},{i or ''},{'n/k' if i == 3 else i}" for i in range(60))
    Path("odd.csv").write_text("id,day,lab,note,y\n" + "".join(f"{row},{i}\n" for i, row in enumerate(odd_rows)))
    exit_code, _, err = fcorun(*arguments.replace("SMALL", " ".join(SMALL)).split())
    err = re.sub(r"choose from [^)]*", lambda match: match[0].replace("'", ""), err)  # argparse quotes before 3.12
    err = err.replace(", ".join(choice_names("algo")), "ALGORITHMS")
    assert (str(exit_code), err.strip()) == (code, sentence)
    records = load_records(".")
    assert [r.status["status"] for r in records] == (["failed"] if leaves == "a record" else [])
    if not records:  # no file is left behind, and none is removed
        assert sorted(path.name for path in tmp_path.iterdir()) == ["odd.csv", "plain.csv", "rows.csv"]


def test_an_output_folder_that_cannot_be_made_is_refused(fcorun):
    Path("taken").write_text("a file")
    code, out, err = fcorun(*SMALL, "out=taken/run")
    assert code != 0
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "out=" in err
    assert "taken" in err
    assert Path("taken").read_text() == "a file"


@pytest.mark.parametrize(
    ("name", "begins"),
    [("conf/mine.yaml", "fcorun: conf/mine.yaml cannot be read (Permission denied);"), (None, "fcorun: OSError: full")],
)
def test_a_file_that_cannot_be_read_is_not_called_the_output_folder(fcorun, monkeypatch, name, begins):
    def fail(*_):
        raise PermissionError(13, "Permission denied", name) if name else OSError("full")

    monkeypatch.setattr("fcorun.interface.cli.hydra_app.compose_with_defaults", fail)
    code, _, err = fcorun(*SMALL)
    assert code != 0
    assert err.startswith(begins)
    assert "out=" not in err


def test_an_unknown_flag_is_refused(fcorun):
    code, _, err = fcorun("--rounds", "5")
    assert code == 2
    assert "--rounds" in err or "unrecognized" in err


@pytest.mark.parametrize("debug", ["debug=true", "++debug=True"])
def test_debug_shows_the_traceback(fcorun, debug):
    code, _, err = fcorun(*SMALL, "algo.client_lr=-1", debug)
    assert code == 2
    assert "Traceback" in err
    assert "algo.client_lr=-1" in err


@pytest.mark.slow
def test_the_advised_quotes_work(fcorun):
    table_overrides = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site"]
    write_table("rows.csv")
    Path("rows.csv").write_text(Path("rows.csv").read_text().replace("p,", "Heldout Zürich,"))
    code, _, err = fcorun(*table_overrides, "data.validation=[Heldout Zürich]")
    assert code == 2
    advised = err.strip().rpartition(": ")[2]
    assert advised == """'data.validation=["Heldout Zürich"]'"""
    assert fcorun(*table_overrides, *shlex.split(advised), "dry_run=true")[0] == 0


@pytest.mark.parametrize(
    "typed",
    [
        *("data.target=a=b", "data.target=cost (EUR)", "data.target={a}", "data.target=a,b", "data.target=it's"),
        *("title=lr {0.1}, new", "data.ignore='[a]'", "data.ignore=[a=b]", "data.ignore=[b, cost (EUR)]"),
        *("data.ignore=[a{b}]", "data.splines={age (y): 4}", "data.splines='{age: 4}'", "rounds='5'", "gap='true'"),
    ],
)
def test_the_override_that_a_sentence_shows_works_in_a_shell(fcorun, typed):
    columns = ["a", "b", "y", "age (y)", "age", "a=b", "cost (EUR)", "{a}", "a,b", "it's", "a{b}"]
    rng = np.random.default_rng(0)
    pd.DataFrame(rng.normal(size=(30, len(columns))), columns=columns).to_csv("wide.csv", index=False)
    target = [] if typed.startswith("data.target") else ["data.target=y"]
    words = ["data=table", "data.path=wide.csv", *target, "dry_run=true"]
    code, _, err = fcorun(*words, typed)
    assert code == 2
    shown = re.search(r"within quotes: (.*)$|commas is (.*)$|give (\S.*), without", err.strip())
    assert shown is not None, err
    advised = shlex.split(next(filter(None, shown.groups())))
    assert len(advised) == 1 or typed == "data.splines='{age: 4}'", err
    assert fcorun(*words, " ".join(advised))[0] == 0


@pytest.mark.slow
def test_compose_raises_the_sentence_of_the_command(fcorun):
    for bad in ("algo=fedavgg", "algo.client_rl=1", "reg.strength=abc=("):
        _, _, err = fcorun(bad)
        with pytest.raises(UserError) as caught:
            compose([bad])
        assert str(caught.value) == err.removeprefix("fcorun: ").strip()
