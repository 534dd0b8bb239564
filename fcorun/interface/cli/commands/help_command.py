"""fcorun help: explanations of keys, groups and choices."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from inspect import getdoc

from fcorun.base.config import LABEL_KEYS
from fcorun.base.errors import UserError, suggest_name
from fcorun.experiment.configuration.key_docs import (
    GROUPS,
    ChoiceDoc,
    KeyDoc,
    format_default,
    read_choice,
    read_default_choices,
    read_root_keys,
    source_text,
)
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.interface.cli.commands import COMMANDS
from fcorun.interface.cli.commands.common_command import CommandParser
from fcorun.interface.cli.terminal import Terminal
from fcorun.studies.figures.spec import Claim, Figure

_ALL_GROUPS = (*GROUPS, "experiment")


def run(argv: Sequence[str]) -> int:
    """Explain keys (algo.client_lr, rounds), groups (algo) or choices (algo=fedmid); without KEY, list keys and
    groups. A choice given together with keys selects whose keys are explained (algo.client_lr algo=scaffold)."""
    parser = CommandParser("help", run.__doc__, folders=False)
    parser.add_argument("keys", nargs="*", metavar="KEY", help="a key, a group, or GROUP=CHOICE")
    arguments = parser.parse_args(argv)
    if arguments.keys:
        lines = list(_explain_all(arguments.keys))
    else:
        lines = ["groups (fcorun help GROUP lists the choices of a group):"]
        for group, name in read_default_choices().items():
            if group in _ALL_GROUPS:
                lines.append(f"  {group}={name or '...'}")
        lines.append("keys outside of groups (fcorun help GROUP=CHOICE lists the keys of a choice):")
        for key, doc in read_root_keys().items():
            if doc.value:
                lines.append(f"  {key}={doc.value}{_format_comment(doc)}")
    Terminal().print("\n".join(lines))
    return 0


def _explain_all(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the explanation of each argument.

    Together with keys, a choice takes one line: it only selects the choice whose keys are explained.
    """
    choice_of_group = {}
    for argument in arguments:
        group, equals, name = _split(argument)
        if equals and group in _ALL_GROUPS and name not in find_choices(group):
            raise UserError(f"there is no {group}={name}: {suggest_name(name, find_choices(group))}")
        if equals and group in GROUPS:
            choice_of_group[group] = name
    has_keys = any(_split(argument)[0] not in (*_ALL_GROUPS, *COMMANDS, "out") for argument in arguments)
    for argument in arguments:
        lines = _explain(argument, choice_of_group if has_keys else {})
        is_selection = has_keys and _split(argument)[0] in choice_of_group
        yield from list(lines)[:1] if is_selection else lines


def _split(argument: str) -> tuple[str, str, str]:
    return argument.lstrip("+").partition("=")


def _explain(argument: str, choice_of_group: Mapping[str, str]) -> Iterator[str]:
    group, equals, name = _split(argument)
    if argument == "out" or argument.startswith("out="):
        yield "out=DIR: the folder of the record; with -m of the records of a sweep (path)"
        yield (
            "  default: a folder in outputs/ whose name ends in the identity of the run; with -m one named after its "
            "data and overrides"
        )
    elif group in COMMANDS:
        yield f"fcorun {group}: a command; fcorun {group} --help explains it"
        if group == "figure":
            for section, cls in (("figure", Figure), ("figure.claims", Claim)):
                yield f"{section}, a section of an experiment's file: {getdoc(cls)}"
    elif equals and group in _ALL_GROUPS:
        choice = read_choice(group, name)
        title = ": ".join(filter(None, [f"{group}={name}", choice.description]))
        yield f"{title} ({find_choices(group)[name]})"
        if source := source_text(group, choice):
            yield f"  source: {source}"
        for key, doc in choice.keys.items():
            yield f"  {key}={format_default(doc.value)}{_format_comment(doc)}"
        if group == "experiment":
            yield f"fcorun figure {name} draws it if it has a section figure; fcorun -m experiment={name} runs it"
    elif group in _ALL_GROUPS:
        if default := read_default_choices().get(group):
            yield f"{group}: one of these, by default {default}; fcorun help {group}={default} lists its keys"
        else:
            yield f"{group}: one of these"
        for name in find_choices(group):
            yield f"  {name}: {read_choice(group, name).description}"
        for key, doc in read_root_keys().items():
            if key.startswith(f"{group}."):
                yield f"  a key of every choice: {key}={doc.value}{_format_comment(doc)}"
    else:
        yield from _explain_key(group, choice_of_group)


def _explain_key(key: str, choice_of_group: Mapping[str, str]) -> Iterator[str]:
    """Yield the explanation of a root key, or of a key of choices, once for all choices with the same explanation.

    ``choice_of_group`` restricts a group to one choice.
    """
    root_keys = read_root_keys()
    if key in root_keys and root_keys[key].value:
        yield from _describe_key(key, root_keys[key])
        return
    if key in root_keys:  # a mapping of several keys
        yield key + _format_comment(root_keys[key])
        for name, doc in root_keys.items():
            if name.startswith(f"{key}."):
                yield f"  {name}={doc.value}{_format_comment(doc)}"
        return
    group = next((group for group, section in GROUPS.items() if key.startswith(f"{section}.")), "")
    names = [name for name in find_choices(group) if choice_of_group.get(group, name) == name] if group else []
    choices = {name: read_choice(group, name) for name in names}
    remaining = [name for name, choice in choices.items() if key in choice.keys]
    if not remaining:
        raise UserError(_unknown_key_message(key, choices))
    remaining.sort(key=lambda name: name != read_default_choices().get(group))
    while remaining:
        doc = choices[remaining[0]].keys[key]
        same = []
        for name in remaining:
            other = choices[name].keys[key]
            # the value of a label differs from choice to choice
            if other == doc or (_is_label(key) and other.comment == doc.comment):
                same.append(name)
        remaining = [name for name in remaining if name not in same]
        if doc.comment:
            where = [f"{group}={', '.join(same)}"]
        else:
            where = [f"{group}={name}: {choices[name].description}" for name in same]
        yield from _describe_key(key, doc, *where)


def _is_label(key: str) -> bool:
    return key.rpartition(".")[2] in LABEL_KEYS


def _describe_key(key: str, doc: KeyDoc, *where: str) -> Iterator[str]:
    yield key + _format_comment(doc)
    if not _is_label(key):
        yield f"  default: {format_default(doc.value)}"
    yield from (f"  of {choices}" for choices in where)


def _format_comment(doc: KeyDoc) -> str:
    """Return a key's comment and type, as they follow the key."""
    comment = f": {doc.comment}" if doc.comment else ""
    return comment + (f" ({doc.type_text})" if doc.type_text else "")


def _unknown_key_message(key: str, choices: dict[str, ChoiceDoc]) -> str:
    """Return the message about an unknown key, with the nearest keys of ``choices``, or of all choices if empty."""
    known_keys = {*read_root_keys(), *GROUPS}
    for choice in choices.values():
        known_keys |= set(choice.keys)
    if not choices:
        for group in GROUPS:
            for name in find_choices(group):
                known_keys |= set(read_choice(group, name).keys)
    same_ending = sorted(name for name in known_keys if name.endswith(f".{key.rpartition('.')[2]}"))
    similar = get_close_matches(key, sorted(known_keys), n=3)
    nearest = list(dict.fromkeys([*same_ending, *similar]))[:4]
    if nearest:
        return f"there is no key '{key}': did you mean {' or '.join(nearest)}?"
    return f"there is no key '{key}'; fcorun help lists them"
