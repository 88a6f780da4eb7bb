"""The pages as HTML: what the user wrote is text there, and nothing is loaded or run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.goodput import intervals, read_goodput
from orchestrator.report.clean import shown
from orchestrator.report.compare import as_csv, different_keys
from orchestrator.report.files import Attempt, Run
from orchestrator.report.page import compare_page, report_page
from orchestrator.report.times import Times
from orchestrator.report.told import Told

VOID = {"meta"}
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "footer", "section", "div"),
    *("h1", "h2", "h3", "p", "span", "dl", "dt", "dd", "figure", "figcaption", "pre", "ul", "li"),
    *("svg", "g", "line", "text", "path", "rect", "circle", "details", "summary"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
nasty = st.text(max_size=30) | st.sampled_from(
    ["</script><script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "</pre></title>",
     "{{ 7 * 7 }}", "]]><!--", "\0\x1b[31m\x7f\u202e", "\ud800", "&amp;&lt;"]
)  # fmt: skip
LEDGER = [
    '{"attempt":1,"from":0,"to":9,"first_step":1,"last_step":4,"seconds":{"compute":6,"data":3}}',
    '{"attempt":2,"from":12,"to":20,"first_step":3,"last_step":8,"seconds":{"compute":8}}',
]


class Reader(HTMLParser):
    """Names of elements and attributes, and the text, of a page that is well nested."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text: dict[str, list[str]] = {}
        self.policy = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = dict(attrs)
        self.attributes |= set(found)
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(found["content"])
        if tag not in VOID:
            self.open.append(tag)
            self.text.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text[self.open[-1]][-1] += data


def run_of(name: str = "demo", words: str = "x", **more: Any) -> Run:
    told = Told()
    for entry in [
        {"event": "start", "step": 0, "attempt": 1, "time": 1.0, "world_size": 2, "hosts": [words],
         "resumed_from": words, "steps": 8},
        {"step": 4, "attempt": 1, "losses": [4, 3, 2.5, 2], "tokens_per_s": 100.0, "step_s": 0.5},
        {"event": "checkpoint", "step": 2, "attempt": 1, "time": 5.0, "path": words, "seconds": 1},
        {"event": "start", "step": 2, "attempt": 2, "time": 12.0, "world_size": 2, "steps": 8},
        {"event": "changed", "step": 2, "attempt": 2,
         "changes": [{"key": words, "old": 1, "new": 2}]},
        {"event": "network", "step": 3, "attempt": 2, "agrees": False, "faults": [words]},
        {"event": "traffic", "step": 3, "attempt": 2, "collectives": [
            {"kind": "all_reduce", "group_size": 2, "ranks_per_node": 1, "calls": 3,
             "payload_bytes": 5e6}, {"kind": words}, words]},
        {"event": "validation", "step": 4, "attempt": 2, "time": 15.0, "loss": 2.25},
        {"step": 8, "attempt": 2, "losses": [2, 1.5], "peak_memory_bytes": 2000},
        {"event": "sample", "step": 8, "attempt": 2, "text": words},
    ]:  # fmt: skip
        told.feed(json.dumps(entry))
    owner = {"host": [words]}  # of another program: no text
    facts: dict[str, Any] = {
        "job": words,
        "rendered": {"job.sh": words},
        "environment": {"NOTE": words},
        "receipt": {"backend": "local", "workdir": words},
        "versions": {"torch": words},
        "plan": {"memory": {"total_bytes": 4000}, "why": words},
        "attempts": (
            Attempt(1, {"host": words}, {"code": 1, "reason": f"rank 1: {words}", "detail": words}),
            Attempt(2, owner, {"code": 0, "reason": "done"}, is_newest=True),
        ),
        "times": Times.read(intervals(LEDGER)),
        "goodput": read_goodput(LEDGER),
        "is_done": True,
        "left_out": (words,),
    }
    return Run(name=name, told=told, **{**facts, **more})


@settings(max_examples=25)
@given(nasty, nasty)
def test_what_the_user_wrote_is_text_and_nothing_else(name: str, words: str) -> None:
    run = run_of(name, words)
    for page in (report_page(run), compare_page([run, run_of("other", words)])):
        page.encode("utf-8")
        found = Reader(page)
        assert found.tags <= ALLOWED
        assert not {
            n for n in found.attributes if n.startswith("on") or n in ("src", "href", "style")
        }
    assert shown(words) in "".join(Reader(report_page(run)).text["pre"])
    assert Reader(report_page(run)).text["h1"] == [shown(name)]


def test_the_policy_allows_its_own_style_alone() -> None:
    page = report_page(run_of())
    found = Reader(page)
    style = "".join(found.text["style"])
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert found.policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert not re.search(r"url\(|@import|https?:", page)


def test_the_same_run_gives_the_same_bytes() -> None:
    assert report_page(run_of()) == report_page(run_of())


def test_a_page_tells_all_parts() -> None:
    text = re.sub(r"<[^>]+>|\s+", " ", report_page(run_of()))
    text = re.sub(r"\s+", " ", text)
    for part in (
        "Attempt 1: failed rank 1: x",
        "Training loss 1.500 lowest 1.500",
        "Goodput 55.0 %",
        "peak memory of a rank 4 kB 2 kB 0.50",
        "agrees with what is promised no",
        "changed since the checkpoint: x was 1 and is 2",
        "restart",
        "all_reduce 2 1 - 3 - 5 MB",
        "2 steps were made again",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({"is_done": True}, "done"),
        ({"is_done": False, "attempts": ()}, "no attempt has started"),
        ({"is_done": False, "attempts": (Attempt(1, is_newest=True),)}, "attempt 1 goes on"),
        ({"is_done": False, "attempts": (Attempt(3, end={"code": 79}),)}, "attempt 3 ended: hang"),
        ({"is_done": False, "is_cancelled": True, "attempts": (Attempt(1, end={"code": 75}),)},
         "cancelled; attempt 1: requeue"),
    ],
)  # fmt: skip
def test_the_state_is_that_of_the_folder(facts: Mapping[str, Any], state: str) -> None:
    run = run_of(**facts)
    assert run.state.startswith(state)
    assert state in report_page(run)


def test_a_run_of_which_nothing_is_known_has_a_page() -> None:
    text = report_page(Run("new", Told()))
    assert "No step has been told yet" in text
    assert "No attempt has been started" in text
    assert Reader(compare_page([Run("new", Told()), Run("newer", Told())])).tags <= ALLOWED


def test_hangs_are_told_by_their_verdict() -> None:
    verdict = {"message": "rank 3 is missing"}
    attempt = Attempt(1, end={"code": 79, "reason": "see hangs"}, verdict=verdict)
    assert attempt.reason == "rank 3 is missing"
    assert "rank 3 is missing" in report_page(run_of(attempts=(attempt,)))


def test_reports_of_ranks_stand_in_for_an_end_that_is_missing() -> None:
    error = {"rank": 2, "host": "n1", "message": "no data"}
    assert Attempt(1, errors=(error,)).reason == "rank 2 on n1: no data"
    assert Attempt(1).result == "lost"


def test_keys_that_differ_and_what_the_trainer_was_told_beyond_them() -> None:
    one = run_of("a", spec={"name": "a", "train": {"steps": 8, "seed": 1}},
                 trainer={"steps": 8, "optimizer": {"lr": 0.1}})  # fmt: skip
    two = run_of("b", spec={"name": "b", "train": {"steps": 9, "seed": 1}},
                 trainer={"steps": 9, "optimizer": {"lr": 0.2}})  # fmt: skip
    assert different_keys([one, two]) == [
        ("train.steps", "8", "9"),
        ("trainer.json: optimizer.lr", "0.1", "0.2"),
    ]
    head, *rows = as_csv([one, two]).splitlines()
    assert head.startswith("run,state,step,steps,loss,")
    assert head.endswith(",train.steps,trainer.json: optimizer.lr")
    assert [row.split(",")[-2:] for row in rows] == [["8", "0.1"], ["9", "0.2"]]
