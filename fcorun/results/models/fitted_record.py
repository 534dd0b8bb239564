"""Records with the model that the run has trained."""

from pathlib import Path
from typing import Any

from fcorun.base.records.record import Record


class FittedRecord(Record):
    """A record that returns its model as a fitted estimator of scikit-learn."""

    def estimator(self, client: str | None = None, trust: str | Path | None = None) -> Any:
        """Return a fitted estimator of scikit-learn with the shared model, or with the personal model of ``client``.

        None, a client without a personal model and an unknown name give the shared model, or a UserError if there is
        none. A name that differs from a known one in capitals or spaces only raises UserError. See
        ``fcorun.results.models.estimator``. An objective that is not fcorun's is imported from the folder ``trust``, or
        refused.
        """
        from fcorun.results.models.estimator import load_estimator

        return load_estimator(self, client, trust)
