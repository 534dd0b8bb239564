"""Measure where the time of a round of 10 of 64 clients goes, in fcorun and in the program written by hand in JAX.

``python scripts/peers/parts.py`` prints the table of docs/peers.md. All parts run in one process, and alternate.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from export import export, overrides
from task import EVAL_EVERY, METHODS, Task
from with_jax import write_program

from fcorun.base.system.machine import set_up_jax
from fcorun.engine.engine import Engine
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.prepare import prepare

CLIENTS = 10
ROUNDS = 200
REPETITIONS = 15


@dataclass
class FcorunParts:
    """Parts of fcorun's loop: an engine on one core, and the numbers of its run."""

    engine: Engine
    point: dict

    def __post_init__(self) -> None:
        seeds = [self.engine.federation.schedule.seed]
        self.loop, self.start = self.engine._start_loop(
            [self.point], seeds, self.engine.initial_state([self.point]), None
        )
        segments = [self.loop.next_segment(number) for number in range(0, ROUNDS, EVAL_EVERY)]
        self.segments = [segment for segment in segments if segment is not None]

    def advance(self, draws: bool) -> None:
        """Compute all rounds, whose draws are known; if ``draws``, draw ten again while the device computes ten."""
        state, advance = self.start, self.engine.federation.advance
        for number, segment in enumerate(self.segments):
            arguments = (self.loop.numbers, state, self.loop.rows, segment.rounds, np.int32(number * EVAL_EVERY))
            state, work = self.loop.compile_for(advance, *arguments)(*arguments)
            if draws:
                self.loop.next_segment(number * EVAL_EVERY)
            np.asarray(work)

    def run(self) -> None:
        """Run the engine: rounds, draws, evaluations, and the snapshots that records are made of."""
        for _ in self.engine.run([self.point]):
            pass


@dataclass
class HandParts:
    """Parts of the program written by hand."""

    task: Task

    def __post_init__(self) -> None:
        self.program, self.objective = write_program(self.task)

    def advance(self, evaluates: bool) -> None:
        """Compute all rounds, and after each tenth one the objective if ``evaluates``."""
        state = tuple(jnp.asarray(part) for part in self.task.start())
        for first in range(0, ROUNDS, EVAL_EVERY):
            state = self.program(state, self.task.rows[first : first + EVAL_EVERY])
            if evaluates:
                float(self.objective(state))
        jax.block_until_ready(state)


def build_parts(method: str) -> dict[str, Callable[[], None]]:
    """Return the parts of a method by their titles."""
    experiment = prepare(compose([*overrides(method, CLIENTS, ROUNDS), "verbose=false"]))
    fcorun = FcorunParts(build_engine(experiment, load_data(experiment)), experiment.numbers())
    by_hand = HandParts(export(method, CLIENTS, ROUNDS))
    return {
        "fcorun: compiled rounds alone": lambda: fcorun.advance(draws=False),
        "fcorun: and meanwhile the draws of the next ten": lambda: fcorun.advance(draws=True),
        "fcorun: the whole loop, with evaluations": fcorun.run,
        "JAX, by hand: compiled rounds alone": lambda: by_hand.advance(evaluates=False),
        "JAX, by hand: with evaluations": lambda: by_hand.advance(evaluates=True),
    }


def least_ms(parts: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Return the least milliseconds of a round in each part, of repetitions that alternate after one that compiles."""
    seconds: dict[str, list[float]] = {title: [] for title in parts}
    for _ in range(REPETITIONS + 1):
        for title, part in parts.items():
            begun = time.perf_counter()
            part()
            seconds[title].append(time.perf_counter() - begun)
    return {title: 1e3 * min(of_part[1:]) / ROUNDS for title, of_part in seconds.items()}


def main() -> None:
    set_up_jax()
    columns = [least_ms(build_parts(method)) for method in METHODS]
    print(f"| {CLIENTS} of 64 clients, ms per round | {' | '.join(METHODS.values())} |\n| --- | ---: | ---: |")
    for title in columns[0]:
        print(f"| {title} | {' | '.join(f'{column[title]:.2f}' for column in columns)} |")


if __name__ == "__main__":
    main()
