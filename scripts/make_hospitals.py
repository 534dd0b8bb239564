"""Make a table of six hospitals to try fcorun on: python scripts/make_hospitals.py [--rows 200] [--out hospitals.csv]

One row a stay of a patient. The outcome is `readmitted` (yes, no), within 30 days of leaving. Features have units, text
and gaps, hospitals differ in size, in whom they treat and in what they record: Lys writes no bmi. Beside the table,
`new_patients.csv` has three more stays without outcome, one of them with gaps. The numbers depend on the seed alone.

The true model is logistic and the same in all hospitals, in the columns' own units; what it does not name has
coefficient 0:

    log odds = -1 + 0.05 (age - 65) + 0.01 (creatinine - 90) + 0.015 (crp - 30) - 0.03 (haemoglobin - 130)
               + 0.4 prior_stays + 0.9 [smoker = current] + 0.8 [ward = cardiology] - 0.5 [ward = surgery]

Gaps fall where they may, whatever the value: in creatinine 4 %, haemoglobin 6 %, crp 15 %, smoker 8 % of the rows.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

HOSPITALS = {"Aarau": 1.5, "Basel": 1.3, "Ghent": 1.0, "Leiden": 0.9, "Lys": 0.7, "Thun": 0.6}  # relative sizes
WARDS = ("cardiology", "geriatrics", "medicine", "neurology", "surgery")
SMOKER = ("current", "former", "never")
INTERCEPT = -1.0
CENTRES = {"age": 65.0, "creatinine": 90.0, "crp": 30.0, "haemoglobin": 130.0, "prior_stays": 0.0}
TRUTH = {  # by feature as fcorun names it, in the column's own unit
    **{"age": 0.05, "creatinine": 0.01, "crp": 0.015, "haemoglobin": -0.03, "prior_stays": 0.4},
    **{"smoker=current": 0.9, "ward=cardiology": 0.8, "ward=surgery": -0.5},
}
GAPS = {"creatinine": 0.04, "haemoglobin": 0.06, "crp": 0.15, "smoker": 0.08}


def stays(hospital: str, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Complete rows of one hospital."""
    older = rng.normal(0, 4)  # a hospital's own case mix
    sex, day = rng.choice(["F", "M"], rows), np.datetime64("2024-01-01") + rng.integers(0, 365, rows)
    age = np.clip(rng.normal(66 + older, 14, rows), 18, 99).round()
    return pd.DataFrame(
        {
            "patient": [f"{hospital[:2].upper()}{number:05}" for number in rng.permutation(100_000)[:rows]],
            "hospital": hospital,
            "admitted": day.astype(str),
            "age": age.astype(int),  # years
            "sex": sex,
            "bmi": rng.normal(26.5, 4.5, rows).clip(15, 55).round(1),  # kg/m2
            "smoker": rng.choice(SMOKER, rows, p=[0.2, 0.3, 0.5]),
            "ward": rng.choice(WARDS, rows, p=rng.dirichlet(8 * np.array([0.2, 0.15, 0.35, 0.1, 0.2]))),
            "diabetes": rng.random(rows) < 0.22,
            "prior_stays": rng.poisson(0.8, rows),  # in the last year
            "creatinine": rng.lognormal(np.log(80 + 10 * (sex == "M") + 0.3 * (age - 65)), 0.3).round(),  # umol/L
            "crp": rng.lognormal(np.log(18), 1.0, rows).clip(0.3, 400).round(1),  # mg/L
            "haemoglobin": rng.normal(128 + 10 * (sex == "M"), 16).round(),  # g/L
            "sodium": rng.normal(139, 3.5, rows).round(),  # mmol/L
            "systolic": rng.normal(134, 19, rows).round(),  # mmHg
            "heart_rate": rng.normal(78, 13, rows).round(),  # 1/min
        }
    )


def log_odds(table: pd.DataFrame) -> np.ndarray:
    """Of readmission, by the true model, of complete rows."""
    found = np.full(len(table), INTERCEPT)
    for name, coefficient in TRUTH.items():
        column, _, level = name.partition("=")
        found += coefficient * ((table[column] == level) if level else (table[column] - CENTRES[column]))
    return found


def make(rows: int = 200, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table of six hospitals with ``rows`` rows each on average, and three new patients without outcome."""
    rng = np.random.default_rng(seed)
    table = pd.concat([stays(name, round(rows * size), rng) for name, size in HOSPITALS.items()], ignore_index=True)
    chance = 1 / (1 + np.exp(-log_odds(table)))
    table["readmitted"] = np.where(rng.random(len(table)) < chance, "yes", "no")
    for name, share in GAPS.items():
        table[name] = table[name].mask(rng.random(len(table)) < share)
    table["bmi"] = table["bmi"].mask(table["hospital"] == "Lys")
    new = pd.concat([stays(name, 1, rng) for name in ("Basel", "Ghent", "Thun")], ignore_index=True)
    new.loc[2, "crp"], new.loc[2, "smoker"] = np.nan, None
    return table, new


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200, help="of a hospital on average (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("hospitals.csv"), help="default: %(default)s")
    asked = parser.parse_args()
    if asked.rows < 10:
        parser.error(f"--rows {asked.rows} is too few: give at least 10")
    table, new = make(asked.rows, asked.seed)
    try:
        table.to_csv(asked.out, index=False)
        new.to_csv(asked.out.with_name("new_patients.csv"), index=False)
    except OSError as error:
        parser.error(f"--out {asked.out}: {error.strerror or error}; choose another place")
    yes = (table["readmitted"] == "yes").mean()
    print(f"{asked.out}: {len(table)} stays in {len(HOSPITALS)} hospitals, {100 * yes:.0f} % readmitted; beside it "
          f"new_patients.csv with {len(new)}")  # fmt: skip


if __name__ == "__main__":
    main()
