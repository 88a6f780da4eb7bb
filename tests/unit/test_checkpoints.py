"""checkpoints: what any manifest says, and what may be removed, whatever there is."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.checkpoints import Checkpoint, judged, to_remove
from orchestrator.cli.checkpoints import size_words

NAME = "step-000000003-attempt-00001"
KEYS = ["version", "step", "attempt", "world_size", "strategy", "format", "validation_loss",
        "files", "size_bytes", "sha256", "a"]  # fmt: skip
plain = st.none() | st.booleans() | st.integers(0, 3) | st.floats() | st.text(max_size=3)
values = st.recursive(
    plain | st.just(10**400),
    lambda below: (
        st.lists(below, max_size=2) | st.dictionaries(st.sampled_from(KEYS), below, max_size=4)
    ),
    max_leaves=6,
)
entry = st.fixed_dictionaries({"size_bytes": values, "sha256": values}) | values
manifests = st.dictionaries(st.sampled_from(KEYS), values, max_size=8).map(
    lambda more: {"step": 3, "attempt": 1, "world_size": 1, "strategy": "ddp"} | more
)


@settings(deadline=None, max_examples=300)
@given(manifests | values, st.dictionaries(st.sampled_from(["a", "b"]), entry, max_size=2))
def test_any_manifest_is_judged(content: Any, files: dict[str, Any]) -> None:
    if isinstance(content, dict) and "files" not in content:
        content = {**content, "files": files}
    found = judged(NAME, json.dumps(content).encode(), {"a": 2, "manifest.json": 5}, 1.0)
    assert (found.step, found.attempt, found.size_bytes) == (3, 1, 7)
    if not found.fault:
        assert set(found.hashes) == {"a"}
        assert content["files"]["a"]["size_bytes"] == 2
        assert found.verified({"a": found.hashes["a"]}).fault == ""
        assert found.verified({}).fault == "the contents of a have changed (SHA-256)"


@given(st.binary(max_size=40))
def test_any_bytes_are_no_manifest(data: bytes) -> None:
    assert judged(NAME, data, {"a": 1}, 0.0).fault.startswith("no readable manifest")


def made(number: int, loss: float | None, is_whole: bool) -> Checkpoint:
    name = f"step-{number:09d}-attempt-00001"
    return Checkpoint(name, 0.0, 1, "" if is_whole else "x", facts={"validation_loss": loss})


@given(
    st.lists(st.tuples(st.none() | st.floats(0, 9), st.booleans()), max_size=8), st.integers(1, 9)
)
def test_what_is_removed(shapes: list[tuple[float | None, bool]], keep: int) -> None:
    found = [made(number, *shape) for number, shape in enumerate(shapes)]
    removed = to_remove(found, keep)
    stay = [one for one in found if one not in removed]
    whole = [one for one in found if not one.fault]
    assert [one for one in stay if not one.fault][-keep:] == whole[-keep:]
    assert not whole or not any(one.fault and one.name < whole[-1].name for one in stay)
    losses = [one.validation_loss for one in whole if one.validation_loss is not None]
    kept = [
        one.validation_loss for one in stay if not one.fault and one.validation_loss is not None
    ]
    assert not losses or min(kept) == min(losses)
    if not whole:
        assert removed == []


def test_sizes_in_words() -> None:
    assert [size_words(n) for n in (0, 999, 1000, 1_260_000, 3 * 10**12)] == [
        "0 B", "999 B", "1.0 kB", "1.3 MB", "3.0 TB",
    ]  # fmt: skip
