"""Lines of tables about few rows, which are left out of what is sent."""

import numpy as np
import pytest

from fcorun.base.records.few_rows import LEAST_ROWS, leave_out_few
from fcorun.base.records.formats import csv_text


@pytest.mark.parametrize("seed", range(30))
def test_no_line_and_no_total_less_the_other_lines_is_about_few_rows(tmp_path, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, size=rng.integers(1, 7)).tolist()
    lines = [{"set": "test", "model": "shared", "client": "", "n": sum(sizes)}]
    lines += [{"set": "test", "model": "shared", "client": f"c{m}", "n": n} for m, n in enumerate(sizes)]
    (tmp_path / "scores.csv").write_text(csv_text(lines))
    text = leave_out_few(tmp_path / "scores.csv")
    kept = [line.split(",") for line in text.splitlines()[1:]]
    counts = {client: int(n) for _, _, client, n in kept}
    assert all(n >= LEAST_ROWS for n in counts.values())
    total = counts.pop("", 0)
    if total:
        assert total - sum(counts.values()) == 0 or total - sum(counts.values()) >= LEAST_ROWS
    if min(sizes) >= LEAST_ROWS:
        assert len(kept) == len(lines)
