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


def test_points_of_a_grid_share_no_values():
    config = compose(["data=lasso_16", "algo=feddualavg"])
    sections = [dict(config["algo"]), dict(config["algo"])]
    points = fcorun.grid(config, {"algo": sections, "seed": [0, 1]})
    points[0]["algo"]["client_lr"] = "mine"
    assert sections == [config["algo"]] * 2
    assert [point["algo"] for point in points[1:]] == [config["algo"]] * 3


@pytest.mark.parametrize("names", [("algo", "algo.client_lr"), ("algo.client_lr", "algo")])
def test_an_axis_in_another_one_is_refused(names):
    config = compose(["data=lasso_16", "algo=feddualavg"])
    with pytest.raises(UserError, match=r"'algo\.client_lr' is a part of 'algo'"):
        fcorun.grid(config, {name: [1, 2] for name in names})
