"""Runs on rows that stay on disk equal runs on rows in memory."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from helpers import fails, run_grid

from fcorun import Record, compose, run
from fcorun.engine.schedule import Rounds
from fcorun.engine.segments import row_fetching
from fcorun.engine.segments.row_fetching import DoubleBuffer, _renumber_whole, bytes_per_round
from fcorun.engine.segments.run_loop import Segments
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare
from fcorun.runs.batch import bytes_read_per_round, split_jobs
from fcorun.runs.job import Job

ROWS, FEATURES = 240, 6
DATA = ["data=table", "data.path=rows", "data.test=0.1", "precision=float64", "rounds=5", "eval_every=4"]
RATES = ["algo.client_lr=0.05", "algo.server_lr=1", "reg.strength=0.01"]


@pytest.fixture(autouse=True)
def rows(tmp_path):
    """Write a folder of clients of different sizes, with unsorted rows."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, FEATURES)).astype(np.float32)
    (tmp_path / "rows").mkdir()
    client = rng.choice(5, ROWS, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    y = x @ np.arange(FEATURES) + client + rng.standard_normal(ROWS)
    for name, values in {"X": x, "y": y, "client": client}.items():
        np.save(tmp_path / "rows" / f"{name}.npy", values)


def run_both(*overrides: str) -> tuple[Record, Record]:
    """Return the records of the same run with rows in memory and on disk."""
    in_memory = run(compose([*DATA, *overrides, "data.resident=true"]), "true")
    return in_memory, run(compose([*DATA, *overrides, "data.resident=false"]), "false")


def assert_equal_records(one: Record, other: Record) -> None:
    for name in one.solution:
        np.testing.assert_allclose(other.solution[name], one.solution[name], rtol=1e-12, atol=1e-12)
    columns = [name for name in one.metrics if name != "seconds"]
    assert [*one.metrics] == [*other.metrics]
    np.testing.assert_allclose(other.metrics[columns], one.metrics[columns], rtol=1e-12, atol=1e-12)
    assert one.status["identity"] == other.status["identity"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["algo=feddualavg", "batch_size=7", *RATES],
        ["algo=fedmid", "batch_size=7", "clients_per_round=2", "local_epochs=null", "local_steps=3", *RATES],
        ["algo=scaffold", "batch_size=7", "clients_per_round=2", "algo.client_lr=0.05", "data.standardize=pooled"],
        ["algo=fedavg", "batch_size=null", "local_epochs=2", "client_weighting=uniform"],
        ["algo=fedgd"],
        ["algo=fedprox", "algo.mu=1"],
        ["algo=fedavg", "topology=tree", "topology.edges=2", "topology.rounds=2", "batch_size=null"],
        ["algo=fedavg", "topology=tree", "topology.edges=2", "batch_size=7", *RATES[:2]],
    ],
    ids=lambda overrides: "-".join(overrides[:2]),
)
def test_rows_on_disk_give_the_results_of_rows_in_memory(overrides):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_fetching, "BLOCK_BYTES", 50 * FEATURES * 8)  # several blocks
        assert_equal_records(*run_both(*overrides))


@pytest.mark.slow
def test_rows_that_a_segment_uses_twice_are_read_twice(tmp_path):
    # with clients of one size, of which a segment uses some twice and some not, the rows may be as many as the span
    np.save(tmp_path / "rows" / "client.npy", np.repeat(np.arange(4), ROWS // 4))
    overrides = ["clients_per_round=2", "batch_size=6", "data.test=0", "data.validation=0", "algo.client_lr=0.05"]
    assert_equal_records(*run_both("algo=fedavg", *overrides, "rounds=20", "eval_every=2"))


@pytest.mark.slow
def test_seeds_and_rates_of_a_grid_share_fetched_rows():
    overrides = [*DATA, "algo=feddualavg", "batch_size=7", "clients_per_round=2", *RATES]
    points = [("0.05", 0), ("0.02", 0), ("0.05", 1)]
    records = {}
    for resident in ("true", "false"):
        common = [*overrides, f"data.resident={resident}"]
        configs = [compose([*common, f"algo.client_lr={lr}", f"seed={seed}"]) for lr, seed in points]
        records[resident] = run_grid(configs, [f"{resident}{k}" for k in range(3)])
    for one, other in zip(records["true"], records["false"], strict=True):
        assert_equal_records(one, other)


def test_whole_data_of_seeds_on_a_tree_are_numbered_as_of_each_seed():
    """Rows have the axes (seeds, rounds, edge rounds, clients, steps, batch)."""
    rng = np.random.default_rng(0)
    schedule: Any = SimpleNamespace(starts=np.array([0, 5, 9]), edge_rounds=2, full_batch_steps=0)
    cohort = rng.permuted(np.tile(np.arange(3), (2, 4, 1)), axis=-1)[..., :2]
    whole_rows = 100 + rng.integers(0, 50, (2, 4, 2, 1, 4))
    rows = schedule.starts[cohort][:, :, None, :, None, None] + rng.integers(0, 4, (2, 4, 2, 2, 3, 3))
    rows = np.where(rng.uniform(size=rows.shape) < 0.2, -1, rows)

    def renumber(*seed):
        rounds = Rounds(cohort[seed], rows[seed], *[np.zeros(0)] * 4)
        return _renumber_whole(schedule, rounds, whole_rows[seed]).rows

    np.testing.assert_array_equal(renumber(), [renumber(0), renumber(1)])
    offset = rows[0, 1, 0, 1, 2, 0] - schedule.starts[cohort[0, 1, 1]]
    assert renumber()[0, 1, 0, 1, 2, 0] == (whole_rows[0, 1, 1, 0, offset] if rows[0, 1, 0, 1, 2, 0] >= 0 else -1)


def test_a_host_without_rows_evaluates_blocks_of_padding():
    engine, _ = engine_on_disk()
    splits = row_fetching.evaluation_splits(engine.federation.evaluation)
    splits = {name: rows.take(slice(0, 0)) for name, rows in splits.items()}
    blocks = list(row_fetching.read_blocks(splits, np.float64, np.float64, DoubleBuffer()))
    assert [name for name, _ in blocks] == ["train", "val"]
    for _, (x, y, extras) in blocks:
        assert (x.shape, y.shape, extras["weight"].tolist()) == ((1, FEATURES), (1,), [0.0])


def engine_on_disk(*overrides: str):
    experiment = prepare(compose([*DATA, "algo=feddualavg", "batch_size=7", *RATES, *overrides, "data.resident=false"]))
    return build_engine(experiment, load_data(experiment)), experiment


def test_rows_are_fetched_once_a_seed_and_bound_the_seeds_of_a_batch():
    whole, experiment = engine_on_disk("rounds=8", "eval_every=8")
    federation, seeds = whole.federation, [0, 0, 1, 1, 1]
    one_round = bytes_per_round(federation.data, federation.schedule, "float64", whole=False)
    with jax.enable_x64(True):
        segment = Segments(federation, seeds, None, rounds=8, eval_every=8).next_segment(0)
        assert segment is not None
        assert segment.rows is not None
        assert segment.rows.x.nbytes == 2 * 8 * one_round
        assert len(segment.rounds.rows) == len(seeds)
        jobs = [Job(replace(experiment, settings=replace(experiment.settings, seed=s)), None) for s in seeds]  # type: ignore[arg-type]
        assert [len(batch) for batch in split_jobs(replace(whole, row_bytes_budget=4 * one_round), jobs, 1)] == [
            2,
            2,
            1,
        ]
        assert [len(batch) for batch in split_jobs(replace(whole, row_bytes_budget=4 * one_round), jobs[2:], 1)] == [3]


@pytest.mark.parametrize(("seeds", "batches"), [([0, 1, 2, 3], [2, 2]), ([0, 0, 0, 0], [4]), ([0] * 8, [4, 4])])
def test_runs_are_split_sooner_where_rounds_read_many_rows(seeds, batches, monkeypatch):
    whole, experiment = engine_on_disk("rounds=8", "eval_every=8", "data.resident=true")
    jobs = [Job(replace(experiment, settings=replace(experiment.settings, seed=s)), None) for s in seeds]  # type: ignore[arg-type]
    with jax.enable_x64(True):
        monkeypatch.setattr(
            "fcorun.runs.batch._LARGE_ROUND_BYTES", 4 * bytes_read_per_round(whole)
        )  # as much as four seeds read
        assert [len(batch) for batch in split_jobs(whole, jobs, 2)] == batches
        assert [len(batch) for batch in split_jobs(whole, jobs, 2, share=1)] == [sum(batches)]


@pytest.mark.slow
def test_a_segment_is_shorter_where_its_rows_exceed_the_budget(monkeypatch):
    whole, experiment = engine_on_disk("rounds=8", "eval_every=8")
    one_round = bytes_per_round(whole.federation.data, whole.federation.schedule, "float64", whole=False)
    next_segment, lengths = Segments.next_segment, []

    def record_length(self, rounds_done):
        segment = next_segment(self, rounds_done)
        lengths.append(segment and segment.n_rounds)
        return segment

    monkeypatch.setattr(Segments, "next_segment", record_length)
    ends = []
    for budget, expected in ((None, [8]), (2 * 3 * one_round, [3, 3, 2]), (1, [1] * 8)):
        lengths.clear()
        with jax.enable_x64(True):
            ends.append(list(replace(whole, row_bytes_budget=budget).run([experiment.numbers()]))[-1])
        assert lengths == [*expected, None]
    for one, other in pairwise(ends):
        np.testing.assert_allclose(one.solution["weights"], other.solution["weights"], rtol=1e-12)
        assert (one.work == other.work).all()
        assert one.round == other.round == 8


def test_gradients_of_a_segment_can_be_counted_in_32_bits():
    """A client takes 3.3e8 gradients in 10,000 rounds of 512 steps, and an inner solver may take a thousand as many."""
    steps = ["local_epochs=null", "local_steps=512", "batch_size=64", "rounds=10000", "eval_every=10000"]
    experiment = prepare(compose([*DATA, *RATES, *steps, "algo=fedavg", "data.resident=true"]))
    federation = build_engine(experiment, load_data(experiment)).federation
    with jax.enable_x64(True):
        longest = Segments(federation, [0], None, rounds=10_000, eval_every=10_000)._max_rounds
    assert 1 < longest < 2**31 / (1000 * 512 * 64) < 10_000


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algo=centralized"], "algo=centralized takes all rows at once"),
        (["algo=ditto", "algo.client_lr=0.1", "algo.personal_lr=0.1"], "personal models"),
        (["algo=fedavg", "reference=true"], "reference=True solves"),
        (["algo=fedavg", "gap=true", "reg=l1"], "gap=True takes sums over all rows"),
        (["algo=fedavg", "reg.relative=0.1", "reg.strength=null"], "reg.relative takes a gradient"),
        (["algo=fedavg", "batch_size=7", "algo.client_lr=0.1", "memory=1e-5"], "the rows of a round, and of the next"),
        (["algo=fedavg", "batch_size=7", "memory=1e-6"], "auto of algo=fedavg takes bounds"),
        (["algo=fedavg", "data.standardize=per_client"], 'data.standardize="per_client" needs rows in memory'),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_options_that_need_all_rows_are_refused_before_writing(overrides, message, tmp_path):
    with fails(message):
        run(compose([*DATA, "data.resident=false", *overrides]), "refused")
    assert not (tmp_path / "refused").exists()
