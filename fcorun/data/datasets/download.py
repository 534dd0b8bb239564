"""Archives from the web: resumed, checked, downloaded by one process at a time, and unpacked whole or not at all."""

import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fcorun.base.system.files import cache_dir

RETRIES = 2
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 16  # bytes that are written together


class ChecksumError(Exception):
    """Error of a download whose checksum stays wrong when it is repeated."""


def fetch_archive(url: str, sha256: str, members: Iterable[str], folder: Path) -> None:
    """Download the tar archive at ``url``, check it, and put its files called ``members`` into ``folder``.

    Does nothing if the folder has all of them already. A partial archive stays in the cache and is completed by the
    next call; the folder gets whole files only. Other processes wait for the first one. Raises ChecksumError, OSError
    (the base class of errors of requests) or tarfile.TarError.
    """
    import pooch
    from filelock import FileLock, Timeout

    name, cache = url.rsplit("/", 1)[1], cache_dir("downloads")
    members = list(members)
    lock = FileLock(cache / f"{name}.lock")
    try:
        acquired = lock.acquire(blocking=False)
    except Timeout:
        print(f"another process is downloading {name}; waiting for it", file=sys.stderr, flush=True)
        acquired = lock.acquire()
    with acquired:
        if all((folder / member).exists() for member in members):
            return
        # while this process has the lock, a folder of this name belongs to a killed process
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
                downloader: Any = _ResumingDownloader(cache / f"{name}.part", folder, progress)
                archive = Path(store.fetch(name, downloader=downloader))
            except ValueError as error:
                raise ChecksumError(f"its SHA-256 is not {sha256}") from error
            _unpack(archive, members, folder, progress)
        archive.unlink()


class _ResumingDownloader:
    """A downloader for pooch that resumes an earlier attempt, of this process or of another."""

    def __init__(self, partial: Path, folder: Path, progress: Any):
        self.partial, self.folder, self.progress = partial, folder, progress

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        import requests

        start = self.partial.stat().st_size if self.partial.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as reply:
            # 416: no byte is left to send; the checksum decides
            if reply.status_code != requests.codes.requested_range_not_satisfiable:
                reply.raise_for_status()
                if reply.status_code != requests.codes.partial_content:
                    start = 0
                length = reply.headers.get("Content-Length")
                total = start + int(length) if length else None
                size = f" ({total / 1e6:.0f} MB)" if total else ""
                _print_without_bar(self.progress, f"downloading {url}{size} for {self.folder}")
                task = self.progress.add_task("downloading", total=total, completed=start)
                with self.partial.open("ab" if start else "wb") as out:
                    for chunk in reply.iter_content(CHUNK):
                        self.progress.advance(task, out.write(chunk))
        os.replace(self.partial, output_file)  # a download with a wrong checksum starts again


def _unpack(archive: Path, members: list[str], folder: Path, progress: Any) -> None:
    """Put ``members`` of the archive into the folder; all of them are complete before the first one appears."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{archive.name}-", dir=folder) as unpacked:
        with progress.open(archive, "rb", description="unpacking") as packed, tarfile.open(fileobj=packed) as tar:
            for member in tar:
                name = Path(member.name).name
                if name in members and (source := tar.extractfile(member)) is not None:
                    with (Path(unpacked) / name).open("wb") as out:
                        shutil.copyfileobj(source, out, 1 << 20)
        missing = [name for name in members if not (Path(unpacked) / name).exists()]
        if missing:
            raise tarfile.TarError(f"{archive.name} holds no {' and no '.join(missing)}")
        for name in members:
            os.replace(Path(unpacked) / name, folder / name)


def _progress() -> Any:
    """Return a progress bar on standard error, disabled where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)


def _print_without_bar(progress: Any, line: str) -> None:
    """Print a line where no progress bar is shown."""
    if progress.disable:
        print(line, file=sys.stderr, flush=True)
