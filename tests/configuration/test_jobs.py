"""The jobs of a sweep: without the keys that mean nothing to them."""

import itertools

import hydra
import pytest

from fcorun.configuration.compose import HYDRA_1_3
from fcorun.configuration.search_path import packaged_config_dir
from fcorun.configuration.sweep_jobs import deduplicate

LRS = ["algo.client_lr=1", "algo.client_lr=2"]


@pytest.fixture
def jobs():
    """A function from axes, or from combinations, to (overrides, places, remarks) of each job, and its error."""
    version = {"version_base": "1.3"} if HYDRA_1_3 else {}

    def found(*axes, given=None):
        combinations = given or [list(each) for each in itertools.product(*axes)]
        settled = deduplicate(combinations, lambda overrides: hydra.compose("config", overrides))
        assert sorted(place for job in settled for place in job.positions) == list(range(len(combinations)))
        return settled

    with hydra.initialize_config_dir(packaged_config_dir(), **version):
        yield found


def test_jobs_that_differ_stay_as_they_are(jobs):
    given = [["algo=fedavg", lr] for lr in LRS]
    assert [(job.overrides, job.missing_keys, job.ignored_keys) for job in jobs(given=given)] == [
        (each, (), ()) for each in given
    ]


def test_a_key_that_an_algorithm_lacks_is_left_out_where_others_have_it(jobs):
    first, second, third = jobs(["algo=fedavg", "algo=centralized"], LRS)
    assert [first.overrides, second.overrides] == [["algo=fedavg", lr] for lr in LRS]
    assert (third.overrides, third.places) == (["algo=centralized"], [2, 3])
    assert third.remarks(lambda group: "NAME") == ["algo=NAME has no client_lr: run once for all values"]


def test_each_algorithm_may_lack_what_the_other_has(jobs):
    mu, relaxation = ["algo.mu=1", "algo.mu=2"], ["algo.relaxation=0.5", "algo.relaxation=1"]
    found = jobs(["algo=fedprox", "algo=fedsplit"], mu, relaxation)
    assert [job.overrides for job in found] == [
        *(["algo=fedprox", each] for each in mu),
        *(["algo=fedsplit", each] for each in relaxation),
    ]


def test_a_key_with_one_value_is_left_out_as_well(jobs):
    _, other = jobs(["algo=fedavg", "algo=centralized"], ["algo.client_lr=1"])
    assert other.overrides == ["algo=centralized"]
    assert other.remarks(lambda group: "NAME") == ["algo=NAME has no client_lr: run without"]


@pytest.mark.parametrize("algos", [["algo=fedavg"], ["algo=fedavg", "algo=fedmid"]])
def test_a_key_that_none_has_is_an_error(jobs, algos):
    found = jobs(algos, ["algo.client_rl=1", "algo.client_rl=2"])
    assert len(found) == 2 * len(algos)
    assert all("algo.client_rl" in str(job.error) for job in found)


def test_a_choice_of_psi_without_the_key(jobs):
    found = jobs(["reg=l1", "reg=none"], ["reg.strength=1", "reg.strength=2"])
    assert [job.overrides for job in found][2:] == [["reg=none"]]


def test_values_of_psi_are_left_out_where_psi_is(jobs):
    found = jobs(["algo=fedmid", "algo=scaffold", "algo=centralized"], ["reg.strength=1", "reg.strength=2"])
    assert [len(job.places) for job in found] == [1, 1, 2, 1, 1]
    assert found[2].overrides == ["algo=scaffold"]
    assert found[2].ignored_keys == ("reg.strength",)


def test_a_strength_that_is_no_axis_stays(jobs):
    kept = jobs(["algo=fedmid", "algo=scaffold"], ["reg.strength=1"])
    assert [job.overrides[1:] for job in kept] == [["reg.strength=1"]] * 2
    beside = [["algo=fedmid", "reg.strength=1"], ["algo=scaffold", "reg.strength=2"]]
    assert [job.overrides for job in jobs(given=beside)] == beside
