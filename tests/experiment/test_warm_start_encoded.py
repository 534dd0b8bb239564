"""Records of tables with text and gaps keep how their features are made, and new clients take it over."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers import fails, not_none

from fcorun import compose, run
from fcorun.data.tables.encoding import Encoding
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare

ROWS = {"north": 12, "south": 15, "west": 13}


def visits(clients: dict[str, int], seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    site = np.repeat(list(clients), list(clients.values()))
    n = len(site)
    table = pd.DataFrame({"age": rng.normal(60, 10, n), "ward": rng.choice(["er", "eye", "icu"], n), "site": site})
    table["sex"] = rng.choice(["F", "M"], n)
    table["cost"] = 0.1 * table["age"] + (table["ward"] == "icu") + rng.normal(0, 0.1, n)
    table["lab"] = np.where(np.arange(n) % 5 == 0, np.nan, rng.normal(80, 9, n))
    return table


@pytest.fixture
def trained(tmp_path):
    visits(ROWS).to_csv(tmp_path / "old.csv", index=False)
    return run(compose([*choice(tmp_path / "old.csv"), "algo=fedavg", "data.missing=median"]), "old")


def choice(path, *more: str) -> list[str]:
    base = ["data=table", f"data.path={path}", "data.target=cost", "data.client=site", "data.standardize=pooled"]
    return [*base, "reg=none", "rounds=3", *more]


@pytest.mark.slow
def test_a_record_keeps_its_encoding(trained):
    encoding = json.loads((trained.folder / "encoding.json").read_text())
    data = load_data(prepare(trained.config))
    assert Encoding.from_dict(encoding) == data.features.encoding
    assert encoding["features"] == trained.summary["data"]["feature_names"] == list(data.features.names)
    assert data.features.names == ("age", "ward=er", "ward=eye", "ward=icu", "sex=M", "lab")
    lab = not_none(data.features.encoding).columns[-1]
    raw = load_data(prepare(trained.config | {"data": trained.config["data"] | {"standardize": "none"}}))
    lab_values = visits(ROWS)["lab"].dropna().tolist()
    assert lab.fill == np.median([value for value in raw.train.x[:, -1] if value in lab_values])


@pytest.mark.slow
def test_new_clients_take_the_columns_levels_and_fills_of_the_record(trained, tmp_path):
    new = visits({"east": 20}, seed=1)[["lab", "site", "cost", "sex", "ward", "age"]].assign(unit="mg")
    new.loc[:2, "ward"] = "moon"
    new.loc[3, "age"] = np.nan  # which training had in every row
    new.to_csv(tmp_path / "new.csv", index=False)
    overrides = choice(tmp_path / "new.csv", "algo=ditto", f"start={trained.folder}", "frozen=true",
                       "data.validation=0",
                   f"data.scaling={trained.folder}")  # fmt: skip
    record = run(compose(overrides), "new")
    data, old = load_data(prepare(compose(overrides))), load_data(prepare(trained.config))
    assert data.features.names == old.features.names
    assert data.features.encoding == old.features.encoding
    scaled = trained.summary["data"]["standardized"]
    expected = (not_none(old.features.encoding).apply(new) - np.array(scaled["mean_"])) / np.array(scaled["scale_"])
    np.testing.assert_allclose(data.train.x, expected, rtol=1e-12, atol=1e-12)
    log = (record.folder / "run.log").read_text()
    assert "column 'ward' has levels that no training row has, 'moon' in 3 rows (" in log
    assert "'age' by " in log
    assert "columns that the record does not use are left out: 'unit'" in log
    assert prepare(record.config).identity == record.status["identity"]

    (trained.folder / "encoding.json").rename(trained.folder / "kept.json")
    with fails("data.path=", "column 'lab' is missing in row 1", "data.missing="):
        load_data(prepare(compose(overrides)))
    with fails(f"data.encoding={trained.folder} is no record", "encoding.json"):
        load_data(prepare(compose([*overrides, f"data.encoding={trained.folder}"])))


@pytest.mark.slow
def test_an_encoding_that_is_taken_is_part_of_what_a_run_is(trained, tmp_path):
    visits(ROWS, seed=2).to_csv(tmp_path / "other.csv", index=False)
    other = run(compose([*choice(tmp_path / "other.csv"), "algo=fedavg", "data.missing=median"]), "other").folder
    plain = choice(tmp_path / "other.csv", "algo=fedavg", "data.missing=median")
    known = {prepare(compose([*plain, *more])).identity for more in ([], [f"data.encoding={trained.folder}"])}
    assert len(known) == 2
    known.add(prepare(compose([*plain, f"data.encoding={other}"])).identity)
    assert len(known) == 3
    a = load_data(prepare(compose([*plain, f"data.encoding={other}"])))
    np.testing.assert_array_equal(a.train.x, load_data(prepare(compose(plain))).train.x)
