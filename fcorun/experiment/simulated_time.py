"""The simulated time of a run: what a clock refuses, and the times of clients for a schedule."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fcorun.clocks.none import NoClock
from fcorun.communication.asynchronous import Asynchronous
from fcorun.communication.star import Star
from fcorun.config import Settings
from fcorun.datasets.base import FederatedData
from fcorun.engine.client_times import ClientTimes
from fcorun.engine.estimates import message_bytes
from fcorun.engine.federation import Federation
from fcorun.errors import UserError
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.system.machine import use_precision


def check_clock(plugins: Mapping[str, Any], names: Mapping[str, str], settings: Settings) -> None:
    """Refuse a clock where the times of clients are not known before a round. Raises UserError."""
    clock, topology, algo = plugins["clock"], plugins["topology"], plugins["algo"]
    if isinstance(clock, NoClock):
        if clock.deadline is not None:
            raise UserError("clock.deadline needs the times of clients: give clock=lognormal, or clock=trace")
        if settings.x == "simulated_seconds":
            raise UserError("x=simulated_seconds needs the times of clients: give clock=lognormal, or clock=trace")
        return
    if not isinstance(topology, (Star, Asynchronous)):
        raise UserError(f"clock={names['clock']} knows clients and one server, and topology={names['topology']} has "
                        "more parties: leave clock or topology out")  # fmt: skip
    if settings.frozen:
        raise UserError(f"frozen=true sends nothing: leave clock={names['clock']} out")
    traits = algo.traits
    does_more = traits.deterministic or traits.proximal or traits.hessian or traits.local_fits
    if does_more or algo.has_two_exchanges or algo.has_personal_models or algo.sending_rounds is not None:
        raise UserError(f"clock={names['clock']} counts one gradient for each row of a local step, and the clients of "
                        f"algo={names['algo']} do more: leave clock out")  # fmt: skip


def client_times(experiment: PreparedExperiment, data: FederatedData) -> ClientTimes | None:
    """Return the times of clients; None without a clock. Raises UserError for a file that lacks a client."""
    names = data.client_names
    if data.train.n_generated_clients:  # of which few have stored rows
        names = [str(number) for number in range(data.n_clients)]
    speeds = experiment.clock.speeds(names)
    return None if speeds is None else ClientTimes(speeds, experiment.clock.deadline)


def with_message_times(federation: Federation) -> Federation:
    """Return the federation of an asynchronous server, whose arrivals depend on the bytes of messages."""
    with use_precision(federation.precision):
        sizes = message_bytes(federation, federation.algorithm, federation.uplink)
    schedule = replace(federation.schedule, message_bytes=(sizes.broadcasts[0], sizes.uploads[0]), arrivals_by_seed={})
    return replace(federation, schedule=schedule)
