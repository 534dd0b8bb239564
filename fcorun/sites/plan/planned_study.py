"""The study of a plan: what is computed, without the list of what leaves a site."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fcorun.data.datasets.sites import Sites
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.sites.plan.plan_checks import at_any_strength
from fcorun.sites.plan.planned_intervals import PlannedIntervals
from fcorun.sites.plan.planned_selection import PlannedSelection
from fcorun.studies.selection.path import find_path_parameter


@dataclass(frozen=True)
class PlannedStudy:
    """A study over sites.

    Attributes:
        config: the configuration of the experiment as plain values, without keys that change no number.
        fcorun: the version of fcorun that made the plan, which all sites must have.
        secure: the bound on the numbers of each masked message, by its name; None: no message is masked.
        select: the selection of a strength or a radius; None: the study is one run.
        infer: the intervals of the coefficients of the last model; None: there are none.
    """

    config: dict[str, Any]
    fcorun: str
    secure: dict[str, float] | None = None
    select: PlannedSelection | None = None
    infer: PlannedIntervals | None = None

    @cached_property
    def experiment(self) -> PreparedExperiment:
        """The experiment of the plan; of a selection, that of a run whose strength the path replaces."""
        if self.select is None:
            return prepare(self.config)
        return at_any_strength(prepare({**self.config, "tail_rounds": self.select.tail_rounds}))

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, which is no baseline."""
        algorithm = self.experiment.algo
        assert isinstance(algorithm, Algorithm)
        return algorithm

    @property
    def shared_options(self) -> Sites:
        """The options of the tables that all sites share."""
        data = self.experiment.data
        assert isinstance(data, Sites)
        return data

    @property
    def selection(self) -> PlannedSelection:
        """The selection of a study that has one."""
        assert self.select is not None
        return self.select

    @property
    def is_masked(self) -> bool:
        """Return whether masks hide the numbers of single sites."""
        return self.secure is not None

    @property
    def n_rounds(self) -> int:
        """The number of rounds of all runs together; runs with one upload for all count once."""
        rounds = self.experiment.settings.rounds
        if self.select is None:
            return rounds
        n_paths = 1 if self.algorithm.has_common_uploads else self.select.points
        return rounds * (n_paths * (self.select.n_folds + 1) + 1)

    @property
    def n_evaluations(self) -> int:
        """The number of evaluations of a run, with the one before the first round."""
        settings = self.experiment.settings
        return -(-settings.rounds // settings.eval_every) + 1

    def config_of(self, numbers: dict[str, dict[str, float]]) -> dict[str, Any]:
        """Return the configuration of the study's run; of a selection, with the chosen value of ``numbers``."""
        if self.select is None:
            return self.config
        parameter = find_path_parameter(self.experiment)
        relative = {"relative": None} if "relative" in self.config["reg"] else {}
        return {**self.config, "reg": {**self.config["reg"], **relative, parameter: numbers["reg"][parameter]}}
