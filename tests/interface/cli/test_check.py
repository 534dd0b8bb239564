"""fcorun check: a line for each check, and an exit code that tells whether one failed."""

from pathlib import Path

import pytest

from fcorun.interface.checks import regularizers
from fcorun.interface.checks.plugins import PLUGINS
from fcorun.interface.cli.commands import check_command

WRONG = """
from dataclasses import dataclass
from fcorun.config import NonNegative
from fcorun.regularizers import L1

@dataclass(frozen=True)
class Wrong(L1):
    convex = True

    def value(self, w):
        return 2 * super().value(w)
"""

OTHER_TASK = """
from dataclasses import dataclass
from fcorun.objectives import LeastSquares

@dataclass(frozen=True, kw_only=True)
class Other(LeastSquares):
    tasks = ("ranking",)
"""


@pytest.mark.slow
def test_each_check_is_a_line(call, user_module, monkeypatch):
    user_module("mine", WRONG)
    Path("conf/reg").mkdir(parents=True)
    Path("conf/reg/wrong.yaml").write_text("name: wrong\nclass: mine.Wrong\nstrength: 0.1\n")
    checks = [regularizers.check_value, regularizers.check_prox_minimizes, regularizers.check_projection]
    monkeypatch.setattr(regularizers, "CHECKS", checks)
    code, out, err = call("check", "--config-dir", "conf", "reg=wrong")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0] == "reg=wrong on an array of shape (12,)"
    assert lines[1] == "  passed          a finite, nonnegative psi on its domain, and a penalty of 0 at 0"
    assert lines[2].startswith("  failed          prox(z, t) minimizes t psi(u) + ||u - z||^2 / 2, for a convex psi")
    assert "t psi(u) + ||u - z||^2 / 2 in float64, at a u that is" in lines[2]
    assert lines[3].startswith("  not applicable  project() returns members of the set")
    assert lines[3].endswith(": it is no Constraint")
    assert lines[-2] == "  passed          a few rounds that end with finite metrics, and within the constraint, if any"
    assert lines[-1] == "3 passed, 2 failed, 2 not applicable"
    assert call("check", "reg=l2")[0] == 0


def test_an_override_of_no_plug_in_is_refused(call):
    for override, sentence in {
        "rounds=3": "'rounds=3' is of no plug-in that is to be checked: give algo=NAME, clock=NAME, data=NAME,",
        "algo.client_lr=1": "'algo.client_lr=1' is of no plug-in that is to be checked",
        "reg": "'reg' is of no plug-in that is to be checked",
        "algo=nowhere": "there is no algo=nowhere",
    }.items():
        code, out, err = call("check", override)
        assert (code, out) == (2, "")
        assert sentence in err


def test_the_help_and_the_guide_name_each_kind_that_is_checked():
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "plugins.md").read_text("utf-8")
    for section in PLUGINS:
        assert f"{section}=NAME" in check_command.run.__doc__
        assert f"{section}=NAME" in guide or f"check --config-dir myconf {section}=" in guide


def test_two_choices_of_a_section_are_refused(call):
    code, out, err = call("check", "reg=l1", "reg=l2")
    assert (code, out) == (2, "")
    assert "reg=l2 comes after reg=l1: check one reg at a time" in err


def test_an_objective_without_a_known_task_is_refused(call, user_module):
    user_module("mine", OTHER_TASK)
    Path("conf/objective").mkdir(parents=True)
    Path("conf/objective/other.yaml").write_text("name: other\nclass: mine.Other\n")
    code, out, err = call("check", "--config-dir", "conf", "objective=other")
    assert (code, out) == (2, "")
    assert "objective=other has none of the tasks that are checked" in err
