"""Connections that compute the sums of ``algo=gram`` over all training rows from those of the folds, if they can.

A row is a training row of all folds but the one that holds it out. So the mean over all rows is the mean of the folds'
means, weighted by the weights of their training rows, and no site has to send it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fcorun.base.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.base.system.files import write_atomically
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.sites.plan.messages.message_kind import list_kinds
from fcorun.sites.plan.messages.run_messages import RoundMessage, sums_add_up
from fcorun.sites.plan.planned_study import REFIT
from fcorun.sites.plan.site_options import FILLS
from fcorun.sites.transport.connections import SUMS_FILES, Connections, ConnectionsWrapper, Request
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.selection_result import ALL_ROWS
from fcorun.studies.selection.study import FITS

Arrays = dict[str, np.ndarray]
_WORK = "work"  # the array of an answer that counts gradients and proxes


@dataclass
class SumsOfFolds(ConnectionsWrapper):
    """Connections for a selection with ``algo=gram``, in which the sums over all training rows are sent at most once.

    They are not sent at all if they follow from those of the folds.

    Attributes:
        connections: the connections to the sites.
        experiment: that of the plan.
        fold_names: the names of the fits that leave out a fold.
        folder: the folder of the selection. It holds the sums of the folds until ``forget`` is called.
        fold_weights: the weights of the training rows of each fold, by the name under which their sums come.
        answered_without_sites: whether the sites were not asked for the sums of the present fit.
    """

    connections: Connections
    experiment: PreparedExperiment
    fold_names: Sequence[str]
    folder: Path
    fold_weights: Sequence[Mapping[str, float]] = ()
    answered_without_sites: bool = field(default=False, init=False)
    _fit_name: str = field(default="", init=False)  # the name of the present fit
    _fold_arrays: Arrays = field(default_factory=dict, init=False)  # with which the server began it

    def send(self, request: Request) -> dict[str, Message]:
        """Return the answers of sites as ``Connections.send`` says.

        Sums that the server can compute, or has stored, are returned without a request.
        """
        kind = list_kinds()[request.name]
        if kind.names_subset:
            self._fit_name = request.message.about["subset"]
            self._fold_arrays = request.message.arrays
            self.answered_without_sites = False
        is_fold = self._fit_name in self.fold_names
        if kind.is_mean and not is_fold:
            known = self._add_folds()
            if known is None and self._fit_name == REFIT:
                known = self._read(ALL_ROWS)
            if known:
                self.answered_without_sites = True
                return known
        answers = self.connections.send(request)
        adds_up = sums_add_up(self.experiment) and FILLS not in self._fold_arrays
        if kind.is_mean and ((is_fold and adds_up) or self._fit_name == ALL_ROWS):
            # after a kill the sites are asked again even though the file exists, so that requests keep their numbers
            arrays = {f"/{key}": self._fold_arrays[key] for key in ("mean", "deviation") if key in self._fold_arrays}
            for site, answer in answers.items():
                arrays |= {f"{site}/{key}": array for key, array in answer.arrays.items()}
            write_atomically(self._file(self._fit_name), npz_bytes(arrays))
        return answers

    def forget(self) -> None:
        """Remove the files of sums."""
        for name in (ALL_ROWS, *self.fold_names):
            self._file(name).unlink(missing_ok=True)

    def _add_folds(self) -> dict[str, Message] | None:
        """Return the answers for all training rows, means of those for the folds; None if they do not follow."""
        if not sums_add_up(self.experiment):
            return None
        folds = [fold for name in self.fold_names if (fold := self._read(name)) is not None]
        if len(folds) < len(self.fold_names):
            return None
        parts: dict[str, list[tuple[float, Arrays]]] = {}
        for fold, weights in zip(folds, self.fold_weights, strict=True):
            for name, answer in fold.items():
                parts.setdefault(name, []).append((weights[name], answer.arrays))
        return {name: Message(RoundMessage.name, arrays=add_folds(parts[name], len(folds))) for name in sorted(parts)}

    def _file(self, name: str) -> Path:
        return self.folder / FITS / SUMS_FILES.replace("*", name)

    def _read(self, name: str) -> dict[str, Message] | None:
        """Return the answers that ``send`` wrote, for features without scaling; None if there are none."""
        try:
            arrays = read_npz(self._file(name))
        except READ_ERRORS:
            return None
        by_site: dict[str, Arrays] = {}
        for key, array in arrays.items():
            site, _, key_of_site = key.rpartition("/")
            by_site.setdefault(site, {})[key_of_site] = array
        scaling = by_site.pop("", None)
        if scaling is not None:
            by_site = {site: unscale_sums(of_site, **scaling) for site, of_site in by_site.items()}
        return {site: Message(RoundMessage.name, arrays=of_site) for site, of_site in by_site.items()}


def unscale_sums(arrays: Arrays, mean: np.ndarray, deviation: np.ndarray) -> Arrays:
    """Return an upload of Gram for features x (N, d), from that for features (x - mean) / deviation.

    The arrays "0", "1" and "2" are the gradient by the weights, the gradient by the bias, and the packed Hessian. A
    model with weights w and bias b for x predicts the same with the weights deviation * w and the bias b + <mean, w>
    for the scaled features, of which those with the deviation 0 are 0.
    """
    weight_gradient, bias_gradient, packed = (arrays[name][0] for name in "012")
    rows, columns = np.triu_indices(len(mean) + 1)
    matrix = np.zeros((len(mean) + 1, len(mean) + 1))
    matrix[rows, columns] = matrix[columns, rows] = packed

    def transform(vectors):  # derivatives by the parameters for the scaled features, to those for x, row by row
        return np.concatenate([deviation[:, None] * vectors[:-1] + np.outer(mean, vectors[-1]), vectors[-1:]])

    slopes = transform(np.append(weight_gradient, bias_gradient)[:, None])[:, 0]
    matrix = transform(transform(matrix).T)
    leaves = {"0": slopes[:-1], "1": slopes[-1], "2": matrix[rows, columns]}
    return arrays | {name: np.asarray(leaf, packed.dtype)[None] for name, leaf in leaves.items()}


def add_folds(parts: Sequence[tuple[float, Arrays]], n_folds: int) -> Arrays:
    """Return a site's answer for all training rows, the mean of its answers for the training rows of the folds.

    ``parts`` are the sum of the weights of the training rows of each fold, and the answer for them.
    """
    total = sum(weight for weight, _ in parts)
    added: Arrays = {}
    for name, first in parts[0][1].items():
        if name == _WORK:  # each row is a training row of all folds but one
            added[name] = np.sum([arrays[name] for _, arrays in parts], axis=0) // (n_folds - 1)
        else:
            mean = np.sum([weight / total * arrays[name] for weight, arrays in parts], axis=0, dtype=np.float64)
            added[name] = mean.astype(first.dtype)
    return added
