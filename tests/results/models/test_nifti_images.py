"""Maps of voxels as images: weights in records, of clients' personal models, and frequencies of a selection."""

from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest
from brain_images import AFFINE, SHAPE, head_mask, write_maps
from helpers import fails
from run_studies import select, select_stable_features

from fcorun import Record, compose, run
from fcorun.interface.cli.commands import main
from fcorun.reports.page.write import write_report
from fcorun.reports.pictures.coefficient_picture import ModelView
from fcorun.reports.pictures.picture import render_pictures
from fcorun.results.models.coefficients import load_coefficients
from fcorun.studies.selection.selection_result import SelectOptions
from fcorun.studies.selection.stability import StabilityOptions

pytestmark = pytest.mark.usefixtures("separate_cache")


@pytest.fixture
def separate_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FCORUN_CACHE", str(tmp_path / "cache"))


def images(tmp_path, *more: str) -> dict:
    table = write_maps(tmp_path / "scans", classes=3 if "data.task=multiclass" in more else 2)
    overrides = ["data=nifti", f"data.path={table}", f"data.mask={tmp_path / 'scans/mask.nii.gz'}", "data.validation=0"]
    return compose([*overrides, "data.standardize=pooled", "rounds=40", "eval_every=20", *more])


def run_on_images(tmp_path, *more: str, folder: str = "run") -> Record:
    return run(images(tmp_path, *more), folder)


@pytest.mark.slow
def test_a_record_keeps_mask_and_weights(tmp_path):
    record = run_on_images(tmp_path)
    mask, weights = (nibabel.Nifti1Image.from_filename(record.folder / f"{n}.nii.gz") for n in ("mask", "weights"))
    np.testing.assert_array_equal(mask.get_fdata() > 0, head_mask())
    np.testing.assert_array_equal(weights.affine, AFFINE)
    np.testing.assert_array_equal(weights.get_fdata()[head_mask()], record.solution["weights"])
    assert not weights.get_fdata()[~head_mask()].any()
    largest = np.unravel_index(np.abs(weights.get_fdata()).argmax(), SHAPE)  # where the images differ
    assert largest[0] in (1, 2)
    assert largest[1] in (2, 3)
    assert largest[2] in (1, 2)
    voxel = tuple(np.argwhere(head_mask())[0].tolist())
    assert load_coefficients(record).features[0] == "voxel {} {} {}".format(*voxel)


@pytest.mark.slow
@pytest.mark.drawn
def test_a_map_is_drawn(tmp_path):
    record = run_on_images(tmp_path, "data.task=multiclass")
    assert (record.folder / "brain.png").read_bytes().startswith(b"\x89PNG")
    assert nibabel.Nifti1Image.from_filename(record.folder / "weights.nii.gz").shape == (*SHAPE, 3)
    coefficients = load_coefficients(record)
    none = type(coefficients)(coefficients.features, ("",), 0 * coefficients.weights[:, :1], grid=coefficients.grid)
    assert render_pictures(ModelView(none, "nothing", 1e-4), formats=["pdf"])["brain.pdf"].startswith(b"%PDF")


@pytest.mark.slow
@pytest.mark.drawn
def test_studies_keep_subjects_together_and_stability_is_mapped(tmp_path):
    settings = images(tmp_path, "data.group=subject", "algo=centralized")
    select(settings, SelectOptions(folds=2, points=3), "chosen")
    out_of_fold = pd.read_csv("chosen/predictions.csv")
    subject = pd.read_csv("scans/maps.csv")["subject"].reindex(out_of_fold["row"] - 1).to_numpy()
    assert set(out_of_fold.groupby(subject)["fold"].nunique().tolist()) == {1}
    assert np.isfinite(pd.read_csv("chosen/scores.csv")["auc"].to_numpy()).any()

    result = select_stable_features(
        settings, StabilityOptions(subsamples=6, points=4, threshold=0.6, max_errors=20), "stable"
    )
    maps = {name: nibabel.Nifti1Image.from_filename(f"stable/{name}.nii.gz") for name in ("frequency", "stable")}
    table = pd.read_csv("stable/stability.csv").set_index("feature")
    table = table.loc[[f"voxel {i} {j} {k}" for i, j, k in np.argwhere(head_mask())]]
    np.testing.assert_allclose(maps["frequency"].get_fdata()[head_mask()], table["frequency"], rtol=1e-6)
    np.testing.assert_array_equal(maps["stable"].get_fdata()[head_mask()] == 1, table["stable"])
    assert 0 < maps["stable"].get_fdata().sum() < (maps["frequency"].get_fdata() > 0).sum()
    np.testing.assert_array_equal(maps["stable"].affine, AFFINE)
    assert Path("stable/brain.png").read_bytes().startswith(b"\x89PNG")
    assert list(result.describe())[-1].endswith("brain.png")
    write_report(Path("stable"))
    assert "how often each voxel is chosen" in Path("stable/report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_maps_of_clients_own_models(tmp_path):
    record = run_on_images(tmp_path, "algo=ditto")
    assert main(["weights", "run", "--clients"]) == 0
    image = nibabel.Nifti1Image.from_filename(record.folder / "weights_by_client.nii.gz")
    assert image.shape == (*SHAPE, 3)
    np.testing.assert_array_equal(image.get_fdata()[head_mask()].T, record.personal["weights"])
    assert (record.folder / "brain_by_client.png").stat().st_size > 1000
    head_, *lines = (record.folder / "coefficients_by_client.csv").read_text().splitlines()
    assert head_ == "parameter,feature,class,site0,site1,site2"
    assert len(lines) == head_mask().sum() + 1


@pytest.mark.slow
def test_graph_net_knows_the_voxels(tmp_path):
    smooth = run_on_images(
        tmp_path, "reg=graph_net", "reg.strength=0.05", "reg.l1_ratio=0.02", "algo=centralized", folder="g"
    )
    rough = run_on_images(
        tmp_path, "reg=elastic_net", "reg.strength=0.05", "reg.l1_ratio=0.02", "algo=centralized", folder="e"
    )

    def roughness(record):
        image = nibabel.Nifti1Image.from_filename(record.folder / "weights.nii.gz").get_fdata()
        both = [
            head_mask()[1:] & head_mask()[:-1],
            head_mask()[:, 1:] & head_mask()[:, :-1],
            head_mask()[:, :, 1:] & head_mask()[:, :, :-1],
        ]
        differences = sum((np.diff(image, axis=a)[both[a]] ** 2).sum() for a in range(3))
        return differences / (image**2).sum()

    assert smooth.summary["certificate"]["certified"]
    assert roughness(smooth) < 0.5 * roughness(rough)
    federated = run_on_images(tmp_path, "reg=graph_net", "reg.strength=0.05", "algo=feddualavg", folder="f")
    assert federated.status["status"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize("reg", ["tv", "fused_lasso", "monotone"])
def test_orders_are_no_grids(tmp_path, reg):
    with fails(f"reg={reg}", "order of the features", "reg=graph_net"):
        run_on_images(tmp_path, f"reg={reg}")
    with fails("reg=graph_net", "order of the features"):
        run_on_images(tmp_path, "reg=graph_net", "reg.graph=chain")
