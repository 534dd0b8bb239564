"""Generate a table of six hospitals to try fcorun: make_hospitals.py [--rows 200] [--seed 0] [--out hospitals.csv]

The table has one row for each stay of a patient. The outcome is `readmitted` (yes, no), within 30 days after discharge.
Features have units, text and missing values. Hospitals differ in size, in their patients and in the recorded features:
Lys records no bmi. `new_patients.csv` has three more stays without outcome, one of them with missing values. The
numbers depend on --rows and --seed alone.

The true model is logistic and equal in all hospitals, in the columns' own units. Features that the formula omits have
coefficient 0:

    log odds = -1 + 0.05 (age - 65) + 0.01 (creatinine - 90) + 0.015 (crp - 30) - 0.03 (haemoglobin - 130)
               + 0.4 prior_stays + 0.9 [smoker = current] + 0.8 [ward = cardiology] - 0.5 [ward = surgery]

Values are missing completely at random: in creatinine 4 %, haemoglobin 6 %, crp 15 %, smoker 8 % of the rows.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

HOSPITALS = {"Aarau": 1.5, "Basel": 1.3, "Ghent": 1.0, "Leiden": 0.9, "Lys": 0.7, "Thun": 0.6}  # relative sizes
WARDS = ("cardiology", "geriatrics", "medicine", "neurology", "surgery")
SMOKER = ("current", "former", "never")
INTERCEPT = -1.0
MAX_ROWS = 60_000  # the largest hospital has 1.5 times as many stays, with a number of five digits each
NEW_PATIENTS = "new_patients.csv"
CENTRES = {"age": 65.0, "creatinine": 90.0, "crp": 30.0, "haemoglobin": 130.0, "prior_stays": 0.0}
TRUTH = {  # by the feature names of fcorun, in the columns' own units
    **{"age": 0.05, "creatinine": 0.01, "crp": 0.015, "haemoglobin": -0.03, "prior_stays": 0.4},
    **{"smoker=current": 0.9, "ward=cardiology": 0.8, "ward=surgery": -0.5},
}
MISSING = {"creatinine": 0.04, "haemoglobin": 0.06, "crp": 0.15, "smoker": 0.08}


def generate_stays(hospital: str, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Generate complete rows of one hospital."""
    age_shift = rng.normal(0, 4)  # the hospital's case mix
    sex = rng.choice(["F", "M"], rows)
    day = np.datetime64("2024-01-01") + rng.integers(0, 365, rows)
    age = np.clip(rng.normal(66 + age_shift, 14, rows), 18, 99).round()
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
    """Return the log odds of readmission by the true model, for complete rows."""
    odds = np.full(len(table), INTERCEPT)
    for name, coefficient in TRUTH.items():
        column, _, level = name.partition("=")
        odds += coefficient * ((table[column] == level) if level else (table[column] - CENTRES[column]))
    return odds


def make_tables(rows: int = 200, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the table of six hospitals, with ``rows`` rows each on average, and three new patients without outcome."""
    rng = np.random.default_rng(seed)
    table = pd.concat(
        [generate_stays(name, round(rows * size), rng) for name, size in HOSPITALS.items()], ignore_index=True
    )
    probability = 1 / (1 + np.exp(-log_odds(table)))
    table["readmitted"] = np.where(rng.random(len(table)) < probability, "yes", "no")
    for name, share in MISSING.items():
        table[name] = table[name].mask(rng.random(len(table)) < share)
    table["bmi"] = table["bmi"].mask(table["hospital"] == "Lys")
    new = pd.concat([generate_stays(name, 1, rng) for name in ("Basel", "Ghent", "Thun")], ignore_index=True)
    new.loc[2, "crp"], new.loc[2, "smoker"] = np.nan, None
    return table, new


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200, help="rows of a hospital on average (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("hospitals.csv"), help="default: %(default)s")
    arguments = parser.parse_args()
    if not 10 <= arguments.rows <= MAX_ROWS:
        parser.error(f"--rows {arguments.rows}: give a number from 10 to {MAX_ROWS}")
    if arguments.seed < 0:
        parser.error(f"--seed {arguments.seed}: give 0 or a larger number")
    if arguments.out.name == NEW_PATIENTS:
        parser.error(f"--out {arguments.out} is the file of the new patients: choose another name")
    table, new = make_tables(arguments.rows, arguments.seed)
    try:
        table.to_csv(arguments.out, index=False)
        new.to_csv(arguments.out.with_name(NEW_PATIENTS), index=False)
    except OSError as error:
        parser.error(f"--out {arguments.out}: {error.strerror or error}; choose another path")
    yes = (table["readmitted"] == "yes").mean()
    print(f"{arguments.out}: {len(table)} stays in {len(HOSPITALS)} hospitals, {100 * yes:.0f} % readmitted; "
          f"{NEW_PATIENTS}: {len(new)} new patients")  # fmt: skip


if __name__ == "__main__":
    main()
