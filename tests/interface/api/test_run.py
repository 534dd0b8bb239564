"""A run of a plain configuration: what is refused, in the words of a Python program."""

import pytest

import fcorun
from fcorun import UserError, compose


def test_errors_of_run_have_the_names_of_python():
    config = compose(["data=lasso_16", "local_epochs=2"]) | {"local_steps": 2}
    with pytest.raises(UserError, match="set one of them to None"):
        fcorun.run(config)


def test_a_class_that_is_not_imported_is_named_by_its_key():
    config = compose(["data=lasso_16"])
    config["algo"]["class"] = "method_of_a_stranger.Method"
    sentence = r'^algo\.class="method_of_a_stranger\.Method" is not imported.*trust=DIR$'
    with pytest.raises(UserError, match=sentence):
        fcorun.run(config)
