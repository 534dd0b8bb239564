"""The number of devices: as set, or as many as have enough to do."""

import json
from types import SimpleNamespace

import jax
import pytest
from helpers import fails, small

from fcorun import run
from fcorun.base.system import machine
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare
from fcorun.runs import batch
from fcorun.runs.batch import bytes_read_per_round, check_devices, choose_devices


def engine(*overrides: str):
    experiment = prepare(small(*overrides))
    return build_engine(experiment, load_data(experiment))


@pytest.fixture
def eight(monkeypatch):
    monkeypatch.setattr(jax, "local_device_count", lambda: 8)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(process_index=0)] * 8)


LARGE = ("data.features=2048", "data.nonzeros=5", "data.samples=384", "batch_size=32", "clients_per_round=null")


def test_bytes_read_per_round():
    assert bytes_read_per_round(engine("batch_size=4", "clients_per_round=5")) == 5 * 3 * 4 * 20 * 4
    whole = engine("algo=fedgd", "algo.step=0.01", "batch_size=null", "clients_per_round=null")
    assert bytes_read_per_round(whole) == 6 * 12 * 20 * 4


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="on GPUs other numbers are chosen")
@pytest.mark.parametrize(
    ("devices", "runs", "overrides", "expected"),
    [(1, 1, LARGE, 1), (3, 1, (), 3), ("all", 1, (), 8), ("all", 4, (), 8), ("auto", 1, (), 1), ("auto", 1, LARGE, 4),
     ("auto", 2, LARGE, 1)],
)  # fmt: skip
def test_as_many_as_have_enough_to_do(devices, runs, overrides, expected, eight):
    assert choose_devices(devices, engine(*overrides), runs) == expected


@pytest.mark.parametrize(("devices", "expected"), [("auto", 6), ("all", 6), (2, 4)])
def test_hosts_of_different_sizes_compute_equal_parts(devices, expected, monkeypatch):
    monkeypatch.setattr(batch, "current_hosts", lambda: SimpleNamespace(count=2))
    ranks = [0] * 8 + [1] * 3
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(process_index=rank) for rank in ranks])
    assert choose_devices(devices, engine(), 1) == expected


@pytest.mark.slow
def test_no_more_than_there_are(eight):
    for fine in ("auto", "all", 8, 1):
        check_devices([prepare(small(f"devices={fine}"))])
    with fails("devices=9", "8"):
        check_devices([prepare(small("devices=9"))])
    check_devices([prepare(small("algo=centralized", "devices=9"))])  # it computes on none of them


def test_a_run_is_the_same_on_any_number():
    assert len({prepare(small(f"devices={n}")).identity for n in ("auto", "all", 1, 9)}) == 1


def test_the_record_says_how_many(tmp_path):
    folder = run(small(), tmp_path / "run").folder
    assert json.loads((folder / "summary.json").read_text())["devices"] == 1


@pytest.mark.parametrize(("flags", "expected"), [("", {"jax_num_cpu_devices": 5}), ("given", {})])
def test_cores_are_devices_unless_told_otherwise(flags, expected, monkeypatch):
    updates = {}
    monkeypatch.setenv("FCORUN_CORES", "5")
    monkeypatch.setenv("XLA_FLAGS", flags and "--xla_force_host_platform_device_count=3")
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    machine.use_cores_as_devices()
    assert updates == expected


def test_nothing_changes_once_jax_has_begun():
    devices = jax.local_device_count()
    machine.use_cores_as_devices(devices + 1)
    assert jax.local_device_count() == devices
