"""The files of network.debug: the variables, the bound on the log, and the flight recorder."""

from __future__ import annotations

import ctypes
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from models import Words
from ranks import run_ranks
from running import wait_until
from runs import Run, configuration
from trainer import library_log, phase
from trainer.config import TrainerConfig, parse_config
from trainer.contract import Contract
from trainer.library_log import end_log, kept, log_path, read_log, rotate

OURS = ("NCCL_DEBUG", "TORCH_FR", "TORCH_NCCL", "TORCH_DISTRIBUTED_DEBUG")


def nccl_config(**changes: Any) -> TrainerConfig:
    return parse_config(configuration(device="cuda", backend="nccl", **changes), "test")


def contract(root: Path) -> Contract:
    return Contract(0, 0, 1, 1, root, root / "checkpoints", root)


def variables(root: Path, config: TrainerConfig, given: dict[str, str]) -> dict[str, str]:
    """The variables that a process has in which the user has given some."""
    (found,) = run_ranks(1, _variables, root, config, given)
    assert isinstance(found, dict)
    return found


def _variables(root: Path, config: TrainerConfig, given: dict[str, str]) -> dict[str, str]:
    for name in [name for name in os.environ if name.startswith(OURS)]:
        del os.environ[name]
    os.environ.update(given)
    with kept(config, contract(root)):
        return {name: os.environ[name] for name in os.environ if name.startswith(OURS)}


def test_the_variables_of_each_wish(tmp_path: Path) -> None:
    folder = f"{tmp_path}/attempts/1/network"
    log = {"NCCL_DEBUG_FILE": f"{folder}/%h.%p.nccl.log", "NCCL_DEBUG_SUBSYS": "INIT"}
    recorder = {
        "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/flight-rank-"
    }  # fmt: skip
    watched, warned = nccl_config(), nccl_config(network__debug="warn", network__watch="off")
    both = nccl_config(network__debug="warn")
    traced = nccl_config(network__debug="trace", network__watch="off")
    off = nccl_config(network__watch="off")
    assert variables(tmp_path, off, {}) == {}
    assert variables(tmp_path, watched, {}) == {"NCCL_DEBUG": "INFO", **log}
    assert variables(tmp_path, warned, {}) == {"NCCL_DEBUG": "WARN", **log, **recorder}
    assert variables(tmp_path, both, {}) == {"NCCL_DEBUG": "INFO", **log, **recorder}
    assert variables(tmp_path, traced, {}) == {
        "NCCL_DEBUG": "INFO", **log, "NCCL_DEBUG_SUBSYS": "ALL", **recorder,
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
    }  # fmt: skip


def test_the_users_variables_hold(tmp_path: Path) -> None:
    given = {"NCCL_DEBUG": "VERSION"}
    assert variables(tmp_path, nccl_config(), given) == given
    given = {"TORCH_FR_BUFFER_SIZE": "7", "NCCL_DEBUG_FILE": "/tmp/mine", "NCCL_DEBUG": "INFO"}
    found = variables(tmp_path, nccl_config(network__debug="trace"), given)
    assert found == {**found, **given}
    given = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}  # an older name, which torch still takes
    assert "TORCH_FR_BUFFER_SIZE" not in variables(
        tmp_path, nccl_config(network__debug="warn"), given
    )


def _bounded(root: Path) -> list[Any]:
    """What is left of a log that C writes into one open file, as NCCL does, while it is rotated."""
    with kept(nccl_config(), contract(root)):
        path = log_path()
        assert path is not None
        libc = ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        file = ctypes.c_void_p(libc.fopen(os.fsencode(path), b"w"))
        libc.setlinebuf(file)
        sizes = []
        for number in range(1000):
            libc.fputs(b"line %d\n" % number, file)
            rotate(path, 2000)
            sizes.append(sum(one.stat().st_size for one in path.parent.iterdir()))
        kept_lines = (Path(f"{path}.old").read_text() + path.read_text()).splitlines()
        first = read_log().splitlines()[0]
        end_log(contract(root))
        libc.fputs(b"to nowhere\n", file)
        left = [one.suffix for one in path.parent.iterdir()]
    return [max(sizes), kept_lines, first, left]


@pytest.mark.parametrize("by_a_link", [False, True])
def test_the_log_is_bounded_and_loses_no_line_between_two_files(
    tmp_path: Path, by_a_link: bool
) -> None:
    root = tmp_path / "real"
    root.mkdir()
    if by_a_link:  # as /home and /scratch often are
        (tmp_path / "link").symlink_to(root)
        root = tmp_path / "link"
    ((most, lines, first, left),) = run_ranks(1, _bounded, root)
    assert most <= 2000 + 10
    assert lines == [f"line {number}" for number in range(1000 - len(lines), 1000)]
    assert len(lines) > 100
    assert first == lines[0]
    assert left == [".old"]


def _watched(root: Path) -> list[int]:
    """Sizes of the files of a log to which C writes until it has been begun anew."""
    library_log.MOST_BYTES = 2000
    with kept(nccl_config(network__debug="trace"), contract(root)):
        path = log_path()
        assert path is not None
        libc = ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        file = ctypes.c_void_p(libc.fopen(os.fsencode(path), b"w"))
        libc.setlinebuf(file)
        libc.fputs(b"x" * 1100 + b"\n", file)
        wait_until(Path(f"{path}.old").exists, "a log that is begun anew")
        wait_until(lambda: f"{path}.old" not in _open_files(), "C writes into the new one")
        libc.fputs(b"new\n", file)
        return [Path(f"{path}.old").stat().st_size, path.stat().st_size]


def _open_files() -> list[str]:
    return [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]


def test_a_log_that_grows_is_begun_anew_while_it_is_written(tmp_path: Path) -> None:
    assert run_ranks(1, _watched, tmp_path) == [[1101, 4]]


def test_a_log_that_is_no_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    for value, reason in {
        "/dev/null": "/dev/null is no file", f"{tmp_path}/none": "No such file",
        "": "NCCL_DEBUG_FILE is not",
    }.items():  # fmt: skip
        monkeypatch.setenv("NCCL_DEBUG_FILE", value)
        with pytest.raises(library_log.Unreadable, match=reason):
            read_log()


def recorded(run: Run) -> list[list[dict[str, Any]]]:
    """The entries of each rank's flight record."""
    files = sorted((run.attempt_dir() / "network").glob("flight-rank-?"))
    return [pickle.loads(file.read_bytes())["entries"] for file in files]


def test_a_stop_leaves_the_flight_records(tmp_path: Path) -> None:
    def stop(run: Run, name: str, step: int) -> None:
        if (name, step) == ("step", 2):
            (run.attempt_dir() / "drain").touch()

    run = Run(tmp_path)
    run.finish(configuration(steps=50, network__debug="warn"), listener=stop)
    records = recorded(run)
    assert len(records) == 2
    assert all(entry["retired"] for entries in records for entry in entries)


def test_a_rank_that_does_not_stop_has_left_its_record_before_it_is_killed(tmp_path: Path) -> None:
    """It waits for another rank when the stop is asked for: what it waits in is in the record."""

    def hang(run: Run, name: str, step: int) -> None:
        if (name, step, os.environ["RANK"]) == ("step", 2, "1"):
            (run.attempt_dir() / "drain").touch()
            deadline = time.monotonic() + 60
            while len(recorded(run)) < 2 and time.monotonic() < deadline:
                time.sleep(0.1)
            os._exit(1)  # as killed, long before its step ends

    run = Run(tmp_path)
    run.start(configuration(steps=50, network__debug="warn"), listener=hang)
    waiting, _late = recorded(run)
    assert waiting[-1]["profiling_name"].endswith("all_reduce")


class Breaks(Words):
    """Fails in the third step, on rank 1."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if phase.current.step == 2 and os.environ["RANK"] == "1":
            raise ArithmeticError("on purpose")
        return super().forward(tokens, targets)


def breaks() -> Breaks:
    return Breaks()


def test_a_failure_leaves_the_records(tmp_path: Path) -> None:
    """The rank that failed, and the one that waited for it; all of it with trace."""
    run = Run(tmp_path)
    factory = {"model__factory": "test_library_log:breaks"}
    ended = run.start(configuration(steps=50, network__debug="trace", **factory))
    assert {end.value for end in ended} == {1}
    waited, failed = recorded(run)
    assert len(waited) > len(failed) > 3
