"""Problems too large for the memory: refused before anything is made, with the keys that make them large."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from helpers import fails, small

from fcorun import compose, run
from fcorun.base.system import machine
from fcorun.data.datasets import dataset as base
from fcorun.experiment import build
from fcorun.experiment.prepare import prepare
from fcorun.runs import batch

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
        run(small() | {"data": {"name": "nifti", "class": "fcorun.Nifti", "path": "images.csv"}}, "here")


@pytest.mark.slow
def test_a_run_whose_clients_keep_too_much(monkeypatch):
    monkeypatch.setattr(batch, "free_device_memory", lambda: 1000)
    config = small("algo=local")
    with fails("a run on 6 clients with 21 parameters needs at least"):
        run(config, "here")
    assert run(config | {"memory": 1.0}, "here").finished


def test_a_run_whose_uploads_are_too_large_at_once(monkeypatch, tmp_path):
    """Each client of newton sends a Hessian. Six of them do not fit, one does."""
    config = small("algo=newton", "reg=none", "clients_per_round=null", "rounds=2")
    n_bytes = 4 * 21 * 22 // 2  # of one Hessian
    monkeypatch.setattr(batch, "free_device_memory", lambda: 6 * n_bytes)
    with fails("a run on 6 clients with 21 parameters, whose uploads take", "clients_at_once=1", "needs at least"):
        run(config, "here")
    assert run(config | {"clients_at_once": 1}, "here").finished


def test_numpys_own_error_is_a_sentence(monkeypatch):
    def larger(*_):
        raise MemoryError("Unable to allocate 8.00 TiB for an array")

    monkeypatch.setattr("fcorun.data.datasets.lasso.Lasso.load_shard", larger)
    with fails("the data do not fit into memory (Unable to allocate 8.00 TiB", "give fewer rows"):
        build.load_data(prepare(small("data.seed=79")))


@pytest.mark.parametrize(
    ("own_line", "folder", "names"),
    [
        ("0::/", "", ("memory.max", "memory.current", "")),
        ("0::/slurm/job_7/step_0", "slurm/job_7", ("memory.max", "memory.current", "")),
        ("4:memory:/slurm/job_7", "memory/slurm/job_7", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")),
    ],
)
def test_free_memory_is_at_most_that_of_a_container_or_a_cluster_job(own_line, folder, names, monkeypatch, tmp_path):
    """Pages of files make room."""
    limit_file, use_file, prefix = names
    (tmp_path / "cgroup").write_text(f"9:cpu:/elsewhere\n{own_line}\n")
    limited = tmp_path / "cgroups" / folder
    limited.mkdir(parents=True)
    (limited / limit_file).write_text("1000\n")
    (limited / use_file).write_text("900\n")
    (limited / "memory.stat").write_text(f"anon 100\n{prefix}active_file 300\n{prefix}inactive_file 200\n")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=4096))
    monkeypatch.setattr(machine, "_CGROUP_FILE", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_CGROUP_FOLDER", tmp_path / "cgroups")
    assert machine.free_host_memory() == 600
    (limited / limit_file).write_text("9000\n")
    assert machine.free_host_memory() == 4096
    (limited / limit_file).write_text("max\n")
    assert machine.free_host_memory() == 4096
