"""DIANA, EF21 and FedCEF: what they are without their names, what they send, and what they refuse."""

import numpy as np
import pytest
from helpers import fails, ragged, small_for
from quadratics import SIZES, outputs_by_round

import fcorun
from fcorun import compose
from fcorun.experiment.build import load_data, resolve_auto
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms.algorithm import ProblemConstants
from fcorun.methods.algorithms.compressed_gradient import ef21_step

METHODS = {"diana": "randk", "ef21": "topk", "fedcef": "topk"}


def points(folder, *overrides):
    return outputs_by_round(ragged(folder, *overrides, "reg.strength=0.4", "rounds=15", sizes=SIZES))


@pytest.mark.slow
def test_diana_is_proximal_gradient_on_memories_of_its_compressor(tmp_path):
    """One step of size 1 from w sends a multiple of the gradient, which randk compresses alike."""
    named = points(tmp_path, "algo=diana", "algo.step=0.03", "uplink.fraction=0.4")
    steps = ("algo=fedmid_osp", "local_epochs=null", "local_steps=1", "algo.client_lr=0.03", "algo.server_lr=1")
    channel = ("uplink=randk", "uplink.fraction=0.4", "uplink.feedback=diana")
    np.testing.assert_allclose(named, points(tmp_path, *steps, *channel), atol=1e-12)
    assert np.abs(named - points(tmp_path, *steps)).max() > 1e-3


@pytest.mark.slow
def test_ef21_is_proximal_gradient_on_memories_of_its_compressor(tmp_path):
    named = points(tmp_path, "algo=ef21", "algo.step=0.03")
    steps = ("algo=fedmid_osp", "local_epochs=null", "local_steps=1", "algo.client_lr=0.03", "algo.server_lr=1")
    np.testing.assert_allclose(named, points(tmp_path, *steps, "uplink=topk", "uplink.feedback=ef21"), atol=1e-12)


def test_a_reconstruction_says_so():
    said = "algo=fedcef is our reconstruction from the abstract of the paper"
    assert prepare(compose(["algo=fedcef", "data=lasso_16"])).warning.startswith(said)
    assert not prepare(compose(["algo=fedcomposite", "data=lasso_16"])).warning


@pytest.mark.slow
def test_without_compression_fedcef_is_fedcomposite(tmp_path):
    steps = ("local_epochs=null", "local_steps=4", "algo.client_lr=0.02", "algo.server_lr=0.7")
    named = points(tmp_path, "algo=fedcef", "uplink=identity", *steps)
    np.testing.assert_allclose(named, points(tmp_path, "algo=fedcomposite", *steps), atol=1e-11)


@pytest.mark.slow
def test_without_compression_diana_and_ef21_are_proximal_gradient(tmp_path):
    steps = ("algo=fedmid_osp", "local_epochs=null", "local_steps=1", "algo.client_lr=0.03", "algo.server_lr=1")
    expected = points(tmp_path, *steps)
    for name in ("diana", "ef21"):
        named = points(tmp_path, f"algo={name}", "uplink=identity", "algo.step=0.03")
        np.testing.assert_allclose(named, expected, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_compressor_is_that_of_the_paper_unless_the_user_chooses(name):
    for overrides, uplink in (((), METHODS[name]), (("uplink=qsgd",), "qsgd"), (("uplink=identity",), "identity")):
        experiment = prepare(small_for(name, *overrides))
        assert experiment.config["uplink"]["name"] == uplink
        assert ("uplink=" in experiment.label) == (uplink != "identity")
        if uplink != "identity":
            assert experiment.config["uplink"]["feedback"] == experiment.algo.traits.feedback
        assert prepare(experiment.config | {"hosts": None}).identity == experiment.identity
    assert compose([f"algo={name}", "uplink.fraction=0.2"])["uplink"]["fraction"] == 0.2


@pytest.mark.slow
def test_an_object_has_the_compressor_of_its_choice():
    experiment = fcorun.Experiment(algorithm=fcorun.DIANA(), data=fcorun.Lasso(clients=4, features=8, nonzeros=2))
    assert experiment.prepared.names["uplink"] == "randk"
    assert experiment.prepared.config["uplink"]["feedback"] == "diana"


@pytest.mark.slow
def test_feedback_is_that_of_the_algorithm():
    for name, uplink, feedback in (
        ("fedavg", "topk", "ef21"),
        ("fedavg", "randk", "diana"),
        ("scaffold", "randk", "ef"),
        ("ef21", "randk", "ef21"),
    ):
        assert prepare(small_for(name, f"uplink={uplink}")).config["uplink"]["feedback"] == feedback


@pytest.mark.slow
def test_refusals():
    for name in METHODS:
        with fails(f"algo={name} defines what clients remember: leave uplink.feedback out"):
            prepare(small_for(name, "uplink.feedback=ef"))
    with fails("algo=diana needs an unbiased compressor, and uplink=topk is biased", "uplink=randk"):
        prepare(small_for("diana", "uplink=topk"))


def test_auto_is_the_step_of_the_theorem():
    config = small_for("ef21", "uplink.fraction=0.5", "clients_per_round=null")
    experiment, values = resolve_auto(prepare(config), load_data(prepare(config)))
    root = np.sqrt(1 - 0.5)
    whole = ProblemConstants(1.0, 4.0, pooled_smoothness=lambda: 3.0)
    assert ef21_step(whole) == pytest.approx(1 / 3)
    beta_over_theta = (1 - 0.5) / (1 - root) ** 2
    half = ProblemConstants(1.0, 4.0, pooled_smoothness=lambda: 3.0, upload_contraction_error=0.5)
    assert ef21_step(half) == pytest.approx(1 / (3 + 4 * np.sqrt(beta_over_theta)))
    step = experiment.numbers()["algo"]["step"]
    assert values is not None
    assert 0 < step < 1 / values["most"]


def test_the_noise_of_a_compressor_shortens_the_step_of_diana():
    constants = ProblemConstants(1.0, 4.0, pooled_smoothness=lambda: 3.0, largest_share=0.25, upload_variance=9.0)
    assert fcorun.DIANA().auto(constants)["step"] == pytest.approx(1 / (3 + 6 * 9 * 0.25 * 4))
