"""fcorun help: what a key means, a group, or a choice."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from inspect import getdoc

from rich.markup import escape

from fcorun.cli.commands import COMMANDS
from fcorun.cli.commands.common import CommandParser, make_console
from fcorun.cli.key_docs import (
    GROUPS,
    ChoiceDoc,
    KeyDoc,
    format_default,
    read_choice,
    read_default_choices,
    read_root_keys,
    source_text,
)
from fcorun.config import LABEL_KEYS
from fcorun.configuration.search_path import find_choices, use_config_dir
from fcorun.errors import UserError, suggest_name
from fcorun.figures.spec import Claim, Figure


def run(argv: Sequence[str]) -> int:
    """Explain keys (algo.client_lr, rounds), groups (algo) or choices (algo=fedmid); without KEY, list keys and
    groups. Beside keys, a choice says of which one they are (algo.client_lr algo=scaffold)."""
    parser = CommandParser("help", run.__doc__, folders=False)
    parser.add_argument("keys", nargs="*", metavar="KEY", help="a key, a group, or GROUP=CHOICE")
    parser.add_config_dir_option()
    asked = parser.parse_args(argv)
    with use_config_dir(asked.config_dir):
        for line in list(_asked(asked.keys)) or _everything():
            make_console().print(escape(line))
    return 0


def _asked(keys: Sequence[str]) -> Iterator[str]:
    """All that is asked for. Choices beside keys are not listed: they say which choices the keys are of."""
    chosen = {group: name for group, equals, name in map(_parted, keys) if equals and group in GROUPS}
    alone = all(_parted(key)[0] in (*GROUPS, *COMMANDS, "experiment") for key in keys)
    for key in keys:
        lines = _explained(key, {} if alone else chosen)
        yield from lines if alone or _parted(key)[0] not in chosen else list(lines)[:1]


def _parted(key: str) -> tuple[str, str, str]:
    return key.lstrip("+").partition("=")


def _explained(key: str, chosen: Mapping[str, str]) -> Iterator[str]:
    group, equals, name = _parted(key)
    if group in COMMANDS:
        yield f"fcorun {group}: a command; fcorun {group} --help says what it does"
        if group == "figure":
            for name, kind in (("figure", Figure), ("figure.claims", Claim)):
                yield f"{name}, a section of an experiment's file: {getdoc(kind)}"
    elif equals and group in (*GROUPS, "experiment"):
        if name not in find_choices(group):
            raise UserError(f"there is no {group}={name}: {suggest_name(name, find_choices(group))}")
        yield from _of_choice(group, name)
        if group == "experiment":
            yield f"fcorun figure {name} draws it if it has a section figure; fcorun -m experiment={name} runs it"
    elif group in (*GROUPS, "experiment"):
        yield from _of_group(group)
    else:
        yield from _of_key(group, chosen)


def _of_choice(group: str, name: str) -> Iterator[str]:
    found = read_choice(group, name)
    yield ": ".join(filter(None, [f"{group}={name}", found.description])) + f" ({find_choices(group)[name]})"
    if source := source_text(group, found):
        yield f"  source: {source}"
    for key, about in found.keys.items():
        yield f"  {key}={format_default(about.value)}" + _about(about)


def _of_group(group: str) -> Iterator[str]:
    if default := read_default_choices().get(group):
        yield f"{group}: one of these, {default} where none is given; fcorun help {group}={default} lists its keys"
    else:
        yield f"{group}: one of these"
    for name in find_choices(group):
        yield f"  {name}: {read_choice(group, name).description}"
    for key, about in read_root_keys().items():
        if key.startswith(f"{group}."):
            yield f"  of all of them: {key}={about.value}" + _about(about)


def _of_key(key: str, chosen: Mapping[str, str]) -> Iterator[str]:
    """What the root says of a key, or else the choices that have it, of a group that is ``chosen`` this one: once for
    all that say the same."""
    root = read_root_keys()
    if key in root and root[key].value:
        yield from _said(key, root[key])
        return
    if key in root:  # of several keys
        yield key + _about(root[key])
        yield from (f"  {name}={of.value}{_about(of)}" for name, of in root.items() if name.startswith(f"{key}."))
        return
    group = next((group for group, section in GROUPS.items() if key.startswith(f"{section}.")), "")
    names = [name for name in find_choices(group) if chosen.get(group, name) == name] if group else []
    found = {name: read_choice(group, name) for name in names}
    having = [name for name, of in found.items() if key in of.keys]
    if not having:
        raise UserError(_unknown(key, found))
    having.sort(key=lambda name: name != read_default_choices().get(group))
    while having:
        first = found[having[0]]
        same = [name for name in having if _alike(first, found[name], key)]
        having = [name for name in having if name not in same]
        about = first.keys[key]
        heads = [f"{group}={name}: {found[name].description}" for name in same]
        yield from _said(key, about, *([f"{group}={', '.join(same)}"] if about.comment else heads))


def _alike(one: ChoiceDoc, other: ChoiceDoc, key: str) -> bool:
    if _is_label(key):  # of which each choice has its own value
        return one.keys[key].comment == other.keys[key].comment
    return one.keys[key] == other.keys[key]


def _is_label(key: str) -> bool:
    return key.rpartition(".")[2] in LABEL_KEYS


def _said(key: str, about: KeyDoc, *where: str) -> Iterator[str]:
    yield key + _about(about)
    if not _is_label(key):
        yield f"  default: {format_default(about.value)}"
    yield from (f"  of {each}" for each in where)


def _about(key: KeyDoc) -> str:
    return "".join(f": {text}" for text in (key.comment, key.type_text and f"({key.type_text})") if text).replace(
        ": (", " ("
    )


def _unknown(key: str, found: dict[str, ChoiceDoc]) -> str:
    every = {*read_root_keys(), *GROUPS, *(name for of in found.values() for name in of.keys)}
    last = key.rpartition(".")[2]
    if not found:
        every |= {name for group in GROUPS for each in find_choices(group) for name in read_choice(group, each).keys}
    ends = sorted(name for name in every if name.endswith(f".{last}"))
    close = list(dict.fromkeys([*ends, *get_close_matches(key, sorted(every), n=3)]))[:4]
    return f"there is no key '{key}'" + (
        f": did you mean {' or '.join(close)}?" if close else "; fcorun help lists them"
    )


def _everything() -> Iterator[str]:
    yield "groups, of which fcorun help GROUP lists the choices:"
    for group, name in read_default_choices().items():
        if group in (*GROUPS, "experiment"):
            yield f"  {group}={name or '...'}"
    yield "keys of their own; those of a choice are listed by fcorun help GROUP=CHOICE:"
    for key, about in read_root_keys().items():
        if about.value:
            yield f"  {key}={about.value}" + _about(about)
