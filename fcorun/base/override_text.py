"""Values as texts of overrides, in the quotes of Hydra and of a shell."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from fcorun.base.errors import UserError

# texts that Hydra reads as numbers, null, or true and false
NOT_READ_AS_TEXT = re.compile(r"[+-]?[\d_.]+(e[+-]?\d+)?|null|true|false|nan|[+-]?inf", re.IGNORECASE)
_MAPPING_NAME = re.compile(r"[\w \\()\[\]{}:=,./%+*@?|-]+", re.ASCII)


def split_overrides(job: str) -> list[str]:
    """Return the overrides of a job that is given as one text: split at spaces, unless quoted or after a backslash."""
    return re.findall(r"""(?:\\.|[^\s'"\\]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\\)+""", job, re.DOTALL)


def format_override_value(value: Any) -> str:
    r"""Return a value as text of an override, which Hydra and ``split_overrides`` read back as the same value.

    A whole number as a name in a mapping is read back as a number. Texts with ``${`` and the text ``???`` keep their
    meaning to OmegaConf: interpolations, and missing values. Raises UserError for a name that overrides cannot hold. A
    name may have letters a to z and A to Z, digits, spaces, and _ . - / % + * @ ? | \ ( ) [ ] { } : = and commas
    alone, and may not be read as another value, such as true or 1.5.

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

    Raises UserError for other names than Hydra's.
    """
    is_other_value = NOT_READ_AS_TEXT.fullmatch(name) and not (name.isdecimal() and str(int(name)) == name)
    if is_other_value or not _MAPPING_NAME.fullmatch(name):
        raise UserError(f"the name '{name}' cannot be part of an override: rename the column, or write the mapping "
                        "into a configuration file of yours")  # fmt: skip
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

    Raises UserError for a name of a mapping that overrides cannot hold.
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
            pairs.append(f"{_escape_name(name.strip())}:{_quote_texts(of_name)}")
        return "{" + ",".join(pairs) + "}"
    if NOT_READ_AS_TEXT.fullmatch(value):
        return value
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value
    return quote_text(value, '"')


def _split_items(text: str) -> list[str]:
    """Return the items of a list or a mapping: the parts between commas that are in no brackets."""
    items = [""]
    depth = 0
    for letter in text:
        if letter in "[{(":
            depth += 1
        if letter in "]})":
            depth -= 1
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    return items


def format_literal(value: Any) -> str:
    """Return a value of a configuration as Python writes it, text in double quotes, a value to be given as ``...``."""
    if value == "???":
        return "..."
    return f'"{value}"' if isinstance(value, str) else repr(value)
