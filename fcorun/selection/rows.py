"""Which rows a study uses, in words."""

from fcorun.datasets.base import FederatedData
from fcorun.datasets.splits import DEFAULT
from fcorun.experiment.experiment import Experiment


def counts(data: FederatedData) -> dict[str, int]:
    """How many rows there are of training, validation and test."""
    parts = {"training": data.y, "validation": data.y_val, "test": data.y_test}
    return {name: 0 if each is None else len(each) for name, each in parts.items()}


def told(experiment: Experiment, data: FederatedData, use: str) -> str:
    """The training rows, which a study divides, and those that are left aside; ``use``: what these are for."""
    rows, aside = counts(data), []
    for name in ("validation", "test"):
        if rows[name]:
            why = _why(experiment, name)
            aside.append(f"{rows[name]:,} rows" + (f" ({why})" if why else f" of the {name}"))
    said = f"{rows['training']:,} training rows"
    return f"{said}; {' and '.join(aside)} are left aside and {use}" if aside else said


def _why(experiment: Experiment, name: str) -> str:
    """The option that leaves these rows aside; empty where it is not known."""
    source = experiment.data
    for option, asked in vars(source).items():  # validation, validation_samples, validation_runs, ...
        if option.split("_")[0] == name and asked is not None:
            return f"data.{option}={asked}".replace("'", "")
    by_default = name == "validation" and hasattr(source, name) and hasattr(source, "path")
    marked = str(getattr(source, "path", "")).endswith(".npz")  # which may mark them itself
    return f"data.validation={DEFAULT} by default" if by_default and not marked else ""
