"""LASSO I of the paper as tasks for all frameworks, with rows, cohorts and minibatches drawn by fcorun."""

from task import EVAL_EVERY, Task

from fcorun.experiment.build import build_schedule, load_data
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.prepare import prepare

COHORTS = (10, 64)


def overrides(method: str, clients: int, rounds: int) -> list[str]:
    """Return the overrides of fcorun for a task."""
    rates = ["algo.client_lr=5e-4", "algo.server_lr=1"]  # a rate of 1e-3 makes FedAvg(∂) diverge with 10 clients
    sizes = [f"clients_per_round={clients}", f"rounds={rounds}", f"eval_every={EVAL_EVERY}"]
    return [f"algo={method}", "data=lasso", *sizes, *rates]


def export(method: str, clients: int, rounds: int, *more: str) -> Task:
    """Return the task of a method with so many clients in a round; ``more`` overrides change the data."""
    experiment = prepare(compose([*overrides(method, clients, rounds), "verbose=false", *more]))
    data, numbers = load_data(experiment), experiment.numbers()
    drawn = build_schedule(experiment, data).draw_rounds(0, rounds)
    return Task(
        x=data.train.x,
        y=data.train.y,
        offsets=data.train.offsets,
        cohort=drawn.cohort,
        rows=drawn.rows,
        method=method,
        strength=numbers["reg"]["strength"],
        client_lr=numbers["algo"]["client_lr"],
    )
