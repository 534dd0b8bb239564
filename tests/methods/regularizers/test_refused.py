"""Options that regularizers refuse."""

import pytest
from helpers import small

from fcorun import UserError
from fcorun.experiment.build import build_problem, load_data
from fcorun.experiment.prepare import prepare


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["reg=box", "reg.lower=2", "reg.upper=1"], ["reg.lower=2", "reg.upper=1"]),
        (["reg=budget", "reg.lower=2", "reg.upper=1"], ["reg.lower=2", "reg.upper=1"]),
        (["reg=monotone_box", "reg.lower=2", "reg.upper=1"], ["reg.lower=2", "reg.upper=1"]),
        (["reg=l1_box", "reg.lower=0.5", "reg.upper=1"], ["reg.lower=0.5", "must contain 0"]),
        (["reg=l1_box", "reg.lower=null", "reg.upper=-1"], ["reg.upper=-1", "must contain 0"]),
        (["reg=halfspace", "reg.normal=[0,0]"], ["reg.normal"]),
        (["reg=affine", "reg.target=[1,2]"], ["reg.target", "2 numbers", "1 rows"]),
        (["reg=affine", "reg.target=[]", "reg.matrix=[]"], ["reg.matrix has no row"]),
    ],
)
def test_impossible_options_are_refused(overrides, words):
    with pytest.raises(UserError) as error:
        prepare(small(*overrides))
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["reg=group_lasso", "reg.group_size=3"], ["20", "reg.group_size=3"]),
        (["reg=budget", "reg.lower=0.1", "reg.budget=1.9"], ["reg.lower=0.1", "reg.budget=1.9: raise reg.budget"]),
        (["reg=halfspace", "reg.normal=[1,1]"], ["reg.normal", "2 entries", "20"]),
        (["reg=monotone", "reg.apply_to=[weights,bias]"], ["'bias', a number", "leave it out of reg.apply_to"]),
        (["reg=tv", "reg.apply_to=[bias]"], ["'bias', a number", "leave it out of reg.apply_to"]),
        (["reg=affine", "reg.matrix=[[1,1]]"], ["reg.matrix", "20"]),
        (["reg=affine", f"reg.matrix=[{[1] * 20},{[2] * 20}]", "reg.target=[1,1]"], ["no w", "reg.target"]),
    ],
)
def test_options_that_do_not_fit_the_parameters_are_refused(overrides, words):
    experiment = prepare(small(*overrides))
    with pytest.raises(UserError) as error:
        build_problem(experiment, load_data(experiment))
    assert all(word in str(error.value) for word in words)
