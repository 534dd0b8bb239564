"""Fit of a path of strengths on a subset of the rows, and its file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from fcorun.base.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.base.records.record import MAX_PREDICTED_ROWS
from fcorun.base.system.files import write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.results.models.relaxed import REFIT_FAILURES

# saved by position: add new states at the end
END_STATES = ("done", "falling", "diverged", "not certified", *REFIT_FAILURES)
_MAX_OUTPUTS = 2**27  # outputs for held-out rows that are kept, half a gigabyte in float32


@dataclass(frozen=True)
class PathFit:
    """The runs of a path of P strengths on a subset of the rows.

    Attributes:
        metrics: tail averages by name, each (P,); NaN of a run that diverged.
        solution: parameters by name, with leading axis P.
        end_state: the position in END_STATES of the state in which each run ended, (P,).
        counts: rounds, bytes_up and bytes_down of each run, each (P,); the bytes of edges are included.
        held_out: the outputs of the shared and of the personal models for the subset's validation rows, without
            offsets, each (P, V) or (P, V, classes); empty without validation rows, or if ``keeps_held_out`` is false.
    """

    metrics: dict[str, np.ndarray]
    solution: dict[str, np.ndarray]
    end_state: np.ndarray
    counts: dict[str, np.ndarray]
    held_out: dict[str, np.ndarray] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the fit to an npz file, whose keys are GROUP/NAME."""
        groups = {
            "metrics": self.metrics,
            "solution": self.solution,
            "counts": self.counts,
            "held_out": self.held_out,
        }
        arrays = {f"{group}/{name}": array for group, members in groups.items() for name, array in members.items()}
        write_atomically(path, npz_bytes(arrays | {"/end": self.end_state}))

    @classmethod
    def load(cls, path: Path) -> "PathFit | None":
        """Read a fit from a file; return None if the file is missing or damaged."""
        try:
            groups: dict[str, dict] = {"metrics": {}, "solution": {}, "counts": {}, "held_out": {}, "": {}}
            for key, array in read_npz(path).items():
                group, _, name = key.partition("/")
                groups[group][name] = array
            end_state = groups.pop("")["end"]
            return cls(**groups, end_state=end_state)
        except READ_ERRORS:
            return None


def keeps_held_out(data: FederatedData, n_values: int, n_rows: int) -> bool:
    """Return whether the outputs for ``n_rows`` rows, each held out once, of runs at ``n_values`` values are kept."""
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    return n_rows <= MAX_PREDICTED_ROWS and n_rows * n_values * outputs <= _MAX_OUTPUTS


def find_runs(fits: Mapping[str, PathFit], state: str) -> Bool[np.ndarray, "S P"]:
    """Return a mask of the runs of S fits at P values that ended in a state of END_STATES."""
    return np.stack([fit.end_state for fit in fits.values()]) == END_STATES.index(state)
