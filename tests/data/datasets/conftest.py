"""An empty cache for a test, and no network."""

import pytest
import requests

from fcorun.data.datasets import femnist


@pytest.fixture
def isolated(tmp_path, monkeypatch):
    """An empty cache for this test, and no network but this machine."""
    monkeypatch.setenv("FCORUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    send = requests.Session.send

    def local(self, request, **options):
        if not request.url.startswith("http://127.0.0.1:"):
            raise requests.ConnectionError(f"no network in tests: {request.url}")
        return send(self, request, **options)

    monkeypatch.setattr(requests.Session, "send", local)
    monkeypatch.setattr(femnist, "RETRIES", 1)
