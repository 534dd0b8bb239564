"""Which rows are held out: for validation, which helps to choose, and for the test, which is touched once."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Shaped

from fcorun.errors import UserError, suggest_name
from fcorun.system.random_streams import random_stream
from fcorun.tables.groups import draw_uniform_per_group
from fcorun.tables.partition import hold_out

DEFAULT_VALIDATION = 0.2  # of each client's rows are for validation where nothing says otherwise
FractionOrClients = float | list[str] | None


@dataclass(frozen=True)
class HoldOut:
    """What is asked for of the rows to hold out.

    Attributes:
        validation, test: fractions of each client's rows, or names of clients; None: what the file marks, else 0.2 of
            the rows for validation and none for the test. Where rows have groups, fractions are the chance with which
            each group is held out.
    """

    validation: FractionOrClients
    test: FractionOrClients

    def check(self) -> None:
        """Refuse fractions out of range or that leave nothing, and clients that are named twice. Raises UserError."""
        for name, asked in (("validation", self.validation), ("test", self.test)):
            if isinstance(asked, (int, float)) and not 0 <= asked < 1:
                raise UserError(f"data.{name}={asked} must be at least 0 and less than 1, or a list of clients")
        if isinstance(self.test, (int, float)) and not isinstance(self.validation, list):
            validation = DEFAULT_VALIDATION if self.validation is None else self.validation
            if self.test and validation + self.test >= 1:
                raise UserError(f"data.validation={validation} and data.test={self.test} leave no rows to train on: "
                                "their sum must be less than 1")  # fmt: skip
        if isinstance(self.test, list) and isinstance(self.validation, list):
            for name in (name for name in self.test if name in self.validation):
                raise UserError(f"data.validation and data.test both name the client '{name}': name it in one of them")

    def draw_masks(
        self,
        path: str,
        marked: tuple[np.ndarray | None, np.ndarray | None],
        client_names: list[str],
        client_index: Int[np.ndarray, " N"],
        *,
        has_client_names: bool,
        seed: int,
        group: Shaped[np.ndarray, " N"] | None = None,
    ) -> tuple[Bool[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
        """True for the rows of validation and of the test, shape (N,) each; no row is of both.

        Fractions are of all rows of a client. The rows of the test do not depend on ``validation``.

        Args:
            path: of the file, for errors.
            marked: the rows that it marks for validation and for the test itself, shape (N,), or None.
            names: of the clients.
            owner: the client of each row, shape (N,).
            named: whether the file names the clients.
            seed: of fractions.
            group: the name of the group of each row, shape (N,), whose rows stay together, or None. A group is held out
                by a number drawn from (seed, group) alone.
        """
        for name, asked, mark in zip(("validation", "test"), (self.validation, self.test), marked, strict=True):
            if mark is not None and asked is not None:
                raise UserError(f"data.{name}={asked}: {path} marks its {name} rows itself; leave data.{name} out, or "
                                "the array out of the file")  # fmt: skip

        def rows(name: str, asked: FractionOrClients, mark: np.ndarray | None, taken: np.ndarray | None) -> np.ndarray:
            if mark is not None:
                return mark
            if isinstance(asked, list):
                found = self._of_clients(name, asked, client_names, client_index, has_client_names)
                return found if group is None else np.isin(group, group[found])
            if group is not None:
                drawn = draw_uniform_per_group(group, random_stream(seed, "table", "group"))
                found = drawn < (asked or 0.0) if name == "test" else drawn >= 1 - (asked or 0.0)
                return found if taken is None else found & ~taken
            return hold_out(client_index, asked or 0.0, random_stream(seed, "table", name), taken)

        validation = DEFAULT_VALIDATION if self.validation is None else self.validation
        taken = None
        if isinstance(validation, list) or marked[0] is not None:  # these rows are no choice of the test's
            taken = rows("validation", validation, marked[0], None)
        test = rows("test", self.test, marked[1], taken)
        if taken is None:
            taken = rows("validation", validation, None, test if test.any() else None)
        if self.test and not test.any():
            why = "no client has enough of them" if group is None else "none of the few groups was drawn"
            raise UserError(f"data.test={self.test} holds out no row, since {why}: "
                            "give a larger fraction, or names of clients")  # fmt: skip
        if (taken & test).any():
            row = int((taken & test).argmax()) + 1
            raise UserError(f"data.path={path}: row {row} is of validation and of the test: it can be of one only")
        return taken, test

    @staticmethod
    def _of_clients(name: str, asked: list[str], names: list[str], owner: np.ndarray, named: bool) -> np.ndarray:
        """True for the rows of some clients, shape (N,)."""
        if not named and asked:
            raise UserError(
                f"data.{name}={asked}: the rows have no named clients; "
                f"give data.client=... or a fraction of the rows, data.{name}=0.2"
            )
        for client in asked:
            if client not in names:
                raise UserError(f"data.{name}: there is no client '{client}'; {suggest_name(client, names)}")
        return np.isin(np.array([*names, ""])[owner], asked)
