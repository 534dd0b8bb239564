"""Errors about a site's table that the owner alone may see, and all of them at once, a sentence each."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fcorun.base.errors import UserError
from fcorun.sites.transport.delivery import public_sentence
from fcorun.sites.transport.messages import OwnerError


class OwnTableError(OwnerError):
    """An error about a site's own table, whose sentence may quote cells of the table."""


@contextmanager
def for_owner_alone(public: str) -> Iterator[None]:
    """Raise OwnTableError with the sentence ``public`` in place of a UserError."""
    try:
        yield
    except OwnTableError:
        raise
    except UserError as error:
        raise OwnTableError(str(error), public) from error


class ObstaclesError(OwnTableError):
    """Several obstacles. The server sees the first one.

    Attributes:
        errors: the obstacles.
    """

    def __init__(self, errors: Sequence[UserError]):
        self.errors = list(errors)
        more = len(self.errors) - 1
        public = public_sentence(self.errors[0])
        super().__init__("; ".join(map(str, self.errors)), f"{public} (and {more} further obstacles)")


@dataclass
class Obstacles:
    """A list of obstacles that grows.

    Attributes:
        errors: the obstacles so far.
    """

    errors: list[UserError] = field(default_factory=list)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Add the error of a check to the list, instead of raising it."""
        try:
            yield
        except ObstaclesError as error:
            self.errors += error.errors
        except UserError as error:
            self.errors.append(error)

    def add(self, errors: Iterable[UserError]) -> None:
        """Add errors to the list."""
        self.errors += errors

    def raise_any(self) -> None:
        """Raise the obstacle, or ObstaclesError for several ones, if there are any."""
        if len(self.errors) > 1:
            raise ObstaclesError(self.errors)
        if self.errors:
            raise self.errors[0]
