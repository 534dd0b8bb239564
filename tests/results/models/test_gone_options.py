"""Records, notes of acceptance and policies of earlier versions, which name options that are gone."""

import json
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest
import yaml
from helpers import fails
from ledger_plans import selection_of, write_visits

from fcorun import Record, compose, run
from fcorun.base.gone_options import explain_gone
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands import main
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.site.acceptance import Acceptance, accept

pytestmark = pytest.mark.undrawn


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FCORUN_CACHE", str(tmp_path / "cache"))


def write_earlier(record: Record, section: str, **options) -> Record:
    """Write options into the configuration of a record, as an earlier version did, and return the record."""
    path = record.folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config[section] |= options
    path.write_text(yaml.safe_dump(config))
    return Record(record.folder)


@pytest.mark.parametrize(
    ("overrides", "section", "unused", "used"),
    [
        (["objective=poisson", "algo=newton"], "objective", {"ceiling": None}, {"ceiling": 20}),
        (["algo=fedavg", "topology=tree"], "topology", {"compress_edges": False}, {"compress_edges": True}),
    ],
)
def test_records_with_options_that_are_gone_predict_and_infer(overrides, section, unused, used, capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.standard_normal(90), "site": np.repeat(["A", "B", "C"], 30)})
    frame.assign(y=rng.poisson(np.exp(frame["a"] / 2))).to_csv("t.csv", index=False)
    table = ["data=table", "data.path=t.csv", "data.target=y", "data.client=site", "data.task=regression"]
    record = run(compose([*table, "reg=none", "precision=float64", "rounds=400", *overrides]), "r")
    intervals = record.infer().frame
    assert main(["predict", "r", "t.csv"]) == 0
    predictions = capsys.readouterr().out
    earlier = write_earlier(record, section, **unused)
    assert main(["predict", "r", "t.csv"]) == 0
    assert capsys.readouterr().out == predictions
    pd.testing.assert_frame_equal(earlier.infer().frame, intervals)
    with fails(f"unknown option '{section}.{next(iter(used))}': fcorun no longer has it; run with"):
        write_earlier(record, section, **used).infer()


def test_records_of_images_infer_as_before():
    rng = np.random.default_rng(0)
    voxels = rng.standard_normal((2, 2, 1, 60))
    nibabel.Nifti1Image(voxels, np.eye(4)).to_filename("scans.nii")
    nibabel.Nifti1Image(np.ones((2, 2, 1)), np.eye(4)).to_filename("mask.nii")
    y = voxels[0, 0, 0] + rng.standard_normal(60)
    pd.DataFrame({"image": "scans.nii", "label": y, "client": np.arange(60) % 3}).to_csv("t.csv", index=False)
    images = ["data=nifti", "data.path=t.csv", "data.mask=mask.nii", "data.task=regression"]
    record = run(compose([*images, "algo=newton", "reg=none", "precision=float64"]), "r")
    intervals = record.infer().frame
    options = {"mask_strategy": "background", "resample": False}
    summary = json.loads((record.folder / "summary.json").read_text())
    summary["data"]["fingerprint"] = prepare(record.config).data.fingerprint_with(options)
    (record.folder / "summary.json").write_text(json.dumps(summary))
    pd.testing.assert_frame_equal(write_earlier(record, "data", **options).infer().frame, intervals)


def test_notes_and_policies_of_pinned_keys_hold():
    write_visits()
    plan = selection_of()
    note = accept(Path("site"), plan, SiteOptions("visits.csv"), Policy())
    content = json.loads(note.read_text())
    rules = Path("rules.yaml")
    for keys in ("pinned", "any"):
        content["policy"]["keys"] = keys
        note.write_text(json.dumps(content))
        rules.write_text(f"keys: {keys}\nmin_rows: 12\n")
        if keys == "pinned":
            assert Acceptance.read(Path("site"), plan.digest).policy.min_rows == Policy().min_rows
            assert Policy.read(rules) == Policy(min_rows=12)
        else:
            with fails("unknown option 'policy.keys': fcorun no longer has it; leave it out, and give fcorun site "):
                Acceptance.read(Path("site"), plan.digest)
            with fails("unknown option 'policy.keys': " + explain_gone("policy.keys")):
                Policy.read(rules)
