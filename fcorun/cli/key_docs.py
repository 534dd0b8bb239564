"""What keys and choices mean, from the comments in the configuration files and the types of the plug-ins."""

import re
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import yaml

from fcorun.config import Settings, locate_user_class, type_hints
from fcorun.configuration.search_path import find_choices, header_comment, packaged_config_dir
from fcorun.errors import UserError
from fcorun.sections import SECTIONS
from fcorun.sources.catalogue import read_source

# Groups of choices, and where their keys stand.
GROUPS = {name: name for name in SECTIONS} | {"hydra/launcher": "hydra.launcher", "hydra/sweeper": "hydra.sweeper"}
_LABELS = {
    "name": "what the choice is called in records, tables and folders",
    "class": "the dotted path of the plug-in's class, a dataclass that Python can import from this folder",
    "title": "what pictures call it",
    "natural": "numbers that suit these data, from which other keys take their defaults",
}
_USUAL = {  # what plug-ins of many kinds mean by a key
    "algo.client_lr": "the clients' learning rate",
    "algo.server_lr": "the server's learning rate",
    "reg.strength": "how much psi weighs",
}
_TYPES = {float: "a number", int: "a whole number", str: "text", bool: "true or false", type(None): "null", Any: "any"}
_SEVERAL = {float: "numbers", int: "whole numbers", str: "texts"}


@dataclass(frozen=True)
class KeyDoc:
    """A key as one file has it.

    Attributes:
        comment: what the file says of it on its line.
        value: as it is written there.
        kind: its type and condition in words, where they are known.
    """

    comment: str
    value: str
    type_text: str = ""


@dataclass(frozen=True)
class ChoiceDoc:
    """A choice of a group: what its file says at its head, and its keys by full name."""

    description: str
    keys: dict[str, KeyDoc]


def read_root_keys() -> dict[str, KeyDoc]:
    """The keys of conf/config.yaml that are of no choice."""
    hints, found = type_hints(Settings), {}
    for name, comment, value in _lines(Path(packaged_config_dir(), "config.yaml"), ""):
        section, _, last = name.rpartition(".")
        of = _hints(section, SECTIONS[section].base_class_paths[0]) if section in SECTIONS else hints
        if name != "defaults":
            found[name] = KeyDoc(comment, value, _kind(of.get(last), comment))
    return found


def read_default_choices() -> dict[str, str]:
    """The choice of each group where none is given."""
    told = yaml.safe_load(Path(packaged_config_dir(), "config.yaml").read_text(encoding="utf-8"))["defaults"]
    return {group.split()[-1]: name for item in told if isinstance(item, dict) for group, name in item.items()}


def read_choice(group: str, name: str) -> ChoiceDoc:
    """A choice of a group, with what its file takes over from others."""
    path, keys = find_choices(group)[name], {}
    values: Any = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for base in values.get("defaults", ()):
        if isinstance(base, str) and base in find_choices(group):
            keys |= read_choice(group, base).keys
    text = path.read_text(encoding="utf-8")
    prefix = "" if "@package _global_" in text else f"{GROUPS.get(group, group)}."
    own = {name: (comment, value) for name, comment, value in _lines(path, prefix)}
    section = GROUPS.get(group, group)
    hints = _hints(section, own.get(f"{section}.class", ("", ""))[1])
    for name, (comment, value) in own.items():
        first, _, last = name.rpartition(".")
        if name.startswith(("defaults", "hydra.", "figure")) and not section.startswith("hydra"):
            continue
        known = keys.get(name, KeyDoc(_LABELS.get(last, "") if first == section else "", ""))
        said = comment or known.comment
        if (usual := _USUAL.get(name)) and not said.startswith(usual):
            said = "; ".join(filter(None, [usual, said]))
        keys[name] = KeyDoc(said, value, _kind(hints.get(last) if first == section else None, said) or known.kind)
    return ChoiceDoc(header_comment(path), _with_defaults(section, keys))


def plugin_class(group: str, found: ChoiceDoc) -> type | None:
    """The class that a choice names; None where it names none, or another key says which. Raises UserError for one
    that cannot be imported."""
    key = f"{GROUPS.get(group, group)}.class"
    path = found.keys[key].value if key in found.keys else ""
    return locate_user_class(path, key) if path and "$" not in path else None


def source_text(group: str, found: ChoiceDoc) -> str:
    """Where a choice's class says that it comes from; empty where it has none, or does not say so."""
    try:
        kind = plugin_class(group, found)
        return read_source(kind).text if kind else ""
    except UserError as error:
        return f"not known: {error}"


def format_default(value: str) -> str:
    """A key's value as it is written, in words where it is none or that of another key."""
    if value == "???":
        return "none, it must be given"
    return re.sub(r"\$\{oc\.select:([^,}]+),([^}]+)\}", r"that of \1, else \2", value)


def _with_defaults(section: str, keys: dict[str, KeyDoc]) -> dict[str, KeyDoc]:
    """The keys, and those fields of the class that no file holds, with their defaults."""
    path = keys[f"{section}.class"].value if f"{section}.class" in keys else ""
    hints = _hints(section, path)
    known, own = keys | read_root_keys(), fields(locate_user_class(path, "")) if hints else ()
    found = {field.name: field.default for field in own if field.init}
    for name, default in found.items():
        if (key := f"{section}.{name}") not in known and default is not MISSING:
            written = yaml.safe_dump(default, default_flow_style=True).removesuffix("\n").removesuffix("\n...")
            keys[key] = KeyDoc(_USUAL.get(key, ""), written, _kind(hints.get(name), ""))
    return keys


def _lines(path: Path, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Each key of a file with its prefix, the comment on its line, and its value as it is written."""
    text = path.read_text(encoding="utf-8")
    root: Any = yaml.compose(text)
    if isinstance(root, yaml.MappingNode):
        yield from _below(root, prefix, text)


def _below(node: yaml.MappingNode, prefix: str, text: str) -> Iterator[tuple[str, str, str]]:
    lines = text.splitlines()
    for key, value in node.value:
        block = isinstance(value, yaml.CollectionNode) and not value.flow_style
        mark = key.end_mark if block else value.end_mark
        comment = re.search(r"#\s*(.*)", lines[mark.line][mark.column :]) if mark.line < len(lines) else None
        written = "" if block else " ".join(text[value.start_mark.index : value.end_mark.index].split())
        if not block or comment:
            yield prefix + key.value, comment[1] if comment else "", written
        if block and isinstance(value, yaml.MappingNode):
            yield from _below(value, f"{prefix}{key.value}.", text)


def _hints(section: str, path: str) -> dict[str, Any]:
    """The types of the fields of the class that a choice names, if it can be found."""
    if not path or "$" in path or section not in SECTIONS:
        return {}
    try:
        return type_hints(locate_user_class(path, f"{section}.class"))
    except UserError:
        return {}


def _kind(hint: Any, comment: str) -> str:
    """A type in words, or nothing where it is not known, or where a comment names all that there is to choose from."""
    words = _words(hint) if hint is not None else ""
    return "" if all(word in comment for word in words.split(" or ")) else words


def _words(hint: Any) -> str:
    """A type and its conditions in words.

    >>> _words(Annotated[float, "or auto", "positive"])
    'a number, positive, or auto'
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        marks = [mark for mark in args[1:] if mark not in ("outside identity", "default outside identity", "or auto")]
        return ", ".join([_words(args[0]), *marks, *(["or auto"] if "or auto" in args else [])])
    if origin in (Union, types.UnionType):
        return " or ".join(_words(arg) for arg in sorted(args, key=lambda arg: arg is type(None)))
    if origin is Literal:
        return " or ".join(str(arg) for arg in args)
    if origin is list:
        return f"a list of {_SEVERAL.get(args[0], _words(args[0]))}"
    if origin is dict or hint is dict:
        return "a mapping"
    return _TYPES.get(hint, str(hint))
