"""Trust: the code that is imported, the parts of a foreign record that are read, and how they are shown."""

import gzip
import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fake_records import fake_config, fake_record, fake_rows
from helpers import fails, small
from nibabel.nifti1 import Nifti1Image, header_dtype
from rich.console import Console

from fcorun import load_records, run
from fcorun.base.config import SECTIONS, import_classes
from fcorun.base.errors import format_warning
from fcorun.base.metrics import Metric
from fcorun.base.public_names import MODULES
from fcorun.base.records.formats import arrays_from_bytes, npz_bytes, read_mask, read_yaml, yaml_text
from fcorun.base.sources.catalogue import entry_from_record
from fcorun.base.trust import class_path, import_trusted_module, import_user_module, locate, locate_user_class
from fcorun.experiment.configuration.search_path import packaged_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands import main
from fcorun.interface.cli.terminal import Terminal
from fcorun.methods.algorithms import FedDualAvg

PAYLOAD = """
from pathlib import Path
Path({ran!r}).touch()
from fcorun.algorithms import FedDualAvg
from fcorun.methods.objectives.least_squares import LeastSquares
"""
SCRIPT = "</script></pre></title><script>evil()</script><img src=x onerror=evil()>\"'"
STEERS = "\x1b]0;evil\x07\x1b[2J\x9b1A\u202e"


@pytest.fixture
def ran(tmp_path):
    """The file that code of the record would write if it ran."""
    return tmp_path / "RAN"


def hostile(ran: Path) -> bytes:
    """A ZIP of a record that names a class of its own, holds links and large files, and has scripts in its texts."""
    bad = f"{SCRIPT}{STEERS}"
    settings = fake_config(bad, bad, algo__title=bad, algo__class="inbox.rec.payload.FedDualAvg")
    settings["objective"] = {"name": bad, "class": "inbox.rec.payload.LeastSquares", bad: [bad]}
    settings["data"] |= {"path": "http://127.0.0.1:9/x", "root": "../../../etc", bad: bad}
    settings |= {"start": "../../../etc", "hosts": {"count": 2}, "tracker": {"class": "inbox.rec.payload.X"}}
    own = [Metric(f"val_{bad}", label=bad, higher=False)]  # as its objective may declare
    measured: Any = {f"val_{bad}": 1.0, bad: 2.0}
    folder = fake_record("made", settings, fake_rows(**measured), metrics=own).folder
    about = json.loads((folder / "status.json").read_text()) | {"label": bad, "reason": bad}
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"linear": True, "label": bad, "git": bad, "device": bad, "platform": bad, "versions": {bad: bad}}
    summary["data"] = {"features": 2, "feature_names": [bad, "b"], "classes": [], "task": "regression"}
    summary["sources"] = {"algo": {"text": bad, "entries": [f"@misc{{evil, title = {{\\input{{secret}}{bad}}}}}"]}}
    scores = f'set,model,client,n\n"{SCRIPT.replace(chr(34), chr(34) * 2)}",shared,,1\n'
    files = {
        "status.json": json.dumps(about), "summary.json": json.dumps(summary),
        "config.yaml": yaml.safe_dump(settings), "metrics.csv": (folder / "metrics.csv").read_text(),
        "scores.csv": scores, "payload.py": PAYLOAD.format(ran=str(ran)), "__init__.py": PAYLOAD.format(ran=str(ran)),
        ".sweep": yaml_text({"algos": [bad], "runs": ["../../../etc", "/etc"]}),
        "solution.npz": npz_bytes({"weights": np.arange(2.0), "bias": np.zeros(())}),
    }  # fmt: skip
    bomb = "".join(f"k{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]\n" for i in range(12))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as out:
        out.writestr("inbox/bomb/config.yaml", bomb)
        out.writestr("inbox/bomb/status.json", json.dumps({"status": "done", "reason": bad, "label": "bomb"}))
        for name, content in files.items():
            out.writestr(f"inbox/rec/{name}", content)
        for name in ("coefficients.csv", "report.html", "curves.png", "run.log"):
            link = zipfile.ZipInfo(f"inbox/rec/{name}")
            link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            out.writestr(link, "../../secret.csv")
    return packed.getvalue()


def unpack(packed: bytes) -> None:
    """Extract a ZIP, with its links as links."""
    with zipfile.ZipFile(io.BytesIO(packed)) as content:
        for each in content.infolist():
            Path(each.filename).parent.mkdir(parents=True, exist_ok=True)
            if stat.S_ISLNK(each.external_attr >> 16):
                os.symlink(content.read(each).decode(), each.filename)
            else:
                Path(each.filename).write_bytes(content.read(each))


@pytest.fixture
def inbox(ran):
    """The folder of the hostile record, unpacked beside a secret that its links lead to."""
    unpack(hostile(ran))
    Path("secret.csv").write_text("parameter,feature,class,value,value_original\nweights,TOPSECRET,,1.0,1.0\n")
    return "inbox"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Glyph")  # which no font has, in a picture
@pytest.mark.parametrize("command", ["report", "results", "plot", "weights", "cite", "predict"])
def test_a_record_of_somebody_else_is_data(command, inbox, ran, capsys):
    Path("new.csv").write_text("a,b\n1,2\n")
    arguments = ["inbox/rec", "new.csv"] if command == "predict" else [inbox]
    code = main([command, *arguments])
    out, err = capsys.readouterr()
    assert not ran.exists()
    assert "inbox.rec.payload" not in sys.modules
    assert code == (2 if command == "predict" else 0), err
    assert Path("secret.csv").read_text().startswith("parameter")  # nothing was written through a link
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(out + err)
    assert "TOPSECRET" not in out
    if command == "predict":
        assert "objective.class=inbox.rec.payload.LeastSquares is not imported" in err
        assert "--trust DIR" in err
    if command == "cite":
        assert "\\input" not in out.replace("\\input, which may be a command to LaTeX", "")
    if command == "report":
        page = Path("inbox/report.html").read_text(encoding="utf-8")
        assert "TOPSECRET" not in page
        assert "<script>evil" not in page
        assert "<img src=x" not in page


def test_from_python_too(inbox, ran):
    bomb, found = load_records(inbox)
    assert bomb.flat_config == {}
    assert not {"hosts", "tracker"} & set(found.config)
    with fails('objective.class="inbox.rec.payload.LeastSquares" is not imported', "trust=DIR"):
        found.estimator()
    with fails('algo.class="inbox.rec.payload.FedDualAvg" is not imported'):
        run(found.config | {"algo": found.config["algo"] | {"name": "plain"}})
    assert not ran.exists()
    with fails("trust=elsewhere: there is no such folder"):
        found.estimator(trust="elsewhere")
    with fails("trust=made has no module inbox.rec.payload"):
        found.estimator(trust="made")
    assert not ran.exists()
    import_classes({"objective": found.config["objective"]}, ".")
    assert ran.exists()  # which is what trust means


def test_a_class_of_ones_own_that_predicts(ran, capsys):
    Path("code").mkdir()
    Path("code/theirs.py").write_text(PAYLOAD.format(ran=str(ran)))
    Path("own/objective").mkdir(parents=True)
    Path("own/objective/mine.yaml").write_text("name: mine\nclass: mine_.LeastSquares\n")
    Path("mine_.py").write_text(PAYLOAD.format(ran=str(ran)))
    Path("new.csv").write_text("a\n1\n")
    for name in ("theirs", "mine_"):
        folder = fake_record(name, fake_config() | {"objective": {"name": "x", "class": f"{name}.LeastSquares"}}).folder
        summary = json.loads((folder / "summary.json").read_text())
        summary["data"] = {"features": 1, "feature_names": ["a"], "classes": [], "task": "regression"}
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "solution.npz").write_bytes(npz_bytes({"weights": np.ones(1), "bias": np.ones(())}))
        assert main(["predict", name, "new.csv"]) == 2
        assert not ran.exists()
        options = ["--trust", "code"] if name == "theirs" else ["--config-dir", "own"]
        assert main(["predict", name, "new.csv", *options]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "1,2.0"
        ran.unlink()
        del sys.modules[name]


def test_a_trusted_folder_hides_behind_nothing(ran):
    Path("code").mkdir()
    Path("code/tabnanny.py").write_text("")  # a module of Python's
    with fails("trust=code: an installed module is called tabnanny, too"):
        import_trusted_module("tabnanny", "code")
    Path("beyond").mkdir()
    Path("beyond/__init__.py").write_text(PAYLOAD.format(ran=str(ran)))
    Path("code/other.py").write_text("")
    with fails("trust=code has no module beyond.other"):
        import_trusted_module("beyond.other", "code")
    assert not ran.exists()


# ---------------------------------------------------------------- the current folder


def test_the_current_folder_serves_its_own_modules_alone():
    Path("library").mkdir()
    Path("library/borrowed_.py").write_text("try:\n    import optional_\nexcept ImportError:\n    optional_ = None\n")
    Path("optional_.py").write_text("")
    Path("tabnanny.py").write_text("raise SystemExit('the file of the folder')")
    Path("evil.dist-info").mkdir()
    Path("evil.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    Path("evil.dist-info/entry_points.txt").write_text("[evil]\nevil = optional_\n")
    Path("helper_.py").write_text("")
    Path("later_.py").write_text("")
    Path("own_.py").write_text(
        "import sys, tabnanny, borrowed_, helper_, importlib.metadata\n"
        "points = importlib.metadata.entry_points(group='evil')\n"
        "path = [*sys.path]\n"
        "def late():\n    import later_\n    return later_\n"
    )
    before = [*sys.path]
    sys.path.append("library")  # stands for where libraries are installed
    try:
        own = import_user_module("own_")
    finally:
        sys.path.remove("library")
    assert own.path == [*before, "library"]
    assert own.borrowed_.optional_ is None  # a library that tries whether it is there
    assert "lib/python" in own.tabnanny.__file__
    assert not list(own.points)
    assert Path(own.late().__file__).name == "later_.py"
    with pytest.raises(ModuleNotFoundError):
        __import__("optional_")
    assert sys.path == before


def test_a_class_that_nobody_has_named_is_not_imported():
    Path("own_too.py").write_text("from fcorun.algorithms import FedAvg\n")
    with fails("algo.class=own_too.FedAvg is not imported"):
        locate("own_too.FedAvg", "algo.class")
    assert locate_user_class("own_too.FedAvg", "algo.class") is locate("own_too.FedAvg", "algo.class")


@pytest.mark.slow
def test_files_of_the_folder_do_not_run():
    """By the command itself, whose sweep names a class of the folder, in processes of their own too."""
    touch = f"import os; open(os.path.join({os.getcwd()!r}, 'RAN-' + __name__), 'w')\n"
    Path("hydra_plugins").mkdir()
    Path("evil.dist-info").mkdir()
    Path("evil.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    Path("evil.dist-info/entry_points.txt").write_text("[jax_plugins]\nevil = evil_\n")
    for name in ("pooch", "plotly", "threadpoolctl", "numexpr", "bottleneck", "hydra_plugins/evil", "evil_"):
        Path(f"{name}.py").write_text(touch)
    Path("mine_too.py").write_text("import pandas\nfrom fcorun.algorithms import FedAvg\n")
    Path("own/algo").mkdir(parents=True)
    Path("own/algo/mine.yaml").write_text("name: mine\nclass: mine_too.FedAvg\nclient_lr: 0.001\nserver_lr: 1.0\n")
    sweep = ["-m", "--config-dir", "own", "algo=fedadam,mine", "data=lasso_16", "rounds=1", "hydra.sweep.dir=s"]
    sweep += ["hydra.launcher.executor=dask", "hydra.launcher.dask={jobs: 1}"]
    command = [sys.executable, "-m", "fcorun", *sweep]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [found.status["status"] for found in load_records("s")] == ["done", "done"]
    assert not list(Path().glob("RAN*"))


# ---------------------------------------------------------------- what is read, and how it is shown


def test_yaml_of_records_has_limits(tmp_path):
    path = tmp_path / "config.yaml"
    bombs = {
        "alias": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
        # which ends the process where libyaml sees it, but for versions that have a limit
        "within each other|nesting depth": "a: " + "[" * 200_000,
        "something else": "1: c\n",
        "python/object": "a: !!python/object/apply:os.system [echo]\n",
        "more than 3,000 characters": "a: " + "1" * 10_000,
        "than 3,000 characters": "a: [0x" + "F" * 4000 + "]",  # which Python reads, and does not write
        "3,000 characters": "a: 1" + ":00" * 1000,  # of base 60
    }
    for words, text in bombs.items():
        path.write_text(text)
        with pytest.raises(yaml.YAMLError, match=words):
            read_yaml(path)
    path.write_text("rules:\n  min_rows: 5\n  min_rows: 1\n")
    with pytest.raises(yaml.YAMLError, match="the key 'min_rows' is given twice"):
        read_yaml(path)
    shared = [1, 2]
    path.write_text(yaml_text({"a": shared, "b": shared}))
    assert read_yaml(path) == {"a": [1, 2], "b": [1, 2]}
    path.write_text("a: 1\n" + "#" * 2**24)
    with pytest.raises(OSError, match="more than the"):
        read_yaml(path)


def test_arrays_of_records_are_numbers_as_large_as_their_file():
    packed = io.BytesIO()
    np.savez_compressed(packed, weights=np.zeros(10**6))
    with pytest.raises(ValueError, match="compressed"):
        arrays_from_bytes(packed.getvalue())
    packed = io.BytesIO()
    np.savez(packed, weights=np.array([{}], object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        arrays_from_bytes(packed.getvalue())
    with pytest.raises(ValueError, match="larger than its file"):
        arrays_from_bytes(npz_with_header(f"{{'descr': '<U0', 'fortran_order': False, 'shape': ({2**40},)}}"))
    assert arrays_from_bytes(npz_bytes({"client": np.array(["a"])}))["client"].tolist() == ["a"]


def npz_with_header(header: str) -> bytes:
    """Return an .npz file with one array, which has this header and no values."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    return packed.getvalue()


@pytest.mark.parametrize(
    "header", ["(((", "{[]: 1}", f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**70},)}}"]
)
def test_arrays_with_a_crafted_header_are_refused(header):
    with pytest.raises(ValueError, match="its arrays cannot be read"):
        arrays_from_bytes(npz_with_header(header))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": [3, 1000, 1000, 300, 1, 1, 1, 1]}, "more voxels than it has"),
        ({"dim": [7, *[30000] * 7]}, "more voxels than it has"),
        ({"dim": [3, 1, 1, 1, 1, 1, 1, 1], "datatype": 128, "bitpix": 24}, "is no image"),  # colors
        ({"vox_offset": 1e30}, "is no image"),
    ],
)
def test_a_crafted_mask_is_refused(tmp_path, changes, words):
    content = np.frombuffer(Nifti1Image(np.ones((2, 2, 2), np.uint8), np.eye(4)).to_bytes(), np.uint8).copy()
    for name, value in changes.items():
        content[:348].view(header_dtype)[name] = value
    (tmp_path / "mask.nii.gz").write_bytes(gzip.compress(content.tobytes()))
    with pytest.raises(OSError, match=words):
        read_mask(tmp_path / "mask.nii.gz")


def test_an_empty_mask_is_refused(tmp_path):
    (tmp_path / "mask.nii.gz").write_bytes(b"")
    with pytest.raises(OSError, match="is no image"):
        read_mask(tmp_path / "mask.nii.gz")


def test_every_class_of_a_choice_has_one_public_name():
    files = [file for section in SECTIONS for file in (Path(packaged_config_dir()) / section).glob("*.yaml")]
    paths = {str(read_yaml(file).get("class", "$")) for file in files}
    assert len(paths) > 100
    for path in paths:
        if "$" not in path:  # by_task chooses another file
            assert path.removeprefix("fcorun.") in MODULES
            assert class_path(locate(path, "class")) == path


def test_a_path_of_an_older_version_names_the_class_that_has_moved():
    moved = "fcorun.methods.algorithms.of_old.feddualavg.FedDualAvg"  # a module that there is no more
    assert locate(moved, "algo.class") is FedDualAvg
    assert prepare(small() | {"algo": small()["algo"] | {"class": moved}}).identity == prepare(small()).identity
    with fails("cannot import 'fcorun.methods.algorithms.of_old'"):
        locate("fcorun.methods.algorithms.of_old.NoClass", "algo.class")


def test_an_old_record_predicts_and_is_cited_by_its_dotted_paths(tmp_path, capsys):
    folder = tmp_path / "run"
    record = run(small("algo=fedavg", "rounds=2"), folder)
    expected = record.predict(np.ones((3, record.solution["weights"].shape[0])))
    config = (folder / "config.yaml").read_text()
    assert "class: fcorun.FedAvg" in config
    for name in ("FedAvg", "LeastSquares", "Lasso", "L1"):
        config = config.replace(f"fcorun.{name}\n", f"fcorun.methods.algorithms.of_old.{name}\n")
    (folder / "config.yaml").write_text(config)
    (again,) = load_records(folder)
    np.testing.assert_array_equal(again.predict(np.ones((3, len(again.solution["weights"])))), expected)
    main(["cite", str(folder)])
    assert "McMahan" in capsys.readouterr().out


def test_a_terminal_is_not_steered(capsys):
    Terminal().print(f"{STEERS}, as it\nis")
    assert capsys.readouterr().out == "\\x1b]0;evil\\x07\\x1b[2J\\x9b1A\\u202e, as it\nis\n"
    assert issubclass(Terminal, Console)
    assert "\x1b" not in format_warning(UserWarning(f"Glyph {STEERS} missing"), UserWarning, "file.py", 1, "")


@pytest.mark.parametrize("text", [r"\input{x}", r"\immediate\write18{x}", r"\csname x\endcsname", "^^5cinput{x}"])
def test_an_entry_of_a_record_commands_nothing(text):
    with fails("which may be a command to LaTeX"):
        entry_from_record(f"@misc{{me, title = {{{text}}}}}")
    with fails("not a single BibTeX entry"):
        entry_from_record(f"{text} @misc{{me, title = {{x}}}}")


def test_an_entry_of_a_record_has_accents():
    text = r"@misc{me, author = {G\"odel and Erd\H{o}s and \O stergaard}, title = {\emph{A} \& B, $x_1$}}"
    assert entry_from_record(text).text == text
    assert "Yuan" in entry_from_record("@misc{yuan2021, title = {x}}").text


@pytest.mark.parametrize("name", ["../../elsewhere", "a/b", "a\\b", ".."])
def test_a_name_leads_nowhere(name):
    values = small()
    values["data"]["name"] = name
    with fails("cannot be in a folder's name"):
        prepare(values)
