"""How runs were configured, and with which versions of everything."""

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from fcorun.records.formats import read_summary
from fcorun.records.record import Record
from fcorun.reports.page.parts import short, table

_MOST = 8  # values of a key that are told one by one


def configuration(records: Sequence[Record], comments: Mapping[str, str]) -> str:
    """A row a key: its value, or its values where runs differ in it, and what the configuration files say of it."""
    configs = [config for record in records if (config := record.flat_config)]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    rows = [[key, _told(key, configs), comments.get(key, "")] for key in keys]
    return table(["key", "value", "what it is"], rows, "configuration") if rows else ""


def _told(key: str, configs: Sequence[dict[str, Any]]) -> str:
    has = [config[key] for config in configs if key in config]
    values = list(dict.fromkeys("null" if value is None else short(value) for value in has))
    text = ", ".join(values[:_MOST]) + (f", ... ({len(values)} values)" if len(values) > _MOST else "")
    lacking = len(configs) - len(has)
    return text + (f" (of {len(has)} runs; {lacking} have no such key)" if lacking else "")


def versions(records: Sequence[Record]) -> str:
    """A row for each set of versions that runs were made with, and on what."""
    made: Counter[tuple] = Counter()
    for record in records:
        summary = read_summary(record.folder)
        if summary.get("versions"):
            about = {**summary["versions"], "commit": summary.get("git") or "not known"}
            about |= {"device": summary.get("device"), "platform": summary.get("platform")}
            made[tuple((str(key), str(value)) for key, value in about.items())] += 1
    heads = list(dict.fromkeys(key for row in made for key, _ in row))
    rows = [[count, *(dict(row).get(key, "") for key in heads)] for row, count in made.most_common()]
    return table(["runs", *heads], rows, "versions") if rows else ""


def maker() -> str:
    """What made the page."""
    return f"fcorun {version('fcorun')}, charts by plotly.js of plotly {version('plotly')} (MIT)"
