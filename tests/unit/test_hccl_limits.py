"""HCCL's own limits beside those of the phases."""

from __future__ import annotations

import pytest
from networks import judged


@pytest.mark.parametrize(
    ("timeouts", "exec_s", "phases"),
    [
        ("", None, ""),
        ("step: 10m", None, "timeouts.step (10m)"),
        ("checkpoint: 10m", None, "timeouts.checkpoint (10m)"),
        ("evaluation: 10m", None, "timeouts.evaluation (10m)"),
        ("first_step: 25m, step: 25m", None, "timeouts.first_step (25m) or timeouts.step (25m)"),
        ("load: 25m", None, "timeouts.load (25m)"),
        ("checkpoint: 10m", 600, ""),
        ("checkpoint: 10m", 661, "timeouts.checkpoint (10m)"),
        ("evaluation: 2h", 1859, ""),
        ("load: 1h, first_step: 1h, checkpoint: 1h", 1860, "timeouts.step (30m)"),
        ("load: 1h, first_step: 1h, checkpoint: 1h", "1860.5", "timeouts.step (30m)"),
    ],
)
def test_hccl_gives_up_in_each_phase_before_torch(
    timeouts: str, exec_s: int | str | None, phases: str
) -> None:
    sets = [] if exec_s is None else [f"env.HCCL_EXEC_TIMEOUT={exec_s}"]
    found = judged(f"network: {{fabric: hccl}}\ntimeouts: {{{timeouts}}}\n", *sets).faults
    key = "network.fabric" if exec_s is None else "env.HCCL_EXEC_TIMEOUT"
    message = (
        f"HCCL_EXEC_TIMEOUT is {exec_s or 1836} s, and the ranks give up after {phases} and 60 s"
    )
    assert [(f.key, f.message) for f in found] == [(key, message)] * bool(phases)


@pytest.mark.parametrize("value", ["0", "0.0"])
def test_hccl_without_a_limit_does_not_give_up_before_torch(value: str) -> None:
    text = "network: {backend: hccl}\ntimeouts: {step: 10m}\n"
    [fault] = judged(text, f"env.HCCL_EXEC_TIMEOUT={value}").faults
    assert fault.key == "env.HCCL_EXEC_TIMEOUT"
    assert fault.message.startswith(
        f"HCCL_EXEC_TIMEOUT is {value}, which is no limit, and the ranks "
    )
    assert fault.fix == 'write network.env: {HCCL_EXEC_TIMEOUT: "..."} with less than 660'


def test_hccl_connects_before_torch_gives_up() -> None:
    text = "network: {fabric: hccl}\ntimeouts: {load: 5m}\n"
    _, connects = judged(text).faults
    assert connects.key == "network.fabric"
    assert connects.message == (
        "HCCL_CONNECT_TIMEOUT is 1200 s, and the ranks give up after timeouts.load (5m) and 60 s"
    )
    assert connects.fix == (
        "make timeouts.load longer, or write network.env: "
        '{HCCL_CONNECT_TIMEOUT: "..."} with less than 360'
    )
    sets = ["network.env.HCCL_CONNECT_TIMEOUT=300", "network.env.HCCL_EXEC_TIMEOUT=300"]
    assert judged(text, *sets).faults == ()
