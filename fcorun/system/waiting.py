"""Waiting in steps: a signal that comes just before a wait Python sees to only after it."""

from concurrent.futures import FIRST_COMPLETED, Future, wait

LOOK = 0.5  # seconds between two looks


def first_of(running: set[Future]) -> tuple[set[Future], set[Future]]:
    """Wait until one of these has ended: those that have, and the others."""
    while True:
        ended, others = wait(running, LOOK, FIRST_COMPLETED)
        if ended:
            return ended, others
