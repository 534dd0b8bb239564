"""The format of plans changes with every change of messages, so that other versions refuse a plan in a sentence."""

import hashlib
import json

import numpy as np
import pandas as pd
import pytest
from helpers import composed
from three_sites import NAMES, sites_of

from fcorun.experiment.prepare import prepare
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.sites.plan.messages.message_kind import list_kinds
from fcorun.sites.plan.plan import FORMAT, Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import mask_sites
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import REFUSAL, Envelope, Message
from fcorun.studies.selection.selection_result import SelectOptions

# the format of plans, and the fingerprint of all messages in this format
PINNED = (6, "521078dbe6c63670de983091042bdbf59263886e43b3cb602be15e4f7c338b92")

BINARY = ("data=sites", "data.target=died", "data.task=binary", "data.positive=1", "data.standardize=pooled")
BINARY += ("data.missing=mean", "precision=float64", "rounds=2", "eval_every=2")
RATES = ("algo=feddualavg", "batch_size=20", "gap=true", "reg=l1", "reg.relative=0.5", "threshold=youden")
NEWTON = ("algo=newton", "reg=l1", "reg.strength=0.1")
STUDIES = {
    "run": (RATES, {}),
    "selection": (NEWTON, {"options": SelectOptions(points=2, folds=2, range=[0.1, 1.0])}),
    "intervals": (NEWTON, {"infer": InferenceOptions()}),
    "secure": (NEWTON, {"bounds": {}}),
}


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in NAMES:
        frame = pd.DataFrame({"age": rng.normal(50, 10, 150).round(1), "smoker": rng.integers(0, 2, 150)})
        frame["ward"] = rng.choice(["x", "y", "z"], 150)
        frame["died"] = (frame["age"] + rng.normal(0, 10, 150) > 50).astype(int)
        frame["age"] = frame["age"].mask(np.arange(150) % 4 == 0)
        frame.to_csv(f"{name}.csv", index=False)


def describe_values(values):
    """Return the keys and the types of small values: of a list, those of its items, each once."""
    if isinstance(values, dict):
        return {key: describe_values(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return sorted({json.dumps(describe_values(value), sort_keys=True) for value in values})
    return type(values).__name__


def describe_message(message):
    """Return a message without its values and sizes, as text."""
    arrays = {name: f"{array.dtype.kind}{array.ndim}" for name, array in message.arrays.items()}
    return json.dumps([message.name, describe_values(message.about), arrays], sort_keys=True)


class DescribingConnections(InProcessConnections):
    """Connections that describe all requests and answers."""

    def __init__(self, sites, descriptions):
        super().__init__(sites)
        self.descriptions = descriptions

    def send(self, request):
        self.descriptions.add(f"request {describe_message(request.message)}")
        answers = super().send(request)
        self.descriptions.update(f"answer {describe_message(answer)}" for answer in answers.values())
        return answers


@pytest.mark.slow
def test_a_change_of_messages_changes_the_format_of_plans():
    descriptions = set()
    for name, (overrides, options) in STUDIES.items():
        plan = Plan.from_experiment(prepare(composed(*BINARY, *overrides)), **options)
        sites = sites_of(plan, Policy(alone="allow"))
        sites = sites if plan.secure is None else mask_sites(sites)
        run_plan(plan, DescribingConnections(sites, descriptions), name)
    sent = {json.loads(description.partition(" ")[2])[0] for description in descriptions}
    kinds = list_kinds()
    assert sent == kinds.keys()
    header = json.loads(Message("end", envelope=Envelope("run", 0, ("a",)), site="a")._header)
    content = json.dumps([sorted(descriptions), sorted([*kinds, REFUSAL]), describe_values(header)])
    fingerprint = hashlib.sha256(content.encode()).hexdigest()
    assert (FORMAT, fingerprint) == PINNED, (
        "messages changed: raise FORMAT in fcorun/sites/plan/plan.py and pin the new fingerprint, "
        f'PINNED = ({PINNED[0] + 1}, "{fingerprint}")'
    )
