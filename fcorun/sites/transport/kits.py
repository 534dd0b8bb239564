"""Kits of NVFLARE: the folders that connect a site, the server and users, and what an owner allows in a kit."""

import json
from collections.abc import Sequence
from pathlib import Path

from fcorun.base.errors import UserError
from fcorun.base.records.formats import json_text, read_json
from fcorun.base.system.files import write_atomically

# NVFLARE's own classes in a job: its default list of allowed classes lacks them.
COLLAB_CLASSES = (
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
)
_ALLOWED = "class_allow_list"
_PACKAGE = "fcorun."
_ALL_RIGHTS = "*"  # NVFLARE's name of all rights together
_KEPT_RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
# Code of jobs, and commands that read files of a site, such as "cat", are nobody's right.
_REFUSED_RIGHTS = ("byoc", "server-predeployed-flwr", "shell_commands")
_SHELL_COMMANDS = ("pwd", "ls", "cat", "head", "tail", "grep")  # which a role may have one by one


def restrict_kit(kit: Path, allowed: Sequence[str]) -> None:
    """Write the settings of the kit of a server or a site: jobs bring no code, and name allowed classes alone.

    The allowed classes of fcorun replace those that the kit allowed before. No user may read files by commands.

    Args:
        kit: the folder of the kit.
        allowed: the paths of classes that jobs may name, or beginnings of such paths that end in a dot.
    """
    local = kit / "local"
    resources = _read_setting(local / "resources.json")
    authorization = _read_setting(local / "authorization.json")
    added = [*COLLAB_CLASSES, *allowed]
    listed = [path for path in resources.get(_ALLOWED, []) if not path.startswith(_PACKAGE)]
    resources[_ALLOWED] = [*listed, *(path for path in added if path not in listed)]
    resources["allow_log_streaming"] = False  # a site's log may quote rows
    for role, rights in authorization["permissions"].items():
        if isinstance(rights, dict):
            rights = {" ".join(name.lower().split()): value for name, value in rights.items()}  # as NVFLARE reads them
        else:
            rights = {_ALL_RIGHTS: rights}
        if _ALL_RIGHTS in rights:  # written out, because NVFLARE lets such a value win over single rights
            rights = dict.fromkeys(_KEPT_RIGHTS, rights[_ALL_RIGHTS])
        kept = {name: value for name, value in rights.items() if name not in _SHELL_COMMANDS}
        authorization["permissions"][role] = {**kept, **dict.fromkeys(_REFUSED_RIGHTS, "none")}
    write_atomically(local / "resources.json", json_text(resources))
    write_atomically(local / "authorization.json", json_text(authorization))


def user_of_kit(kit: Path) -> str:
    """Return the name of the user of a kit. Raises UserError for a folder that is no kit of a user."""
    settings = read_json(kit / "startup" / "fed_admin.json").get("admin", {})
    user = settings.get("username") if isinstance(settings, dict) else None
    if not isinstance(user, str):
        raise UserError(f"{kit} is no kit of a user: give the folder that holds startup/fed_admin.json")
    return user


def _read_setting(path: Path) -> dict:
    """Return a setting of a kit, or the default that came with the kit."""
    for candidate in (path, path.with_name(f"{path.name}.default")):
        if candidate.exists():
            return json.loads(candidate.read_text(encoding="utf-8"))
    raise UserError(f"{path.parent.parent} is no kit of a server or a site: it has no local/{path.name}.default")
