"""Records of private runs: their list of what is not private, their end, and what is refused with a cure."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails, small
from sweeps import run_sweep_command

from fcorun import run
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands import main
from fcorun.methods.communication.privacy import NOT_PRIVATE, Privacy

pytest.importorskip("dp_accounting")

GAUSSIAN = ("privacy=gaussian", "clients_per_round=null", "data.clients=100")
FEDAVG = ("algo=fedavg", "reg=none", "algo.client_lr=0.05", "algo.server_lr=1", "objective.intercept=false")
# the keys of summary.json, those of its section data as data.KEY, and the files, by what they tell
TOLD = {
    "metrics, scores, thresholds and predictions": "final best tail certificate unfinished threshold metrics.csv "
    "scores.csv predictions.csv roc.csv thresholds.csv calibration.csv curves.png roc.png calibration.png decision.png "
    "clients.parquet clients.png status.json",
    "strengths, rates, clips and ends of runs that follow from them": "round stopped",
    "numbers that are auto or relative, and the bounds behind them": "curvature",
    "reference and gap": "reference",
    "the encoding of columns by scaling, fills of gaps, knots and the levels that exist": "encoding.json "
    "data.feature_names data.standardized",
    "the least and the largest value of each column": "data.limits",
    "numbers of gaps, by client and outcome": "missing.csv data.gaps",
    "counts, means and deviations of the outcome": "data.outcome",
    "levels with few rows": "data.few_levels",
    "warnings, which may name rows and columns": "warnings run.log",
    "the fingerprint of the data": "data.fingerprint",
    "names, numbers and weights of clients": "data.clients data.client_names",
    "numbers of rows and of classes": "data.examples data.validation_examples data.few_rows data.classes",
    "bytes and times": "seconds bytes_up bytes_down grad_evals prox_evals",
}
UNSEEN = {"the model that start names", "the rounding of the noise", "models of single clients"}
# of the model, which noise hides, of the configuration, or of the machine
PRIVATE = (
    "solution.npz coefficients.csv coefficients.png config.yaml summary.json status label metrics tail_rounds cutoff "
    "linear sources strength data moved drawn versions git device platform devices hosts privacy data.features "
    "data.task data.class_type data.labels"
)


def write_rows(name: str) -> None:
    """Write a table of three clients with gaps, a rare level, a number and two classes."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": rng.normal(size=90).round(2), "ward": ["a", "b", "c"] * 30, "client": ["A", "B", "C"] * 30}
    )
    frame.loc[:1, "ward"] = "rare"
    frame["cost"] = frame["x"] + rng.normal(size=90).round(2)
    frame["ill"] = np.where(frame["cost"] > 0, "yes", "no")
    frame.loc[::7, "x"] = np.nan
    frame.to_csv(name, index=False)


@pytest.mark.parametrize("target", ["cost", "ill"])
def test_each_key_and_file_of_a_record_is_private_or_in_the_list_of_what_is_not(target):
    write_rows("rows.csv")
    other, task = {"cost": ("ill", "regression"), "ill": ("cost", "binary")}[target]
    table = ("data=table", "data.path=rows.csv", f"data.target={target}", f"data.task={task}", "data.client=client",
             f"data.ignore=[{other}]", "data.missing=mean", "data.standardize=pooled")  # fmt: skip
    record = run(composed(*table, "algo=fedavg", "reg=none", "privacy=gaussian", "privacy.unit=row", "local_steps=1",
                          "privacy.epsilon=2", "rounds=3", "eval_every=1", "client_metrics=true"), "here")  # fmt: skip
    assert record.status["status"] == "done"
    names = {path.name for path in Path("here").iterdir() if not path.name.startswith(".")}
    names |= set(record.summary) | {f"data.{key}" for key in record.summary["data"]}
    known = {name for words in (*TOLD.values(), PRIVATE) for name in words.split()}
    assert names <= known
    assert {"data.limits", "data.gaps", "data.outcome", "data.few_levels", "missing.csv", "warnings"} <= names
    assert set(NOT_PRIVATE) == set(TOLD) | UNSEEN


def test_few_clients_hide_no_client_and_may_hide_rows():
    six = ("algo=fedavg", "reg=none", "data.clients=6", "privacy=gaussian", "privacy.epsilon=2")
    with fails("6", "100 clients or more, or leave privacy out"):
        load_data(prepare(small(*six, "local_steps=1")))
    load_data(prepare(small(*six, "local_steps=1", "privacy.unit=row")))
    load_data(prepare(small(*six, "local_steps=2", "privacy.unit=row", "privacy.noise_by=clients")))


def test_sweeps_tell_of_noise_that_drowns_messages_and_pair_no_private_run_with_another(capsys):
    assert run_sweep_command(*GAUSSIAN, *FEDAVG, "privacy.epsilon=0.1,0.2,8", "out=s", "rounds=2") == 0
    before, *_ = capsys.readouterr().out.partition("1 of 3 runs")
    told = [line for line in before.splitlines() if "drowns what they say" in line]
    assert [line.split()[1] for line in told] == ["privacy.epsilon=0.1", "privacy.epsilon=0.2"]
    assert run_sweep_command("algo=feddualavg", *GAUSSIAN[1:], "out=s", "rounds=2") == 0
    main(["results", "s", "--paired"])
    assert "on the same data with the same privacy and privacy.epsilon" in " ".join(capsys.readouterr().out.split())


def test_a_large_epsilon_hides_nobody():
    experiment = prepare(small(*GAUSSIAN, *FEDAVG))
    privacy = experiment.resolved_privacy
    sentence, section = privacy.describe(500, experiment.settings)
    assert section["privacy"]["epsilon"] > 100
    assert sentence.startswith("what the server sent hides nobody: the privacy for the messages of one client")
    assert "is private" not in sentence
    assert "give privacy.epsilon=2" in sentence


class Laplace(Privacy):
    """A mechanism of one's own, without a delta."""

    source = "ours"

    def clip_message(self, message):
        return message

    def draw_noise(self, message, key, number):
        return message

    def find_epsilon(self, rounds, clients_per_round, times=1):
        return float(rounds)


def test_a_mechanism_of_ones_own_has_an_account_in_the_record():
    settings = prepare(small()).settings
    sentence, section = Laplace().describe(2, settings)
    assert sentence.startswith("what the server sent is private for the messages of one client counted as 0")
    assert "epsilon 2 and delta 0, by noise from the seed" in sentence
    assert section["privacy"]["epsilon"] == 2
    assert section["privacy"]["not_private"] == list(NOT_PRIVATE)
    assert "hides nobody" in Laplace().describe(20, settings)[0]


@pytest.mark.parametrize("server_lr", [1, 1e6])
def test_a_spent_epsilon_ends_a_run_as_its_last_round_does(server_lr):
    config = (*GAUSSIAN, *FEDAVG[:-2], f"algo.server_lr={server_lr:g}", "privacy.noise=5", "eval_every=1")
    spent = run(small(*config, "rounds=60", "stop={epsilon: 4}"), "spent")
    rounds = int(spent.metrics["round"].iloc[-1])
    assert 10 < rounds < 60
    full = run(small(*config, f"rounds={rounds}"), "full")
    for key in ("status", "final", "tail", "unfinished", "stopped"):
        assert spent.summary.get(key) == full.summary.get(key)
    ends = [part for part in spent.status["reason"].split("; ") if not part.startswith("stopped in round")]
    assert ends == full.status["reason"].split("; ")
    assert spent.status["status"] == ("done" if server_lr == 1 else "diverged")
    assert "the messages of one client counted as 0" in spent.status["reason"]


def test_a_liar_whose_steps_overflow_remembers_what_it_had_sent():
    """A memory that is not finite would end the run, and tell that this client took part."""
    config = small(*GAUSSIAN, "algo=fedavg", "reg=none", "algo.client_lr=1e30", "privacy.noise=20", "rounds=4",
                   "faults=stale", "faults.liars=0.1", "faults.sends=last")  # fmt: skip
    assert run(config, "here").status["status"] == "done"
