"""What an algorithm of one's own may return, and what is said where it returns something else."""

import pytest
from helpers import fails, rows_of, small

from fcorun import run
from fcorun.config import locate_user_class
from fcorun.errors import describe_error

MINE = """
from dataclasses import dataclass

from fcorun.algorithms import Algorithm, Traits
from fcorun.config import Positive


@dataclass(frozen=True)
class Mine(Algorithm):
    client_lr: Positive
    traits = Traits(psi_sides=("server",), hierarchy="some")

    def init(self, problem, w0):
        return INIT

    def local(self, problem, server, client, data):
        BODY
        w = data.steps(lambda w, batch: w - self.client_lr * problem.gradient(w, batch), server)
        return LOCAL

    def server(self, problem, server, mean):
        return SERVER

    def output(self, problem, server):
        return OUTPUT
"""
RIGHT = {
    "INIT": "w0, None",
    "BODY": "pass",
    "LOCAL": "w - server, client",
    "SERVER": "problem.prox(server + mean, self.client_lr)",
    "OUTPUT": "server",
}
W = "parameters (bias: a number, weights: array (20,))"
WRONG = {
    ("INIT", "w0"): ("init() of Mine must return two things", "and returned Vector"),
    ("LOCAL", "w - server"): ("local() of Mine must return two things, its upload", "and returned Vector"),
    ("LOCAL", "w, client, 1"): ("local() of Mine must return two things", "and returned 3 things"),
    ("LOCAL", "None"): ("local() of Mine", "and returned NoneType"),
    ("LOCAL", "w, w"): ("local() of Mine: the client's new state must be like that of init(), None, and is " + W,),
    ("LOCAL", "'a', client"): ("local() of Mine: its upload must be made of arrays, and has a str in it",),
    ("LOCAL", "w - server['weights'], client"): ("server() of Mine: the server's new state", "bias: array (20,)"),
    ("SERVER", "None"): (
        "server() of Mine: the server's new state must be like that of init(), " + W + ", and is None",
    ),
    ("SERVER", "server + mean['d']"): (
        "server() of Mine asks for the key 'd', which is not there",
        "mean has " + W,
        "mine.py line 22",
    ),
    ("LOCAL", "w - server['x'], client"): (
        "local() of Mine asks for the key 'x'",
        "server has " + W,
        "mine.py line 19",
    ),
    ("OUTPUT", "server['weight']"): ("output() of Mine asks for the key 'weight'", "mine.py line 25"),
    ("OUTPUT", "dict(server)"): ("output() of Mine must return parameters like w0, " + W + ", and returned {bias: ",),
}
HEADS = {
    "init(self, problem, w0)": ("init(self, w0)", "init() of Mine is called as init(self, problem, w0)"),
    "local(self, problem, server, client, data)": (
        "local(self, server, client, data)",
        "local() of Mine is called as local(self, problem, server, client, data), and is written "
        "local(self, server, client, data), mine.py line 16",
    ),
    "server(self, problem, server, mean)": (
        "server(self, problem, server, mean, data)",
        "server() of Mine is called as server(self, problem, server, mean), and is written",
    ),
    "output(self, problem, server)": ("output(self, server)", "output() of Mine is called as"),
    "@dataclass(frozen=True)\n": (
        "",
        "its option client_lr is no field: write @dataclass(frozen=True) above class Mine, mine.py line 8",
    ),
}
KEPT = "w = data.steps(lambda w, b: (KEPT.append(w['bias']), w - self.client_lr * problem.gradient(w, b))[1], server)"
SAID = {
    "if self.client_lr > 1: pass": "by `if`, `and`, `or` or `while`; use jnp.where, mine.py line 17",
    "float(self.client_lr)": "is asked for its value, by float() or int() for example; use jax.numpy, mine.py line 17",
    "problem.gradeint(server)": "AttributeError: 'Problem' object has no attribute 'gradeint', mine.py line 17",
}


@pytest.fixture
def mine(user_module):
    """A function that runs an algorithm with these changes."""

    def go(debug: bool = False, **changes):
        text = MINE
        for name, value in (RIGHT | changes).items():
            text = text.replace(name, value)
        user_module("mine", text)
        config = small("rounds=1")
        config["algo"] = {"name": "mine", "class": "mine.Mine", "client_lr": 0.01}
        return run(config | {"debug": debug, "force": True}, "here")

    return go


def test_what_is_right_runs(mine):
    assert mine().status["status"] == "done"


def test_a_state_may_name_its_parts_in_any_order(mine):
    mine(INIT="w0, {'a': w0, 'b': 0.0}", LOCAL="w - server, {'b': 1.0, 'a': w}")


@pytest.mark.parametrize(("place", "value"), WRONG)
def test_what_is_wrong_is_one_sentence(mine, place, value):
    with fails(*WRONG[place, value]):
        mine(**{place: value})


@pytest.mark.parametrize("head", HEADS)
def test_how_a_function_or_class_begins_is_one_sentence(mine, head):
    with fails(HEADS[head][1]):
        mine(**{head: HEADS[head][0]})


def test_a_dataclass_that_is_not_frozen_is_one_sentence(user_module):
    user_module("mine", MINE.replace("(frozen=True)", ""))
    with fails("algo.class=mine.Mine", "write @dataclass(frozen=True) above its class, mine.py line 8"):
        locate_user_class("mine.Mine", "algo.class")


@pytest.mark.parametrize("debug", [False, True])
def test_a_function_may_change_what_it_is_given(mine, debug):
    """It changes a copy: the server's state is what ``server`` returns."""
    state = {"INIT": "{'x': w0}, None", "batch), server)": "batch), server['x'])", "LOCAL": "w - server['x'], client",
             "OUTPUT": "server['x']", "debug": debug}  # fmt: skip
    plain = mine(**state, SERVER="{'x': server['x'] + mean}")
    changing = mine(
        **state, SERVER="server.update(x=server['x'] + mean) or server", BODY="server['more'] = server['x']"
    )
    assert rows_of(changing).equals(rows_of(plain))


def test_a_value_that_is_kept_is_named_with_its_line(mine):
    with fails("a value is used that was kept from another call", ", mine.py line 25"):
        mine(BODY=KEPT, SERVER="server + mean + 0 * KEPT[-1]", **{"@dataclass": "KEPT = []\n\n\n@dataclass"})


@pytest.mark.parametrize("body", SAID)
def test_what_fails_is_said_with_its_line(mine, body):
    with pytest.raises((AttributeError, TypeError)) as caught:
        mine(BODY=body)
    assert SAID[body] in describe_error(caught.value)
