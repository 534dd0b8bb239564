"""Waiting in short steps, so that an interruption is noticed between two of them."""

from concurrent.futures import FIRST_COMPLETED, Future, wait

from fcorun.system.interruption import check_interrupted

POLL_SECONDS = 0.5  # the length of a step


def wait_for_first(running: set[Future]) -> tuple[set[Future], set[Future]]:
    """Wait until at least one future is done; return the done futures and the others. Raises KeyboardInterrupt."""
    while True:
        check_interrupted()
        done, others = wait(running, POLL_SECONDS, FIRST_COMPLETED)
        if done:
            return done, others
