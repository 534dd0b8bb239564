"""The compared frameworks with their packages and environments, and the frameworks that are not compared."""

import os
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
CPU = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "TF_CPP_MIN_LOG_LEVEL": "2"}


class Peer(NamedTuple):
    """A framework: its script and its packages. Without packages the script runs in the environment of this process."""

    title: str
    script: str
    needs: tuple[str, ...] = ()


TORCH = "torch==2.13.0"
PEERS = {
    "fcorun": Peer("fcorun", "with_fcorun.py"),
    "jax": Peer("JAX, by hand", "with_jax.py"),
    "numpy": Peer("NumPy, by hand", "with_numpy.py"),
    "fedjax": Peer(
        "FedJAX",
        "with_fedjax.py",
        ("fedjax==0.0.17", "jax==0.4.13", "jaxlib==0.4.13", "dm-haiku==0.0.10", "numpy<2", "scipy<1.13"),
    ),
    "fedlab": Peer("FedLab", "with_fedlab.py", ("fedlab==1.3.0", TORCH)),
    "pfl": Peer("pfl-research", "with_pfl.py", ("pfl==0.6.0", TORCH)),
    "fedml": Peer("FedML", "with_fedml.py", ("fedml==0.9.6", TORCH, "setuptools<81")),
    "flower": Peer("Flower", "with_flower.py", ("flwr[simulation]==1.41.0",)),
}
NOT_COMPARED = {  # frameworks that are not compared, with the reason and the way to install them
    "fl-sim": "not in the package index: `git clone https://github.com/wenh06/fl-sim && pip install ./fl-sim`",
    "PFLlib": "not in the package index, and no package: `git clone https://github.com/TsingZ0/PFLlib`",
}


def install(peer: Peer, folder: Path, limit: float) -> tuple[Path, str]:
    """Return the interpreter of a peer's environment, created in ``folder`` if missing, and the failure's reason or "".

    The file installed.txt in the environment lists the installed packages. The environment is made again only if the
    list changes.
    """
    if not peer.needs:
        return Path(sys.executable), ""
    python, note = folder / "bin" / "python", folder / "installed.txt"
    is_current = note.exists() and note.read_text(encoding="utf-8").splitlines() == list(peer.needs)
    if is_current and python.exists():
        return python, ""
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        return python, f"not installed: {folder} exists and is no environment"
    try:
        venv.create(folder, with_pip=True, clear=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return python, f"not installed: no environment in {folder} ({error})"
    failed = call([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *peer.needs], limit)
    if not failed:
        note.write_text("\n".join(peer.needs), encoding="utf-8")
    return python, failed and f"not installed: {failed}"


def run(peer: Peer, python: Path, task: Path, out: Path, limit: float) -> str:
    """Run a task with a peer in a process of its own; return the failure's reason or ""."""
    return call([python, HERE / peer.script, task, out], limit, own=not peer.needs)


def version(peer: Peer, python: Path) -> str:
    """Return the version of the first package; for JAX, NumPy and fcorun, the version in this process."""
    name = peer.needs[0].split("==")[0].split("[")[0] if peer.needs else peer.script[len("with_") : -len(".py")]
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, encoding="utf-8", check=False).stdout.strip()


def call(command: list, limit: float, own: bool = False) -> str:
    """Run a command for at most ``limit`` seconds; return the last line of its errors if it fails, else ""."""
    environment = os.environ | CPU | QUIET
    if not own:  # packages other than those of this process
        environment = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [str(part) for part in command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        errors = process.communicate(timeout=limit)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"not done after {limit:.0f} s"
    except BaseException:  # Ctrl-C does not reach a session of its own
        os.killpg(process.pid, signal.SIGKILL)
        raise
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith("WARNING")]
    return (lines or [f"exit code {process.returncode}"])[-1] if process.returncode else ""
