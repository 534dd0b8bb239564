"""A journal of answers: a server that is killed goes on, and asks the sites nothing twice."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from toy_site import ToySite, toy_rows, toy_study

from fcorun.base.errors import UserError
from fcorun.sites.transport.connections import InProcessConnections, JournaledConnections

NAMES = ("east", "north")


class Killed(BaseException):
    """A kill of the server."""


@dataclass
class CountedConnections(InProcessConnections):
    """Connections in this process that kill the server before a request."""

    kill_at: int = -1
    asked: list[int] = field(default_factory=list)

    def send(self, request):
        if self.next_number == self.kill_at:
            raise Killed
        self.asked.append(self.next_number)
        return super().send(request)


def make_sites():
    return {name: ToySite(toy_rows(number)) for number, name in enumerate(NAMES)}


def test_a_killed_server_goes_on_to_the_same_bits(tmp_path):
    expected = toy_study(InProcessConnections(make_sites()), 4)
    sites, asked = make_sites(), []
    for kill_at in (0, 2, 5, -1):
        connections = CountedConnections(sites, kill_at=kill_at)
        journal = JournaledConnections(connections, tmp_path)
        if kill_at >= 0:
            with pytest.raises(Killed):
                toy_study(journal, 4)
        else:
            np.testing.assert_array_equal(toy_study(journal, 4), expected)
        asked += connections.asked
    assert asked == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("change", [{"about": {"seed": 1}}, {"of": ["east"]}, {"message_name": "sums"}])
def test_another_request_than_the_stored_one_is_refused(tmp_path, change):
    ask = {"message_name": "describe", "about": {"seed": 0}}
    JournaledConnections(CountedConnections(make_sites()), tmp_path).ask(**ask)
    with pytest.raises(UserError, match="answers another request"):
        JournaledConnections(CountedConnections(make_sites()), tmp_path).ask(**(ask | change))
    with pytest.raises(UserError, match="answers another request"):
        JournaledConnections(CountedConnections(make_sites(), run="b"), tmp_path).ask(**ask)


def test_a_damaged_file_is_named(tmp_path):
    JournaledConnections(CountedConnections(make_sites()), tmp_path).ask("describe")
    (tmp_path / "000000.npz").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"000000\.npz cannot be read"):
        JournaledConnections(CountedConnections(make_sites()), tmp_path).ask("describe")
