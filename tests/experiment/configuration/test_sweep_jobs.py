"""The jobs of a sweep, without keys that have no effect on them."""

import itertools

import hydra
import pytest
from helpers import fails
from hydra.core.override_parser.overrides_parser import OverridesParser

from fcorun.base.config import IDENTITY_SECTIONS, SECTIONS
from fcorun.experiment.configuration.compose import HYDRA_1_3
from fcorun.experiment.configuration.search_path import find_choices, packaged_config_dir
from fcorun.experiment.configuration.sweep_jobs import deduplicate
from hydra_plugins.fcorun import FcorunSweeper

CLIENT_LRS = ["algo.client_lr=1", "algo.client_lr=2"]


@pytest.fixture
def jobs_of():
    """A function that returns the jobs of axes, or of combinations of overrides."""
    version = {"version_base": "1.3"} if HYDRA_1_3 else {}

    def make(*axes, combinations=None):
        combinations = combinations or [list(combination) for combination in itertools.product(*axes)]
        jobs = deduplicate(combinations, lambda overrides: hydra.compose("config", overrides))
        assert sorted(position for job in jobs for position in job.positions) == list(range(len(combinations)))
        return jobs

    with hydra.initialize_config_dir(packaged_config_dir(), **version):
        yield make


def test_jobs_that_differ_stay_as_they_are(jobs_of):
    combinations = [["algo=fedavg", lr] for lr in CLIENT_LRS]
    jobs = [(job.overrides, job.missing_keys, job.ignored_keys) for job in jobs_of(combinations=combinations)]
    assert jobs == [(overrides, (), ()) for overrides in combinations]


@pytest.mark.slow
def test_a_key_that_an_algorithm_lacks_is_left_out_if_others_have_it(jobs_of):
    first, second, third = jobs_of(["algo=fedavg", "algo=centralized"], CLIENT_LRS)
    assert [first.overrides, second.overrides] == [["algo=fedavg", lr] for lr in CLIENT_LRS]
    assert (third.overrides, third.positions) == (["algo=centralized"], [2, 3])
    assert third.explain_left_out(lambda group: "NAME") == ["algo=NAME has no client_lr: run once for all values"]


@pytest.mark.slow
def test_each_algorithm_may_lack_a_key_of_the_other(jobs_of):
    mus = ["algo.mu=1", "algo.mu=2"]
    relaxations = ["algo.relaxation=0.5", "algo.relaxation=1"]
    jobs = jobs_of(["algo=fedprox", "algo=fedsplit"], mus, relaxations)
    assert [job.overrides for job in jobs] == [
        *(["algo=fedprox", mu] for mu in mus),
        *(["algo=fedsplit", relaxation] for relaxation in relaxations),
    ]


def test_a_missing_key_with_one_value_is_left_out_as_well(jobs_of):
    _, baseline = jobs_of(["algo=fedavg", "algo=centralized"], ["algo.client_lr=1"])
    assert baseline.overrides == ["algo=centralized"]
    assert baseline.explain_left_out(lambda group: "NAME") == ["algo=NAME has no client_lr: run without"]


def test_a_key_of_the_uplink_that_only_some_algorithms_bring_along_is_left_out(jobs_of):
    ef21, fedsplit = jobs_of(["algo=ef21", "algo=fedsplit"], ["uplink.fraction=0.2"])
    assert [ef21.overrides, fedsplit.overrides] == [["algo=ef21", "uplink.fraction=0.2"], ["algo=fedsplit"]]
    assert fedsplit.explain_left_out(lambda group: "NAME") == ["uplink=NAME has no fraction: run without"]


@pytest.mark.parametrize("section", sorted({*IDENTITY_SECTIONS} - {"algo", "data", "reg", "objective"}))
def test_a_baseline_is_run_once_for_all_values_of_what_it_does_not_depend_on(jobs_of, section):
    """Each section but those of the problem; another one would be refused with a baseline."""
    *_, other = sorted({*find_choices(section)} - {"none", "star", "identity", "mean", "euclidean"})
    default = SECTIONS[section].default or {"name": "euclidean"}
    values = [f"{section}={default['name']}", f"{section}={other}"]
    *others, baseline = jobs_of(["algo=feddualavg", "algo=centralized"], values)
    assert [job.overrides[1] for job in others] == values
    assert (baseline.overrides, baseline.positions) == (["algo=centralized"], [2, 3])
    sentence = f"algo=NAME solves the problem in one place, without {section}: run once for all values"
    assert baseline.explain_left_out(lambda group: "NAME") == [sentence]
    (alone,) = jobs_of(["algo=centralized"], values[1:])
    assert alone.overrides[1:] == values[1:]  # refused when it is prepared


@pytest.mark.slow
@pytest.mark.parametrize("algos", [["algo=fedavg"], ["algo=fedavg", "algo=fedmid"]])
def test_a_key_that_no_algorithm_has_is_an_error(jobs_of, algos):
    jobs = jobs_of(algos, ["algo.client_rl=1", "algo.client_rl=2"])
    assert len(jobs) == 2 * len(algos)
    assert all("algo.client_rl" in str(job.error) for job in jobs)


@pytest.mark.slow
def test_a_key_that_a_regularizer_lacks_is_left_out(jobs_of):
    jobs = jobs_of(["reg=l1", "reg=none"], ["reg.strength=1", "reg.strength=2"])
    assert [job.overrides for job in jobs][2:] == [["reg=none"]]


@pytest.mark.slow
@pytest.mark.parametrize("signs", ["", "++"])
def test_values_of_psi_are_left_out_for_an_algorithm_that_ignores_psi(jobs_of, signs):
    strengths = [f"{signs}reg.strength=1", f"{signs}reg.strength=2"]
    jobs = jobs_of(["algo=fedmid", "algo=scaffold", "algo=centralized"], strengths)
    assert [len(job.positions) for job in jobs] == [1, 1, 2, 1, 1]
    assert jobs[2].overrides == ["algo=scaffold"]
    assert jobs[2].ignored_keys == ("reg.strength",)


def test_a_strength_that_is_no_axis_stays(jobs_of):
    jobs = jobs_of(["algo=fedmid", "algo=scaffold"], ["reg.strength=1"])
    assert [job.overrides[1:] for job in jobs] == [["reg.strength=1"]] * 2
    combinations = [["algo=fedmid", "reg.strength=1"], ["algo=scaffold", "reg.strength=2"]]
    assert [job.overrides for job in jobs_of(combinations=combinations)] == combinations


class Launched:
    """A launcher that returns the jobs that it is given."""

    def launch(self, jobs, initial_job_idx):
        return [" ".join(job) for job in jobs]


def launched_jobs(*given, **options):
    """Return the jobs that a sweeper with these options launches for overrides of the command line."""
    sweeper = FcorunSweeper(**options)
    sweeper.parser, sweeper.launcher = OverridesParser.create(), Launched()
    return sweeper.sweep(["experiment=race", *given])


ALSO = ["algo=fedmid algo.mu=1,2", "seed=7"]


@pytest.mark.parametrize(
    ("given", "options", "jobs"),
    [
        (["seed=0,1"], {}, ["algo=fedmid algo.mu=1 / seed=0", "algo=fedmid algo.mu=2 / seed=0",
                            "algo=fedmid algo.mu=1 / seed=1", "algo=fedmid algo.mu=2 / seed=1", "seed=7"]),
        (["algo=fedgd", "rounds=3"], {"also": ["algo=fedavg"]}, ["algo=fedgd rounds=3", "algo=fedavg / rounds=3"]),
        (["rounds=3,4"], {"also": ["algo=fedavg"], "params": {"algo.mu": "1,2"}},
         ["rounds=3 algo.mu=1", "rounds=3 algo.mu=2", "rounds=4 algo.mu=1", "rounds=4 algo.mu=2",
          "algo=fedavg / rounds=3", "algo=fedavg / rounds=4"]),
        (["rounds=3,4", "seed=1,2"], {"also": ["algo=fedavg"], "zip": ["rounds", "seed"]},
         ["algo=fedavg / rounds=3 seed=1", "algo=fedavg / rounds=4 seed=2"]),
        (["rounds=3,4"], {"also": ["algo=fedavg seed=1,2", "algo=fedgd seed=1"], "zip": ["rounds", "seed"]},
         ["algo=fedavg / rounds=3 seed=1", "algo=fedavg / rounds=4 seed=2",
          "algo=fedgd seed=1 / rounds=3", "algo=fedgd seed=1 / rounds=4"]),
        ([], {"also": ["algo.mu=1,2 seed=1,2"], "zip": ["algo.mu", "seed"]}, ["algo.mu=1 seed=1", "algo.mu=2 seed=2"]),
    ],
    ids=["lists", "a further algorithm", "beside a product", "zipped", "zipped with an own list", "own lists zipped"],
)  # fmt: skip
def test_lists_of_the_command_line_multiply_all_jobs(given, options, jobs):
    """A job sets its own keys. Without params and algo=, the default algorithm of the experiment is not run."""
    expected = []
    for job in jobs:
        own, _, inherited = job.rpartition(" / ")
        expected.append(" ".join(filter(None, ["experiment=race", inherited, own])))
    assert launched_jobs(*given, **{"also": ALSO} | options) == expected


def test_without_an_experiment_lists_are_a_product_beside_the_listed_jobs():
    sweeper = FcorunSweeper(also=["algo=centralized"])
    sweeper.parser, sweeper.launcher = OverridesParser.create(), Launched()
    assert sweeper.sweep(["rounds=1,2"])[:2] == ["rounds=1", "rounds=2"]
    sweeper = FcorunSweeper(also=["data=haxby", "data=lasso"])
    sweeper.parser, sweeper.launcher = OverridesParser.create(), Launched()
    assert sweeper.sweep(["algo=fedmid"]) == ["algo=fedmid data=haxby", "algo=fedmid data=lasso"]
    assert launched_jobs("algo=fedmid", also=["data=haxby"]) == ["experiment=race algo=fedmid data=haxby"]
    with fails("hydra.sweeper.zip: data.sed has no list of values"):
        launched_jobs("seed=0,1", also=["algo=fedavg"], zip=["seed", "data.sed"])


def test_an_override_that_no_job_takes_is_refused():
    with fails("algo.mu=1 reaches no run: algo.mu is set by every run of experiment=race itself; leave it out"):
        launched_jobs("algo.mu=1", also=["algo=fedavg", "algo=fedmid"])
    assert len(launched_jobs("algo.mu=1", "algo=fedprox", also=["algo=fedavg"])) == 2
