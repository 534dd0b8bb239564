"""The table of the best points in LaTeX."""

import json
from typing import Any

from fake_records import fake_config, fake_record, fake_rows

from fcorun import load_records
from fcorun.reports.build_table import build_table
from fcorun.reports.latex import format_best_latex


def lines(metric="objective"):
    return format_best_latex(build_table(load_records("s")), metric).splitlines()


def test_a_table_with_bands():
    for algo, level in (("feddualavg", 1.0), ("fedmid_osp", 2.0)):
        for seed in range(3):
            settings = fake_config(algo, seed=seed, algo__client_lr=1e-5)
            fake_record(f"s/{algo}{seed}", settings, fake_rows(level + seed))
    fake_record("s/other", fake_config("fedmid_osp", algo__client_lr=0.25), fake_rows(9.0))
    table = lines()
    assert table[0] == "% best by objective: mean over the last 20 rounds, median over seeds"
    assert all(line.startswith("% ") for line in table[:-8])
    assert table[-8:-5] == [r"\begin{tabular}{lrrrr}", r"\toprule",
                            r"method & client\_lr & objective & range over 3 seeds of cohorts & seeds \\"]  # fmt: skip
    assert table[-4:] == [
        r"feddualavg & $10^{-5}$ & \textbf{2.50} & 1.25 to 3.75 & 3 \\",
        r"fedmid\_osp & $10^{-5}$ & 3.75 & 2.50 to 5.00 & 3 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_the_caption_says_that_stopped_runs_have_no_mean():
    file = fake_record("s/a").folder / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"stopped": True}))
    mean = "mean over the last 20 rounds (of runs that met a target, the value at their end)"
    assert lines()[0] == f"% best by objective: {mean}"


def test_without_seeds_there_is_no_band_and_data_sets_have_their_own_best():
    for data, level in (("lasso", 1.0), ("my_data", 2.0)):
        fake_record(f"s/{data}", fake_config(data=data, algo__client_lr=3.5e-6), fake_rows(level))
        fake_record(f"s/{data}-mid", fake_config("fedmid", data, algo__client_lr=-2.0), fake_rows(level + 1))
        fake_record(f"s/{data}-bad", fake_config("fedavg", data, algo__client_lr=1.0), status="diverged")
    table = lines()
    assert r"feddualavg & lasso & $3.5 \times 10^{-6}$ & \textbf{1.25} \\" in table
    assert r"fedmid & my\_data & $-2$ & 3.75 \\" in table
    assert r"fedavg & lasso &  & diverged \\" in table
    assert sum("textbf" in line for line in table) == 2


def test_every_sign_of_latex_is_escaped():
    for name in (r"a\b_c&d%e$f#g{h}i~j^k", "fedavg"):
        fake_record(f"s/{len(name)}", fake_config(name, reg__name=name), fake_rows(1.0))
    table = "\n".join(lines())
    escaped = r"a\textbackslash b\_c\&d\%e\$f\#g\{h\}i\textasciitilde j\textasciicircum k"
    assert rf"{escaped} & {escaped} & \textbf{{1.25}} \\" in table


def test_the_best_of_runs_of_different_length_is_not_bold():
    for algo, rounds in (("feddualavg", 40), ("fedmid", 80)):
        fake_record(f"s/{algo}", fake_config(algo, rounds=rounds), fake_rows(1.0, rounds=rounds))
    assert "textbf" not in "".join(lines())


def test_a_baseline_is_not_bold():
    fake_record("s/a", fake_config("feddualavg"), fake_rows(1.0))
    fake_record("s/b", fake_config("centralized"), fake_rows(0.5, silent=True))
    assert lines()[-4:-2] == [r"feddualavg & \textbf{1.25} \\", r"centralized & 0.50 \\"]


def test_the_p_values_are_those_against_the_best_method():
    for algo, factor in (("feddualavg", 1.0), ("fedmid", 2.0), ("fedavg", 1.1)):
        for seed in range(7):
            fake_record(f"s/{algo}{seed}", fake_config(algo, seed=seed), fake_rows(factor * (1 + seed)))
    table = lines()
    assert any(line.startswith("% p: two-sided sign-flip test") for line in table)
    cells = {line.split(" & ")[0]: line.split(" & ")[-1] for line in table if " & " in line}
    p = f"{3 * 2 / 2**7:.2g}"  # all seven differences have one sign, in three pairs
    for seed in range(7):
        silent = fake_rows(0.9 * (1 + seed), silent=True)
        fake_record(f"s/centralized{seed}", fake_config("centralized", seed=seed), silent)
    with_baseline = {line.split(" & ")[0]: line.split(" & ")[-1] for line in lines() if " & " in line}
    assert with_baseline["feddualavg"] == r" \\"  # the bold one, though the baseline is better
    assert cells == {"method": r"p \\", "feddualavg": r" \\", "fedmid": rf"{p} \\", "fedavg": rf"{p} \\"}


def test_rows_that_differ_have_the_digits_that_say_so():
    for algo, level in (("feddualavg", 0.999312), ("fedmid", 0.999341), ("fedavg", 0.5)):
        fake_record(f"s/{algo}", fake_config(algo), fake_rows(support_f1=level))
    table = "\n".join(lines("support_f1"))
    assert all(number in table for number in ("0.99931", "0.99934", "0.5"))


def test_runs_without_a_result_have_their_status():
    for seed in (0, 1):
        fake_record(f"s/{seed}", fake_config("fedavg", seed=seed, algo__client_lr=1.0), status="diverged")
    assert lines()[-3] == r"fedavg & diverged \\"


def test_the_best_value_is_bold_where_it_is_a_formula():
    for algo, level in (("feddualavg", 1e-7), ("fedmid", 2e-7)):
        fake_record(f"s/{algo}", fake_config(algo), fake_rows(level))
    assert lines()[-4] == r"feddualavg & {\boldmath \textbf{$1.25 \times 10^{-7}$}} \\"


def test_a_key_does_not_replace_a_column_of_the_same_name():
    names = ("method", "data", "seeds", "objective")
    for value in (1, 2):
        keys: Any = {f"algo__{name}": 10 * value for name in names}
        fake_record(f"s/{value}", fake_config("mine", **keys), fake_rows(1.0 + value))
    table = lines()
    assert r"method & algo.method & algo.data & algo.seeds & algo.objective & objective \\" in table
    assert r"mine & 10 & 10 & 10 & 10 & \textbf{2.5} \\" in table
