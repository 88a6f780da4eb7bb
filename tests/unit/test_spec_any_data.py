"""spec: whatever a job file holds, what is said of it is in our own words and repeats no secret."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import Fault, FaultsError
from orchestrator.source import Document, parse_document
from orchestrator.spec import fields, resolve_job

GOOD = """\
name: demo
train:
  model: {preset: nano}
  data: {python_docs: true}
  steps: 10
"""


def test_secrets_are_not_repeated() -> None:
    text = f"{GOOD}env: {{HF_TOKEN: hunter2, 'b c': '1'}}\n"
    with pytest.raises(FaultsError) as caught:
        resolve_job(parse_document(text.encode(), "f"), sets=["env.MY_SECRET=hunter2"])
    assert len(caught.value.faults) == 3
    assert "hunter2" not in str(caught.value)


PATHS = [info.path for info in fields()]
VALUES = st.recursive(
    st.sampled_from([None, True, 0, -1, 2.5, 10**30, "", "x", "5m", "${A}", "a b", float("inf")])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["nodes", "steps", "preset", "x", "{y}"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(PATHS), VALUES, max_size=6), st.booleans())
def test_any_data_makes_a_job_or_faults_in_words(values: dict[str, Any], good: bool) -> None:
    data = parse_document(GOOD.encode(), "f").data if good else {}
    for path, value in values.items():
        where = data
        *parents, last = path.split(".")
        for part in parents:
            if not isinstance(where.get(part), dict):
                where[part] = {}
            where = where[part]
        where[last] = value
    faults = faults_in(data)
    assert faults != ()
    for fault in faults or ():
        assert "Input should" not in fault.message
        assert "Value error" not in fault.message
        assert fault.render()


def faults_in(data: dict[str, Any]) -> tuple[Fault, ...] | None:
    """The faults of a job; None for a good one."""
    try:
        resolve_job(Document("f", "", data, {}))
    except FaultsError as error:
        return error.faults
    return None
