"""The checksums in an unpacked archive of ``fcorun archive``, and the check of files by them.

They tell a damaged or edited file. They are no signature: who forges a file can write its checksum, too.
"""

import functools
import hashlib
from pathlib import Path, PurePosixPath

from fcorun.base.errors import UserError
from fcorun.base.system.files import read_regular_file

SUMS_FILE = "archive.sha256"  # at the top of an archive, in the format of sha256sum
_MAX_BYTES = 2**34  # of a file, or of the checksums


def format_sums(digests: dict[str, str]) -> str:
    """Return the content of the file of checksums: a line for each path in the archive."""
    return "".join(f"{digest}  {path}\n" for path, digest in digests.items())


def check_sums(folder: Path) -> None:
    """Raise UserError for a file in ``folder`` that is missing, or differs from the archive that it came in.

    Files that the archive does not have, such as later pictures, are not looked at.
    """
    folder = folder.resolve()
    root = next((place for place in (folder, *folder.parents) if (place / SUMS_FILE).is_file()), None)
    if root is None:
        return
    changed = (root / SUMS_FILE).lstat().st_mtime_ns
    for name, digest in _read_sums(root, changed).get(folder.relative_to(root).as_posix(), ()):
        try:
            found = hashlib.sha256(read_regular_file(folder / name, _MAX_BYTES)).hexdigest()
        except OSError:
            found = ""
        if found != digest:
            raise UserError(f"{folder / name} is not as its archive had it ({root / SUMS_FILE}): unpack the archive "
                            f"again, or delete {SUMS_FILE} if the change is yours")  # fmt: skip


@functools.lru_cache(maxsize=8)
def _read_sums(root: Path, changed: int) -> dict[str, list[tuple[str, str]]]:
    """Return the name and the digest of each file by its folder; ``changed`` is when the checksums were written."""
    try:
        text = read_regular_file(root / SUMS_FILE, _MAX_BYTES).decode()
    except (OSError, ValueError) as error:
        raise UserError(f"{root / SUMS_FILE} cannot be read: unpack the archive again") from error
    files: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        digest, _, path = line.partition("  ")
        files.setdefault(str(PurePosixPath(path).parent), []).append((PurePosixPath(path).name, digest))
    return files
