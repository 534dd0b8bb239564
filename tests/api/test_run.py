"""Grids of plain configurations: what is refused, in the words of a Python program."""

import pytest

import fcorun
from fcorun import UserError, compose


def test_errors_of_run_grid_have_the_names_of_python():
    config = compose(["data=lasso_16", "local_epochs=2"]) | {"local_steps": 2}
    with pytest.raises(UserError, match="set one of them to None"):
        fcorun.run_grid([config])


def test_a_class_that_is_not_imported_is_named_by_its_key(tmp_path):
    config = compose(["data=lasso_16"])
    config["algo"]["class"] = "method_of_a_stranger.Method"
    sentence = r'^algo\.class="method_of_a_stranger\.Method" is not imported.*trust=DIR$'
    with pytest.raises(UserError, match=sentence):
        fcorun.grid(config, {"algo.rate": [1]})
    (tmp_path / "method_of_a_stranger.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Method:\n    rate: float = 1.0\n"
    )
    points = fcorun.grid(config, {"algo.rate": [1, 2]}, trust=tmp_path)
    assert [point["algo"]["rate"] for point in points] == [1, 2]
    with pytest.raises(UserError, match=r"no key 'algo\.rate\.x'"):
        fcorun.grid(config, {"algo.rate.x": [1]}, trust=tmp_path)
