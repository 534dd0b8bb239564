"""Archives from the web: checked, resumed, fetched once by however many processes, and unpacked whole or not at all."""

import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fcorun.system.cache import cache_dir

RETRIES = 2
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 16  # bytes that are written at once


class ChecksumError(Exception):
    """What arrived, each time anew, has not the checksum that it should have."""


def fetch_archive(url: str, sha256: str, members: Iterable[str], folder: Path) -> None:
    """Downloads the tar archive at ``url``, checks it, and puts those of its files called ``members`` into ``folder``.

    Half an archive waits in the cache and is completed by the next call; the folder gets whole files only. Other
    processes wait for the first. Raises Damaged, OSError (to which what requests raises belongs) or tarfile.TarError.
    """
    import pooch
    from filelock import FileLock, Timeout

    name, cache = url.rsplit("/", 1)[1], cache_dir("downloads")
    members = list(members)
    lock = FileLock(cache / f"{name}.lock")
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        print(f"another process is downloading {name}; waiting for it", file=sys.stderr, flush=True)
        held = lock.acquire()
    with held:
        if all((folder / member).exists() for member in members):
            return
        # under the lock of the archive, a folder of this name is what a killed process left behind
        for stale in folder.glob(f".{name}-*"):
            shutil.rmtree(stale, ignore_errors=True)
        pooch.get_logger().setLevel("ERROR")
        store = pooch.create(
            path=cache,
            base_url="",
            registry={name: f"sha256:{sha256}"},
            urls={name: url},
            retry_if_failed=RETRIES,
        )
        with _progress() as progress:
            try:
                downloader: Any = _Resumed(cache / f"{name}.part", folder, progress)
                archive = Path(store.fetch(name, downloader=downloader))
            except ValueError as error:
                raise ChecksumError(f"its SHA-256 is not {sha256}") from error
            _unpack(archive, members, folder, progress)
        archive.unlink()


class _Resumed:
    """A downloader for pooch that goes on where an attempt before it ended, be it of this process or of another."""

    def __init__(self, part: Path, folder: Path, progress: Any):
        self.part, self.folder, self.progress = part, folder, progress

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        import requests

        start = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as reply:
            # 416: there is no byte left to send, and the checksum has the last word
            if reply.status_code != requests.codes.requested_range_not_satisfiable:
                reply.raise_for_status()
                start = start if reply.status_code == requests.codes.partial_content else 0
                length = reply.headers.get("Content-Length")
                total = start + int(length) if length else None
                size = f" ({total / 1e6:.0f} MB)" if total else ""
                _say(self.progress, f"downloading {url}{size} for {self.folder}")
                task = self.progress.add_task("downloading", total=total, completed=start)
                with self.part.open("ab" if start else "wb") as out:
                    for chunk in reply.iter_content(CHUNK):
                        self.progress.advance(task, out.write(chunk))
        os.replace(self.part, output_file)  # so that one with the wrong checksum is begun anew


def _unpack(archive: Path, members: list[str], folder: Path, progress: Any) -> None:
    """Puts ``members`` of the archive into the folder, all of them complete before the first appears."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{archive.name}-", dir=folder) as made:
        with progress.open(archive, "rb", description="unpacking") as packed, tarfile.open(fileobj=packed) as tar:
            for member in tar:
                name = Path(member.name).name
                if name in members and (source := tar.extractfile(member)) is not None:
                    with (Path(made) / name).open("wb") as out:
                        shutil.copyfileobj(source, out, 1 << 20)
        missing = [name for name in members if not (Path(made) / name).exists()]
        if missing:
            raise tarfile.TarError(f"{archive.name} holds no {' and no '.join(missing)}")
        for name in members:
            os.replace(Path(made) / name, folder / name)


def _progress() -> Any:
    """A bar on a terminal's standard error; elsewhere nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)


def _say(progress: Any, line: str) -> None:
    """A line where there is no bar."""
    if progress.disable:
        print(line, file=sys.stderr, flush=True)
