"""Count what makes the package hard to read: lines, density, helpers with one caller, and texts where kinds belong.

Prints one line for each count. ``python scripts/house.py FOLDER`` counts another checkout, to compare two of them.
"""

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# What a new one of each kind has to be told to: files that compare the kind with a text.
TEXTS_OF_KINDS = {
    "task": r"\btask (?:==|!=|in|not in) [(\"']",
    "score": r"(?:==|!=| in) [(\[]?\"(?:auc|auc_macro|brier|accuracy|c_index|log_loss|r2|rmse)\"",
    "kind of a column": r"kind (?:==|!=|in|not in) [(\"']+(?:number|levels)\"",
    "message": r"(?:request\.)?name (?:==|!=|in|not in) [(\"']+(?:describe|subset|start|round|evaluate|load|result)\"",
}


def main() -> None:
    """Print the counts of the package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1], help="a checkout")
    package = parser.parse_args().folder / "fcorun"
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    for name, count in counts(sources):
        print(f"{name:60} {count:>10,}")


def counts(sources: dict[Path, str]) -> Iterator[tuple[str, float]]:
    """Yield the name of each count and its value."""
    trees = [ast.parse(source) for source in sources.values()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    lines = sum(len(source.splitlines()) for source in sources.values())
    yield "files", len(sources)
    yield "lines", lines
    yield "lines of docstrings", sum(_docstring_lines(node) for node in nodes)
    for name, kinds in (("conditional expressions", ast.IfExp), ("comprehensions", COMPREHENSIONS)):
        yield f"{name} in 1,000 lines", round(1000 * sum(isinstance(node, kinds) for node in nodes) / lines, 1)
    yield "packed assignments in 1,000 lines", round(1000 * sum(map(_is_packed, nodes)) / lines, 1)
    yield "private functions with one caller", _helpers_with_one_caller(nodes)
    yield "Any", sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)
    yield "assert ... is not None", sum(map(_asserts_presence, nodes))
    for kind, text in TEXTS_OF_KINDS.items():
        yield f"files that compare a {kind} with a text", sum(bool(re.search(text, s)) for s in sources.values())


def _docstring_lines(node: ast.AST) -> int:
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
        return 0
    return len((ast.get_docstring(node) or "").splitlines())


def _is_packed(node: ast.AST) -> bool:
    """Return whether one line assigns several values to several names."""
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def _asserts_presence(node: ast.AST) -> bool:
    return isinstance(node, ast.Assert) and ast.unparse(node.test).endswith("is not None")


def _helpers_with_one_caller(nodes: list[ast.AST]) -> int:
    """Count the functions and methods of one underscore that the package names once besides their definition."""
    named = Counter(node.attr for node in nodes if isinstance(node, ast.Attribute))
    named += Counter(node.id for node in nodes if isinstance(node, ast.Name))
    private = [n.name for n in nodes if isinstance(n, ast.FunctionDef) and re.match(r"_[a-z]", n.name)]
    return sum(named[name] == 1 for name in private)


if __name__ == "__main__":
    main()
