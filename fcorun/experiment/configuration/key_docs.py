"""The documentation of keys and choices.

An option is explained once: by the comment on its line in a configuration file, or where the line has none by the
section ``Attributes`` in the docstring of the plug-in's class. Types come from the class.
"""

import inspect
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import yaml

from fcorun.base.config import SECTIONS, TYPE_NAMES, Settings, required_fields, type_hints
from fcorun.base.errors import UserError
from fcorun.base.sources.catalogue import read_source
from fcorun.base.trust import locate_user_class
from fcorun.experiment.configuration.search_path import find_choices, header_comment, packaged_config_dir, read_yaml

# The section that holds the keys of each config group.
GROUPS = {name: name for name in SECTIONS} | {"hydra/launcher": "hydra.launcher", "hydra/sweeper": "hydra.sweeper"}
_LABEL_COMMENTS = {
    "name": "the name of the choice in records, tables and folders",
    "class": "the plug-in's class, a dataclass: fcorun.NAME, or a dotted path that Python can import from this folder",
    "title": "the name in pictures",
    "natural": "numbers that suit this choice, from which other keys take their defaults",
}
_COMMON_COMMENTS = {  # keys that many plug-ins have
    "algo.client_lr": "the clients' learning rate",
    "algo.server_lr": "the server's learning rate",
    "reg.strength": "the strength of psi",
}
_TYPE_NAMES = {name_type: name.replace("`", "") for name_type, name in TYPE_NAMES.items()}
_TYPE_NAMES |= {type(None): "null", Any: "any"}
_PLURAL_TYPE_NAMES = {float: "numbers", int: "whole numbers", str: "texts"}
_IDENTITY_MARKS = (
    "outside identity",
    "default outside identity",
    "fixed in a program",
)  # left out of the text of a type


@dataclass(frozen=True)
class KeyDoc:
    """The documentation of a key in one file.

    Attributes:
        comment: the comment on the key's line.
        value: the text of its value.
        type_text: its type and conditions in words; "" if they are not known.
    """

    comment: str
    value: str
    type_text: str = ""


@dataclass(frozen=True)
class ChoiceDoc:
    """The documentation of a choice: the header comment of its file, and its keys by full name."""

    description: str
    keys: dict[str, KeyDoc]


@cache
def read_root_keys() -> dict[str, KeyDoc]:
    """Return the keys of conf/config.yaml, which belong to no choice."""
    root_hints = type_hints(Settings)
    docs = {}
    for key, comment, value in _read_lines(Path(packaged_config_dir(), "config.yaml"), ""):
        if key == "defaults":
            continue
        section, _, name = key.rpartition(".")
        hints = root_hints
        if section in SECTIONS:
            hints = type_hints(SECTIONS[section].base_classes[0])
        docs[key] = KeyDoc(comment, value, _type_text(hints.get(name), comment))
    return docs


def read_default_choices() -> dict[str, str | None]:
    """Return the choice that each group has by default, None for a group without one."""
    config = read_yaml(Path(packaged_config_dir(), "config.yaml"))
    choices = {}
    for item in config["defaults"]:
        if isinstance(item, dict):
            choices |= {group.split()[-1]: name for group, name in item.items()}
    return choices


def read_choice(group: str, name: str) -> ChoiceDoc:
    """Return the documentation of a choice, including keys that its file inherits from other files."""
    path = find_choices(group)[name]
    section = GROUPS.get(group, group)
    values: Any = read_yaml(path)
    text = path.read_text(encoding="utf-8")
    docs: dict[str, KeyDoc] = {}
    for base in values.get("defaults", ()):
        if isinstance(base, str) and base in find_choices(group):
            docs |= read_choice(group, base).keys
    prefix = "" if "@package _global_" in text else f"{section}."
    lines = {key: (comment, value) for key, comment, value in _read_lines(path, prefix)}
    cls = _find_class(section, lines.get(f"{section}.class", ("", ""))[1])
    hints = type_hints(cls) if cls else {}
    texts = _attribute_texts(cls) if cls else {}
    for key, (comment, value) in lines.items():
        if key.startswith(("defaults", "hydra.", "figure")) and not section.startswith("hydra"):
            continue
        parent, _, field = key.rpartition(".")
        is_own_field = parent == section
        inherited = docs.get(key, KeyDoc(_LABEL_COMMENTS.get(field, "") if is_own_field else "", ""))
        comment = comment or inherited.comment
        if is_own_field:
            comment = comment or texts.get(field, "")
        comment = _with_common_comment(key, comment)
        type_text = _type_text(hints.get(field) if is_own_field else None, comment)
        docs[key] = KeyDoc(comment, value, type_text or inherited.type_text)
    return ChoiceDoc(header_comment(path), docs | _class_defaults(section, docs))


def _with_common_comment(key: str, comment: str) -> str:
    """Return a comment with the common comment on its key in front, unless it begins with the common comment."""
    common = _COMMON_COMMENTS.get(key)
    if common is None or comment.startswith(common):
        return comment
    return "; ".join(filter(None, [common, comment]))


def plugin_class(group: str, choice: ChoiceDoc) -> type | None:
    """Return the class that a choice names; None if it names none, or if another key determines it.

    Raises UserError for a class that cannot be imported.
    """
    key = f"{GROUPS.get(group, group)}.class"
    class_path = choice.keys[key].value if key in choice.keys else ""
    return locate_user_class(class_path, key) if class_path and "$" not in class_path else None


def source_text(group: str, choice: ChoiceDoc) -> str:
    """Return the source that a choice's class cites; "" without a class, "not known: REASON" if it cannot be read."""
    try:
        cls = plugin_class(group, choice)
        return read_source(cls).text if cls else ""
    except UserError as error:
        return f"not known: {error}"


def format_default(value: str) -> str:
    """Return a key's value as text, in words for a required value and for the value of another key."""
    if value == "???":
        return "none, it must be given"
    return re.sub(r"\$\{oc\.select:([^,}]+),([^}]+)\}", r"the value of \1, else \2", value)


def _class_defaults(section: str, docs: dict[str, KeyDoc]) -> dict[str, KeyDoc]:
    """Return the fields of the class of a choice that no file holds, with their defaults; ``docs`` has the others."""
    cls = _find_class(section, docs[f"{section}.class"].value if f"{section}.class" in docs else "")
    if cls is None:
        return {}
    documented = docs | read_root_keys()
    defaults = {}
    texts = _attribute_texts(cls)
    for field in fields(cls):
        key = f"{section}.{field.name}"
        if not field.init or field.default is MISSING or key in documented:
            continue
        value = "???"
        if field.name not in required_fields(cls):
            value = yaml.safe_dump(field.default, default_flow_style=True).removesuffix("\n").removesuffix("\n...")
        comment = _with_common_comment(key, texts.get(field.name, ""))
        defaults[key] = KeyDoc(comment, value, _type_text(type_hints(cls).get(field.name), comment))
    return defaults


def _read_lines(path: Path, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield each key that has a value or a comment: its dotted name, the comment on its line, the text of its value.

    Keys within a mapping follow their own one.
    """
    text = path.read_text(encoding="utf-8")
    root: Any = yaml.compose(text)
    if isinstance(root, yaml.MappingNode):
        yield from _read_mapping(root, prefix, text)


def _read_mapping(node: yaml.MappingNode, prefix: str, text: str) -> Iterator[tuple[str, str, str]]:
    lines = text.splitlines()
    for key, value in node.value:
        is_block = isinstance(value, yaml.CollectionNode) and not value.flow_style
        end = key.end_mark if is_block else value.end_mark
        comment = re.search(r"#\s*(.*)", lines[end.line][end.column :]) if end.line < len(lines) else None
        value_text = "" if is_block else " ".join(text[value.start_mark.index : value.end_mark.index].split())
        if not is_block or comment:
            yield prefix + key.value, comment[1] if comment else "", value_text
        if is_block and isinstance(value, yaml.MappingNode):
            yield from _read_mapping(value, f"{prefix}{key.value}.", text)


def _find_class(section: str, class_path: str) -> Any:
    """Return a section's class; None if it cannot be imported, or if another key determines it."""
    if not class_path or "$" in class_path or section not in SECTIONS:
        return None
    try:
        return locate_user_class(class_path, f"{section}.class")
    except UserError:
        return None


def _attribute_texts(cls: type) -> dict[str, str]:
    """Return the text of each attribute in the docstrings of a class and its parents."""
    texts: dict[str, str] = {}
    for parent in reversed(cls.__mro__):
        section = re.search(r"^Attributes:\n((?:    .*\n?|\n)*)", inspect.getdoc(parent) or "", re.MULTILINE)
        if section:
            for entry in re.finditer(r"^    (\w+): (.*\n?(?:^ {8}.*\n?)*)", section[1], re.MULTILINE):
                text = re.sub(r"\bNone\b", "null", entry[2].replace("``", ""))  # as YAML has it
                texts[entry[1]] = " ".join(text.split()).removesuffix(".")
    return texts


def _type_text(hint: Any, comment: str) -> str:
    """Return a type in words; "" if it is not known, or if the comment names all allowed values."""
    if hint is None:
        return ""
    text = _describe_type(hint)
    return "" if all(word in comment for word in text.split(" or ")) else text


def _describe_type(hint: Any) -> str:
    """Return a type and its conditions in words.

    >>> _describe_type(Annotated[float, "or auto", "positive"])
    'a number, positive, or auto'
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        conditions = [mark for mark in args[1:] if mark not in (*_IDENTITY_MARKS, "or auto")]
        parts = [_describe_type(args[0]), *conditions]
        if "or auto" in args:
            parts.append("or auto")
        return ", ".join(parts)
    if origin in (Union, types.UnionType):
        options = sorted(args, key=lambda arg: arg is type(None))
        if any(typing.get_origin(option) is Literal for option in options):
            options = [option for option in options if option is not str]  # other names, which the comment explains
        return " or ".join(_describe_type(option) for option in options)
    if origin is Literal:
        return " or ".join(str(arg) for arg in args)
    if origin is list:
        return f"a list of {_PLURAL_TYPE_NAMES.get(args[0], _describe_type(args[0]))}"
    return _TYPE_NAMES.get(origin or hint, str(hint))
