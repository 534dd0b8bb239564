"""Sites that stay away for a while: the rule by which a study goes on without them, and what they missed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_MOST_STRETCHES = 3  # of the rounds that a sentence lists


class AnswersMissing(Exception):
    """The end of a computation that needs the answers of all sites to each of its requests."""


@dataclass(frozen=True)
class AwayRule:
    """The rule by which a site without an answer is left out.

    Attributes:
        seconds: the time for which a site is waited for.
        least_sites: the least number of answers. With fewer, the server waits on.
    """

    seconds: float
    least_sites: int

    def suffices(self, n_answers: int, n_asked: int) -> bool:
        """Return whether the server goes on with so many answers after the time."""
        return n_answers >= min(self.least_sites, n_asked)


@dataclass
class Absence:
    """Consecutive messages of one kind to a site that it did not answer.

    Rounds in which the site was not asked may lie between them.

    Attributes:
        message: the name of the message.
        first_round, last_round: the rounds of the first and the last of these messages, counted from 1; for messages
            outside of rounds, such as evaluations, the number of rounds done before; 0 for scores at the end of a run.
    """

    site: str
    message: str
    first_round: int
    last_round: int


@dataclass
class Absences:
    """The messages that sites missed in a run.

    Attributes:
        sentences: the sentence on a site that missed a message, by the name of the message, with the fields {rounds}
            and {site}.
        entries: what was missed, in the order of the run.
        evaluated: the sites that have answered the last evaluation, and so have the last model.
    """

    sentences: Mapping[str, str] = field(default_factory=dict)
    entries: list[Absence] = field(default_factory=list)
    evaluated: tuple[str, ...] = ()
    # the absences that may go on, by site and message
    _open: dict[tuple[str, str], Absence] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget everything, at the beginning of a run."""
        self.entries.clear()
        self._open.clear()
        self.evaluated = ()

    def note(self, message: str, round_number: int, asked: Sequence[str], present: Sequence[str]) -> None:
        """Note which of the sites that were asked are not among those ``present``."""
        for site in asked:
            if site in present:
                self._open.pop((site, message), None)
            elif (site, message) in self._open:
                self._open[site, message].last_round = round_number
            else:
                absence = Absence(site, message, round_number, round_number)
                self._open[site, message] = absence
                self.entries.append(absence)

    def describe(self) -> list[str]:
        """Return a sentence for each site and each kind of message that the site missed."""
        stretches: dict[tuple[str, str], list[Absence]] = {}
        for absence in self.entries:
            stretches.setdefault((absence.message, absence.site), []).append(absence)
        sentences = []
        for (message, site), of_site in stretches.items():
            sentences.append(self.sentences[message].format(rounds=_list_rounds(of_site), site=f"'{site}'"))
        return list(dict.fromkeys(sentences))


def _list_rounds(absences: Sequence[Absence]) -> str:
    """Return rounds as text.

    >>> _list_rounds([Absence("a", "round", 2, 2), Absence("a", "round", 5, 9)])
    'rounds 2, 5-9'
    """
    texts = []
    for absence in absences[:_MOST_STRETCHES]:
        first, last = absence.first_round, absence.last_round
        texts.append(str(first) if first == last else f"{first}-{last}")
    if len(absences) > _MOST_STRETCHES:
        texts.append("... (away_sites.csv lists all)")
    return ("round " if texts[0].isdigit() and len(texts) == 1 else "rounds ") + ", ".join(texts)
