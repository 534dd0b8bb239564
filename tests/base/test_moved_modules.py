"""Modules under the names that they had before fcorun had rooms."""

import importlib
import pickle
import subprocess
import sys

import pytest

import fcorun
from fcorun.methods.regularizers.l1 import L1
from fcorun.moved_modules import _MODULES


@pytest.mark.parametrize("name", _MODULES)
def test_a_former_name_is_the_module_of_today(name):
    assert importlib.import_module(name) is importlib.import_module(_MODULES[name])


def test_files_below_a_former_name_are_those_of_today():
    assert importlib.import_module("fcorun.regularizers.l1").L1 is L1 is fcorun.L1


def test_a_pickle_with_a_former_name_is_an_object_of_today():
    former = pickle.dumps(L1(0.1), protocol=0).replace(b"fcorun.methods.regularizers.l1", b"fcorun.regularizers.l1")
    assert pickle.loads(former) == L1(0.1)


def test_programs_import_former_names_in_every_way():
    program = (
        "import fcorun.objectives\n"
        "from fcorun.metrics import *\n"
        "from fcorun.config import Positive\n"
        "from fcorun.algorithms.base import Algorithm\n"
        "import fcorun\n"
        "assert fcorun.objectives.Objective is fcorun.Objective\n"
        "assert Metric is fcorun.Metric and Algorithm is fcorun.Algorithm and Positive is fcorun.Positive\n"
        "try:\n    import fcorun.algorithm\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "No module named 'fcorun.algorithm'\n"
