"""The command line: what it shows, what it refuses, and a user's own plug-ins."""

import signal
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from helpers import SMALL, flat, matrices_only, names, plugin_class, rows_of, small
from hydra.core.global_hydra import GlobalHydra

from fcorun import Record, UserError, compose, load_records, run
from fcorun.cli.cli import main

HAXBY = Path(__file__).resolve().parents[2] / "shared" / "data" / "nilearn_data"
GROUPS = ("algo", "data", "mirror", "objective", "reg")


@pytest.fixture
def fcorun(monkeypatch, capsys):
    """A function that runs the command in this process: (exit code, output, errors)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fcorun", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        GlobalHydra.instance().clear()
        capsys.readouterr()
        handler = signal.getsignal(signal.SIGTERM)
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        finally:
            signal.signal(signal.SIGTERM, handler)
            GlobalHydra.instance().clear()
        return code, *capsys.readouterr()

    return call


def process(*arguments, **options):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "fcorun", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


# ---------------------------------------------------------------- what it shows


def test_help_lists_every_group_and_choice(fcorun):
    code, out, err = fcorun("--help")
    assert code == 0
    assert err == ""
    for group in GROUPS:
        (line,) = [line for line in out.splitlines() if line.startswith(f"{group}: ")]
        assert line.split(": ")[1].split(", ") == names(group)


def test_version(fcorun):
    assert fcorun("--version") == (0, f"fcorun {version('fcorun')}\n", "")


def test_cfg_job_shows_every_key(fcorun):
    code, out, _ = fcorun("--cfg", "job")
    assert code == 0
    for key in ("client_lr:", "strength:", "rounds: 500", "precision: float32", "nonzeros:"):
        assert key in out
    assert "hydra:" not in out


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_composes(fcorun, group):
    for name in names(group):
        code, out, err = fcorun(f"{group}={name}", "--cfg", "job")
        assert code == 0, err
        assert f"  name: {name}" in out or group == "objective"


def test_a_run_in_plain_lines(fcorun):
    code, out, err = fcorun(*SMALL, "rounds=40", "hydra.run.dir=here")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "\r" not in out
    lines = out.splitlines()
    assert lines[0].startswith("algo=feddualavg data=lasso reg=l1 client_lr=0.001 server_lr=1 strength=0.1: 40 rounds")
    assert lines[-1].startswith("done: here/")
    assert 10 <= sum(line.startswith("round ") for line in lines) <= 12
    assert "cutoff=0.0001" in out
    record = Record(Path("here"))
    assert record.finished
    final = record.summary["final"]["objective"]
    assert any(line.startswith("objective") and f"{final:.6g}" in line for line in lines)
    # the same command again
    code, out, err = fcorun(*SMALL, "rounds=40", "hydra.run.dir=here")
    assert (code, err) == (0, "")
    assert "force=true" in out
    assert out.startswith("here holds the record of this run (done): reused")


def test_the_command_and_the_function_make_the_same_record(fcorun):
    assert fcorun(*SMALL)[0] == 0
    (ours,) = load_records("outputs")
    assert not [path for path in Path().rglob("*") if path.is_file() and path.parent != ours.folder]
    theirs = run(small(), "theirs")
    assert ours.config == theirs.config
    assert rows_of(ours).equals(rows_of(theirs))
    assert ours.folder == Path("outputs/lasso") / f"feddualavg-{theirs.status['identity'][:8]}"


def test_quiet(fcorun):
    assert fcorun(*SMALL, "verbose=false") == (0, "", "")
    assert load_records("outputs")[0].finished


def test_a_diverged_run_says_so(fcorun):
    code, out, _ = fcorun(*SMALL, "algo.client_lr=1e30", "rounds=20")
    assert code == 0
    assert "diverged" in out
    assert "algo.client_lr" in out
    assert load_records("outputs")[0].status["status"] == "diverged"


# ---------------------------------------------------------------- what it refuses

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


# ---------------------------------------------------------------- real processes


def test_a_process_of_its_own(tmp_path):
    found = process(*SMALL, "hydra.run.dir=here")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines()[-1].startswith("done: here/")
    assert Record(tmp_path / "here").finished


def test_a_mistake_in_a_process_of_its_own(tmp_path):
    found = process("algo=fedavgg")
    assert (found.returncode, found.stdout) == (2, "")
    assert len(found.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_help_needs_no_jax():
    code = "import sys; from fcorun.cli.cli import main; main(); assert 'jax' not in sys.modules"
    found = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_a_reader_that_goes_away():
    with subprocess.Popen(
        [sys.executable, "-m", "fcorun", *SMALL, "rounds=200", "hydra.run.dir=here"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout is not None
        command.stdout.close()
        assert command.stderr is not None
        error = command.stderr.read()
    assert "Traceback" not in error
    assert Record(Path("here")).finished


# ---------------------------------------------------------------- every choice runs


def table(name, task="regression", rows=60):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, 3))
    y = x @ [1.0, -1.0, 0.0] + 0.1 * rng.standard_normal(rows)
    label = {"regression": y, "binary": np.where(y > 0, "yes", "no"), "multiclass": np.digitize(y, [-1, 1])}[task]
    lines = [f"{a},{b},{c},{v},{'NSEW'[i % 4]}" for i, ((a, b, c), v) in enumerate(zip(x, label, strict=True))]
    Path(name).write_text("\n".join(["a,b,c,y,site", *lines]) + "\n")


REST = {
    "lasso": ["data.features=20", "data.clients=6", "data.samples=12", "clients_per_round=3", "data.nonzeros=5"],
    "table": ["data.path=rows.csv", "data.target=y", "data.client=site", "data.standardize=pooled"],
}


NEED_FILES = ("haxby", "femnist", "femnist_62")  # which test_datasets.py and test_femnist.py have


@pytest.mark.parametrize("name", [name for name in names("data") if name not in NEED_FILES])
def test_every_data_set_runs(fcorun, name):
    table("rows.csv")
    rest = REST["lasso" if name.startswith("lasso") else name] if name.startswith(("lasso", "table")) else []
    code, _, err = fcorun(f"data={name}", *rest, "rounds=2", "hydra.run.dir=here")
    assert code == 0, err
    assert Record(Path("here")).config["data"]["name"] == name


@pytest.mark.parametrize("name", names("algo"))
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_every_algorithm_classifies(fcorun, name, task):
    table("rows.csv", task)
    rest = [f"algo={name}", f"data.task={task}", "rounds=30", "eval_every=30", "hydra.run.dir=here"]
    rest += ["topology=tree"] if getattr(plugin_class("algo", name), "trees", "") == "only" else []
    rates = {f.name for f in fields(plugin_class("algo", name))} & {"client_lr"}
    code, _, err = fcorun("data=table", *REST["table"], *rest, *(f"algo.{rate}=0.3" for rate in rates))
    assert code == 0, err
    record = Record(Path("here"))
    assert record.config["objective"]["name"] == "logistic"
    judged = "personal_val_accuracy" if name == "local" else "val_accuracy"
    assert record.metrics[judged].iloc[-1] > 0.6
    assert record.solution["weights"].shape == ((3,) if task == "binary" else (3, 3))


@pytest.mark.parametrize("name", names("reg"))
def test_every_regularizer_runs(fcorun, name):
    data = SMALL
    if matrices_only(name):
        data = ("data=lowrank", "data.rows=5", "data.columns=4", "data.rank=2", "rounds=4", "eval_every=2")
    code, _, err = fcorun(*data, f"reg={name}", "hydra.run.dir=here")
    assert code == 0, err


def test_a_regularizer_without_what_is_needed(user_module):
    user_module("mine", OWN)
    bare = {"reg": {"name": "bare", "class": "mine.Bare"}}
    with pytest.raises(UserError, match=r"algo=fedavg_subgradient needs the subgradient .* reg=bare"):
        run(small("algo=fedavg_subgradient") | bare)
    assert not list(Path().glob("outputs"))
    assert run(small("algo=fedmid") | bare).finished


@pytest.mark.slow
@pytest.mark.skipif(not HAXBY.is_dir(), reason="there are no scans here")
def test_haxby(fcorun):
    rest = ["data=haxby", f"data.root={HAXBY}", "data.subjects=[1]", "data.validation_runs=[10,11]", "eval_every=50"]
    code, _, err = fcorun(*rest, "rounds=100", "hydra.run.dir=here")
    assert code == 0, err
    record = Record(Path("here"))
    assert record.summary["data"]["clients"] == 10
    assert record.metrics["val_accuracy"].iloc[-1] > 0.8
    assert record.metrics["density"].iloc[-1] < 1


# ---------------------------------------------------------------- plug-ins of a user's own

OWN = """
from dataclasses import dataclass
from fcorun.algorithms import Algorithm
from fcorun.config import Positive
from fcorun.regularizers import Regularizer


@dataclass(frozen=True)
class Slow(Algorithm):
    client_lr: Positive
    patience: Positive = 1.0

    def init(self, problem, w0):
        return w0, None

    def local(self, problem, server, client, data):
        w = data.steps(lambda w, batch: w - self.client_lr / self.patience * problem.gradient(w, batch), server)
        return w - server, client

    def server(self, problem, server, mean):
        return server + mean

    def output(self, problem, server):
        return server


@dataclass(frozen=True)
class Bare(Regularizer):
    def value(self, w):
        return (0 * w).sum()

    def prox(self, z, t):
        return z
"""


def test_an_algorithm_of_ones_own(fcorun):
    Path("mine.py").write_text(OWN)
    Path("conf/algo").mkdir(parents=True)
    Path("conf/algo/slow.yaml").write_text("name: slow\nclass: mine.Slow\nclient_lr: 0.002\npatience: 2.0\n")
    try:
        code, out, err = fcorun("--config-dir", "conf", *SMALL, "algo=slow", "hydra.run.dir=slow")
        assert code == 0, err
        assert out.startswith("algo=slow ")
        fedavg = run(small("algo=fedavg", "algo.client_lr=0.001", "algo.server_lr=1"), "fedavg")
        np.testing.assert_allclose(flat(Record(Path("slow")).solution), flat(fedavg.solution), rtol=1e-5)
        code, _, err = fcorun("--config-dir", "conf", *SMALL, "algo=slow", "algo.patience=0")
        assert code == 2
        assert "algo.patience" in err
        assert "slow" in fcorun("--config-dir", "conf", "--help")[1]
    finally:
        sys.modules.pop("mine", None)


def test_a_failing_plugin_is_told_in_one_line(fcorun, user_module):
    user_module("mine", OWN.replace("return server + mean", "raise RuntimeError('out of patience')"))
    own = ["algo.class=mine.Slow", "~algo.server_lr", "algo.name=slow", "hydra.run.dir=here"]
    code, _, err = fcorun(*SMALL, *own)
    assert code == 1
    assert len(err.splitlines()) == 1
    assert "out of patience" in err
    assert "debug=true" in err
    record = Record(Path("here"))
    assert record.status["status"] == "failed"
    assert "Traceback" in (record.folder / "run.log").read_text()
    _, _, err = fcorun(*SMALL, *own, "debug=true")
    assert "Traceback" in err
