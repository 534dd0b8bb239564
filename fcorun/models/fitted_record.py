"""Records with the model that the run has trained."""

from pathlib import Path
from typing import Any

from fcorun.records.record import Record


class FittedRecord(Record):
    """A record that returns its model as a fitted estimator of scikit-learn, and encodes new rows for it."""

    def estimator(self, client: str | None = None, trust: str | Path | None = None) -> Any:
        """Return a fitted estimator of scikit-learn with the shared model, or with the personal model of ``client``.

        None, a client without a personal model and an unknown name give the shared model, or a UserError if there is
        none. See ``fcorun.models.estimator``. An objective that is not fcorun's is imported from the folder ``trust``,
        or refused.
        """
        from fcorun.models.estimator import load_estimator

        return load_estimator(self, client, trust)

    def encode(self, frame: Any) -> Any:
        """Return the features of the rows of a pandas.DataFrame as ``estimator`` takes them.

        Columns are found by name, unnamed ones are taken in order; text is encoded and gaps are filled as in this
        record; features are not standardized. Raises UserError.
        """
        from fcorun.models.predict import select_features

        return select_features(frame, self, "the frame")[0]
