"""What the tests of faults compare with."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest

from harness import Straight, straight


@pytest.fixture(scope="session")
def straight_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Straight]:
    """The undisturbed run of a strategy, made when it is asked for."""
    root = tmp_path_factory.mktemp("straight")
    return lru_cache(lambda strategy: straight(root, strategy))
