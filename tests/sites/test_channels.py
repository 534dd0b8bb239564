"""Compressed messages over sites: the runs of pooled rows, and sparse arrays in the frames."""

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from three_sites import NAMES, plan_of, sites_of, write_tables

from fcorun.engine.remote.leaves import expand_sparse, pack_sparse, restore_leaves
from fcorun.sites.plan.plan import Plan
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import try_plan
from fcorun.sites.transport.connections import InProcessConnections

FEDAVG = ("algo=fedavg", "algo.client_lr=0.1")


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables()


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (*FEDAVG, "uplink=topk", "uplink.fraction=0.4", "downlink=qsgd"),
        pytest.param((*FEDAVG, "uplink=qsgd", "downlink=topk", "downlink.fraction=0.5"), marks=SLOW),
        pytest.param((*FEDAVG, "uplink=sign", "downlink=randk"), marks=SLOW),
        pytest.param((*FEDAVG, "uplink=float16", "downlink=sparse", "reg=l1", "reg.strength=0.1"), marks=SLOW),
        pytest.param((*FEDAVG, "uplink=natural", "uplink.feedback=diana"), marks=SLOW),
        pytest.param(("algo=scaffold", "algo.client_lr=0.1", "uplink=randk", "uplink.feedback=ef"), marks=SLOW),
        pytest.param(("algo=ef21", "uplink=topk"), marks=SLOW),
        pytest.param(("algo=diana", "uplink=randk"), marks=SLOW),
        pytest.param(("algo=pfedme", "uplink=topk", "uplink.fraction=0.4"), marks=SLOW),
    ],
)
def test_compressed_runs_are_those_of_pooled_rows(overrides, tmp_path):
    plan = plan_of(*overrides)
    record, comparison = try_plan(plan, sites_of(plan), tmp_path / "out")
    assert comparison.difference < 1e-14
    assert "bytes_up and bytes_down count the encodings" in record.status["reason"]
    if "uplink=topk" in overrides:
        assert any("uplink=topk at the site" in quantity.content for quantity in plan.quantities)


@pytest.mark.slow
def test_secure_sums_hide_encoded_uploads(tmp_path):
    plan = plan_of(*FEDAVG, "uplink=topk", "uplink.fraction=0.4")
    secure = Plan.from_experiment(plan.experiment, {})
    assert try_plan(secure, sites_of(secure), tmp_path / "out")[1].difference < 1e-9


@pytest.mark.slow
def test_messages_of_few_nonzeros_are_short(tmp_path):
    """With 400 features and uplink=topk at 5 %, an answer to a round has 20 numbers with their indices."""
    rng = np.random.default_rng(0)
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        more = pd.DataFrame(rng.normal(size=(len(rows), 400))).add_prefix("x")
        pd.concat([rows[["cost"]], more], axis=1).to_csv(f"{name}.csv", index=False)
    lengths = {}
    for uplink in ("identity", "topk"):
        sent = []

        class Measuring(InProcessConnections):
            def send(self, request, sent=sent):
                answers = super().send(request)
                if request.name == "round":
                    sent.append(len(answers["a"].to_bytes()))
                return answers

        plan = plan_of("algo=fedavg", "algo.client_lr=0.001", f"uplink={uplink}",
                       *(["uplink.fraction=0.05", "uplink.feedback=none"] if uplink == "topk" else []))  # fmt: skip
        run_plan(plan, Measuring(sites_of(plan)), tmp_path / uplink)
        lengths[uplink] = max(sent)
    assert lengths["identity"] - lengths["topk"] > 400 * 8 - 20 * 12 - 600


def test_sparse_leaves_are_restored_to_the_bit_and_others_refused():
    rng = np.random.default_rng(0)
    sparse = np.where(rng.random((2, 3, 400)) < 0.05, rng.normal(size=(2, 3, 400)), 0.0)
    sparse[0, 0, :2] = -0.0, np.nan
    leaves = {"0": sparse, "1": rng.normal(size=(2, 5)), "2": np.zeros(2)}
    like = [np.zeros((3, 400)), np.zeros(5), np.zeros(())]
    packed = pack_sparse(leaves)
    assert set(packed) == {"0/index", "0/values", "1", "2"}
    for restored, leaf in zip(restore_leaves(expand_sparse(packed, like, 2), like, 2), leaves.values(), strict=True):
        assert restored.tobytes() == leaf.tobytes()
    index, values = packed["0/index"], packed["0/values"]
    for forged in (
        {"0/index": index[::-1]},
        {"0/index": index + np.uint32(sparse.size)},
        {"0/index": index.astype(np.int64)},
        {"0/index": index[1:]},
        {"0/values": values.astype(np.float32)},
        {"0/values": values[:, None], "0/index": index[:, None]},
        {"0": sparse},
        {"3/index": index},
    ):
        with pytest.raises(ValueError, match=r"indices|arrays instead of"):
            restore_leaves(expand_sparse(packed | forged, like, 2), like, 2)
    del packed["0/values"]
    with pytest.raises(ValueError, match="indices"):
        expand_sparse(packed, like, 2)


def test_encodings_need_all_rounds():
    with fails("data.away=skip", "uplink and downlink", "leave both out"):
        plan_of(*FEDAVG, "uplink=topk", "data.away=skip")
