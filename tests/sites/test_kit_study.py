"""A study as a job of NVFLARE, in its simulator: a server and three sites, each a process."""

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import composed

from fcorun import Record
from fcorun.base.errors import UserError
from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.site.acceptance import accept, site_folder
from fcorun.sites.site.site import Site
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import Message

NAMES = ("site-1", "site-2", "site-3")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("nvflare") is None, reason="NVFLARE is not installed: pip install 'fcorun[sites]'")
def test_a_study_over_nvflare_gives_the_record_of_the_study_in_one_process(tmp_path):
    from simulated_study import SimulatedSite, simulate_job

    from fcorun.sites.server.kit_study import StudyServer
    from fcorun.sites.transport.nvflare import export_job

    options = ("data=sites", "data.target=y", "data.standardize=pooled", "precision=float64", "eval_every=10")
    plan = Plan.from_experiment(
        prepare(composed("algo=scaffold", "algo.client_lr=0.1", "rounds=30", *options, "data.validation=0"))
    )
    workspace = tmp_path / "workspace"
    sites = {}
    for number, name in enumerate(NAMES):
        x = np.random.default_rng(number).normal(size=(40, 4))
        frame = pd.DataFrame(x, columns=list("abcd")).assign(y=x @ [1.0, -1.0, 0.0, 2.0])
        frame.to_csv(tmp_path / f"clinic{number}.csv", index=False)
        site = SiteOptions(str(tmp_path / f"clinic{number}.csv"))
        accept(site_folder(workspace / "local" / name), plan, site, Policy())
        sites[name] = Site(plan, site)
    whole = run_plan(plan, InProcessConnections(sites), tmp_path / "whole")

    job = export_job(tmp_path, StudyServer(plan.to_text(), plan.digest[:16]), SimulatedSite(plan.to_text()), NAMES)
    result = simulate_job(job, workspace, NAMES, ["fcorun.", "simulated_study."], seconds=600)
    record = Record(Path(result) / "record")
    assert record.metrics.drop(columns="seconds").equals(whole.metrics.drop(columns="seconds"))
    for name, values in whole.solution.items():
        np.testing.assert_array_equal(record.solution[name], values)


@pytest.mark.skipif(find_spec("nvflare") is None, reason="NVFLARE is not installed: pip install 'fcorun[sites]'")
@pytest.mark.slow
def test_a_fetched_record_replaces_one_of_its_plan_alone(tmp_path, monkeypatch):
    from fcorun.sites.server import kit_study

    submitted = []

    def submit(job, kit, folder, wait_seconds, on_status):
        """Return the result of a job whose record differs from the one before."""
        submitted.append(job)
        record = folder / "record"
        record.mkdir(parents=True)
        names = ["status.json", "inference.csv"] if len(submitted) == 1 else ["status.json", "coefficients.csv"]
        for name in names:
            (record / name).write_text("{}", encoding="utf-8")
        return folder

    monkeypatch.setattr(kit_study, "export_job", lambda *_: "job")
    monkeypatch.setattr(kit_study, "submit_job", submit)

    def run(digest):
        plan: Any = SimpleNamespace(digest=digest, select=None, to_text=lambda: digest)
        kit_study.submit_plan(plan, tmp_path, ["north"], tmp_path / "out", 1.0, print)
        return sorted(path.name for path in (tmp_path / "out").iterdir())

    assert run("1" * 64) == ["inference.csv", "sites_ended", "status.json"]
    assert run("1" * 64) == ["coefficients.csv", "sites_ended", "status.json"]
    with pytest.raises(UserError, match="out holds files, and no record of this plan that came from its sites"):
        run("2" * 64)
    assert len(submitted) == 2


@pytest.mark.skipif(find_spec("nvflare") is None, reason="NVFLARE is not installed: pip install 'fcorun[sites]'")
def test_a_file_is_no_folder_for_a_record(tmp_path):
    from fcorun.sites.server.kit_study import submit_plan

    (tmp_path / "out").write_text("a file", encoding="utf-8")
    plan: Any = SimpleNamespace(digest="1" * 64)
    with pytest.raises(UserError, match="out is a file; choose another folder"):
        submit_plan(plan, tmp_path, ["north"], tmp_path / "out", 1.0, print)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("nvflare") is None, reason="NVFLARE is not installed: pip install 'fcorun[sites]'")
def test_the_site_of_a_job_reads_no_plan_without_its_owners_yes_and_logs_its_refusals(tmp_path, monkeypatch):
    from fcorun.sites.server.kit_study import StudySite

    plan = Plan.from_experiment(prepare(composed("algo=newton", "data=sites", "data.target=y", "rounds=2")))
    monkeypatch.setattr(Plan, "from_text", lambda *_: pytest.fail("the plan is read"))
    for text, digest, words in (
        (plan.to_text(), plan.digest[:16], "has not accepted the plan"),
        ("no plan", "", "is no plan of fcorun"),
    ):
        site = StudySite(text)
        with pytest.raises(UserError, match=words):
            site.open_site("north", tmp_path)
        log = site.open_log("north", tmp_path)
        log.write(Message("refusal", {"sentence": "no"}))
        assert json.loads(log.path.read_text().splitlines()[-1])["plan"] == digest
