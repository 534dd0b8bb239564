"""One sentence for what Hydra or OmegaConf did not like."""

import re
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from fcorun.errors import UserError, nearest

_BAD_INPUT = (UserError, HydraException, OmegaConfBaseException)


def sentence(error: BaseException) -> str:
    """One sentence for what Hydra or OmegaConf did not like, with the nearest valid name."""
    user = _cause(error, UserError)
    if user is not None:
        return str(user)
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        options = error.options or []
        return f"there is no {group}={name}: {nearest(name, options)}" if group else str(error).splitlines()[0]
    text = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Ambiguous value" in str(error):
        return f"{text[0]}; several values are a sweep, fcorun -m"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {text[0]}"
    key = re.search(r"Could not override '([^']+)'", str(error))
    cause = _cause(error, OmegaConfBaseException)
    parent = getattr(cause, "parent_node", None)
    if key and parent is not None and hasattr(parent, "keys"):
        prefix, _, last = key[1].rpartition(".")
        valid = [str(name) for name in parent if name != "hydra"]
        if key[1] in ("topology.edges", "topology.rounds", "topology.map"):
            return f"{key[1]} is of topology=tree: give that too"
        return f"unknown option '{key[1]}': {nearest(last, valid)}" + (f" in {prefix}" if prefix else "")
    if key:
        return f"unknown option '{key[1]}'; fcorun --cfg job shows every key"
    return text[0] + (f" ({text[1]})" if len(text) > 1 else "")


def is_bad_input(error: BaseException) -> bool:
    """Whether an error is one that the user can mend."""
    return _cause(error, _BAD_INPUT) is not None


def _cause(error: BaseException | None, kind: type | tuple[type, ...]) -> Any:
    while error is not None:
        if isinstance(error, kind):
            return error
        error = error.__cause__ or error.__context__
    return None
