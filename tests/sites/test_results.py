"""The result of a run at the sites: a record that predicts, and refusals of anything else."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command import fcorun
from helpers import fails
from three_sites import NAMES, plan_of, sites_of, write_tables

from fcorun.base.records.formats import npz_bytes
from fcorun.interface.api.progress import ExperimentWarning
from fcorun.interface.api.run_record import RunRecord
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import try_plan
from fcorun.sites.site.acceptance import accept, open_site, result_folder
from fcorun.sites.site.site import Site
from fcorun.sites.site.site_results import pack_result, predict_held_out
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import Message

__all__ = ["fcorun"]  # a fixture


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables()


@pytest.mark.slow
def test_each_site_has_a_record_that_predicts_and_reports(tmp_path, fcorun):
    plan = plan_of()
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        rows.assign(visit=[f"{name}{k:03}" for k in range(len(rows))]).to_csv(f"{name}.csv", index=False)
        accept(tmp_path / name, plan, SiteOptions(f"{name}.csv", keep=["visit"]), Policy())
    sites = {name: open_site(tmp_path / name, plan) for name in NAMES}
    record = run_plan(plan, InProcessConnections(sites), tmp_path / "out")
    folder = result_folder(tmp_path / "b", plan)
    at_site = FittedRecord(folder)
    np.testing.assert_array_equal(at_site.solution["weights"], record.solution["weights"])
    assert at_site.summary["data"] == record.summary["data"]
    predictions = []
    for where in (folder, tmp_path / "out"):
        code, _, errors = fcorun("predict", str(where), "b.csv", "--out", "predicted.csv", "--force")
        assert code == 0, errors
        assert "the record has no ranges of its rows: unusual values are not flagged" in errors
        predictions.append(pd.read_csv("predicted.csv"))
    assert predictions[0].pop("visit").tolist() == pd.read_csv("b.csv")["visit"].tolist()  # of data.keep
    pd.testing.assert_frame_equal(*predictions)
    code, _, errors = fcorun("report", str(folder))
    assert code == 0, errors
    rows, held_out = pd.read_csv("b.csv", dtype={"visit": str}), pd.read_csv(folder / "predictions.csv", dtype=str)
    at_site = predictions[0]["prediction"].to_numpy()[held_out["row"].astype(int) - 1]
    np.testing.assert_allclose(held_out["prediction"].astype(float), at_site, rtol=1e-9)
    assert held_out["visit"].tolist() == rows["visit"].iloc[held_out["row"].astype(int) - 1].tolist()
    assert set(held_out["client"]) == {"b"}
    assert not (tmp_path / "out" / "predictions.csv").exists()


def test_a_site_notes_that_it_leaves_its_predictions_out(monkeypatch, caplog):
    class Rows:
        split = "test"

        def __len__(self):
            return 1_000_001

    monkeypatch.setattr("fcorun.sites.site.site_results.predict_splits", lambda *_: [Rows()])
    experiment: Any = SimpleNamespace(has_shared_model=True, objective=None)
    data: Any = None
    assert predict_held_out(experiment, data, {}, None, 0.5) == ""
    assert "predictions.csv is left out: it would have 1,000,001 rows" in caplog.text


@pytest.mark.slow
def test_a_site_keeps_no_other_files_and_no_other_model(tmp_path):
    plan, requests = plan_of(), []

    class Connections(InProcessConnections):
        def send(self, request):
            if "a" in self.list_addressees(request):
                requests.append(request.message)
            return super().send(request)

    record = run_plan(plan, Connections(sites_of(plan)), tmp_path / "out")
    site = sites_of(plan)["a"]
    site.result_folder = tmp_path / "kept"
    for request in requests[:-2]:
        site.answer(request)
    files = pack_result(record)
    assert requests[-2].name == "result"

    def refuse(words, **changed):
        site.counts.counts.clear()
        content = {name: np.frombuffer(value, np.uint8) for name, value in changed.items()}
        with fails(words):
            site.answer(Message("result", {}, files | content))
        assert not (tmp_path / "kept").exists()

    other = {name: values + 1 for name, values in record.solution.items()}
    refuse("another model than the one it had evaluated last", **{"solution.npz": npz_bytes(other)})
    summary, encoding = (json.loads(files[name].tobytes()) for name in ("summary.json", "encoding.json"))
    moved = [mean + 1 for mean in summary["data"]["standardized"]["mean_"]]
    for change in (
        {"feature_names": summary["data"]["feature_names"][::-1]},
        {"task": "binary", "classes": ["yes", "no"]},
        {"standardized": summary["data"]["standardized"] | {"mean_": moved}},
        {"standardized": None},
        {"scale": 2.0},
    ):
        forged = json.dumps(summary | {"data": summary["data"] | change}).encode()
        refuse("than all sites agreed on", **{"summary.json": forged})
    refuse(
        "than all sites agreed on", **{"summary.json": json.dumps(summary | {"threshold": {"shared": 0.9}}).encode()}
    )
    encoding["columns"][-1]["levels"] = ["x", "z", "y"]
    refuse("than all sites agreed on", **{"encoding.json": json.dumps(encoding).encode()})
    for changed in (
        {"solution.npz": npz_bytes({"weights": np.zeros(3)})},
        {"solution.npz": b"junk"},
        {"summary.json": b"{"},
        {"metrics.csv": b"\xff\xfe"},
        {"status.json": json.dumps({"status": "diverged"}).encode()},
        {"plugins.py": b"print()"},
        {"../evil.csv": b"a"},
    ):
        refuse("'result' does not fit the plan", **changed)
    site.counts.counts.clear()
    site.answer(requests[-2])
    assert FittedRecord(tmp_path / "kept").config["algo"]["class"] == plan.config["algo"]["class"]
    with fails("more often than the plan says, 1 times"):
        site.answer(requests[-2])


@pytest.mark.slow
def test_a_result_of_two_classes_is_kept_with_the_agreed_classes(tmp_path):
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        rows.assign(cost=(rows["cost"] > -10).astype(int)).to_csv(f"{name}.csv", index=False)
    plan = plan_of("data.task=binary", "data.positive=1", "objective=logistic")
    sites = sites_of(plan)
    sites["a"].result_folder = tmp_path / "kept"

    class Forger(InProcessConnections):
        def send(self, request):
            if request.name == "result":
                arrays = dict(request.message.arrays)
                summary = json.loads(arrays["summary.json"].tobytes())
                summary["data"]["classes"].reverse()
                arrays["summary.json"] = np.frombuffer(json.dumps(summary).encode(), np.uint8)
                request = replace(request, message=replace(request.message, arrays=arrays))
            return super().send(request)

    with fails("site 'a'", "than all sites agreed on"):
        run_plan(plan, Forger(sites), tmp_path / "forged")
    assert not (tmp_path / "kept").exists()
    run_plan(plan, InProcessConnections(sites_of(plan)), tmp_path / "honest")


@pytest.mark.slow
def test_a_result_without_pooled_means_is_kept(tmp_path):
    plan = plan_of("algo=gram", "rounds=1", "data.standardize=none")
    sites = sites_of(plan)
    sites["a"].result_folder = tmp_path / "kept"
    run_plan(plan, InProcessConnections(sites), tmp_path / "out")
    assert "standardized" not in FittedRecord(tmp_path / "kept").summary["data"]


def test_codes_of_missing_values_of_a_site_are_gaps_in_rows_to_predict(tmp_path, fcorun):
    """-9 would be a number of the model; the record that the site keeps has the options of the site's file."""
    rows = pd.read_csv("b.csv")
    rows.assign(years=rows.pop("age").where(rows.index > 20, -9)).to_csv("b.csv", index=False, encoding="utf-16")
    plan = plan_of("algo=gram", "rounds=1", "data.missing=mean", "data.only=[age,bmi]")
    sites = sites_of(plan)
    options = SiteOptions("b.csv", rename={"years": "age"}, na={"years": ["-9"]}, encoding="utf-16")
    sites["b"] = Site(plan, options, result_folder=tmp_path / "kept")
    run_plan(plan, InProcessConnections(sites), tmp_path / "out")
    new = pd.DataFrame({"age": [50, -9], "bmi": [25.5, 24.0], "note": ["dès", "là"]})
    new.to_csv("new.csv", index=False, encoding="utf-16")
    new.assign(age=[50, None]).to_csv("gaps.csv", index=False, encoding="utf-16")
    predictions = []
    for file in ("new.csv", "gaps.csv"):
        code, _, errors = fcorun("predict", "kept", file, "--out", "predicted.csv", "--force")
        assert code == 0, errors
        predictions.append(pd.read_csv("predicted.csv")["prediction"].to_numpy())
    np.testing.assert_array_equal(*predictions)
    pd.read_csv("new.csv", encoding="utf-16").to_csv("new.csv", index=False)
    code, _, errors = fcorun("predict", "out", "new.csv", "data.na=[-9]", "--out", "predicted.csv", "--force")
    assert code == 0, errors
    assert "codes of missing values" not in errors
    np.testing.assert_array_equal(pd.read_csv("predicted.csv")["prediction"], predictions[0])
    code, _, errors = fcorun("predict", "out", "new.csv", "--out", "predicted.csv", "--force")
    assert "codes of missing values, such as -9, are read as numbers: give data.na=[-9]" in errors
    assert pd.read_csv("predicted.csv")["prediction"][1] != predictions[0][1]
    code, _, errors = fcorun("report", "kept")
    assert code == 0, errors
    assert SiteOptions("b.xlsx", sheet="2024", client="ward").for_predictions() == {"client": "ward", "sheet": "2024"}


def test_a_site_predicts_rows_with_the_names_of_its_own_file(tmp_path, fcorun):
    """A column that the file calls 'bmi' is another one than the feature of that name."""
    rows = pd.read_csv("b.csv")
    own_names = {"age": "alter", "bmi": "bmi_now", "bmi_before": "bmi", "cost": "kosten"}
    own_names |= {"visit": "visit_number", "hospital": "klinik"}
    rows["bmi_before"] = np.round(rows["bmi"] + 10, 2)
    rows["visit"] = [f"00{k}" for k in range(len(rows))]
    rows["hospital"] = "01"
    rows.rename(columns=own_names).to_csv("b.csv", index=False)
    plan = plan_of("algo=gram", "rounds=1", "data.only=[age,bmi]")
    sites = sites_of(plan)
    rename = {name: shared for shared, name in own_names.items()}
    options = SiteOptions("b.csv", rename=rename, keep=["visit", "bmi_before"])
    sites["b"] = Site(plan, options, result_folder=tmp_path / "kept")
    run_plan(plan, InProcessConnections(sites), tmp_path / "out")
    rows.to_csv("shared_names.csv", index=False)
    rows.rename(columns=own_names).to_csv("own_names.csv", index=False)
    predictions = []
    for file, words in (("own_names.csv", "'bmi_now' is 'bmi'"), ("shared_names.csv", "as all sites share them")):
        code, _, errors = fcorun("predict", "kept", file, "--out", "predicted.csv", "--force")
        assert (code, words in errors) == (0, True), errors
        predictions.append(pd.read_csv("predicted.csv", dtype={"visit": str}))
    pd.testing.assert_frame_equal(*predictions)
    assert predictions[0]["visit"][1] == "001"
    with pytest.warns(ExperimentWarning):
        of_frame = RunRecord(tmp_path / "kept").predict(pd.read_csv("own_names.csv"))
    np.testing.assert_allclose(of_frame["prediction"], predictions[0]["prediction"], rtol=1e-12)
    own_words = ("--keep", "visit_number", "--keep", "alter", "--client", "klinik")
    shared_words = ("--keep", "visit", "--keep", "age", "--client", "hospital")
    typed = []
    for words in (own_words, shared_words):
        command = ("predict", "kept", "own_names.csv", *words, "--out", "predicted.csv", "--force")
        code, _, errors = fcorun(*command)
        assert code == 0, errors
        typed.append(pd.read_csv("predicted.csv", dtype=str))
    pd.testing.assert_frame_equal(*typed)
    assert typed[0].loc[1, ["client", "visit", "age"]].tolist() == ["01", "001", str(rows["age"][1])]
    pd.read_csv("own_names.csv").assign(cost=7).to_csv("two_costs.csv", index=False)  # the target is not read
    code, _, errors = fcorun("predict", "kept", "two_costs.csv", "--out", "predicted.csv", "--force")
    assert code == 0, errors
    np.testing.assert_array_equal(pd.read_csv("predicted.csv")["prediction"], predictions[0]["prediction"])
    rows.assign(alter=1, bmi_now=2).to_csv("both.csv", index=False)
    code, _, errors = fcorun("predict", "kept", "both.csv")
    assert (code, "delete one of the two columns" in errors) == (2, True), errors
    lacking = pd.read_csv("own_names.csv").drop(columns="bmi_now")  # whose bmi is not the feature
    lacking.to_csv("lacking.csv", index=False)
    code, _, errors = fcorun("predict", "kept", "lacking.csv")
    assert (code, "these rows lack 'bmi_now': add that column" in " ".join(errors.split())) == (2, True), errors
    with fails("its own column 'bmi' is 'bmi_before'", "add that column"):
        RunRecord(tmp_path / "kept").predict(lacking)
    code, _, errors = fcorun("infer", "kept")
    assert (code, "intervals are part of a plan" in " ".join(errors.split())) == (2, True), errors


@pytest.mark.slow
def test_scales_stay_at_the_sites_which_predict_with_them(tmp_path, fcorun):
    """Each client's means and deviations are those of its training rows, and the server's record has none."""
    plan = plan_of("algo=gram", "rounds=1", "data.standardize=per_client")
    sites = sites_of(plan)
    sites["b"].result_folder = tmp_path / "kept"
    record, comparison = try_plan(plan, sites, tmp_path / "out")
    assert comparison.difference < 1e-12
    assert "per standard deviation of each client" in "".join(plan.describe())
    assert "at its site alone" in record.status["reason"]
    assert not record.scaling
    code, _, errors = fcorun("predict", "out", "b.csv")
    assert code == 2
    assert "each client's means and deviations" in errors
    assert "are at its site; give the record that the site keeps" in errors
    at_site = FittedRecord(tmp_path / "kept")
    assert at_site.scaling["client"].tolist() == ["b"]
    code, _, errors = fcorun("predict", "kept", "b.csv", "--out", "predicted.csv")
    assert code == 0, errors
    predicted = pd.read_csv("predicted.csv")
    assert set(predicted["scaling"]) == {"client"}
    rows = pd.get_dummies(pd.read_csv("b.csv").drop(columns="cost"), columns=["ward"], prefix_sep="=", dtype=float)
    x = rows[at_site.summary["data"]["feature_names"]].to_numpy()
    training = x[sites["b"].own_data.train.row]
    z = (x - training.mean(axis=0)) / training.std(axis=0)
    expected = z @ record.solution["weights"] + record.solution["bias"]
    np.testing.assert_allclose(predicted["prediction"], expected, rtol=1e-9)
    pd.read_csv("b.csv").assign(hospital="elsewhere").to_csv("other.csv", index=False)
    code, _, errors = fcorun("predict", "kept", "other.csv", "--client", "hospital", "--out", "other_predicted.csv")
    assert code == 0, errors
    assert "the means and deviations of the clients of this site" in errors
