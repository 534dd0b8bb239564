"""Waiting in steps, between which an interruption is heeded."""

from concurrent.futures import FIRST_COMPLETED, Future, wait

from fcorun.system.interruption import check_interrupted

POLL_SECONDS = 0.5  # seconds between two looks


def wait_for_first(running: set[Future]) -> tuple[set[Future], set[Future]]:
    """Wait until one of these has ended: those that have, and the others. Raises KeyboardInterrupt."""
    while True:
        check_interrupted()
        ended, others = wait(running, POLL_SECONDS, FIRST_COMPLETED)
        if ended:
            return ended, others
