"""The messages by which sites agree on one table, before any run, and those by which masks are agreed on."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fcorun.base.errors import UserError
from fcorun.data.tables.columns import MissingPolicy
from fcorun.sites.plan.messages.message_kind import SQUARES, MessageKind, Notice, Quantity, Stage
from fcorun.sites.plan.planned_study import PlannedStudy
from fcorun.sites.plan.site_options import AGREEMENT_KEYS, HISTOGRAM_BINS
from fcorun.sites.transport.messages import NEW_RUN, Message

if TYPE_CHECKING:
    from fcorun.sites.site.site import Site


def describe_fills(missing: MissingPolicy, by_client: bool = True) -> tuple[str, str]:
    """Return how many numbers leave a site for ``data.missing``, in words, and what these numbers are.

    Sums are those of each client if ``by_client``, else of all clients together.
    """
    if missing == "median":
        return f"{HISTOGRAM_BINS} counts for each column of numbers", "counts of the values of columns in bins"
    size = "2 for each column of numbers"
    if by_client:
        size += " and each client"
    return size, "sums of columns, and counts of values"


def check_same_encoding(request: Message, earlier: Iterable[Message], read: Callable[[Message], list]) -> None:
    """Raise UserError for a request with another encoding, which ``read`` returns, than earlier ones of the run.

    The difference of two sums over the same rows with different fills would tell the number of gaps.
    """
    for message in earlier:
        is_of_same_rows = request.about.get("subset") == message.about.get("subset")
        if is_of_same_rows and read(request) != read(message):
            raise UserError(f"the server sent another encoding of the columns with '{request.name}' than with "
                            f"'{message.name}' before, and the difference of the answers would tell of gaps: "
                            f"{NEW_RUN}")  # fmt: skip


def _read_agreement(request: Message) -> list[Any]:
    """Return the agreement of a request, without its scaling, which comes later."""
    arrays = [request.arrays[name].tolist() for name in ("rows", "weights")]
    return [request.about[key] for key in sorted(AGREEMENT_KEYS)] + arrays


class Keys(MessageKind):
    """The exchange of public keys, before all other messages of a study with secure sums."""

    name = "keys"
    stage = Stage.TABLES

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        if not study.is_masked:
            return []
        content = "the site's public key, and a random number"
        purpose = "masks, which hide the numbers of single sites in a sum"
        return [self.quantity("48 bytes", "once", content, purpose)]

    def answer(self, site: "Site", request: Message) -> Message:
        """Refuse the request: ``MaskedSite``, which has the keys, answers in place of the site."""
        raise UserError(f"the server asked for keys again, which stay the same in a run: {NEW_RUN}")


class Describe(MessageKind):
    """The description of a site's table."""

    name = "describe"
    stage = Stage.TABLES
    keys = frozenset({"plan"})

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        size = "clients, columns, levels, classes"
        content = "names of clients, their rows and sums of weights, kinds of columns, counts of levels and classes"
        purpose = "the clients' weights, and one encoding for all sites"
        quantities = [self.quantity(size, "once", content, purpose)]
        missing = study.shared_options.missing
        if missing != "refuse":
            size, content = describe_fills(missing)
            quantities.append(self.quantity(size, "once", content, f"data.missing={missing} fills gaps"))
        for name in study.shared_options.splines or {}:
            content = f"counts of the values of {name} in bins"
            quantities.append(self.quantity(f"{HISTOGRAM_BINS} counts", "once", content, "data.splines"))
        return quantities

    def answer(self, site: "Site", request: Message) -> Message:
        """Describe the table, for a server that has the same plan."""
        plan = site.plan.digest
        server_plan = str(request.about["plan"])
        if server_plan != plan:
            raise UserError(f"the server computes the plan {server_plan[:16]}.., and this site has accepted "
                            f"{plan[:16]}..: send the owner that plan, to accept it")  # fmt: skip
        return site.description


class SumsMessage(MessageKind):
    """The sums of encoded features, by which all sites scale them alike."""

    name = "sums"
    stage = Stage.TABLES
    keys = AGREEMENT_KEYS
    bound = SQUARES
    is_kept = True

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        if study.shared_options.standardize != "pooled":
            return []
        size = "d" if study.is_masked else "d for each client"
        content = "sums of features, and of their squares around the mean"
        return [self.quantity(size, "twice", content, "data.standardize=pooled")]

    def limits_of_run(self, study: PlannedStudy) -> dict[str, int]:
        return {self.name: 2}

    def answer(self, site: "Site", request: Message) -> Message:
        check_same_encoding(request, site.list_requests(SumsMessage.name, Load.name), _read_agreement)
        return Message(self.name, arrays={"sums": site.sum_features(request)})


class Load(Notice):
    """The agreement of all sites, by which a site encodes its rows."""

    name = "load"
    stage = Stage.TABLES
    keys = AGREEMENT_KEYS
    is_kept = True

    def resume(self, site: "Site", request: Message) -> None:
        check_same_encoding(request, site.list_requests(SumsMessage.name, Load.name), _read_agreement)
        site.load(request)
