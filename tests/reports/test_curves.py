"""Pictures of one run: its curves, and what they are drawn against."""

import io

import numpy as np
import pytest
from drawn import best_of
from fabricate import grid, rows
from helpers import small
from PIL import Image

from fcorun import UserError, run
from fcorun.metrics import read_rows
from fcorun.reports.pictures import curves
from fcorun.reports.pictures.axis import along, unit
from fcorun.reports.pictures.curves import COLOURS, draw_curves

# ---------------------------------------------------------------- one run


def colours(png):
    """The colours of a picture, as texts."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    return {f"#{r:02X}{g:02X}{b:02X}" for _, (r, g, b) in picture.getcolors(1000)}


def test_curves_show_every_line():
    assert {"#FFFFFF", *COLOURS[:4], "#000000"} <= colours(draw_curves(rows(precision=0.5, recall=0.5), "a", 1e-4))


@pytest.mark.parametrize("values", [[1.0], [1.0, np.inf], [1.0, 0.0, -1.0], [0.0, 0.0], [1e-300, 1e300], [5.0] * 3])
def test_curves_of_odd_values(values):
    table = [{"round": i, "bytes_up": 1, "objective": v, "train_loss": v, "rank": v} for i, v in enumerate(values)]
    assert COLOURS[0] in colours(draw_curves(table, "$a_b$", 1e-4))  # a single evaluation is a dot


def test_curves_of_nothing():
    assert draw_curves([], "a", 1e-4).startswith(b"\x89PNG")


# ---------------------------------------------------------------- what curves are drawn against


def test_along():
    table = rows(grads=3)
    assert along(table, "rounds", "a") == [0, 10, 20, 30, 40]
    assert along(table, "bytes", "a") == [0, 160, 320, 480, 640]
    assert along(table, "grad_evals", "a") == [0, 30, 60, 90, 120]
    assert along(table, "seconds", "a") == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_what_was_not_counted_is_refused():
    said = "x=grad_evals was not counted in mine; choose x as one of rounds, bytes, seconds, or run it again with force"
    with pytest.raises(UserError, match=said):
        along(rows(), "grad_evals", "mine")
    with pytest.raises(UserError, match=r"x=grad_evals was not counted in feddualavg: eta_s = 1;"):
        best_of(grid("s", client=(0.1,)), "f1", None, ["grad_evals"])


@pytest.mark.parametrize(
    ("x", "most", "factor", "label"),
    [
        ("rounds", 1e7, 1, "communication round"),
        ("seconds", 5000, 1, "time (s)"),
        ("bytes", 0, 1, "communication, up and down (B)"),
        ("bytes", 999, 1, "communication, up and down (B)"),
        ("bytes", 1e6, 1e6, "communication, up and down (MB)"),
        ("bytes", 9e17, 1e12, "communication, up and down (TB)"),
        ("grad_evals", 12, 1, "gradient evaluations (examples)"),
        ("grad_evals", 4.1e6, 1e6, "gradient evaluations (10$^6$ examples)"),
    ],
)  # fmt: skip
def test_units(x, most, factor, label):
    assert unit(x, most) == (factor, label)


@pytest.mark.parametrize(
    ("table", "x", "label", "places"),
    [
        (rows(), "rounds", "communication round", [0, 10, 20, 30, 40]),
        (rows(), "bytes", "communication, up and down (B)", [0, 160, 320, 480, 640]),
        (rows(grads=100), "grad_evals", "gradient evaluations (10$^3$ examples)", [0, 1, 2, 3, 4]),
        (rows(silent=True), "rounds", "iteration", [0, 10, 20, 30, 40]),
        (rows(silent=True), "bytes", "iteration", [0, 10, 20, 30, 40]),
        (rows(silent=True), "grad_evals", "iteration", [0, 10, 20, 30, 40]),
        (rows(silent=True, grads=2), "grad_evals", "gradient evaluations (examples)", [0, 20, 40, 60, 80]),
        (rows(silent=True), "seconds", "time (s)", [0, 1, 2, 3, 4]),
        (rows()[:1], "bytes", "communication, up and down (B)", [0]),
        ([], "grad_evals", "gradient evaluations (examples)", []),
    ],
)
def test_curves_against(monkeypatch, table, x, label, places):
    seen = []

    class Page(curves._Page):
        def __init__(self, chosen, across):
            super().__init__(chosen, across)
            seen.append(across)

        def draw(self, rows, along, title):
            seen.append(along)
            return super().draw(rows, along, title)

    monkeypatch.setattr(curves, "_page", Page)
    assert draw_curves(table, "a", 1e-4, x).startswith(b"\x89PNG")
    assert seen == [label, pytest.approx(places)]


def test_a_run_is_drawn_against_what_it_was_told():
    record = run(small("x=bytes", "rounds=2"))
    table, label = read_rows(record.folder), record.status["label"]
    written = (record.folder / "curves.png").read_bytes()
    assert written == draw_curves(table, label, 1e-4, "bytes") != draw_curves(table, label, 1e-4)
