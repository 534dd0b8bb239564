"""How runs were configured, and with which versions of everything."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import zip_longest
from typing import Any

from fcorun.records.formats import read_summary
from fcorun.records.record import Record
from fcorun.reports.page.elements import format_value, html_table, screen_or_paper

_MOST = 8  # values of a key that are told one by one


def configuration_table(records: Sequence[Record], comments: Mapping[str, str]) -> str:
    """Return a row for each key: its value, or its values where runs differ in it, and its comment.

    On paper two keys stand side by side, without their comments and without the classes of fcorun's own choices.
    """
    configs = [config for record in records if (config := record.flat_config)]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    if not keys:
        return ""
    rows = [(key, _told(key, configs)) for key in keys]
    screen = html_table(["key", "value", "what it is"], [(*row, comments.get(row[0], "")) for row in rows])
    own = [row for row in rows if not (row[0].endswith(".class") and row[1].startswith("fcorun."))]
    half = (len(own) + 1) // 2
    two = zip_longest(own[:half], own[half:], fillvalue=("", ""))
    return screen_or_paper(
        screen, html_table(["key", "value", "key", "value"], [(*left, *right) for left, right in two])
    )


def _told(key: str, configs: Sequence[dict[str, Any]]) -> str:
    has = [config[key] for config in configs if key in config]
    values = list(dict.fromkeys("null" if value is None else format_value(value) for value in has))
    text = ", ".join(values[:_MOST]) + (f", ... ({len(values)} values)" if len(values) > _MOST else "")
    lacking = len(configs) - len(has)
    return text + (f" (of {len(has)} runs; {lacking} have no such key)" if lacking else "")


def describe_versions(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each set of versions and machines that runs were made with, the most used first."""
    made: Counter[tuple] = Counter()
    for record in records:
        summary = read_summary(record.folder)
        if summary.get("versions"):
            made[tuple(_versions(summary))] += 1
    return [f"{count} run{'s' * (count != 1)}: {', '.join(row)}." for row, count in made.most_common()]


def _versions(summary: dict[str, Any]) -> Iterator[str]:
    """Yield what one run was made with."""
    yield from (f"{name} {number}" for name, number in summary["versions"].items())
    yield f"commit {summary['git']}" if summary.get("git") else "commit not known"
    yield from (str(summary[key]) for key in ("device", "platform") if summary.get(key))


def describe_generator() -> str:
    """What made the page."""
    return f"fcorun {version('fcorun')}, charts by plotly.js of plotly {version('plotly')} (MIT)"
