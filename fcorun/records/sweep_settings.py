"""What a sweep was asked for, kept in its folder: its table and pictures are later drawn by the same choice."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import yaml

from fcorun.records import formats
from fcorun.system.files import write_atomically

SETTINGS_FILE = ".sweep"  # the file that also says that results.csv and the pictures beside it are a sweep's
REPORT_KEYS = ("metric", "tail_rounds", "x", "style")  # the root keys that say how a sweep is shown


@dataclass(frozen=True)
class SweepSettings:
    """What tables and pictures of a folder of records go by; None: as the runs were told, or the default.

    Attributes:
        metric, tail_rounds, x, style: the root keys of the sweep, ``SHOWN_BY``.
        algos: the algorithms that were ever run here, in the order that gives each its look.
        runs: the folders of the points of the last sweep, relative to its own, in their order.
    """

    metric: str | None = None
    tail_rounds: int | None = None
    x: str | None = None
    algos: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    style: str | None = None

    def with_overrides(self, **given: object) -> "SweepSettings":
        """The same with what is given and not None."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})  # type: ignore


def save_settings(folder: Path, settings: SweepSettings) -> None:
    """Mark a folder as a sweep's, and keep what was asked for. Raises OSError."""
    content = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(settings).items()}
    write_atomically(folder / SETTINGS_FILE, formats.yaml_text(content))


def load_settings(*folders: str | Path) -> SweepSettings:
    """What was asked for in these folders; of several, what they agree on. A mark of before, empty, says nothing."""
    found = [_read(Path(folder) / SETTINGS_FILE) for folder in folders]
    agreed = {name: getattr(found[0], name) if len({getattr(a, name) for a in found}) == 1 else None
              for name in REPORT_KEYS} if found else {}  # fmt: skip
    return SweepSettings(**agreed, algos=_each(found, "algos"), runs=_each(found, "runs"))


def _each(found: Iterable[SweepSettings], name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for asked in found for value in getattr(asked, name)))


def _read(path: Path) -> SweepSettings:
    try:
        told = formats.read_yaml(path)
    except (OSError, yaml.YAMLError):
        return SweepSettings()
    told = {f.name: told[f.name] for f in fields(SweepSettings) if told.get(f.name) is not None} if told else {}
    told |= {name: tuple(map(str, told.get(name, ()))) for name in ("algos", "runs")}
    told["runs"] = tuple(run for run in told["runs"] if not Path(run).is_absolute() and ".." not in Path(run).parts)
    return SweepSettings(**told)
