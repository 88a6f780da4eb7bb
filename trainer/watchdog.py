"""Ends an attempt in which a rank makes no progress, after every rank has told where it is.

A thread of each rank counts the seconds in which the rank's phase did not change or beat, and those
of the whole stage that it is in (trainer/limits.py). The first rank that has had enough makes the
mark `attempts/N/hang`; each rank that sees it writes its report into `attempts/N/hangs/`, one of
them compares the reports (trainer/verdict.py), and all leave.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable

from trainer import phase
from trainer.config import TrainerConfig
from trainer.contract import KIND_HANG, Contract, create_once, write_json
from trainer.hang_report import Report, have_told, read_places, read_reports, write_report
from trainer.limits import Limit, Limits
from trainer.node import read_json
from trainer.stacks import Sheet
from trainer.verdict import Verdict, judge, when

POLL_S = 1.0
LOOK_S = 0.2  # between two looks for files of other ranks
REPORTS_S = 15.0  # for all ranks and node.py of each node to report
VERDICT_S = 10.0  # after that, for the rank that compares them
JUDGE_FILE, VERDICT_FILE = "judge", "verdict.json"


class Watchdog(threading.Thread):
    """The watch over this rank; once started it ends the process by itself if the rank hangs."""

    def __init__(self, config: TrainerConfig, contract: Contract) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._limits, self._contract = Limits(config), contract
        self._nccl = config.uses_nccl
        self._sheet = Sheet()
        # At once: what comes first may hold the interpreter already, such as an import from a disk
        # that does not answer.
        self._stage = self._limits.of(phase.current, None)
        self._sheet.beat(self._stage.shortest_s)
        self._finished = threading.Event()
        self._seen, self._beats, self._quiet_s, self._whole_s = phase.current, -1, 0.0, 0.0

    def run(self) -> None:
        """Look once in POLL_S; a rank that does not run, or a whole job that is suspended, does
        not count the time."""
        while not self._finished.wait(POLL_S):
            self._look()
            self._sheet.beat(self._stage.shortest_s)
            exceeded = self._stage.exceeded(self._quiet_s, self._whole_s)
            # Not Path.exists, which raises some of what a network file system may say.
            if exceeded or os.path.exists(self._contract.hang_file):
                phase.listeners.append(_hold)
                if exceeded:
                    self._make_mark(exceeded)
                self._end()

    def finish(self) -> None:
        """The rank has come to its end: no longer watch it.

        Where the attempt is being ended as a hang it waits to be ended too: what this rank has met
        may be a consequence, and the others may still ask where it is.
        """
        if os.path.exists(self._contract.hang_file):
            if sys.exc_info()[0] is not None:
                traceback.print_exc()
            self.join(2 * POLL_S + REPORTS_S + 2 * VERDICT_S)
        self._finished.set()

    def _look(self) -> None:
        """Count the time without progress, and the time of the stage."""
        now, beats = phase.current, phase.beats
        stage = self._limits.of(now, phase.first_step)
        # An evaluation after another step is another one, also if nothing was seen in between.
        same_stage = (stage, now.step) == (self._stage, self._seen.step)
        self._whole_s = self._whole_s + POLL_S if same_stage else 0.0
        self._quiet_s = self._quiet_s + POLL_S if (now, beats) == (self._seen, self._beats) else 0.0
        self._stage, self._seen, self._beats = stage, now, beats

    def _make_mark(self, exceeded: Limit) -> None:
        at = when(self._seen.name, self._seen.step)
        if exceeded is self._stage.whole:
            why = f"{at} is not over after {self._whole_s:g} s ({exceeded.key})"
        else:
            why = f"no progress for {self._quiet_s:g} s in {at} ({exceeded.key})"
        said = {
            "version": 1,
            "rank": self._contract.rank,
            "host": socket.gethostname(),
            "phase": self._seen.name,
            "step": self._seen.step,
            "quiet_s": self._quiet_s,
            "why": why,
        }
        try:
            create_once(self._contract.hang_file, said)
        except OSError as error:
            self._say(f"cannot mark the attempt as hanging: {error}")

    def _end(self) -> None:
        try:
            write_report(self._contract, self._seen, self._quiet_s, self._nccl)
            if create_once(self._contract.hangs_dir / JUDGE_FILE, {"rank": self._contract.rank}):
                self._pass_verdict()
            else:
                self._wait(self._has_verdict, REPORTS_S + VERDICT_S)
        except Exception:  # whatever it was, such as a full disk, the attempt must end
            traceback.print_exc()
        finally:
            self._say("ended, since the attempt hangs")
            os._exit(1)

    def _has_verdict(self) -> bool:
        return os.path.exists(self._contract.hangs_dir / VERDICT_FILE)

    def _pass_verdict(self) -> None:
        contract = self._contract
        self._wait(self._has_all_reports, REPORTS_S)
        reports, places = read_reports(contract.hangs_dir), read_places(contract.hangs_dir)
        why = read_json(contract.hang_file).get("why", "")
        verdict = judge(contract.world_size, reports, places, str(why))
        self._say(f"{verdict.message}\n{verdict.detail}")
        self._record(verdict, reports)

    def _record(self, verdict: Verdict, reports: dict[int, Report]) -> None:
        rank = verdict.ranks[0] if verdict.ranks else self._contract.rank
        host = reports[rank].host if rank in reports else verdict.host
        text = f"{verdict.message}\n{verdict.detail}"
        self._contract.write_error_of(rank, host, KIND_HANG, text)
        content = {"version": 1, "ranks": verdict.ranks, "message": text}
        write_json(self._contract.hangs_dir / VERDICT_FILE, content)

    def _has_all_reports(self) -> bool:
        return have_told(self._contract.hangs_dir, self._contract.world_size)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def _say(self, text: str) -> None:
        print(f"trainer: rank {self._contract.rank}: {text}", file=sys.stderr, flush=True)


def _hold(_name: str, _step: int) -> None:
    """Keep the training from going on where the cause of the hang has gone, as when a process that
    was stopped is continued for its report: the attempt is being ended."""
    time.sleep(REPORTS_S + 2 * VERDICT_S)
