"""The settings of kits: jobs bring no code, and name allowed classes alone."""

import json
from importlib.util import find_spec

import pytest

from fcorun.base.errors import UserError
from fcorun.sites.transport.kits import COLLAB_CLASSES, restrict_kit, user_of_kit


@pytest.fixture
def kit(tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    resources = {"class_allow_list": ["nvflare.default.Class"], "allow_log_streaming": True, "components": [1]}
    permissions = {
        "project_admin": "any",
        "org_admin": ["o:site", "n:ann"],
        "lead": {"submit_job": "any", "BYOC": "any", "shell_commands": "o:site", "cat": "any"},
        "owner": {"*": "any", "view": "none"},
        "member": {"view": "any"},
    }
    (local / "resources.json.default").write_text(json.dumps(resources), encoding="utf-8")
    (local / "authorization.json.default").write_text(
        json.dumps({"format_version": "1.0", "permissions": permissions}), encoding="utf-8"
    )
    return tmp_path


def test_a_restricted_kit_refuses_code_and_other_classes_and_keeps_its_other_settings(kit):
    restrict_kit(kit, ["fcorun."])  # which is replaced
    restrict_kit(kit, ["fcorun.sites.server.site_study.StudySite"])
    restrict_kit(kit, ["fcorun.sites.server.site_study.StudySite"])  # again changes nothing
    resources = json.loads((kit / "local" / "resources.json").read_text(encoding="utf-8"))
    assert resources == {
        "class_allow_list": ["nvflare.default.Class", *COLLAB_CLASSES, "fcorun.sites.server.site_study.StudySite"],
        "allow_log_streaming": False,
        "components": [1],
    }


@pytest.mark.skipif(find_spec("nvflare") is None, reason="NVFLARE is not installed: pip install 'fcorun[sites]'")
@pytest.mark.slow
def test_nobody_may_bring_code_to_a_restricted_kit_or_read_its_files_by_commands(kit):
    from nvflare.fuel.sec.authz import AuthzContext, Person
    from nvflare.security.security import COMMAND_CATEGORIES, FLAuthorizer

    def rights_of(file):
        """Return the rights that NVFLARE gives to each role at a site of the organization ``here``."""
        authorizer = FLAuthorizer("here", json.loads((kit / "local" / file).read_text(encoding="utf-8")))
        asked = ["submit_job", "clone_job", "byoc", "server-predeployed-flwr", *COMMAND_CATEGORIES]
        return {
            role: {right for right in asked if authorizer.evaluate(AuthzContext(right, Person("ann", "here", role)))[0]}
            for role in ("project_admin", "org_admin", "lead", "owner", "member")
        }

    restrict_kit(kit, [])
    restrict_kit(kit, [])
    before, after = rights_of("authorization.json.default"), rights_of("authorization.json")
    refused = {"byoc", "server-predeployed-flwr", "pwd", "ls", "cat", "head", "tail", "grep"}
    assert refused <= before["project_admin"]
    assert after == {role: rights - refused for role, rights in before.items()}


def test_a_folder_that_is_no_kit_is_named(tmp_path):
    with pytest.raises(UserError, match="is no kit of a server or a site"):
        restrict_kit(tmp_path, [])
    with pytest.raises(UserError, match="is no kit of a user"):
        user_of_kit(tmp_path)
