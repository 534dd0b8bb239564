"""Values as texts of overrides, in the quotes of Hydra and of a shell."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

# texts that Hydra reads as numbers, null, or true and false
NOT_READ_AS_TEXT = re.compile(r"[+-]?[\d_.]+(e[+-]?\d+)?|null|true|false|nan|[+-]?inf", re.IGNORECASE)
_QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_PAIR = re.compile(rf"\s*({_QUOTED}|(?:\\.|[^:\\'\"])*?)\s*:\s*(.*?)\s*", re.DOTALL)  # NAME: VALUE
_MAPPING_NAME = re.compile(r"[\w \\()\[\]{}:=,./%+*@?|-]+", re.ASCII)


def split_overrides(job: str) -> list[str]:
    """Return the overrides of a job that is given as one text: split at spaces, unless quoted or after a backslash."""
    return re.findall(r"""(?:\\.|[^\s'"\\]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\\)+""", job, re.DOTALL)


def format_override_value(value: Any) -> str:
    r"""Return a value as text of an override, which ``normalize_overrides`` and Hydra read back as the same value.

    A whole number as a name in a mapping is read back as a number. Texts with ``${`` and the text ``???`` keep their
    meaning to OmegaConf: interpolations, and missing values.

    >>> print(format_override_value({"ward=surgery": 0, "blood pressure": [1.5, "it's"]}))
    {ward\=surgery:0,blood\ pressure:[1.5,"it's"]}
    """
    if isinstance(value, Mapping):
        pairs = [_escape_name(str(name)) + ":" + format_override_value(item) for name, item in value.items()]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(format_override_value(item) for item in value) + "]"
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", value) and not NOT_READ_AS_TEXT.fullmatch(value):
        return value
    return quote_text(value, '"')


def _escape_name(name: str) -> str:
    """Return a name of a mapping with backslashes before the characters that end it, since Hydra takes no quotes.

    A name that Hydra does not read, or reads as another value, such as true or 1.5, is in quotes (``read_names``).
    """
    is_other_value = NOT_READ_AS_TEXT.fullmatch(name) and not (name.isdecimal() and str(int(name)) == name)
    if is_other_value or not _MAPPING_NAME.fullmatch(name):
        return quote_text(name, '"')
    return re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", name)


def quote_text(text: str, quote: str) -> str:
    """Return a text in quotes of Hydra, in which backslashes count only before a quote."""
    escaped = re.sub(rf"(\\*){quote}", lambda match: f"{match[1]}{match[1]}\\{quote}", text)
    trailing = escaped[len(escaped.rstrip("\\")) :]
    return f"{quote}{escaped}{trailing}{quote}"


def quote_for_shell(override: str) -> str:
    """Return an override as it is typed in a shell, so that Hydra reads each text in its value as a text.

    >>> print(quote_for_shell("data.ignore=[a=b,cost (EUR)]"), quote_for_shell("title=a=b"))
    'data.ignore=["a=b","cost (EUR)"]' 'title="a=b"'
    """
    key, _, value = override.partition("=")
    return shlex.quote(f"{key}={_quote_texts(value)}")


def _quote_texts(value: str) -> str:
    """Return the text of a value in which the texts in lists and mappings, or the whole text, are in quotes."""
    value = value.strip()
    if value.startswith("[") and value.endswith("]"):
        return "[" + ",".join(map(_quote_texts, _split_items(value[1:-1]))) + "]"
    if value.startswith("{") and value.endswith("}") and ":" in value:
        pairs = []
        for item in _split_items(value[1:-1]):
            name, _, of_name = item.rpartition(":")
            pairs.append(f"{_escape_name(_unquote(name.strip()))}:{_quote_texts(of_name)}")
        return "{" + ",".join(pairs) + "}"
    if NOT_READ_AS_TEXT.fullmatch(value):
        return value
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value
    return quote_text(value, '"')


def _split_items(text: str) -> list[str]:
    """Return the items of a list or a mapping: the parts between commas that are in no brackets and no quotes."""
    items = [""]
    depth = 0
    for letter in re.findall(rf"{_QUOTED}|\\.|.", text, re.DOTALL):
        if letter in "[{(":
            depth += 1
        if letter in "]})":
            depth -= 1
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    return items


def read_names(value: str) -> dict[str, str]:
    """Return the texts of the values of a mapping by name, if Hydra does not read some name; else {}.

    These are names in quotes, and those with other letters than a to z.

    >>> read_names("{größe: [-9], 'blood pressure': [0]}"), read_names("{age: [-9]}")
    ({'größe': '[-9]', 'blood pressure': '[0]'}, {})
    """
    if not (value.startswith("{") and value.endswith("}")):
        return {}
    pairs = [_PAIR.fullmatch(item) for item in _split_items(value[1:-1])]
    names = [pair[1] for pair in pairs if pair is not None]
    if len(names) < len(pairs) or all(_MAPPING_NAME.fullmatch(name) for name in names):
        return {}
    return {_unquote(pair[1]): pair[2] for pair in pairs if pair is not None}


def _unquote(name: str) -> str:
    """Return the name that is written in quotes, or with backslashes before some letters."""
    if len(name) > 1 and name[0] == name[-1] and name[0] in "'\"":
        return re.sub(rf"(\\*)\\{name[0]}", lambda match: match[1][: len(match[1]) // 2] + name[0], name[1:-1])
    return re.sub(r"\\(.)", r"\1", name)


def format_literal(value: Any) -> str:
    """Return a value of a configuration as Python writes it, text in double quotes, a value to be given as ``...``."""
    if value == "???":
        return "..."
    return f'"{value}"' if isinstance(value, str) else repr(value)
