"""The code of a plug-in: the files that count, the files that do not, and their copies in a record."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers import Count, fails, small

from fcorun import run
from fcorun.base import errors
from fcorun.base.plugin_code.code_files import _find_distribution, find_code
from fcorun.interface.cli.commands import main
from fcorun.methods.algorithms import FedAvg

FILES = {
    "mine.py": """
import numpy as np
import sub.inner.deep
from dataclasses import dataclass
from importlib import import_module
from sub import attribute, other
from parent import Parent

@dataclass(frozen=True)
class Mine(Parent):
    def local(self, problem, server, client, data):
        import within
        import_module("by_name")
        return super().local(problem, server, client, data)
""",
    "parent.py": "from dataclasses import dataclass\nfrom fcorun.algorithms import FedAvg\n"
    "@dataclass(frozen=True)\nclass Parent(FedAvg):\n    pass\n",
    "within.py": "from everything import *\n",
    "by_name.py": "",
    "sub/__init__.py": "attribute = 1\n",
    "sub/other.py": "from . import sibling\n",
    "sub/sibling.py": "",
    "sub/inner/__init__.py": "",
    "sub/inner/deep.py": "from ..relative import something\n",
    "sub/relative.py": "something = 1\n",
    "everything/__init__.py": "__all__ = ['listed']\n",
    "everything/listed.py": "",
}
OTHERS = {"unused.py": "", "sub/unused.py": ""}


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A function that writes files into a folder on Python's path, and imports a class of these files anew."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "user"), *sys.path])

    def forget():
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]

    def load(files, target="mine.Mine"):
        for path, text in files.items():
            (tmp_path / "user" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "user" / path).write_text(text)
        forget()
        importlib.invalidate_caches()
        module, _, name = target.rpartition(".")
        return getattr(importlib.import_module(module), name)

    yield load
    forget()


def test_a_class_of_fcorun_has_no_plugin_code():
    assert find_code(FedAvg) is None


def test_the_code_is_all_imported_modules_wherever_the_import_stands(user):
    code = find_code(user(FILES | OTHERS))
    assert code is not None
    assert set(code.files) == set(FILES)
    assert list(code.distributions) == ["numpy"]  # neither fcorun nor the standard library
    assert "within" not in sys.modules  # the module was read, not executed


@pytest.mark.parametrize("path", [*FILES, *OTHERS])
def test_an_edit_of_any_imported_file_changes_the_digest(user, path):
    def digest(**changes):
        code = find_code(user(FILES | OTHERS | changes))
        assert code is not None
        return code.digest

    text = (FILES | OTHERS)[path]
    assert (digest() != digest(**{path: text + "# edited\n"})) == (path in FILES)


def test_an_installed_module_counts_by_its_version(user):
    files = FILES | {"mine.py": FILES["mine.py"].replace("numpy as np", "installed.part")}
    files |= {"installed/__init__.py": "", "installed/part.py": "import unused"}
    record = "installed/__init__.py,sha256=x,1\ninstalled/part.py,sha256=y,1\n"
    mine = find_code(user(files | OTHERS))
    assert mine is not None
    assert {"installed/part.py", "unused.py"} < set(mine.files)  # no distribution lists them
    _find_distribution.cache_clear()  # the cache holds that no distribution exists
    code = find_code(user(files | {"The_Name-1.2.dist-info/RECORD": record}))
    assert code is not None
    assert code.distributions == {"The_Name": "1.2"}
    assert set(code.files) == set(FILES)


def test_a_folder_beside_fcorun_with_a_similar_name_is_the_users():
    package = Path(errors.__file__).parents[1]
    assert not errors.is_user_file(f"{package}/config.py")
    assert errors.is_user_file(f"{package}_plugins/mine.py")


def test_a_file_that_changed_since_it_was_imported_is_refused(user, tmp_path):
    cls = user(FILES)
    find_code(cls)
    (tmp_path / "user/parent.py").write_text(FILES["parent.py"] + "# edited\n")
    with fails("parent.py has changed since Python imported it", "start Python again"):
        find_code(cls)


GLOBALS = """
import os
from dataclasses import dataclass
from math import pi
from fcorun.algorithms import FedAvg
from helping import HELP

FACTOR = 1.0
EVALUATED = float(1)
TERM = 1 / 2
CALLS = 0
UNUSED = int("3")
value = 2 * UNUSED
if HELP:
    LIMIT = float(1)
    for seed in (0, 1):
        seed += 1

def shrink(value):
    global CALLS
    CALLS += 1
    return value * FACTOR * EVALUATED * pi * HELP * LIMIT * TERM

@dataclass(frozen=True)
class Mine(FedAvg):
    def output(self, problem, server):
        return shrink(server)
"""


def test_a_changed_constant_of_a_module_is_other_code(user):
    cls = user({"mine.py": GLOBALS, "helping.py": "HELP = 1.0\n"})
    module, before = sys.modules["mine"], find_code(cls)
    assert before is not None
    assert "changed_globals.py" not in before.files
    for owner, name, value in [
        (module, "FACTOR", 3.0),
        (module, "EVALUATED", 3.0),
        (sys.modules["helping"], "HELP", 3),
    ]:
        old = getattr(owner, name)
        setattr(owner, name, value)
        code = find_code(cls)
        assert code is not None
        assert code.files.pop("changed_globals.py").decode() == f"{owner.__name__}.{name} = {value}\n"
        assert code.files == before.files
        setattr(owner, name, old)
        assert find_code(cls) == before
    vars(module)["CALLS"] = 7  # a counter
    assert find_code(cls) == before


def test_the_constants_of_a_script_count_unless_its_file_shows_them(user, tmp_path, monkeypatch):
    user({"helping.py": "HELP = 1.0\n", "script.py": GLOBALS}, "helping.HELP")
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "user/script.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    exec(compile(GLOBALS, "script.py", "exec"), vars(script))

    def globals_of_code():
        code = find_code(script.Mine)
        assert code is not None
        return code.files["changed_globals.py"].decode()

    assert globals_of_code() == "__main__.EVALUATED = 1.0\n__main__.LIMIT = 1.0\n"
    vars(script)["FACTOR"] = 3.0
    assert globals_of_code() == "__main__.EVALUATED = 1.0\n__main__.FACTOR = 3.0\n__main__.LIMIT = 1.0\n"


def test_annotations_of_the_future_are_no_global_of_a_script(user, tmp_path, monkeypatch):
    source = "from __future__ import annotations\n" + GLOBALS.replace("FACTOR", "annotations")
    user({"helping.py": "HELP = 1.0\n", "script.py": source}, "helping.HELP")
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "user/script.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    exec(compile(source, "script.py", "exec"), vars(script))
    vars(script)["annotations"] = 3.0
    code = find_code(script.Mine)
    assert code is not None
    assert "__main__.annotations = 3.0" in code.files["changed_globals.py"].decode()


def test_a_class_in_no_file_is_refused():
    namespace = {"__name__": "notebook"}
    exec("class Mine:\n    pass", namespace)
    with fails("the module notebook is defined in no file", "write the class into a file"):
        find_code(namespace["Mine"])  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_record_keeps_the_code_and_an_edit_is_another_run(user, capsys):
    def run_plugin(files, watch, folder=None):
        user(files)
        algo = {"name": "mine", "class": "mine.Mine", "client_lr": 0.1, "server_lr": 1.0}
        return run(small("rounds=1") | {"algo": algo}, folder, watch=watch)

    first = run_plugin(FILES, None)
    assert run_plugin(FILES, watch := Count()).folder == first.folder
    assert watch.rows == 0
    copies = {path.relative_to(first.folder / "plugins").as_posix(): path for path in first.folder.rglob("*.py")}
    assert {name: path.read_text() for name, path in copies.items()} == FILES
    index = json.loads((first.folder / "plugins/index.json").read_text())
    assert first.plugins == index
    assert index["algo"]["class"] == "mine.Mine"
    assert set(index["algo"]["files"]) == set(FILES)
    second = run_plugin(FILES | {"within.py": ""}, watch := Count())
    assert watch.rows > 0
    assert second.folder != first.folder
    assert not (second.folder / "plugins/everything").exists()
    with fails("holds another run", "by the code in plugins/: an edit of it makes another run"):
        run_plugin(FILES | {"within.py": "edited = 1"}, None, first.folder)
    assert main(["rm", "outputs", "--status", "done", "--yes"]) == 0
    capsys.readouterr()
    assert not Path(first.folder).exists()
