"""The provenance of runs: their configuration, and the versions that they were made with."""

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import zip_longest
from typing import Any

from fcorun.base.records.formats import read_summary
from fcorun.base.records.record import Record
from fcorun.base.system.machine import fcorun_version
from fcorun.reports.page.elements import html_table, screen_or_paper

_MAX_VALUES = 8  # of a key, in a cell


def configuration_table(records: Sequence[Record], comments: Mapping[str, str]) -> str:
    """Return a row for each key: its value, or its values if it varies, and its comment.

    On paper two keys stand side by side, without their comments and without the classes of fcorun's own choices.
    """
    configs = [config for record in records if (config := record.flat_config)]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    if not keys:
        return ""
    rows = [(key, _describe_values(key, configs)) for key in keys]
    screen = html_table(["key", "value", "what it is"], [(*row, comments.get(row[0], "")) for row in rows])
    printed = [(key, value) for key, value in rows if not (key.endswith(".class") and value.startswith("fcorun."))]
    half = (len(printed) + 1) // 2
    pairs = zip_longest(printed[:half], printed[half:], fillvalue=("", ""))
    paper = html_table(["key", "value", "key", "value"], [(*left, *right) for left, right in pairs])
    return screen_or_paper(screen, paper)


def _describe_values(key: str, configs: Sequence[dict[str, Any]]) -> str:
    all_values = [config[key] for config in configs if key in config]
    values = list(dict.fromkeys("null" if value is None else str(value) for value in all_values))
    text = ", ".join(values[:_MAX_VALUES])
    if len(values) > _MAX_VALUES:
        text += f", ... ({len(values)} values)"
    if lacking := len(configs) - len(all_values):
        text += f" (of {len(all_values)} runs; {lacking} have no such key)"
    return text


def describe_versions(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each set of versions and machines that runs were made with, the most used first."""
    count: Counter[tuple] = Counter()
    for record in records:
        summary = read_summary(record.folder)
        if not summary.get("versions"):
            continue
        parts = [f"{name} {number}" for name, number in summary["versions"].items()]
        parts.append(f"commit {summary['git']}" if summary.get("git") else "commit not known")
        parts += [str(summary[key]) for key in ("device", "platform") if summary.get(key)]
        count[tuple(parts)] += 1
    return [f"{n} run{'s' * (n != 1)}: {', '.join(versions)}." for versions, n in count.most_common()]


def describe_generator() -> str:
    """Return the software that made the page."""
    return f"fcorun {fcorun_version()}, charts by plotly.js of plotly {version('plotly')} (MIT)"
