"""Rules of the code: sizes, names, how docstrings begin, and what no call may look like."""

import ast
import re
import runpy
import subprocess
from functools import cache
from pathlib import Path

import pytest

import fcorun
from fcorun.base.config import SECTIONS
from fcorun.experiment.configuration.search_path import find_choices

HOUSE = Path(fcorun.__file__).parent
FILES = sorted(path for path in HOUSE.rglob("*.py") if "conf" not in path.parts)
# To these, plug-ins are added: one file each.
SHELVES = {"algorithms", "regularizers", "mirror_maps", "objectives", "datasets", "communication", "trackers"}
SHELVES |= {"commands", "pictures"}


@cache
def trees() -> dict[Path, ast.Module]:
    """Return the parsed files of the package. Parsing takes a second, so it waits for the first test."""
    return {path.relative_to(HOUSE): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def functions():
    for place, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield place, node


def test_the_ground_floor_has_at_most_ten_files():
    assert len([path for path in HOUSE.iterdir() if path.is_file()]) <= 10


def test_a_file_holds_one_idea():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: n for path, n in lengths.items() if n > 610} == {}


def test_no_file_has_the_marks_of_a_conflict():
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        pytest.skip("the files are not those of a repository")
    # -I passes over binary files, and git grep ends with 1 where it finds no line
    command = ["git", "grep", "-I", "-n", "-E", "^(<{7}|>{7}) "]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, encoding="utf-8", check=False)
    assert (found.returncode, found.stdout) == (1, "")


def test_a_function_tells_one_thing():
    lengths = {f"{place}: {f.name}": (f.end_lineno or 0) - f.lineno + 1 for place, f in functions()}
    assert {function: n for function, n in lengths.items() if n > 80} == {}


@pytest.mark.slow
def test_no_call_has_more_than_five_arguments_without_names():
    found = [
        f"{place}:{node.lineno}"
        for place, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and sum(not isinstance(a, ast.Starred) for a in node.args) > 5
    ]
    assert found == []


def names_no_encoding(call: ast.Call) -> bool:
    """Return whether a call reads or writes text in the encoding of the system."""
    keys = {keyword.arg for keyword in call.keywords}
    if "encoding" in keys:
        return False
    if isinstance(call.func, ast.Attribute):
        name, owner = call.func.attr, ast.unparse(call.func.value).partition("(")[0]
    else:
        name, owner = getattr(call.func, "id", ""), "" if getattr(call.func, "id", "") == "open" else "own"
    # these functions have no encoding, or name it themselves
    if owner in ("own", "formats", "os", "gzip", "tarfile", "progress", "_finder_of"):
        return False
    binary = any(re.search(r"'[rwax]\+?b", ast.unparse(argument)) for argument in call.args)
    return "text" in keys or name in ("read_text", "write_text") or (name == "open" and not binary)


@pytest.mark.slow
def test_text_files_are_read_and_written_in_a_named_encoding():
    """Windows takes another one than UTF-8 where none is named."""
    root = Path(__file__).resolve().parents[1]
    files = [
        root / "hatch_build.py",
        *(p for name in ("docs", "hydra_plugins", "scripts") for p in root.glob(f"{name}/**/*.py")),
    ]
    parsed = trees() | {file.relative_to(root): ast.parse(file.read_text(encoding="utf-8")) for file in files}
    calls = ((place, node) for place, tree in parsed.items() for node in ast.walk(tree) if isinstance(node, ast.Call))
    assert [f"{place}:{node.lineno}" for place, node in calls if names_no_encoding(node)] == []
    examples = [ast.parse(text, mode="eval").body for text in ("open(a)", "a.open('w')", "a.read_text()")]
    assert all(names_no_encoding(call) for call in examples if isinstance(call, ast.Call))


def test_nothing_is_carried_in_attrs():
    assert [path for path in FILES if ".attrs" in path.read_text(encoding="utf-8")] == []


def test_the_name_of_a_file_names_one_file():
    names = [path.name for path in FILES if path.name != "__init__.py"]
    assert [name for name in names if names.count(name) > 1] == []


def test_each_room_says_what_it_is_for_and_what_it_imports():
    rooms = [path for path in HOUSE.iterdir() if path.is_dir() and path.name not in ("conf", "__pycache__")]
    rooms += [path for path in (HOUSE / "sites").iterdir() if path.is_dir() and path.name != "__pycache__"]
    inits = {room.name: ast.parse((room / "__init__.py").read_text(encoding="utf-8")) for room in rooms}
    texts = {name: ast.get_docstring(init) for name, init in inits.items()}
    assert len(texts) == 16
    assert [room for room, text in texts.items() if text is None or "\n\nIt imports " not in text] == []


@pytest.mark.parametrize("room", sorted({path.parent.name for path in FILES} - SHELVES - {"fcorun"}))
def test_a_rooms_init_imports_nothing_heavy(room):
    init = next(path for path in FILES if path.name == "__init__.py" and path.parent.name == room)
    imported = [
        node
        for node in ast.walk(ast.parse(init.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    heavy = ("jax", "numpy", "pandas", "matplotlib", "hydra", "omegaconf")
    names = [name for node in imported for name in ([a.name for a in node.names] + [getattr(node, "module", "") or ""])]
    assert not [name for name in names if name.split(".")[0] in heavy]


# Words with which no docstring begins: a reader would not know what is described.
BANNED_OPENINGS = {"How", "In", "Of", "That", "There", "Those", "What", "Where", "Whether", "Which", "Who", "Whose"}
# A function's docstring begins with a verb in the imperative, so not with these either.
NOT_VERBS = {"A", "An", "All", "Each", "If", "It", "Its", "No", "One", "The", "Their", "These", "They", "This"}


def is_property(function: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def documented(files: dict[Path, ast.Module]):
    """Yield the place, the node and the first word of every docstring of the package, or of other files."""
    for place, tree in files.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                yield f"{place}: {getattr(node, 'name', 'module')}", node, re.split(r"\W", text, maxsplit=1)[0]


@pytest.mark.slow
def test_no_docstring_begins_with_a_pronoun():
    root = Path(__file__).resolve().parents[1]
    others = [path for name in ("docs", "hydra_plugins", "scripts", "tests") for path in root.glob(f"{name}/**/*.py")]
    parsed = trees() | {path.relative_to(root): ast.parse(path.read_text(encoding="utf-8")) for path in others}
    assert [place for place, _, word in documented(parsed) if word in BANNED_OPENINGS] == []


@pytest.mark.slow
def test_docstrings_of_functions_begin_with_a_verb_in_the_imperative():
    functions = [(place, word) for place, node, word in documented(trees())
                 if isinstance(node, ast.FunctionDef) and not is_property(node)]  # fmt: skip
    assert [place for place, word in functions if word in NOT_VERBS] == []
    assert [place for place, word in functions if word.endswith("s") and not word.endswith("ss")] == []


@pytest.mark.slow
def test_no_two_classes_have_the_same_name():
    classes = [(node.name, str(place)) for place, tree in trees().items() for node in tree.body
               if isinstance(node, ast.ClassDef)]  # fmt: skip
    names = [name for name, _ in classes]
    twice = {(name, place) for name, place in classes if names.count(name) > 1}
    assert twice == set()


@pytest.mark.slow
def test_only_algorithms_name_algorithms():
    """Advice and refusals on an algorithm stand in its file, so that an algorithm of a user can say the same."""
    names = set(find_choices("algo")) - {
        "local",
        "mixture",
        "newton",
        "diana",
        "ef21",
    }  # other words
    named = []
    for place, tree in trees().items():
        if {"algorithms", "checks", "figures"} & set(place.parts):
            continue
        docstrings = {ast.get_docstring(node, clean=False) for _, node, _ in documented({place: tree})}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docstrings:
                named += [f"{place}:{node.lineno}: {word}" for word in re.findall(r"\w+", node.value) if word in names]
    assert named == []


@pytest.mark.slow
def test_no_room_is_imported_by_name_at_run_time():
    """Only classes of a configuration are, by ``trust.locate``, and public names."""
    dynamic = [
        f"{place}:{node.lineno}"
        for place, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("import_module")
        and "fcorun" in ast.unparse(node)
    ]
    assert [place for place in dynamic if not place.startswith("__init__.py")] == []


def test_errors_put_options_between_backticks():
    """The Python interface words these options, so a sentence that names one without backticks shows the command's."""
    sections = "|".join(SECTIONS)
    option = re.compile(rf"""(?<![\w.'"/`(-])(?:{sections})(?:\.(?!py\b|key\b|x\b|steps\b)[a-z_]+|=[a-z{{])""")
    of_command = {"interface/cli", "interface/checks", "studies/figures", "sites", "reports", "runs/hosts", "base"}
    unmarked = []
    for place, tree in trees().items():
        if any(place.as_posix().startswith(folder) for folder in of_command):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "UserError":
                texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                sentence = re.sub("`[^`]*`", "", "".join(map(str, texts)))
                unmarked += [f"{place}:{node.lineno}"] if option.search(sentence) else []
    assert unmarked == []


def test_kinds_are_classes_and_not_texts_that_are_compared():
    """Require that the code asks a task, score, column or message for what differs, and compares no names."""
    compared = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "house.py"))["TEXTS_OF_KINDS"]
    texts = {str(path.relative_to(HOUSE)): path.read_text(encoding="utf-8") for path in FILES}
    found = {(kind, place) for kind, pattern in compared.items() for place, text in texts.items()
             if re.search(pattern, text)}  # fmt: skip
    assert found == {("message", "experiment/tracker.py")}  # the column "round" of metrics


def test_nobody_asks_for_the_kind_of_the_features_of_rows():
    """Require that callers use the operations of data/rows/features.py, which each kind does in its own way."""
    kinds = "KindOfFeatures|NeverDense|(Disk|Host|Sparse)Matrix|(Sparse|Compressed|Padded)Rows"
    question = re.compile(rf"\bis(instance|subclass)\(.*({kinds})|\bis_sparse\b")
    asking = {str(path.relative_to(HOUSE)) for path in FILES if question.search(path.read_text(encoding="utf-8"))}
    assert "data/rows/rows.py" in asking
    assert [place for place in asking if not place.startswith("data/rows/")] == []
