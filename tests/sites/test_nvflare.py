"""The toy study as a job of NVFLARE, in its simulator."""

import json

import numpy as np
import pytest
from toy_site import ToySite, toy_rows, toy_study

from fcorun.sites.in_process import InProcessConnections

pytest.importorskip("nvflare", reason="NVFLARE is not installed: pip install 'fcorun[sites]'")

SITES = ["site-1", "site-2", "site-3"]


def export(folder, run="a", rounds=4, features=3):
    from toy_collab import ToyCollabServer, ToyCollabSite

    from fcorun.sites.submission import export_job

    return export_job(folder, ToyCollabServer(run, rounds, features), ToyCollabSite(features), SITES)


def test_a_job_names_classes_and_holds_no_code(tmp_path):
    job = export(tmp_path)
    assert {path.suffix for path in job.rglob("*") if path.is_file()} == {".json"}
    client = json.loads((job / "app" / "config" / "config_fed_client.json").read_text(encoding="utf-8"))
    paths = {component["path"]: component["args"] for component in client["components"]}
    assert paths["toy_collab.ToyCollabSite"] == {"features": 3}
    meta = json.loads((job / "meta.json").read_text(encoding="utf-8"))
    assert meta["deploy_map"] == {"app": ["server", *SITES]}


@pytest.mark.slow
def test_the_simulator_gives_the_bits_of_one_process(tmp_path):
    from fcorun.sites.submission import simulate_job

    job = export(tmp_path)
    result = simulate_job(job, tmp_path / "workspace", SITES, ["toy_collab."], seconds=120)
    sites = {name: ToySite(toy_rows(number)) for number, name in enumerate(SITES, start=1)}
    expected = toy_study(InProcessConnections(sites), rounds=4)
    np.testing.assert_array_equal(np.load(result / "model.npy"), expected)
