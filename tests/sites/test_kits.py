"""The settings of kits: jobs bring no code, and name allowed classes alone."""

import json

import pytest

from fcorun.errors import UserError
from fcorun.sites.kits import COLLAB_CLASSES, restrict_kit, user_of_kit


@pytest.fixture
def kit(tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    resources = {"class_allow_list": ["nvflare.default.Class"], "allow_log_streaming": True, "components": [1]}
    permissions = {"project_admin": "any", "lead": {"submit_job": "any", "byoc": "any"}, "member": {"view": "any"}}
    (local / "resources.json.default").write_text(json.dumps(resources), encoding="utf-8")
    (local / "authorization.json.default").write_text(json.dumps({"permissions": permissions}), encoding="utf-8")
    return tmp_path


def test_a_restricted_kit_refuses_code_and_other_classes_and_keeps_its_other_settings(kit):
    restrict_kit(kit, ["fcorun."])  # which is replaced
    restrict_kit(kit, ["fcorun.sites.study.StudySite"])
    restrict_kit(kit, ["fcorun.sites.study.StudySite"])  # again changes nothing
    resources = json.loads((kit / "local" / "resources.json").read_text(encoding="utf-8"))
    assert resources == {
        "class_allow_list": ["nvflare.default.Class", *COLLAB_CLASSES, "fcorun.sites.study.StudySite"],
        "allow_log_streaming": False,
        "components": [1],
    }
    permissions = json.loads((kit / "local" / "authorization.json").read_text(encoding="utf-8"))["permissions"]
    assert permissions["lead"] == {"submit_job": "any", "byoc": "none"}
    assert permissions["member"] == {"view": "any"}


def test_a_folder_that_is_no_kit_is_named(tmp_path):
    with pytest.raises(UserError, match="is no kit of a server or a site"):
        restrict_kit(tmp_path, [])
    with pytest.raises(UserError, match="is no kit of a user"):
        user_of_kit(tmp_path)
