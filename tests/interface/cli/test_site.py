"""fcorun plan and fcorun site, as owners of sites type them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fcorun.sites.plan.plan import Plan

PLAN = ("algo=newton", "data=sites", "data.target=cost", "rounds=2", "eval_every=2", "--out", "study.yaml")


@pytest.fixture(autouse=True)
def plan(fcorun, tmp_path, monkeypatch):
    """Write a plan, and the table of a site."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    pd.DataFrame(rng.normal(size=(60, 3)).round(2), columns=["age", "bmi", "cost"]).to_csv("a.csv", index=False)
    code, out, _ = fcorun("plan", *PLAN)
    assert code == 0
    assert "what leaves each site" in out


def make_kit(folder, settings: str):
    """Write a folder with the settings of a kit of NVFLARE that fcorun reads."""
    for name, content in {
        f"startup/{settings}": {},
        "local/resources.json.default": {"class_allow_list": []},
        "local/authorization.json.default": {"permissions": {"lead": {"submit_job": "any", "byoc": "any"}}},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_accept_prints_the_plan_before_the_acceptance_is_noted(fcorun):
    code, out, err = fcorun("site", "accept", "study.yaml", "--at", "at", "data.path=a.csv")
    assert (code, err) == (0, "")
    plan, text = Plan.read("study.yaml"), " ".join(out.split())
    lines = [" ".join(line.split()) for line in plan.describe()]
    assert [line for line in lines if line not in text] == []
    assert text.index(lines[0]) < text.index("rows of each client") < text.index(f"accepted: {plan.digest}")


def test_accept_refuses_a_file_that_changes_after_it_was_read(fcorun, monkeypatch):
    def describe_and_change(site):
        with open("a.csv", "a") as file:
            file.write("\n")
        return []

    monkeypatch.setattr("fcorun.sites.site.acceptance.describe_site", describe_and_change)
    code, _, err = fcorun("site", "accept", "study.yaml", "--at", "at", "data.path=a.csv")
    assert code == 2
    assert "data.path=a.csv has changed while it was read, and nothing is accepted" in " ".join(err.split())
    assert not list(Path("at").glob("accepted/*"))


def test_accept_names_a_file_that_is_missing(fcorun):
    code, _, err = fcorun("site", "accept", "study.yaml", "--at", "at", "data.path=gone.csv")
    assert code == 2
    assert "gone.csv" in err


def test_check_prints_what_the_site_has_and_how_to_accept(fcorun, tmp_path):
    code, _, _ = fcorun("site", "check", "study.yaml", "data.path=a.csv", "data.rename={old age: age}")
    assert code == 2  # no such column
    code, out, _ = fcorun("site", "check", "study.yaml", "data.path=a.csv")
    assert code == 0
    assert "48, 12, 0" in out
    assert "nothing was sent" in out
    assert "fcorun site accept study.yaml --at DIR data.path=a.csv" in " ".join(out.split())
    (tmp_path / "study.yaml").rename("my study.yaml")
    _, out, _ = fcorun("site", "check", "my study.yaml", "data.path=a.csv")
    assert "fcorun site accept 'my study.yaml' --at DIR" in " ".join(out.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "my study.yaml"]


def test_check_warns_of_what_one_file_shows(fcorun):
    rng = np.random.default_rng(0)
    sexes = {"sex": ["f", "F", "m"] * 20}
    pd.read_csv("a.csv").assign(**sexes).to_csv("b.csv", index=False)
    code, out, _ = fcorun("site", "check", "study.yaml", "data.path=b.csv")
    assert code == 0
    assert "warning: levels of 'sex' 'F' and 'f' differ in capitals or spaces only" in " ".join(out.split())
    ill = rng.choice(["ja", "nein"], 60)
    pd.read_csv("a.csv").assign(ill=ill).to_csv("c.csv", index=False)
    keys = ("data=sites", "data.target=ill", "data.task=binary", "data.positive=yes", "objective=logistic")
    code, _, _ = fcorun("plan", "algo=newton", "rounds=2", "eval_every=2", *keys, "--out", "ill.yaml")
    assert code == 0
    code, _, err = fcorun("site", "check", "ill.yaml", "data.path=c.csv")
    assert code == 2
    assert "has 'ja', 'nein', 2 labels besides data.positive=yes of the plan" in " ".join(err.split())


@pytest.mark.slow
def test_a_trial_prints_the_warnings_about_the_data(fcorun):
    code, _, _ = fcorun("plan", *PLAN[:-2], "data.standardize=pooled", "--out", "units.yaml")
    assert code == 0
    frame = pd.read_csv("a.csv")
    frame.assign(age=frame["age"] + 100).to_csv("b.csv", index=False)
    frame.assign(bmi=frame["bmi"].where(~frame.index.isin([3, 5, 8]), 999)).to_csv("c.csv", index=False)
    code, out, _ = fcorun("site", "try", "units.yaml", "a.csv", "b.csv", "c.csv", "out=trial")
    assert code == 0
    shown = " ".join(out.split())
    assert "site 'b': the mean of 'age' here is more than 5 standard deviations away" in shown
    assert "site 'c': 'bmi' has 999 in 3 rows" in shown


@pytest.mark.parametrize(("settings", "keys"), [("fed_client.json", ["data.path=a.csv"]), ("fed_server.json", [])])
def test_a_kit_whose_owner_accepts_takes_jobs_of_plans_and_no_code(fcorun, tmp_path, settings, keys):
    kit = make_kit(tmp_path / "kit", settings)
    code, _, err = fcorun("site", "accept", "study.yaml", "--kit", "kit", *keys)
    assert (code, err) == (0, "")
    resources = json.loads((kit / "local" / "resources.json").read_text(encoding="utf-8"))
    allowed = {"fed_client.json": "StudySite", "fed_server.json": "StudyServer"}[settings]
    assert resources["class_allow_list"][-1] == f"fcorun.sites.server.kit_study.{allowed}"
    rights = json.loads((kit / "local" / "authorization.json").read_text(encoding="utf-8"))["permissions"]["lead"]
    assert (rights["submit_job"], rights["byoc"]) == ("any", "none")
    assert len(list(kit.glob("local/fcorun/accepted/*.json"))) == len(keys)


def test_what_cannot_be_done_is_said_at_once(fcorun, tmp_path):
    make_kit(tmp_path / "kit", "fed_server.json")
    (tmp_path / "rules.yaml").write_text("columns: age\n", encoding="utf-8")
    for words, sentence in (
        (("accept", "study.yaml", "--kit", "kit", "data.path=a.csv"), "is the kit of a server, which has no rows"),
        (("accept", "study.yaml", "--kit", "nokit", "data.path=a.csv"), "is no kit of a server or a site"),
        (("accept", "study.yaml", "data.path=a.csv"), "needs --at or --kit"),
        (("accept", "study.yaml", "data.path=a.csv", "--at", "at", "--kit", "kit"), "give --kit alone, or --at alone"),
        (("serve", "study.yaml", "--at", "a", "--folder", "shared"), "--folder shared is no folder"),
        (("run", "study.yaml", "--folder", "shared"), "needs the names of the sites"),
        (("try", "study.yaml"), "needs the files of the sites"),
        (("serve", "study.yaml", "policy=strict.yaml"), "takes no policy=strict.yaml: give the keys of the site to"),
        (("run", "study.yaml", "--folder", "shared", "--sites", "a", "ou=x"), "takes no ou=x: it has one key, out=DIR"),
        (("run", "study.yaml", "--folder", "shared", "--sites", "a", "out=''"), "out= names no folder: give out=DIR"),
        (("try", "study.yaml", "a.csv", "out="), "out= names no folder: give out=DIR"),
        (("try", "study.yaml", "a.csv", "--wait", "9"), "fcorun site try takes no --wait: leave it out"),
        (("serve", "study.yaml", "--wait", "nan"), "--wait nan: give a number of seconds, 0 or more"),
        (("run", "study.yaml", "--wait", "-5"), "--wait -5: give a number of seconds, 0 or more"),
        (("accept", "study.yaml", "data.path=a.csv", f"fingerprints={{b: {'0' * 32}, b: {'1' * 32}}}"),
         "site b is named twice; give each other site with one fingerprint"),
        (("accept", "study.yaml", "data.path=a.csv", *(f"fingerprints={{{site}: {'0' * 32}}}" for site in "bc")),
         "give the fingerprints of all other sites in one list"),
        (("check", "study.yaml", "data.path=a.csv", "policy=rules.yaml"), "give policy.columns=[age]"),
        (("check", "study.yaml", "data.path=a.csv", "data.keep=id"), "give data.keep=[id]"),
    ):  # fmt: skip
        code, _, err = fcorun("site", *words)
        assert code == 2
        assert sentence in " ".join(err.split())
    assert not (tmp_path / "nokit").exists()


def test_check_and_try_list_all_obstacles_at_once(fcorun, tmp_path):
    keys = ("data=sites", "data.target=cost", "data.only=[age,bmi,ward]", "data.validation=0.1")
    code, _, _ = fcorun("plan", "algo=newton", "rounds=100", *keys, "--out", "wards.yaml")
    assert code == 0
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)).round(2), columns=["age", "bmi", "cost"])
    frame.loc[3, "bmi"] = None
    frame.assign(ward=[f"bed {number}" for number in range(60)]).to_csv("b.csv", index=False)
    (tmp_path / "rules.yaml").write_text("max_rounds: 50\ncolumns: [bmi, ward, cost]\n", encoding="utf-8")
    code, out, err = fcorun("site", "check", "wards.yaml", "data.path=b.csv", "policy=rules.yaml")
    assert code == 2
    assert "6 obstacles, listed above" in err
    obstacles = [" ".join(text.split()) for text in out.split("obstacle: ")[1:]]
    for obstacle, words in zip(
        obstacles,
        [
            "policy.max_rounds of this site allows 50",
            "does not allow the column 'age'",
            "column 'bmi' has gaps",
            "fewer than 10 validation rows",
            "'ward'",
            "few validation rows outweigh all others in the column 'age'",  # of 6 rows
        ],
        strict=True,
    ):
        assert words in obstacle
    frame.drop(columns=["age", "cost"]).to_csv("c.csv", index=False)
    code, out, err = fcorun("site", "try", "wards.yaml", "a.csv", "c.csv")
    assert code == 2
    shown = " ".join(out.split())
    assert "4 obstacles" in err
    for name, column in (("a", "ward"), ("c", "cost"), ("c", "age"), ("c", "ward")):
        assert f"obstacle: site '{name}': data.path={name}.csv: there is no column '{column}'" in shown
    code, out, err = fcorun("site", "accept", "wards.yaml", "--at", "at", "data.path=c.csv")
    assert (code, (tmp_path / "at").exists()) == (2, False)


def test_an_owner_says_how_the_file_is_read(fcorun):
    keys = ("data.missing=mean", "data.standardize=pooled")
    code, _, _ = fcorun("plan", *PLAN[:-2], *keys, "--out", "gaps.yaml")
    assert code == 0
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"alter": rng.integers(36, 114, 60), "ward": ["Süd", "Nord"] * 30, "cost": rng.normal(size=60)}
    )
    table.loc[[*range(10), 50, 51, 52], "alter"] = -9
    table.to_csv("b.csv", index=False, sep=";", encoding="latin-1")
    command = ("site", "check", "gaps.yaml", "data.path=b.csv", "data.rename={alter: age}")
    code, _, err = fcorun(*command)
    assert code == 2
    assert "give data.encoding=windows-1252 if it is of an older Windows" in " ".join(err.split())
    code, out, _ = fcorun(*command, "data.encoding=latin-1")
    assert code == 0
    remark = " ".join(out.split())
    assert "'age' has -9 in 13 rows" in remark
    cure = remark[remark.index("'data.na=") :].split("'")[1]
    assert cure == "data.na={age:[-9]}"
    code, out, _ = fcorun(*command, "data.encoding=latin-1", cure)
    assert code == 0
    assert "'-9' is read as a gap in column 'age'" in " ".join(out.split())
    assert "that stands for" not in out
    code, _, _ = fcorun("site", "accept", "gaps.yaml", "--at", "at", *command[3:], "data.encoding=latin-1", cure)
    assert code == 0
    (note,) = Path("at").glob("accepted/*")
    options = json.loads(note.read_text())["options"]
    assert (options["na"], options["encoding"], "sheet" in options) == ({"age": ["-9"]}, "latin-1", False)


def test_remarks_about_a_file_stay_at_its_site(fcorun):
    from fcorun.sites.plan.policy import Policy
    from fcorun.sites.plan.site_options import SiteOptions
    from fcorun.sites.site.acceptance import list_warnings
    from fcorun.sites.tables.planned_table import read_planned_table
    from fcorun.sites.tables.table_description import describe_table

    table = pd.read_csv("a.csv").assign(day=44000 + np.arange(60) % 50, bmi=np.resize([0, 1], 60))
    table.loc[[3, 4], ["bmi", "age"]] = [9, 1e30]
    table.to_csv("b.csv", index=False)
    options = SiteOptions("b.csv", na=["77"])
    site_table = read_planned_table(Plan.read("study.yaml"), options, Policy(min_cell=2, min_rows=2))
    remarks = " ".join(list_warnings(site_table))
    for value in ("no cell holds '77'", "'bmi' has 9 in 2 rows", "Excel stores days in 'day' (44000", "has 1e+30 in 2"):
        assert value in remarks
    sent = json.dumps(describe_table(site_table).about)
    assert not any(value in sent for value in ("77", "44000", "Excel", "1e+30", "4, 5"))
