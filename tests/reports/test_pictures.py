"""Pictures of sweeps: which there are, and how they look."""

import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
from fabricate import config, grid, record

from fcorun import load_records
from fcorun.reports.pictures.page import look, looks_of, words
from fcorun.reports.pictures.sweep import draw_sweep
from fcorun.reports.results import table

# ---------------------------------------------------------------- files


def test_files_of_a_sweep():
    there = grid("s")
    written = draw_sweep(Path("s"), there, table(there))
    assert [str(path) for path in written] == ["s/rates.png", "s/best.png", "s/structure.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    assert not list(Path("s").glob(".*"))


def test_each_data_set_has_its_own():
    for data in ("lasso", "lasso_8"):
        for rate in (0.1, 0.2):
            record(f"s/{data}{rate}", config(data=data, algo__client_lr=rate))
    there = load_records("s")
    names = {path.name for path in draw_sweep(Path("s"), there, table(there))}
    assert names == {f"{kind}-{data}.png" for kind in ("rates", "best", "structure") for data in ("lasso", "lasso_8")}


def test_pictures_that_no_longer_hold_go():
    there = grid("s", seeds=(0,))
    draw_sweep(Path("s"), there, table(there))
    one = there[:1]
    assert [path.name for path in draw_sweep(Path("s"), one, table(one))] == ["best.png", "structure.png"]
    assert not Path("s/rates.png").exists()


def test_runs_that_all_failed_have_no_pictures():
    there = [record("s/a", status="failed"), record("s/b", config("fedmid"), status="running")]
    assert draw_sweep(Path("s"), there, table(there)) == []


def test_a_sweep_is_drawn_fast():
    there = grid(
        "s", client=(0.1, 0.12, 0.14, 0.2, 0.22, 0.24, 0.5), server=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0), seeds=(0,)
    )
    frame = table(there)
    draw_sweep(Path("s"), there, frame)
    begun = time.process_time()
    draw_sweep(Path("s"), there, frame)
    assert time.process_time() - begun < 4  # 0.8 seconds where nothing else runs


# ---------------------------------------------------------------- words and looks


def test_words():
    assert words("f1", 1e-3) == "F1 of |w$_j$| > 0.001"
    assert words("f1", None) == "F1 of |w$_j$| > cutoff"
    assert words("groups", 1e-3, tail=5) == "groups\nmean of last 5 rounds"


def test_looks_differ():
    frame = table([record(f"r{i:02}", config(f"algo{i:02}")) for i in range(14)])
    looks = looks_of(frame)
    assert len({(look.colour, str(look.dash)) for look in looks.values()}) == 14


def test_eight_looks_differ_in_print_without_colours():
    eight = [look(i) for i in range(8)]
    assert len({one.marker for one in eight}) == 8
    assert len({str(one.dash) for one in eight[:7]}) == 7
    first, last = (np.dot(mpl.colors.to_rgb(one.colour), (0.3, 0.59, 0.11)) for one in (eight[1], eight[7]))
    assert eight[1].dash == eight[7].dash
    assert first - last > 0.2
