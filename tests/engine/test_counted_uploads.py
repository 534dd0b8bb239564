"""Bytes of uploads that depend on the data: clients count what they send."""

from pathlib import Path

import numpy as np
import pytest
from helpers import Stop, fails, grid, ragged, run_grid, write_choice
from markdown_blocks import blocks
from quadratics import SIZES, Quadratics

from fcorun import run
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.experiment.prepare import prepare

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "plugins.md"
LARGE = '''
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun import Channel


@dataclass(frozen=True)
class LargeNumbers(Channel):
    """A channel that sends the numbers above a threshold, each with its index in 4 bytes."""

    source = "ours"
    uses_key = False
    threshold: float

    def client_memory(self, upload):
        return jnp.zeros((), jnp.int32)

    def send(self, upload, memory, key):
        is_sent = jax.tree.map(lambda v: jnp.abs(v) > self.threshold, upload)
        sent = jax.tree.map(lambda v, large: jnp.where(large, v, 0), upload, is_sent)
        return sent, memory + sum(large.sum(dtype=jnp.int32) for large in jax.tree.leaves(is_sent))

    def upload_bytes(self, upload, declared_bytes):
        return 0

    def counted_upload_bytes(self, memories):
        return memories.sum() * 12
'''


@pytest.fixture
def lazy(user_module, tmp_path):
    """A function that returns a configuration of the guide's LAG, or with ``uplink=large`` of FedGD."""
    texts = [block for block in blocks(GUIDE.read_text("utf-8")) if block.marks.get("file", "").startswith("lazy")]
    user_module("lazy", texts[0].text)
    user_module("large", LARGE)
    write_choice(tmp_path / "conf", "algo", "lazy", "class: lazy.LazyGradients\nstep: 0.05\nthreshold: 0.1")
    write_choice(tmp_path / "conf", "uplink", "large", "class: large.LargeNumbers\nthreshold: 0.01")
    with use_config_dir(tmp_path / "conf"):
        yield lambda *options: ragged(tmp_path, *(options or ("algo=lazy",)), "reg=none", "rounds=30", sizes=SIZES)


def count_lag_messages(q, step, threshold, rounds=30):
    """Return the messages of LAG-WK up to each round in plain NumPy, and its last point."""
    w, known, messages = np.zeros(7), np.zeros((4, 7)), [0]
    for _ in range(rounds):
        change = q.H @ w - q.c - known
        is_sent = np.linalg.norm(change, axis=1) > threshold
        known += is_sent[:, None] * change
        w = w - step * q.p @ known
        messages.append(messages[-1] + is_sent.sum())
    return np.array(messages), w


def test_lazy_uploads_have_the_bytes_of_what_was_sent(lazy, tmp_path):
    """Also in a grid of thresholds, and in a run that was interrupted and resumed."""
    config = lazy()
    points = grid(config, {"algo.threshold": [0.0, 0.1, 1.0]})
    records = run_grid(points, ["all", "some", "few"])
    ends = []
    for record, threshold in zip(records, (0.0, 0.1, 1.0), strict=True):
        messages, w = count_lag_messages(Quadratics(config), 0.05, threshold)
        assert record.metrics["bytes_up"].tolist() == (8 * 7 * messages).tolist()
        np.testing.assert_allclose(np.append(record.solution["weights"], record.solution["bias"]), w, atol=1e-9)
        ends.append(messages[-1])
    assert ends[0] == 4 * 30 > ends[1] > ends[2] > 0
    with pytest.raises(KeyboardInterrupt):
        run(points[1], "resumed", Stop(11))
    assert list(run(points[1], "resumed").metrics["bytes_up"]) == list(records[1].metrics["bytes_up"])


def test_a_channel_counts_what_clients_send(lazy):
    """The first round of gradient descent from 0: the numbers of the updates, -step times the gradient -c."""
    config = lazy("algo=fedavg", "uplink=large", "uplink.threshold=0.05", "algo.client_lr=0.05", "algo.server_lr=1")
    updates = 0.05 * Quadratics(config).c
    record = run(config, "large")
    large = (np.abs(updates) > 0.05).sum()
    assert 0 < large < updates.size
    assert record.metrics["bytes_up"].iloc[:2].tolist() == [0, 12 * large]
    assert np.diff(record.metrics["bytes_up"]).min() >= 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("algo=lazy", "topology=tree"), "algo=lazy"),
        (("algo=fedavg", "uplink=large", "topology=tree"), "which topology=tree may send to several"),
        (("algo=fedavg", "uplink=large", "clock=lognormal"), "which clock=lognormal needs before a round"),
    ],
)
def test_counts_that_nobody_can_add_up_are_refused(options, sentence, lazy):
    with fails(sentence):
        prepare(lazy(*options))
