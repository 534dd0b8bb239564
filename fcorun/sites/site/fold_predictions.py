"""Out-of-fold predictions of a site's own rows, which the site keeps for itself: no message has them.

When the runs on a fold have ended, the outputs of all of them for the rows that the fold holds out are written into the
site's folder. The result of the selection tells which run was chosen, whose outputs are then the predictions.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.base.records.record import PERSONAL, PREDICTIONS_FILE, SHARED
from fcorun.base.system.files import remove_path, write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.results.model_outputs import compute_predictions
from fcorun.results.models.predictions import predict_personal, predictions_csv
from fcorun.sites.plan.plan import Plan
from fcorun.sites.site.site_batch import SiteBatch
from fcorun.sites.site.site_folds import SiteFolds
from fcorun.sites.site.site_results import sort_personal
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.path import find_path_parameter
from fcorun.studies.selection.path_fit import join_folds, keeps_held_out

SELECTION_FOLDER = "selection"  # in the folder of a site's result


@dataclass(frozen=True)
class FoldPredictions:
    """The out-of-fold predictions of a selection, in a folder of the site.

    Attributes:
        folder: the folder.
        plan: the plan, which has a selection.
    """

    folder: Path
    plan: Plan

    @property
    def _folds(self) -> dict[str, int]:
        return self.plan.selection.folds_by_name

    def _file(self, fold: str) -> Path:
        return self.folder / f"{fold}.npz"

    def begin_subset(self, name: str) -> None:
        """Remove the predictions of an earlier selection if the subset is the first one."""
        if name == next(iter(self._folds)):
            with _writing():
                remove_path(self.folder)

    def keep(self, name: str, site_data: FederatedData, batch: SiteBatch, evaluated: Message) -> None:
        """Write the outputs of the runs on a fold, which have ended, for the rows that it holds out.

        Nothing is written for other subsets, for too many rows, and with ``stop``: the site does not know at which
        evaluation the server took a run as ended.

        Args:
            name: the name of the subset, a fold or another one.
            site_data: the site's rows by themselves; those that the fold holds out are the validation rows.
            batch: the site's state of the runs.
            evaluated: the last request to evaluate.
        """
        experiment, rows = self.plan.experiment, site_data.validation
        if name not in self._folds or experiment.settings.stop or rows is None or not len(rows):
            return
        if not keeps_held_out(site_data, len(batch.points), len(site_data.train) + len(rows)):
            return
        models = batch.personal_models(evaluated.arrays)
        outputs: dict[str, list[np.ndarray]] = {}  # of G runs for V rows, (V,) or (V, classes) each, by kind of model
        for g in range(len(batch.points)):
            if experiment.has_shared_model:
                output = compute_predictions(
                    experiment.objective, batch.solution(evaluated.arrays, g), rows.x, site_data.features.scale
                )
                outputs.setdefault(SHARED, []).append(output)
            if models:
                of_run = sort_personal(models[g], site_data.clients)
                client = np.asarray(site_data.client_of_row("validation"))
                output, has_model = predict_personal(experiment.objective, site_data, of_run, rows, client)
                if has_model.all():
                    outputs.setdefault(PERSONAL, []).append(output)
        with _writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            stacked = {model: np.stack(of_model) for model, of_model in outputs.items()}
            write_atomically(self._file(name), npz_bytes(stacked))

    def write(self, folds: SiteFolds, refit: Mapping[str, Mapping[str, float]], first_start: Message) -> None:
        """Write predictions.csv, and remove the outputs of single folds.

        Nothing is written where outputs are missing, or of models that diverged in some fold.

        Args:
            folds: the folds of the site's rows.
            refit: the numbers of the refit, which have the chosen value of the path.
            first_start: the request that began the first runs, which has the numbers of the path.
        """
        parameter = find_path_parameter(self.plan.experiment)
        chosen = [run["reg"][parameter] for run in first_start.about["numbers"]].index(refit["reg"][parameter])
        rows, outputs = {}, []
        for name, k in self._folds.items():
            held_out = np.flatnonzero(folds.fold == k)
            if not len(held_out):
                continue
            try:
                of_fold = read_npz(self._file(name))
            except READ_ERRORS:
                return
            rows[k + 1] = held_out
            outputs.append({model: values[chosen] for model, values in of_fold.items()})
        if not rows:
            return
        predictions = join_folds(self.plan.experiment.objective, folds.site_data, rows, outputs)
        with _writing():
            if predictions:
                write_atomically(self.folder / PREDICTIONS_FILE, predictions_csv(predictions))
            for name in self._folds:
                remove_path(self._file(name))


@contextmanager
def _writing() -> Iterator[None]:
    """Turn an error of the file system into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"the site cannot keep its predictions ({error.strerror}): see that its folder can be written"
                        ) from error  # fmt: skip
