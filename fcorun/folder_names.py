"""Names that become names of folders."""

import re

from fcorun.errors import UserError

# Folders may be copied to systems that refuse these.
_INVALID_FOLDER_NAME = re.compile(r'[<>:"/\\|?*\x00-\x1f]|[ .]$|^(con|prn|aux|nul|com\d|lpt\d)$', re.IGNORECASE)


def check_folder_name(name: object, key: str) -> None:
    """Raise UserError, naming ``key``, for a name that cannot be part of a folder's name on every system."""
    if not isinstance(name, str) or not name or _INVALID_FOLDER_NAME.search(name):
        raise UserError(
            f"{key}={name} cannot be in a folder's name on every system: leave out <>:\"/\\|?*, dots and spaces at the "
            "end, and names of devices such as con"
        )
