"""The environment in summary.json."""

import subprocess

from fcorun.base.system.machine import read_commit


def test_the_commit_is_that_of_the_checkout_or_the_one_that_was_built(tmp_path, monkeypatch):
    package = tmp_path / "site" / "fcorun"
    package.mkdir(parents=True)
    assert read_commit(package) is None
    (package / "commit").write_text("abc123\n")  # as hatch_build.py leaves it in a wheel
    assert read_commit(package) == "abc123"
    subprocess.run(["git", "init", "-q", str(package.parent)], check=True)
    assert read_commit(package) is None  # of a checkout that has none yet, whatever lies there
    who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(package.parent), *who, "commit", "-qm", "m", "--allow-empty"], check=True)
    assert len(read_commit(package) or "") == 40
    monkeypatch.setenv("PATH", "")
    assert read_commit(package) is None  # git is not installed
