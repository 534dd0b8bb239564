"""Problems too large for the memory: refused before anything is made, with the keys that make them large."""

from pathlib import Path

import psutil
import pytest
from helpers import fails, small

from fcorun import compose, run
from fcorun.datasets import base
from fcorun.experiment import build
from fcorun.experiment.prepare import prepare
from fcorun.runs import batch
from fcorun.system import machine

HUGE = 10**9


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["data=lasso", f"data.features={HUGE}"], ["data.clients=64", f"data.features={HUGE}"]),
        (["data=lowrank", f"data.rows={HUGE}"], [f"data.rows={HUGE}", "data.columns=32"]),
        (["data=heterogeneous", f"data.samples={HUGE}"], [f"data.samples={HUGE}"]),
        (["data=least_squares", f"data.clients={HUGE}"], [f"data.clients={HUGE}"]),
        (["data=lasso_million", f"data.features={HUGE}"], ["data.evaluated=100", f"data.features={HUGE}"]),
    ],
)
def test_data_that_cannot_be_made(overrides, keys):
    with fails(*keys, "needs at least", "GiB are free", "give fewer rows, features or clients"):
        run(compose(overrides), "here")
    assert not Path("here").exists()


def test_the_bound_is_one_and_more_memory_may_be_given(monkeypatch):
    config = small("data.seed=77")
    needed, _ = prepare(config).data.memory_needed()
    assert build.load_data(prepare(small("data.seed=78"))).train.x.nbytes < needed
    monkeypatch.setattr(base, "free_host_memory", lambda: needed - 1)
    with fails("data.clients=6, data.samples=12, data.validation_samples=4, data.features=20 needs at least"):
        build.load_data(prepare(config))
    assert len(build.load_data(prepare(config | {"memory": 1.0})).train.y) == 72


def test_an_image_that_cannot_be_read():
    nibabel = pytest.importorskip("nibabel")
    header = nibabel.Nifti1Header()
    header.set_data_shape((20_000, 20_000, 20_000))
    Path("large.nii").write_bytes(header.binaryblock + bytes(4))
    Path("images.csv").write_text("image,label,client\nlarge.nii,1,a\nlarge.nii,0,b\n")
    with fails("the image 'large.nii' of 20000 x 20000 x 20000 voxels needs at least"):
        run(small() | {"data": {"name": "nifti", "class": "fcorun.datasets.nifti.Nifti", "path": "images.csv"}}, "here")


@pytest.mark.slow
def test_a_run_whose_clients_keep_too_much(monkeypatch):
    monkeypatch.setattr(batch, "free_device_memory", lambda: 1000)
    config = small("algo=local")
    with fails("a run on 6 clients with 21 parameters needs at least"):
        run(config, "here")
    assert run(config | {"memory": 1.0}, "here").finished


def test_numpys_own_error_is_a_sentence(monkeypatch):
    def larger(*_):
        raise MemoryError("Unable to allocate 8.00 TiB for an array")

    monkeypatch.setattr("fcorun.datasets.lasso.Lasso.load_shard", larger)
    with fails("the data do not fit into memory (Unable to allocate 8.00 TiB", "give fewer rows"):
        build.load_data(prepare(small("data.seed=79")))


def test_pages_of_files_make_room_in_a_container(monkeypatch):
    contents = {
        "memory.max": "1000",
        "memory.current": "900",
        "memory.stat": "anon 100\nactive_file 300\ninactive_file 200",
        "meminfo": "MemTotal: 8 kB\nMemAvailable:     4 kB",
    }
    monkeypatch.setattr(Path, "read_text", lambda path, *_, **__: contents[path.name])
    assert machine.free_host_memory() == 600
    contents["memory.max"] = "9000"
    assert machine.free_host_memory() == 4096


def test_free_memory_is_that_of_psutil(monkeypatch):
    free = psutil.virtual_memory().available
    for file in (machine._MEMORY_FILE, Path("/no/such/file")):
        monkeypatch.setattr(machine, "_MEMORY_FILE", file)
        assert 0.5 < machine._free_memory_of_machine() / free < 2
