"""What the planner says that ranks send, against what four real ranks send in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import traffic_page as page
from counted import STRATEGIES, Case, count
from traffic_page import CASES, counted, predicted

pytestmark = [pytest.mark.planner, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, dict[str, Any]]:
    return count(CASES, tmp_path_factory.mktemp("traffic"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_forecast_is_what_ranks_send(strategy: str, events: dict[Case, dict[str, Any]]) -> None:
    cases = [case for case in events if case.strategy == strategy]
    assert len(cases) >= 4
    wrong = [f"{c}: {predicted(c)} {counted(events[c])}" for c in cases if not is_right(c, events)]
    assert not wrong, "\n".join(wrong)


def is_right(case: Case, events: dict[Case, dict[str, Any]]) -> bool:
    said, sent = predicted(case), counted(events[case])
    return said.keys() == sent.keys() and all(
        sent[key] == pytest.approx(said[key], rel=0.01) for key in said
    )


def test_the_flight_recorder_has_as_many(events: dict[Case, dict[str, Any]]) -> None:
    assert {event["unseen"] for event in events.values()} == {0}


def test_the_page_is_written(
    events: dict[Case, dict[str, Any]], root: Path, update_golden: bool
) -> None:
    if not update_golden:
        pytest.skip("the page is written with --update-golden")
    (root / page.PATH).write_text(page.text(events), "utf-8")
