"""The settings of a sweep, saved in its folder so that later tables and pictures are made by the same choices."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import yaml

from fcorun.base.config import build
from fcorun.base.errors import UserError
from fcorun.base.picture_style import PictureWidth
from fcorun.base.records import formats
from fcorun.base.system.files import find_paths, write_atomically

SETTINGS_FILE = ".sweep"  # a folder with this file is a sweep's, and so are its results.csv and pictures
REPORT_KEYS = ("metric", "tail_rounds", "x", "style", "width")  # the root keys that say how a sweep is shown


@dataclass(frozen=True)
class SweepSettings:
    """The settings by which tables and pictures of a folder of records are made.

    Attributes:
        metric, tail_rounds, x, style, width: the root keys of the sweep, ``REPORT_KEYS``. None: as in the records, or
            the default.
        algos: the algorithms that were ever run in the folder, in the order that gives each its line style.
        runs: the folders of the points of the last sweep, relative to the loaded folder, in their order.
        conditions: the keys among whose values no point is chosen, ``hydra.sweeper.conditions``.
        pictures: the names of the files with the sweep's pictures.
    """

    metric: str | None = None
    tail_rounds: int | None = None
    x: str | None = None
    algos: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    style: str | None = None
    width: PictureWidth | None = None
    conditions: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()

    def with_overrides(self, **overrides: object) -> "SweepSettings":
        """Return these settings with the overrides that are not None."""
        given = {name: value for name, value in overrides.items() if value is not None}
        return replace(self, **given)  # type: ignore


def save_settings(folder: Path, settings: SweepSettings) -> None:
    """Mark a folder as a sweep's by saving the settings in it. Raises OSError."""
    content = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}
    write_atomically(folder / SETTINGS_FILE, formats.yaml_text(content))


def replace_conditions(folder: Path, conditions: tuple[str, ...]) -> None:
    """Put conditions in place of those of earlier sweeps in the settings of a folder, which is made. Raises OSError."""
    settings = read_own_settings(folder)
    if settings.conditions != conditions:
        folder.mkdir(parents=True, exist_ok=True)
        save_settings(folder, replace(settings, conditions=conditions))


def load_settings(*folders: str | Path) -> SweepSettings:
    """Load the settings of sweeps' folders.

    Of several folders, the report keys are those on which all sweeps agree, and the algorithms and runs are joined. So
    are the conditions, also those of sweeps in subfolders and, for the folder of a record, of its sweep. A figure has
    its sweep in the subfolder runs.
    """
    all_settings = []
    conditions: dict[str, None] = {}
    for folder in map(Path, folders):
        for sweep in (folder.parent, *(path.parent for path in find_paths(folder, SETTINGS_FILE))):
            conditions |= dict.fromkeys(read_own_settings(sweep).conditions)
        place = next((path for path in (folder, folder / "runs") if (path / SETTINGS_FILE).exists()), None)
        if place is None:
            continue
        settings = read_own_settings(place)
        inside = [run for run in settings.runs if not Path(run).is_absolute() and ".." not in Path(run).parts]
        runs = tuple(str((place / run).relative_to(folder)) for run in inside)
        all_settings.append(replace(settings, algos=tuple(settings.algos), runs=runs))
    agreed = {}
    for key in REPORT_KEYS:
        values = {getattr(settings, key) for settings in all_settings}
        if len(values) == 1:
            agreed[key] = values.pop()
    algos = _join(all_settings, "algos")
    return SweepSettings(**agreed, algos=algos, runs=_join(all_settings, "runs"), conditions=tuple(conditions))


def list_missing_runs(settings: SweepSettings, folders: Iterable[Path]) -> list[str]:
    """Return the runs of the last sweeps in these folders that have not begun."""
    return [run for run in settings.runs if not any((folder / run / "status.json").exists() for folder in folders)]


def read_own_settings(folder: Path) -> SweepSettings:
    """Return the settings of one folder; the defaults if it has none that can be read."""
    try:
        return build(SweepSettings, formats.read_yaml(folder / SETTINGS_FILE))
    except (OSError, yaml.YAMLError, UserError):
        return SweepSettings()


def _join(all_settings: Iterable[SweepSettings], name: str) -> tuple[str, ...]:
    """Join the values of a field, each once, in their order."""
    return tuple(dict.fromkeys(value for settings in all_settings for value in getattr(settings, name)))
