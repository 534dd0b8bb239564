"""Files that appear whole or not at all."""

import os
import threading
from pathlib import Path


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file under a name that no other writer uses, then rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
