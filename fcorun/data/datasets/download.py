"""Archives from the web: downloaded and checked by pooch, by one process at a time; their files appear whole."""

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from fcorun.base.system.files import cache_dir

RETRIES = 2


def fetch_archive(url: str, sha256: str, members: Iterable[str], folder: Path) -> None:
    """Download the tar archive at ``url``, check it, and put its files called ``members`` into ``folder``.

    Does nothing if the folder has all of them already. The folder gets whole files only. Other processes wait for the
    first one. Raises ValueError for a checksum that stays wrong when the download is repeated, OSError (the base class
    of errors of requests) also for an archive without a member, and tarfile.TarError.
    """
    import pooch
    from filelock import FileLock

    name = url.rsplit("/", 1)[1]
    cache = cache_dir("downloads")
    targets = [folder / member for member in members]
    with FileLock(cache / f"{name}.lock"):
        if all(target.exists() for target in targets):
            return
        print(f"downloading {url} for {folder}", file=sys.stderr, flush=True)
        pooch.get_logger().setLevel("ERROR")
        store = pooch.create(
            path=cache,
            base_url="",
            registry={name: f"sha256:{sha256}"},
            urls={name: url},
            retry_if_failed=RETRIES,
        )
        unpacked = folder / f".{name}-unpacked"  # in the folder, so that its files move at once
        shutil.rmtree(unpacked, ignore_errors=True)  # of a killed process, since this one has the lock
        try:
            store.fetch(name, processor=pooch.Untar(extract_dir=str(unpacked.resolve())))
            sources = [unpacked / target.name for target in targets]
            for source in sources:
                source.stat()  # all are there before the first one moves
            for source, target in zip(sources, targets, strict=True):
                os.replace(source, target)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
            (cache / name).unlink(missing_ok=True)
