"""LASSO I of the paper as tasks for everybody: rows, cohorts and minibatches that fcorun draws."""

from task import Task

from fcorun.composing.compose import compose
from fcorun.experiment.build import load, schedule_of
from fcorun.experiment.prepare import prepare

METHODS = {"fedavg_subgradient": "FedAvg(∂)", "feddualavg": "FedDualAvg"}
COHORTS = (10, 64)


def overrides(method: str, clients: int, rounds: int) -> list[str]:
    """What the command line of fcorun is given for a task."""
    return [f"algo={method}", "data=lasso", f"clients_per_round={clients}", f"rounds={rounds}", "algo.server_lr=1"]


def export(method: str, clients: int, rounds: int, *more: str) -> Task:
    """The task of a method with so many clients a round; ``more`` overrides change the data."""
    experiment = prepare(compose([*overrides(method, clients, rounds), "verbose=false", *more]))
    data, numbers = load(experiment), experiment.numbers()
    drawn = schedule_of(experiment, data).draw(0, rounds)
    return Task(
        x=data.x,
        y=data.y,
        offsets=data.offsets,
        cohort=drawn.cohort,
        rows=drawn.rows,
        method=method,
        strength=numbers["reg"]["strength"],
        client_lr=numbers["algo"]["client_lr"],
    )
