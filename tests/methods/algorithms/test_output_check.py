"""Results that a user's algorithm may return, and the messages on other results."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from helpers import fails, rows_of, small

from fcorun import run
from fcorun.base.config import build
from fcorun.base.errors import UserError, describe_error
from fcorun.base.trust import locate_user_class
from fcorun.methods.algorithms.algorithm import Algorithm

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
    ("INIT", "w0"): ("init() of Mine must return two values", "and returned Vector"),
    ("LOCAL", "w - server"): ("local() of Mine must return two values, its upload", "and returned Vector"),
    ("LOCAL", "w, client, 1"): ("local() of Mine must return two values", "and returned 3 values"),
    ("LOCAL", "None"): ("local() of Mine", "and returned NoneType"),
    ("LOCAL", "w, w"): ("local() of Mine: the client's new state must be like that of init(), None, and is " + W,),
    ("LOCAL", "'a', client"): ("local() of Mine: its upload must consist of arrays, and contains a str",),
    ("LOCAL", "w - server['weights'], client"): ("server() of Mine: the server's new state", "bias: array (20,)"),
    ("LOCAL", "{'u': w}, client"): (
        "server() of Mine combines values of different structures (server has " + W + "; mean has {u: " + W + "})",
        "mine.py line 22",
    ),
    ("SERVER", "None"): (
        "server() of Mine: the server's new state must be like that of init(), " + W + ", and is None",
    ),
    ("SERVER", "server + mean['d']"): (
        "server() of Mine reads the key 'd', which does not exist",
        "mean has " + W,
        "mine.py line 22",
    ),
    ("LOCAL", "w - server['x'], client"): (
        "local() of Mine reads the key 'x'",
        "server has " + W,
        "mine.py line 19",
    ),
    ("OUTPUT", "server['weight']"): ("output() of Mine reads the key 'weight'", "mine.py line 25"),
    ("OUTPUT", "dict(server)"): ("output() of Mine must return parameters like w0, " + W + ", and returned {bias: ",),
}
DEFINITIONS = {
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
STORES_A_VALUE = (
    "w = data.steps(lambda w, b: (KEPT.append(w['bias']), w - self.client_lr * problem.gradient(w, b))[1], server)"
)
MESSAGES = {
    "if self.client_lr > 1: pass": "to `if`, `and`, `or` or `while`; use jnp.where, mine.py line 17",
    "float(self.client_lr)": "is not known, to float() or int() for example; use jax.numpy, mine.py line 17",
    "problem.gradeint(server)": "AttributeError: 'Problem' object has no attribute 'gradeint', mine.py line 17",
}


@pytest.fixture
def mine(user_module):
    """A function that runs an algorithm with changes of its text."""

    def run_changed(debug: bool = False, overrides: Sequence[str] = (), **changes):
        text = MINE
        for name, value in (RIGHT | changes).items():
            text = text.replace(name, value)
        user_module("mine", text)
        config = small("rounds=1", *overrides)
        config["algo"] = {"name": "mine", "class": "mine.Mine", "client_lr": 0.01}
        return run(config | {"debug": debug, "force": True}, "here")

    return run_changed


@pytest.mark.slow
def test_a_valid_algorithm_runs(mine):
    assert mine().status["status"] == "done"


@pytest.mark.slow
def test_the_keys_of_a_state_may_come_in_any_order(mine):
    mine(INIT="w0, {'a': w0, 'b': 0.0}", LOCAL="w - server, {'b': 1.0, 'a': w}")


@pytest.mark.parametrize(("part", "value"), WRONG)
def test_a_wrong_result_is_named(mine, part, value):
    with fails(*WRONG[part, value]):
        mine(**{part: value})


@pytest.mark.parametrize("value", [None, 0])
def test_a_field_called_iterations_may_mean_anything(mine, value):
    """It counts the iterations of fcorun's own inner solvers, from which segments of rounds have their length."""
    fields = f"client_lr: Positive\n    iterations: int | None = {value}"
    assert mine(**{"client_lr: Positive": fields}).status["status"] == "done"


def test_an_initial_state_that_stays_infinite_is_named(mine):
    """The run ended as diverged in its first round, without a word on which number was not finite."""
    reason = mine(INIT="w0, {'best': float('inf')}").status["reason"]
    assert "not finite in round 1: init() begins the state of a client['best'] with inf" in reason
    replaced = mine(INIT="w0, {'best': float('inf')}", LOCAL="w - server, {'best': 0.0 * client['best'] ** 0}")
    assert replaced.status["status"] == "done"


@pytest.mark.parametrize("zero", ["0", "w0['bias'].astype('int32')"])
def test_a_number_of_another_type_is_named(mine, zero):
    """JAX would cut a client's number to an integer again, and refuse the server's on two devices."""
    with fails("local() of Mine: the client's new state must be int32 like that of init(), and is float32: let init()"
               " start it as a real number, such as 0.0", "line 16"):  # fmt: skip
        mine(INIT=f"w0, {zero}", LOCAL="w - server, client + 0.5")
    counting = {"INIT": f"{{'w': w0, 'n': {zero}}}, None", "batch), server)": "batch), server['w'])"}
    with fails("server() of Mine: the server's new state['n'] must be int32 like that of init()", "line 21"):
        mine(**counting, LOCAL="w - server['w'], client", SERVER="{'w': server['w'], 'n': server['n'] + 0.5}")


@pytest.mark.parametrize("topology", ["tree", "graph"])
def test_a_whole_number_of_a_state_that_is_averaged_is_refused(mine, topology):
    """JAX would cut the weights of a mean of integers to 0."""
    with fails(f"topology={topology} computes means of the algorithm's state, whose entry ['n'] is int32: let init()"):
        mine(
            overrides=[f"topology={topology}", "clients_per_round=null"],
            **{"INIT": "{'w': w0, 'n': w0['bias'].astype('int32')}, None", "batch), server)": "batch), server['w'])"},
            LOCAL="w - server['w'], client",
            SERVER="{'w': server['w'] + mean, 'n': server['n'] + 1}",
            OUTPUT="server['w']",
        )


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_a_wrong_definition_is_named(mine, definition):
    with fails(DEFINITIONS[definition][1]):
        mine(**{definition: DEFINITIONS[definition][0]})


def test_a_dataclass_that_is_not_frozen_is_refused(user_module):
    """Also one that is beside the class that is chosen."""
    user_module("mine", MINE + "\n\n@dataclass\nclass Other(Mine):\n    pass\n")
    with fails("algo.class=mine.Mine", "write @dataclass(frozen=True) above class Other, mine.py line 28"):
        locate_user_class("mine.Mine", "algo.class")


def test_a_misspelled_trait_is_named_with_its_line(user_module):
    user_module("mine", MINE.replace('"some"', "True"))
    with fails("algo.class=mine.Mine: cannot import 'mine' (traits.hierarchy=True is not a choice",
               "(valid: an empty text, graph, only, some), mine.py line 11)"):  # fmt: skip
        locate_user_class("mine.Mine", "algo.class")


@pytest.mark.slow
@pytest.mark.parametrize("debug", [False, True])
def test_a_function_may_change_its_arguments(mine, debug):
    """The arguments are copies: the server's state is the result of ``server``."""
    state = {"INIT": "{'x': w0}, None", "batch), server)": "batch), server['x'])", "LOCAL": "w - server['x'], client",
             "OUTPUT": "server['x']", "debug": debug}  # fmt: skip
    plain = mine(**state, SERVER="{'x': server['x'] + mean}")
    changing = mine(
        **state, SERVER="server.update(x=server['x'] + mean) or server", BODY="server['more'] = server['x']"
    )
    assert rows_of(changing).equals(rows_of(plain))


@pytest.mark.slow
def test_a_stored_value_of_another_call_is_named_with_its_line(mine):
    with fails("a value of another call is used", ", mine.py line 25"):
        mine(BODY=STORES_A_VALUE, SERVER="server + mean + 0 * KEPT[-1]", **{"@dataclass": "KEPT = []\n\n\n@dataclass"})


@pytest.mark.parametrize("body", MESSAGES)
def test_an_error_is_reported_with_its_line(mine, body):
    with pytest.raises((AttributeError, TypeError)) as caught:
        mine(BODY=body)
    assert MESSAGES[body] in describe_error(caught.value)


def test_a_class_without_a_function_of_its_contract_is_refused():
    @dataclass(frozen=True)
    class Unfinished(Algorithm):
        def init(self, problem, w0):
            return w0, None

    with pytest.raises(UserError, match=r"algo\.class: Unfinished lacks local, server: write"):
        build(Unfinished, {}, "algo")
