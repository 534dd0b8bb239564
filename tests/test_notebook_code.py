"""The code of classes that are written in a notebook: what a record keeps of it, and what changes its digest."""

import importlib
import linecache
import sys
from types import ModuleType

import pytest

import fcorun
from fcorun.base.errors import UserError
from fcorun.base.plugin_code import find_code
from fcorun.base.plugin_code.notebook import NotebookCode

CELLS = [
    """
import jax.numpy as jnp
import numpy as np
from dataclasses import dataclass
from fcorun import FedAvg
from fcorun.config import Positive

HALF = 0.5
TABLE = np.arange(3.0)
UNUSED = object()
""",
    """
def shrink(value):
    return HALF * value if value is not None else shrink(TABLE)
""",
    """
@dataclass(frozen=True)
class Mine(FedAvg):
    \"\"\"An algorithm of a notebook.\"\"\"

    source = "ours"

    def output(self, problem, server):
        return shrink(jnp.asarray(0.0)) * server
""",
]


class Notebook:
    """A module without a file, whose cells are run one by one, as IPython does."""

    def __init__(self, name):
        self.module = sys.modules[name] = ModuleType(name)
        self.module.__spec__ = None
        self.count = 0

    def run(self, cell):
        self.count += 1
        file = f"<{self.module.__name__}-cell-{self.count}>"
        linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
        exec(compile(cell, file, "exec"), vars(self.module))


def code_of(notebook) -> str:
    """Return the code of the notebook's algorithm as a record keeps it."""
    code = find_code(notebook.module.Mine)
    assert code is not None
    return code.files["notebook.py"].decode()


@pytest.fixture
def notebook():
    notebook = Notebook("a_notebook")
    for cell in CELLS:
        notebook.run(cell)
    yield notebook
    del sys.modules["a_notebook"]


def test_the_code_has_all_that_the_class_refers_to(notebook):
    code = find_code(notebook.module.Mine)
    assert code is not None
    text = code.files["notebook.py"].decode()
    for part in ("class Mine(FedAvg)", "def shrink", "HALF = 0.5", "TABLE = numpy.array([0.0, 1.0, 2.0]"):
        assert part in text
    assert "UNUSED" not in text
    assert "jax" in code.distributions
    namespace: dict = {"__name__": "a_notebook"}
    exec(compile(text, "notebook.py", "exec"), namespace)  # a file that Python can run
    assert namespace["Mine"](client_lr=0.1, server_lr=1.0).source == "ours"


@pytest.mark.parametrize(
    ("cell", "changes"),
    [
        ("HALF = 0.25", True),
        ("TABLE = np.arange(4.0)", True),
        ("def shrink(value):\n    return value", True),
        (CELLS[1], False),
        ("UNUSED = 3", False),
    ],
)
def test_the_digest_changes_with_what_the_class_refers_to(notebook, cell, changes):
    before = code_of(notebook)
    notebook.run(cell)
    assert (code_of(notebook) != before) == changes


@pytest.mark.slow
def test_the_record_keeps_the_code_and_other_globals_are_refused(notebook):
    data = fcorun.Lasso(clients=10, samples=4, features=4, nonzeros=1, validation_samples=1)
    experiment = fcorun.Experiment(
        algorithm=notebook.module.Mine(client_lr=0.01), data=data, regularizer=fcorun.NoRegularizer(), rounds=1
    )
    record = experiment.run("mine")
    assert "class Mine" in (record.folder / "plugins" / "notebook.py").read_text()
    before = experiment.identity
    notebook.run("HALF = 0.125")
    assert experiment.identity != before
    notebook.run("HALF = UNUSED")
    with pytest.raises(UserError, match="shrink refers to the global HALF, of type object"):
        _ = experiment.identity


def test_a_decorated_function_and_its_constants_count(notebook):
    notebook.run("import jax\nFACTOR = 1.0")
    notebook.run("@jax.jit\ndef shrink(value):\n    return value * FACTOR")
    before = code_of(notebook)
    assert "@jax.jit" in before
    notebook.run("FACTOR = 2.0")
    assert code_of(notebook) != before


def test_defaults_and_class_attributes_are_those_that_run(notebook):
    """Not the values that the names in their source have later."""
    texts = []
    for value in (0.5, 0.25):
        notebook.run(f"HALF = {value}")
        notebook.run("def shrink(value, factor=HALF):\n    return value * factor")
        notebook.run(CELLS[2].replace('source = "ours"', 'source = "ours"\n    share = HALF'))
        notebook.run("HALF = 3.0")
        texts.append(code_of(notebook))
        namespace: dict = {"__name__": "a_notebook"}
        exec(compile(texts[-1], "notebook.py", "exec"), namespace)
        assert namespace["shrink"].__defaults__ == (value,)
        assert namespace["Mine"].share == value
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("attribute", "first", "then"),
    [
        ("computed_rounds = N", "N = 5", "N = 10"),
        ("traits = fcorun.methods.algorithms.algorithm.Traits(partial=N)", "N = True", "N = False"),
        ("declared_metrics = (fcorun.Metric('cost', higher=N),)", "N = True", "N = False"),
    ],
)
def test_an_inherited_option_of_a_class_is_that_which_runs(notebook, attribute, first, then):
    """The global behind it was set anew, and the class cell did not run again."""
    notebook.run(f"import fcorun.methods.algorithms.algorithm\n{first}\n")
    cell = CELLS[2].replace('source = "ours"', f'source = "ours"\n    {attribute}')
    notebook.run(cell)
    before = code_of(notebook)
    notebook.run(f"{then}\n")
    stale = code_of(notebook)
    notebook.run(cell)
    after = code_of(notebook)
    assert len({before, stale, after}) == 3


def test_an_array_that_is_a_class_attribute_counts(notebook):
    attributes = (
        "w = TABLE\n    jitted = jax.jit(lambda value: value)\n    traits = Traits()\n"
        "    frozen = Traits()\n    kind = dict\n    count: int = 3"
    )
    notebook.run("import jax\nfrom fcorun.methods.algorithms.algorithm import Traits")
    notebook.run(CELLS[2].replace('source = "ours"', f'source = "ours"\n    {attributes}'))
    before = code_of(notebook)
    assert "Mine.w = numpy.array([0.0, 1.0, 2.0], 'float64')" in before
    notebook.run("Mine.w = np.array([9.0, 9.0])")
    assert "Mine.w = numpy.array([9.0, 9.0], 'float64')" in code_of(notebook)


def test_a_frozen_object_is_a_comment_of_one_line_without_places_in_memory(notebook):
    notebook.run("@dataclass(frozen=True)\nclass Law:\n    rule: object\n    means: object\n    names: frozenset\n"
                 "    def draw(self): return 1")  # fmt: skip
    notebook.run("def rule(value):\n    return value")
    law = "Law(rule, np.zeros((2, 1)), frozenset({'b', 'a', 'ab'}))"
    notebook.run(CELLS[2].replace('source = "ours"', f'source = "ours"\n    laws = ({law},)'))
    kept = code_of(notebook)
    (line,) = [line for line in kept.splitlines() if line.startswith("# Mine.laws")]
    names = "frozenset({'a', 'b', 'ab'})"
    assert line == f"# Mine.laws = (Law(rule=<function rule>, means=[[0.0], [0.0]], names={names}),)"
    exec(compile(kept, "notebook.py", "exec"), {"__name__": "a_notebook"})
    notebook.run("def rule(value):\n    return value")  # at another place
    notebook.run(CELLS[2].replace('source = "ours"', f'source = "ours"\n    laws = ({law},)'))
    assert code_of(notebook) == kept


def test_a_local_name_is_no_global(notebook):
    notebook.run("value = object()")
    assert "value =" not in code_of(notebook)


@pytest.mark.parametrize(
    ("constant", "text"),
    [
        ("np.inf", "float('inf')"),
        ("(-np.inf, [np.nan], {'inf': 1})", "(float('-inf'), [float('nan')], {'inf': 1})"),
        ("complex(0, np.inf)", "complex('infj')"),
        ("np.array([0.5, np.inf])", "numpy.array([0.5, float('inf')], 'float64')"),
        ("{'b', 'a', 'ab'}", "{'a', 'b', 'ab'}"),
        ("frozenset()", "frozenset()"),
        ("(1,)", "(1,)"),
    ],
)
def test_a_constant_is_kept_as_code_that_runs(notebook, constant, text):
    notebook.run(f"HALF = {constant}")
    kept = code_of(notebook)
    assert f"HALF = {text}\n" in kept
    exec(compile(kept, "notebook.py", "exec"), {"__name__": "a_notebook"})


def test_a_line_separator_that_is_none_of_python_leaves_a_source_unknown(notebook):
    """A notebook keeps the lines of a cell as ``str.splitlines`` gives them."""
    notebook.run('def shrink(value):\n    return 2 * value if "\u2028" else value')
    file, lines = notebook.module.shrink.__code__.co_filename, ["def shrink(value):\n", '    return 2 * value if "\n']
    linecache.cache[file] = (60, None, [*lines, '" else value\n'], file)
    with pytest.raises(UserError, match="the source of shrink is not known"):
        find_code(notebook.module.Mine)


def test_what_no_source_shows_is_refused(notebook):
    refused = {
        "def make(k):\n    def inner(v):\n        return k\n    return inner\nshrink = make(2)": "keeps variables",
        "class Box:\n    def get(self):\n        return 1\nHALF = Box()": "HALF, of type Box",
        "Mine.w = object()": "Mine.w is of type object",
        "def output(self, problem, server):\n    return 0 * server\nMine.output = output": "was changed after",
        "import pandas as pd\nTABLE = pd.DataFrame({'a': [1.0]})": "TABLE, of type DataFrame",
    }
    for cell, message in refused.items():
        notebook.run(CELLS[1])
        notebook.run(CELLS[2])
        notebook.run("HALF = 0.5")
        notebook.run(cell)
        with pytest.raises(UserError, match=message):
            find_code(notebook.module.Mine)


def test_a_class_without_a_source_is_refused():
    module = sys.modules["no_source"] = ModuleType("no_source")
    module.__spec__ = None
    try:
        exec("def f():\n    return 1", vars(module))
        with pytest.raises(UserError, match="the source of f is not known"):
            NotebookCode().add(module.f)
    finally:
        del sys.modules["no_source"]


@pytest.mark.parametrize("where", ["script", "notebook"])
def test_a_class_that_keeps_variables_of_a_function_is_refused(where, notebook, tmp_path, monkeypatch):
    """Classes that a function made for several values would have one identity."""
    source = (
        "from dataclasses import dataclass\nfrom functools import wraps\nfrom fcorun import FedAvg\n"
        "def logged(method):\n    @wraps(method)\n    def call(*arguments):\n        return method(*arguments)\n"
        "    return call\n"
        "def make(k):\n    @dataclass(frozen=True)\n    class Kept(FedAvg):\n"
        "        def output(self, problem, server):\n            return k * super().output(problem, server)\n"
        "    @dataclass(frozen=True)\n    class Free(FedAvg):\n        k: float = 1.0\n        @logged\n"
        "        def output(self, problem, server):\n            return self.k * super().output(problem, server)\n"
        "    return Kept, Free\n"
        "Kept, Free = make(2)\n"
    )
    if where == "notebook":
        notebook.run(source)
        module = notebook.module
    else:
        (tmp_path / "made_by_a_function.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        module = importlib.import_module("made_by_a_function")
    with pytest.raises(UserError, match=r"Kept\.output keeps variables of the function that made it"):
        find_code(module.Kept)
    if where == "script":
        assert find_code(module.Free)
