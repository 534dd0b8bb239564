"""Whose code is imported: the one rule for the classes that configurations and records name.

- Modules of fcorun, of installed plug-in packages, and modules that this program has imported already are free to use.
- What the user's own configuration files or command line name is imported from the installed modules, or else from the
  current folder (``import_own``).
- What anybody else names, as a record does, is imported from a folder that the user trusts (``import_trusted``), or not
  at all.

No folder is ever put on ``sys.path``: libraries would find their optional modules, plug-ins and entry points there.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from fcorun.errors import UserError
from fcorun.plugin_packages import find_plugin_packages


def is_free_to_import(module: str) -> bool:
    """Whether a module may be used whoever names it."""
    if module in sys.modules or _is_in(module, "fcorun"):
        return True
    return any(_is_in(module, package.name) for package in find_plugin_packages())


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def import_user_module(module: str) -> ModuleType:
    """Import a module that the user's own configuration names: an installed one, or else one of the current folder.

    Raises whatever the import raises.
    """
    with _behind(Path.cwd()).open():
        return importlib.import_module(module)


def import_trusted_module(module: str, folder: str | os.PathLike[str]) -> ModuleType:
    """Import a module that somebody else names from a folder that the user trusts, and from nowhere else.

    Raises UserError where the folder does not hold the module, or an installed module has the same name; and whatever
    the import raises.
    """
    home, top = Path(folder).resolve(), module.partition(".")[0]
    if not home.is_dir():
        raise UserError(f"trust={folder}: there is no such folder; give that of the code that you trust")
    if not _lies_in(module, home):
        raise UserError(f"trust={folder} has no module {module}: give the folder that it is imported from")
    other = importlib.util.find_spec(top)
    if other is not None and not _is_below(other, home):
        raise UserError(f"trust={folder}: an installed module is called {top}, too, and would be imported instead; "
                        "rename yours")  # fmt: skip
    with _behind(home).open():
        return importlib.import_module(module)


def _lies_in(module: str, folder: Path) -> bool:
    """Whether a folder has a module, which is looked for without importing its packages."""
    path: Sequence[str] | None = [str(folder)]
    names = module.split(".")
    for count in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:count]), path) if path else None
        if spec is None:
            return False
        path = list(spec.submodule_search_locations or ())
    return True


def _is_below(spec: ModuleSpec, folder: Path) -> bool:
    places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
    return bool(places) and all(Path(place).resolve().is_relative_to(folder) for place in places)


class _Behind(MetaPathFinder):
    """The finder of modules in a folder, behind all others: no installed module nor one of Python is ever replaced.

    It answers the imports of this module while it is open, and those of modules that it has found, which may import
    their own files within functions. It answers no other module: a library that tries whether an optional module is
    there does not find a file of the folder.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.answers: set[str] = set()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Answer the imports of this module within it."""
        self.answers.add(__name__)
        try:
            yield
        finally:
            self.answers.discard(__name__)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not self._answers_caller():
            return None
        spec = PathFinder.find_spec(fullname, [str(self.folder)])
        if spec is not None:
            self.answers.add(fullname)
        return spec

    def _answers_caller(self) -> bool:
        """Whether the import that is going on was begun by a module that is to be answered."""
        frame = sys._getframe(2)
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if not _is_in(name, "importlib"):
                return name in self.answers or name.partition(".")[0] in self.answers
            frame = frame.f_back
        return False


@cache
def _behind(folder: Path) -> _Behind:
    """Return the finder of a folder, which is put behind all others when it is first asked for."""
    finder = _Behind(folder)
    sys.meta_path.append(finder)
    return finder
