"""The rows to hold out: for validation, which guides choices, and for the test, which is used once."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Shaped

from fcorun.errors import UserError, suggest_name
from fcorun.system.random_streams import random_stream
from fcorun.tables.groups import draw_uniform_per_group
from fcorun.tables.partition import hold_out

DEFAULT_VALIDATION = 0.2  # the fraction of each client's rows unless a file or an option says otherwise
FractionOrClients = float | list[str] | None


@dataclass(frozen=True)
class HoldOut:
    """The options that say which rows are held out.

    Attributes:
        validation, test: a fraction of each client's rows, or names of clients. None stands for the rows that the file
            marks, else for 0.2 of the rows in validation and none in the test. Where rows have groups, a fraction is
            the probability of each group to be held out.
    """

    validation: FractionOrClients
    test: FractionOrClients

    def check(self) -> None:
        """Raise UserError for a fraction out of range, for no rows left to train on, and for a client named twice."""
        for split, option in (("validation", self.validation), ("test", self.test)):
            if isinstance(option, (int, float)) and not 0 <= option < 1:
                raise UserError(f"data.{split}={option} must be at least 0 and less than 1, or a list of clients")
        if isinstance(self.test, (int, float)) and not isinstance(self.validation, list):
            validation = DEFAULT_VALIDATION if self.validation is None else self.validation
            if self.test and validation + self.test >= 1:
                raise UserError(f"data.validation={validation} and data.test={self.test} leave no rows to train on: "
                                "their sum must be less than 1")  # fmt: skip
        if isinstance(self.test, list) and isinstance(self.validation, list):
            for name in self.test:
                if name in self.validation:
                    raise UserError(
                        f"data.validation and data.test both name the client '{name}': name it in one of them"
                    )

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
        """Return the masks of the validation rows and of the test rows, shape (N,) each, which do not overlap.

        Fractions count all rows of a client. A fraction ``validation`` does not change the rows of the test.

        Args:
            path: the file, for errors.
            marked: the masks that the file itself has for validation and test, shape (N,), or None.
            client_names: the names of the clients.
            client_index: the index of each row's client, shape (N,); ``len(client_names)`` for a row of no client.
            has_client_names: whether the file names the clients.
            seed: the seed of fractions.
            group: the name of each row's group, shape (N,), or None. The rows of a group stay together, and a number
                drawn from (seed, group) alone decides whether the group is held out.
        """
        for split, option, mask in zip(("validation", "test"), (self.validation, self.test), marked, strict=True):
            if mask is not None and option is not None:
                raise UserError(f"data.{split}={option}: {path} marks its {split} rows itself; leave data.{split} out, "
                                "or the array out of the file")  # fmt: skip

        def draw(split: str, option: FractionOrClients, excluded: np.ndarray | None) -> np.ndarray:
            """Return the mask of one split, without the ``excluded`` rows where a fraction is drawn."""
            if isinstance(option, list):
                if not has_client_names and option:
                    raise UserError(
                        f"data.{split}={option}: the rows have no named clients; "
                        f"give data.client=... or a fraction of the rows, data.{split}=0.2"
                    )
                for client in option:
                    if client not in client_names:
                        suggestion = suggest_name(client, client_names)
                        raise UserError(f"data.{split}: there is no client '{client}'; {suggestion}")
                mask = np.isin(np.array([*client_names, ""])[client_index], option)
                return mask if group is None else np.isin(group, group[mask])
            fraction = option or 0.0
            if group is None:
                return hold_out(client_index, fraction, random_stream(seed, "table", split), excluded)
            uniforms = draw_uniform_per_group(group, random_stream(seed, "table", "group"))
            mask = uniforms < fraction if split == "test" else uniforms >= 1 - fraction
            return mask if excluded is None else mask & ~excluded

        validation_option = DEFAULT_VALIDATION if self.validation is None else self.validation
        marked_validation, marked_test = marked
        # validation rows that are fixed by the file or by clients' names are no candidates for the test
        if marked_validation is not None:
            fixed_validation = marked_validation
        elif isinstance(validation_option, list):
            fixed_validation = draw("validation", validation_option, None)
        else:
            fixed_validation = None
        test = draw("test", self.test, fixed_validation) if marked_test is None else marked_test
        if fixed_validation is None:
            validation = draw("validation", validation_option, test if test.any() else None)
        else:
            validation = fixed_validation
        if self.test and not test.any():
            reason = "no client has enough of them" if group is None else "none of the few groups was drawn"
            raise UserError(f"data.test={self.test} holds out no row, since {reason}: "
                            "give a larger fraction, or names of clients")  # fmt: skip
        if (validation & test).any():
            row = int((validation & test).argmax()) + 1
            raise UserError(f"data.path={path}: row {row} is of validation and of the test: it can be of one only")
        return validation, test
