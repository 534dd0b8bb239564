"""The run with what was chosen, in the folder of its selection."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fcorun.experiment.prepare import prepare
from fcorun.records.folder import RunFolder
from fcorun.records.record import FILES, REFIT, Record
from fcorun.runs.job import Watcher
from fcorun.runs.run import run


def refit(config: Mapping[str, Any], folder: Path, watch: Watcher | None = None) -> Record:
    """The record of a configuration in FOLDER/refit. Where that holds another choice's, it is replaced when the new
    one, made beside it, is whole. Raises UserError as ``run`` does."""
    mine = prepare(config).identity
    place, beside = folder / REFIT, folder / f"{REFIT}.next"
    if _held(place) in ("", mine) and (_held(place) or not _held(beside)):
        record = run(config, place, watch)
        _removed(beside)
        return record
    if _held(beside) not in ("", mine):
        _removed(beside)
    run(config, beside, watch)
    _removed(place)
    place.mkdir(exist_ok=True)
    for path in sorted(beside.iterdir(), key=lambda path: path.name == "status.json"):  # which makes it a record
        path.replace(place / path.name)
    beside.rmdir()
    return Record(place)


def _held(folder: Path) -> str:
    """The identity of the record in a folder; empty where there is none."""
    return Record(folder).status.get("identity", "")


def _removed(folder: Path) -> None:
    """Remove the record in a folder, or what is left of one whose move was broken off."""
    if held := _held(folder):
        RunFolder(folder, held).remove()
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
