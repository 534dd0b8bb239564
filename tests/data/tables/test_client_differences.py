"""Clients whose units or codes differ from those of the others are named, in pooled tables and over sites."""

import numpy as np
import pandas as pd
import pytest

from fcorun.data.datasets.table import Table
from fcorun.data.tables.data_warnings import find_other_codes, measure_distances


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def warnings_of(**changes):
    """Return the warnings on a table of three clients in which columns of client b are changed."""
    rng = np.random.default_rng(0)
    parts = []
    for client in "abc":
        part = pd.DataFrame({"client": client, "weight": rng.normal(70, 12, 40), "sex": rng.choice(["f", "m"], 40)})
        part["ward"] = client + rng.choice(["1", "2"], 40)  # each client has wards of its own
        part["protein"] = np.where(np.arange(40) % 3, 12 * np.exp(np.linspace(-5, 5, 40)), np.nan)
        part["y"] = part["weight"] / 10 + rng.normal(size=40)
        if client == "b":
            part = part.assign(**{name: change(part) for name, change in changes.items()})
        parts.append(part)
    pd.concat(parts).to_csv("table.csv", index=False)
    data = Table("table.csv", target="y", client="client", validation=0.0, missing="median").load()
    return [text for text in data.warnings if "other clients" in text]


def test_a_client_with_another_unit_is_named_with_both_means():
    assert warnings_of() == []
    (warning,) = warnings_of(weight=lambda part: 1000 * part["weight"])
    own, others = (
        float(text) for text in warning.split("'weight' at client 'b' (")[1].split(")")[0].split(", the others ")
    )
    table = pd.read_csv("table.csv")
    assert own == pytest.approx(table["weight"][table["client"] == "b"].mean(), rel=0.1)
    assert others == pytest.approx(70, rel=0.1)
    assert "more than 5 standard deviations" in warning
    assert warning.endswith("check that the units are the same")


def test_a_client_with_other_codes_is_named_and_levels_of_each_client_are_not():
    (warning,) = warnings_of(sex=lambda part: part["sex"].map({"f": "w", "m": "male"}))
    assert (
        "client 'b' has none of the levels of 'sex' of the other clients ('male', 'w', the others 'f', 'm')" in warning
    )


def test_distances_are_those_of_a_plain_loop():
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(4), [30, 50, 20, 2])
    x = rng.normal(size=(len(group), 3)) + group[:, None] * [0, 3, 100]
    x[:, 0] = 5.0
    mean, n_rows = x.mean(axis=0), np.bincount(group)
    sums, squares = (np.stack([v[group == g].sum(axis=0) for g in range(4)]) for v in (x, (x - mean) ** 2))
    distances, own, others = measure_distances(sums, squares, n_rows, mean)
    for g in range(4):
        inside, outside = x[group == g], x[group != g]
        np.testing.assert_allclose(own[g], inside.mean(axis=0))
        np.testing.assert_allclose(others[g], outside.mean(axis=0))
        expected = np.abs(inside.mean(axis=0) - outside.mean(axis=0))[1:] / outside.std(axis=0)[1:]
        np.testing.assert_allclose(distances[g, 1:], expected if g < 3 else 0)  # two rows tell nothing
    assert not distances[:, 0].any()  # a constant column


def test_codes_are_compared_where_most_groups_agree():
    assert find_other_codes({"a": {"f"}, "b": {"f", "m"}}) == []
    assert find_other_codes({"a": {"f", "m"}, "b": {"0", "1"}}) == ["b"]
    assert find_other_codes({"a": {"a1"}, "b": {"b1"}, "c": {"c1"}}) == []
    assert find_other_codes({"a": {"f"}, "b": set(), "c": {"f"}}) == []
    assert find_other_codes({"a": {"f"}}) == []
    spelled = {"a": {"f", "m"}, "b": {"f", "m"}, "c": {"F", "M"}, "d": {"female", "male"}, "e": {"1", "2"}}
    assert find_other_codes(spelled) == ["d", "e"]
    assert find_other_codes({name: spelled[name] for name in "abde"}) == ["d", "e"]
