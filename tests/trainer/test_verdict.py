"""Who is missing, by what the ranks have told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.hang_report import Group, Place, Report, summary
from trainer.verdict import judge

WAITS = Group("0 (default_pg)", 5, 5, "all_reduce of [4]")
PAST = Group("0 (default_pg)", 4)
ASIDE = Group("1 (undefined)", 9, 9, "all_gather of [1]", aside=True)


def report(rank: int, *groups: Group, phase: str = "step") -> Report:
    return Report(
        rank, f"n{rank}", 100 + rank, phase, 41, 60.0 + rank, f"a.py:{rank} in f", [*groups]
    )


def place(rank: int, state: str = "S (sleeping)", *below: str) -> Place:
    return Place(rank, f"n{rank}", state, f"b.py:{rank} in g", [*below])


def by_rank(*reports: Report) -> dict[int, Report]:
    return {told.rank: told for told in reports}


def test_the_rank_that_waits_in_nothing_is_missing() -> None:
    verdict = judge(3, by_rank(report(0, WAITS), report(1, PAST), report(2, WAITS)), {})
    assert verdict.ranks == [1]
    assert verdict.message == (
        "no progress for 62 s in step 42: rank 1 (n1) is missing from all_reduce of [4] #5 of group"
        " 0 (default_pg), where ranks 0, 2 wait: it is in phase step at a.py:1 in f"
    )
    first, second, third = verdict.detail.splitlines()
    assert first == (
        "rank 1 (n1): step 42, 61 s without progress; it is in phase step at a.py:1 in f;"
        " last was #4 of group 0 (default_pg)"
    )
    assert second == (
        "rank 0 (n0): step 42, 60 s without progress; it is in phase step at a.py:0 in f;"
        " waits in all_reduce of [4] #5 of group 0 (default_pg)"
    )
    assert third.startswith("rank 2 (n2): step 42, 62 s")


def test_one_that_waits_for_the_missing_one_elsewhere_is_not_missing() -> None:
    shards, copies = Group("1 (shard)", 7, 7, "all_gather of [8]"), Group("2 (replicate)", 3)
    reports = by_rank(
        report(0, replace(WAITS, name="2 (replicate)")),
        report(1, replace(WAITS, name="3 (replicate)")),
        report(2, shards, copies),
        report(3, replace(shards, last=6, waits_in=None), copies),
    )
    assert judge(4, reports, {}).ranks == [3]


def test_a_wait_beside_the_training_is_none_of_the_rank() -> None:
    waiting, beside = report(0, WAITS, ASIDE), report(1, PAST, ASIDE)
    assert judge(2, by_rank(waiting, beside), {}).ranks == [1]
    saving = replace(beside, phase="save")
    assert judge(2, by_rank(waiting, saving), {}).ranks == []


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([], "nothing was heard of it or of its node"),
        ([place(1)], "native code holds the lock at b.py:1 in g"),
        (
            [replace(place(1), at="")],
            "its process lives, but has not come to the start of the trainer",
        ),
        ([place(1, "D (disk sleep)")], "waits for a disk or a network file system (state D)"),
        ([place(1, "T (stopped)")], "its process was stopped, state T (stopped), at b.py:1 in g"),
    ],
)
def test_a_rank_without_a_report_is_missing(places: list[Place], words: str) -> None:
    verdict = judge(2, by_rank(report(0, WAITS)), {told.rank: told for told in places})
    assert verdict.ranks == [1]
    assert words in verdict.message
    assert verdict.host == ("n1" if places else "?")


def test_a_rank_that_was_stopped_in_a_collective_is_missing() -> None:
    reports = by_rank(report(0, WAITS), report(1, WAITS))
    assert judge(2, reports, {1: place(1, "T (stopped)")}).ranks == [1]


def test_a_rank_that_was_set_free_and_computes_is_not_named_beside_a_stopped_one() -> None:
    """To be continued for its stacks has let the stopped rank answer, and with it another one."""
    reports = by_rank(report(0, WAITS), report(1, PAST), report(2, WAITS), report(3, WAITS))
    verdict = judge(4, reports, {1: place(1), 3: place(3, "T (stopped)")})
    assert verdict.ranks == [3]
    assert verdict.host == "n3"
    del reports[3]
    assert judge(4, reports, {1: place(1)}).ranks == [3]


def test_what_is_below_a_missing_rank_is_told() -> None:
    reports = by_rank(report(0, WAITS), report(1, PAST, phase="data"))
    verdict = judge(2, reports, {1: place(1, "S (sleeping)", "process 7 (worker)")})
    assert verdict.message.endswith("in phase data at b.py:1 in g; below it: process 7 (worker)")


def test_where_none_waits_all_are_missing() -> None:
    verdict = judge(2, by_rank(report(0), report(1, phase="evaluation")), {})
    assert verdict.ranks == [0, 1]
    assert "in phase evaluation after step 41: ranks 0, 1 (n0) are missing: it" in verdict.message


def test_ranks_in_different_collectives_are_told_apart() -> None:
    other = replace(WAITS, operation="broadcast of [2]")
    verdict = judge(3, by_rank(report(0, WAITS), report(1, other), report(2, WAITS)), {})
    assert verdict.ranks == []
    assert verdict.message.endswith(
        "no rank is missing, but they are in different collectives: ranks 0, 2 in all_reduce of [4]"
        " #5 of group 0 (default_pg); rank 1 in broadcast of [2] #5 of group 0 (default_pg)"
    )


def test_ranks_in_the_same_collective_blame_the_network() -> None:
    verdict = judge(2, by_rank(report(0, WAITS), report(1, WAITS)), {})
    assert "all ranks are in the same collective (ranks 0, 1 in all_reduce" in verdict.message


@given(
    told=st.dictionaries(st.integers(0, 99), st.lists(st.sampled_from([WAITS, PAST, ASIDE]))),
    seen=st.dictionaries(st.integers(0, 99), st.sampled_from(["S (sleeping)", "T (stopped)"])),
)
def test_a_verdict_is_short_and_names_each_missing_rank_once(
    told: dict[int, list[Group]], seen: dict[int, str]
) -> None:
    reports = {rank: report(rank, *groups) for rank, groups in told.items()}
    places = {rank: place(rank, state) for rank, state in seen.items()}
    verdict = judge(100, reports, places)
    assert set(range(100)) - {*reports} <= {*verdict.ranks}
    assert verdict.ranks == sorted(set(verdict.ranks))
    assert "\n" not in verdict.message
    assert len(verdict.detail.splitlines()) == 64


def entry(number: int, retired: bool, group: str = "0", **changes: object) -> dict[str, object]:
    return {
        "process_group": (group, "mesh"), "collective_seq_id": number, "retired": retired,
        "is_p2p": False, "profiling_name": "gloo:all_reduce", "input_sizes": [[2, 3]],
        "thread_id": "1", **changes,
    }  # fmt: skip


def test_the_oldest_that_is_not_complete_is_what_a_rank_waits_in() -> None:
    entries = [entry(1, True), entry(2, False), entry(3, False), entry(1, True, "9")]
    waits = Group("0 (mesh)", 3, 2, "all_reduce of [2, 3]")
    assert summary(entries) == [waits, Group("9 (mesh)", 1)]
    assert summary([entry(1, True, thread_id="7"), entry(2, False, thread_id="7")], {"7"}) == [
        Group("0 (mesh)", 2, 2, "all_reduce of [2, 3]", aside=True)
    ]


def test_messages_between_two_ranks_are_no_collectives() -> None:
    assert summary([entry(1, False, is_p2p=True)]) == []


def test_who_has_not_come_to_the_rendezvous_is_missing() -> None:
    here, late = report(0, phase="rendezvous"), report(2, phase="start")
    why = "phase rendezvous after step 0 is not over after 60 s (timeouts.rendezvous)"
    verdict = judge(3, by_rank(here, report(1, phase="rendezvous"), late), {}, why)
    assert verdict.ranks == [2]
    assert verdict.message == (
        f"{why}: rank 2 (n2) is missing from the rendezvous, where ranks 0, 1 wait: it is in phase"
        " start at a.py:2 in f"
    )
    lost = judge(2, by_rank(here), {}, why)
    assert lost.ranks == [1]
    assert lost.message.endswith("where rank 0 waits: nothing was heard of it or of its node")


def test_where_all_are_at_the_rendezvous_it_is_the_network() -> None:
    reports = by_rank(*(report(rank, phase="rendezvous") for rank in range(2)))
    assert judge(2, reports, {}).message.endswith(
        "all ranks are in the same collective (ranks 0, 1 in the rendezvous): look at the network"
    )
