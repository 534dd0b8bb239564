"""The agreement on one table: the encoding of columns, the classes, the clients of all sites, and the scaling."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tables.scaling import Scaling, reciprocal_or_zero
from fcorun.sites.transport.messages import Message, describe_damage


@dataclass(frozen=True)
class Agreement:
    """The rules by which all sites make features and targets of their rows.

    Attributes:
        task: the kind of targets.
        classes: the labels in the order of the class indices; empty for a regression.
        encoding: the encoding of the columns.
        x_dtype, y_dtype: the dtypes of the features before standardization and of the targets.
        clients: the names of all M clients in order, those without training rows included.
        site_of_client: the site of each client.
        n_rows, weights: the numbers of training, validation and test rows of each client, and the sums of the rows'
            weights, (M, 3).
        scaling: the standardization of the features, or None.
        warnings: sentences for all.
        site_warnings: sentences for single sites.
    """

    task: Any
    classes: tuple
    encoding: Encoding
    x_dtype: str
    y_dtype: str
    clients: tuple[str, ...]
    site_of_client: tuple[str, ...]
    n_rows: np.ndarray
    weights: np.ndarray
    scaling: Scaling | None = None
    warnings: tuple[str, ...] = ()
    site_warnings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return self.encoding.feature_names

    @property
    def training_clients(self) -> tuple[str, ...]:
        """Return the names of the clients with training rows, in order."""
        return tuple(name for name, counts in zip(self.clients, self.n_rows, strict=True) if counts[0])

    @property
    def held_out_clients(self) -> tuple[str, ...]:
        """Return the names of the clients without training rows, in order."""
        return tuple(name for name, counts in zip(self.clients, self.n_rows, strict=True) if not counts[0])

    def clients_of(self, site: str) -> list[str]:
        """Return the names of a site's clients with training rows, in order."""
        training = self.training_clients
        pairs = zip(self.clients, self.site_of_client, strict=True)
        return [name for name, owner in pairs if owner == site and name in training]

    def for_site(self, site: str) -> "Agreement":
        """Return what a site receives: the agreement without the clients and warnings of other sites."""
        mine = np.array([owner == site for owner in self.site_of_client])
        return replace(
            self,
            clients=tuple(name for name, is_mine in zip(self.clients, mine, strict=True) if is_mine),
            site_of_client=(site,) * int(mine.sum()),
            n_rows=self.n_rows[mine],
            weights=self.weights[mine],
            site_warnings={name: texts for name, texts in self.site_warnings.items() if name == site},
        )

    def to_message(self) -> Message:
        """Return the agreement as a message."""
        about = {
            "task": self.task,
            "classes": list(self.classes),
            "encoding": self.encoding.to_dict(),
            "x_dtype": self.x_dtype,
            "y_dtype": self.y_dtype,
            "clients": list(self.clients),
            "site_of_client": list(self.site_of_client),
            "warnings": list(self.warnings),
            "site_warnings": {site: list(texts) for site, texts in self.site_warnings.items()},
        }
        arrays = {"rows": self.n_rows, "weights": self.weights}
        if self.scaling is not None:
            arrays |= {"mean": self.scaling.mean, "deviation": self.scaling.deviation}
        return Message("load", about, arrays)

    @classmethod
    def from_message(cls, message: Message) -> "Agreement":
        """Return the agreement that ``to_message`` returned. Raises UserError for anything else."""
        about = message.about
        arrays = message.arrays
        try:
            scaling = None
            if "mean" in arrays:
                mean = arrays["mean"]
                deviation = arrays["deviation"]
                scaling = Scaling(mean, reciprocal_or_zero(deviation), deviation)
            agreement = cls(
                task=about["task"],
                classes=tuple(about["classes"]),
                encoding=Encoding.from_dict(about["encoding"]),
                x_dtype=np.dtype(about["x_dtype"]).name,
                y_dtype=np.dtype(about["y_dtype"]).name,
                clients=tuple(map(str, about["clients"])),
                site_of_client=tuple(map(str, about["site_of_client"])),
                n_rows=arrays["rows"],
                weights=arrays["weights"],
                scaling=scaling,
                warnings=tuple(about["warnings"]),
                site_warnings={site: tuple(texts) for site, texts in about["site_warnings"].items()},
            )
            shapes = {agreement.n_rows.shape, agreement.weights.shape}
            if shapes != {(len(agreement.clients), 3)} or len(agreement.site_of_client) != len(agreement.clients):
                raise ValueError("its numbers of rows do not fit its clients")
            n_features = len(agreement.feature_names)
            if scaling is not None and not scaling.mean.shape == scaling.deviation.shape == (n_features,):
                raise ValueError("its scaling has other features")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"the server sent no agreement on a table ({describe_damage(error)})"
            raise UserError(f"{problem}: use the same version of fcorun at the server and at all sites") from error
        return agreement
