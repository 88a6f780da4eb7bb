"""Fixtures of the tests with an API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from k8s.apiserver import ApiServer


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """An empty API server, to which KUBECONFIG leads."""
    with ApiServer(tmp_path) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api
