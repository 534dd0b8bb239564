"""Root keys that are "auto" in config.yaml have the data set's numbers; a number of the user's wins wherever it is."""

from pathlib import Path

import pytest

from fcorun import UserError, compose
from fcorun.experiment.configuration.search_path import packaged_config_dir
from fcorun.experiment.prepare import prepare

NATURAL_KEYS = ("rounds", "clients_per_round", "batch_size", "eval_every", "precision")


def settings(*overrides, **options):
    config = compose(overrides, **options)
    return tuple(config[key] for key in NATURAL_KEYS)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("lasso", (500, 10, 10, 10, "float32")),
        ("least_squares", (100, None, None, 1, "float64")),
        ("least_squares_conditioned", (500, None, None, 1, "float64")),  # inherits, and has its own rounds
        ("heterogeneous_million", (500, 1000, 10, 10, "float32")),
        ("table", (500, None, None, 10, "float32")),  # says nothing
    ],
)
def test_settings_are_those_of_the_data(data, expected):
    assert settings(f"data={data}", *(["data.task=binary"] if data == "table" else [])) == expected


@pytest.mark.slow
def test_a_number_of_the_user_wins_in_each_file(tmp_path):
    config = Path(packaged_config_dir(), "config.yaml").read_text()
    edited = config.replace("\nrounds: auto", "\nrounds: 7").replace("\nbatch_size: auto", "\nbatch_size: null")
    edited = edited.replace("  - override hydra/launcher", "  - override reg: l2\n  - override hydra/launcher")
    assert edited.count("7") > config.count("7")
    (tmp_path / "config.yaml").write_text(edited)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nrounds: 8\neval_every: 4\n")
    own = {"config_dir": tmp_path}
    assert settings("data=lasso", **own) == (7, 10, None, 10, "float32")
    assert settings("data=least_squares", **own) == (7, None, None, 1, "float64")
    assert compose(["data=lasso"], **own)["reg"]["name"] == "l2"
    assert settings("data=lasso", "experiment=mine", **own) == (8, 10, None, 4, "float32")
    given = ["rounds=9", "clients_per_round=null", "precision=float64"]
    assert settings("data=lasso", "experiment=mine", *given, **own) == (9, None, None, 4, "float64")
    assert settings("data=lasso", "rounds=auto", "batch_size=auto", **own) == (500, 10, 10, 10, "float32")
    assert settings("data=lasso", "data.natural.rounds=30")[0] == 30


def test_a_file_of_own_numbers_and_choices_is_merged_over_the_defaults(tmp_path):
    own = {"config_dir": tmp_path}
    defaults = compose(["data=lasso"])
    (tmp_path / "config.yaml").write_text("rounds: 30\n")
    assert settings("data=lasso", **own) == (30, 10, 10, 10, "float32")
    assert compose(["data=lasso"], **own) == defaults | {"rounds": 30}
    assert settings("data=lasso", "rounds=5", **own)[0] == 5
    (tmp_path / "config.yaml").write_text("data: least_squares\nreg: l2\nalgo: {client_lr: 0.25}\nseed: 3\n")
    config = compose([], **own)
    assert (config["data"]["name"], config["reg"]["name"], config["seed"]) == ("least_squares", "l2", 3)
    assert config["algo"] == compose(["data=least_squares"])["algo"] | {"client_lr": 0.25}
    assert compose(["reg=l1", "algo.client_lr=1"], **own)["reg"]["name"] == "l1"
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 8\n")
    assert compose(["experiment=mine"], **own)["seed"] == 8
    (tmp_path / "config.yaml").write_text("roundz: 30\n")
    with pytest.raises(UserError, match=r"roundz.*rounds"):
        prepare(compose(["data=lasso"], **own))


def test_an_algorithm_of_one_round_computes_one_unless_more_are_given():
    assert settings("data=least_squares", "algo=gram") == (1, None, None, 1, "float64")
    assert settings("data=least_squares", "algo=gram", "rounds=4")[0] == 4
