"""The public names of fcorun, by which programs import them and configurations, records and plans name classes.

The stub ``fcorun/__init__.pyi`` lists them, also for editors. A line ``from .SHELF import *`` stands for the names in
the stub of a shelf of plug-ins, so that a new plug-in of a shelf needs an edit there alone.
"""

import ast
from pathlib import Path

MODULES: dict[str, str] = {}  # the module, below fcorun, of each public name
ORIGINAL_NAMES: dict[str, str] = {}  # its name in the module


def _read_stub(package: str) -> list[tuple[str, ast.alias]]:
    """Return the imports in the stub of a package of fcorun: the module below fcorun, and a name in the module."""
    stub = Path(__file__).parents[1].joinpath(*package.split("."), "__init__.pyi")
    imports = []
    for statement in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            imports += [(str(statement.module), alias) for alias in statement.names]
    return imports


for _module, _alias in _read_stub(""):
    _aliases = [_alias]
    if _alias.name == "*":
        _aliases = [alias for _, alias in _read_stub(_module)]
    for _alias in _aliases:
        _name = _alias.asname or _alias.name
        MODULES[_name] = _module
        ORIGINAL_NAMES[_name] = _alias.name
