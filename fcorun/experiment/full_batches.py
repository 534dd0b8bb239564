"""Settings of algorithms whose clients take all their data at once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fcorun.config import Settings
from fcorun.errors import UserError
from fcorun.experiment.experiment import PreparedExperiment


def full_batch_settings(settings: Settings, algo: str) -> Settings:
    """Return the settings of an algorithm whose clients take all their data at once and count their own steps.

    Raises UserError if ``local_steps`` or ``local_epochs`` is set.
    """
    if settings.local_steps is not None or settings.local_epochs != 1:
        raise UserError(f"algo={algo} takes all data of a client and counts its own steps: leave local_epochs and "
                        "local_steps out, and see the keys of algo")  # fmt: skip
    return replace(settings, batch_size=None)


def explain_ignored_batch_size(config: Mapping[str, Any], settings: Settings, experiment: PreparedExperiment) -> str:
    """Return that the algorithm ignores the given batch size; empty if there is none but that of ``data.natural``."""
    natural = (config.get("data") or {}).get("natural") or {}
    if experiment.settings.batch_size is not None or settings.batch_size in (None, natural.get("batch_size")):
        return ""
    return (
        f"algo={experiment.names['algo']} takes all data of a client at once: batch_size={settings.batch_size} has no "
        "effect"
    )
