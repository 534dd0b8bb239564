"""The command line: what it refuses, each in one line."""

from pathlib import Path

import pytest
from helpers import SMALL
from table_files import table

from fcorun import UserError, compose, load_records

# what is given, and words that the one line about it must hold
BAD = [
    ("algo=fedavgg", ["algo", "fedavg"]),
    ("algo=fedual", ["algo", "feddualavg"]),
    ("data=laso", ["data", "lasso"]),
    ("reg=l11", ["reg", "l1"]),
    ("objective=squares", ["objective", "least_squares"]),
    ("mirror=euclid", ["mirror", "euclidean"]),
    ("round=5", ["round", "rounds"]),
    ("algo.client_rl=1", ["algo.client_rl", "client_lr"]),
    ("data.feature=3", ["data.feature", "features"]),
    ("+nonsense=1", ["nonsense", "valid"]),
    ("+algo.nonsense=1", ["algo.nonsense", "client_lr"]),
    ("rounds", ["rounds"]),
    ("rounds=[1", ["rounds"]),
    ("algo.client_lr=-1", ["algo.client_lr", "positive"]),
    ("algo.client_lr=0", ["algo.client_lr", "positive"]),
    ("algo.client_lr=nan", ["algo.client_lr", "finite"]),
    ("algo.server_lr=inf", ["algo.server_lr", "finite"]),
    ("algo.client_lr=fast", ["algo.client_lr", "number"]),
    ("algo.client_lr=null", ["algo.client_lr", "number"]),
    ("algo.client_lr=[0.1]", ["algo.client_lr", "number"]),
    ("algo.client_lr=true", ["algo.client_lr", "number"]),
    ("reg.strength=-0.1", ["reg.strength", "negative"]),
    ("reg.relative=0", ["reg.relative", "positive"]),
    ("reg=elastic_net reg.l1_ratio=2", ["reg.l1_ratio", "between 0 and 1"]),
    ("reg=l2 +reg.relative=0.5", ["reg.relative"]),
    ("clients_per_round=7", ["clients_per_round=7", "6 clients"]),
    ("clients_per_round=0", ["clients_per_round", "positive"]),
    ("batch_size=0", ["batch_size", "positive"]),
    ("batch_size=2.5", ["batch_size", "whole number"]),
    ("rounds=-1", ["rounds", "negative"]),
    ("rounds=null", ["rounds", "whole number"]),
    ("eval_every=0", ["eval_every", "positive"]),
    ("seed=-1", ["seed", "negative"]),
    ("seed=one", ["seed", "whole number"]),
    ("precision=float16", ["precision", "float32"]),
    ("client_weighting=size", ["client_weighting", "examples"]),
    ("verbose=maybe", ["verbose", "true or false"]),
    ("local_steps=3 local_epochs=2", ["local_steps", "local_epochs"]),
    ("local_steps=null local_epochs=null", ["local_steps", "local_epochs"]),
    ("data.nonzeros=21", ["data.nonzeros=21", "20"]),
    ("objective=logistic", ["objective", "regression"]),
    ("algo=one_client algo.client=6", ["algo.client=6", "6"]),
    ("algo.class=fcorun.algorithms.fedavg.FedAvgg", ["algo.class", "FedAvg"]),
    ("algo.class=nowhere.FedAvg", ["algo.class", "nowhere"]),
    ("algo.class=FedAvg", ["algo.class", "package.module.Class"]),
    (
        "algo.class=fcorun.regularizers.l1.L1 ~algo.client_lr ~algo.server_lr +algo.strength=1",
        ["algo.class", "Algorithm"],
    ),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[arguments for arguments, _ in BAD])
def test_bad_input_is_told_in_one_line(fcorun, arguments, words, tmp_path):
    code, out, err = fcorun(*SMALL, *arguments.split())
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("fcorun: ")
    assert "Traceback" not in err
    for word in words:
        assert word in err
    assert list(tmp_path.iterdir()) == []  # nothing is left behind, and nothing that was there is taken away


def test_an_output_folder_that_cannot_be_made(fcorun):
    Path("taken").write_text("a file")
    code, out, err = fcorun(*SMALL, "hydra.run.dir=taken/run")
    assert code != 0
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "hydra.run.dir" in err
    assert "taken" in err
    assert Path("taken").read_text() == "a file"


TABLE = [
    ("", ["data.path"]),
    ("data.path=nowhere.csv data.target=y", ["nowhere.csv"]),
    ("data.path=rows.csv", ["data.target"]),
    ("data.path=rows.csv data.target=z", ["data.target", "z", "y"]),
    ("data.path=rows.csv data.target=y data.client=who", ["data.client", "who", "site"]),
    ("data.path=rows.csv data.target=y data.task=ranking", ["data.task", "regression"]),
    ("data.path=rows.csv data.target=y data.validation=1.5", ["data.validation"]),
    ("data.path=plain.csv data.target=y data.clients=1000", ["data.clients=1000"]),
    ("data.path=plain.csv data.target=y clients_per_round=11", ["clients_per_round=11"]),
]


@pytest.mark.parametrize(("arguments", "words"), TABLE, ids=[arguments for arguments, _ in TABLE])
def test_bad_tables_are_told_in_one_line(fcorun, arguments, words):
    table("rows.csv")
    Path("plain.csv").write_text("a,y\n" + "".join(f"{i},{i}\n" for i in range(60)))
    code, out, err = fcorun("data=table", *arguments.split())
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err
    assert not load_records(".")


def test_a_misspelt_flag(fcorun):
    code, _, err = fcorun("--rounds", "5")
    assert code == 2
    assert "--rounds" in err or "unrecognized" in err


def test_debug_shows_the_traceback(fcorun):
    code, _, err = fcorun(*SMALL, "algo.client_lr=-1", "debug=true")
    assert code == 2
    assert "Traceback" in err
    assert "algo.client_lr=-1" in err


def test_compose_says_what_the_command_says(fcorun):
    for bad in ("algo=fedavgg", "algo.client_rl=1", "reg.strength=abc=("):
        _, _, err = fcorun(bad)
        with pytest.raises(UserError) as caught:
            compose([bad])
        assert str(caught.value) == err.removeprefix("fcorun: ").strip()
