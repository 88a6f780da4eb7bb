"""A program that follows docs/contract.md with the standard library alone: program.py MODE.

    done            rank 0 says "done"
    silent          all ranks leave with 0 and say nothing
    wait            until the drain file is there, then rank 0 says "drained"
    finish          until the drain file is there, then rank 0 says "done" all the same
    wait-plain      the same, without the process below each rank
    stubborn        until it is killed
    stubborn=R      rank R until it is killed, the others like wait
    slow=S          like wait, S seconds after the drain file is there
    crash           rank 1 leaves with 3, the others wait
    crash-until=N   like crash before attempt N, then like done
    configuration   rank 1 reports a configuration error, the others wait
    hang            once all are ready rank 1 says that it hangs, and all do until they are killed
    verbose         the same with a message of thousands of lines

Each rank first makes attempts/N/ready-R, and in the waiting modes a process below it that ignores
SIGTERM, in a session of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

GIVE_UP_S = 120.0  # no test may leave this running

LINES = [f"line {number} \x01 to the end of line" for number in range(1, 3000)]
VERBOSE = "\n".join(["", "no data in the folder", *LINES])
RANK = int(os.environ["RANK"])
RUN_DIR = Path(os.environ["ORCHESTRATE_RUN_DIR"])
NUMBER = int(os.environ["ORCHESTRATE_ATTEMPT"])
ATTEMPT = RUN_DIR / "attempts" / str(NUMBER)


def main(mode: str) -> int:
    print(f"rank {RANK} of {os.environ['WORLD_SIZE']} in {os.getcwd()}", flush=True)
    if mode.startswith("crash-until="):
        first_good = int(mode.partition("=")[2])
        mode = "crash" if first_good > NUMBER else "done"
    mode, _, slow_s = mode.partition("=") if mode.startswith("slow=") else (mode, "", "0")
    if mode.startswith("stubborn="):
        mode = "stubborn" if int(mode.partition("=")[2]) == RANK else "wait"
    if mode in ("wait", "finish", "stubborn", "hang"):
        start_helper()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (ATTEMPT / f"ready-{RANK}").touch()
    if mode == "done":
        write_outcome("done")
    elif mode != "silent":
        return wait(mode, float(slow_s))
    return 0


def wait(mode: str, slow_s: float = 0.0) -> int:
    if RANK == 1 and mode == "crash":
        return 3
    if RANK == 1 and mode in ("configuration", "verbose"):
        return report("no data" if mode == "configuration" else VERBOSE)
    if RANK == 1 and mode == "hang":
        say_hang()
    deadline = time.monotonic() + GIVE_UP_S
    while time.monotonic() < deadline:
        if mode not in ("stubborn", "hang") and (ATTEMPT / "drain").exists():
            time.sleep(slow_s)
            write_outcome("done" if mode == "finish" else "drained")
            return 0
        time.sleep(0.02)
    return 9


def report(message: str) -> int:
    error = {"version": 1, "kind": "configuration", "rank": 1, "host": "h", "message": message}
    write_json(ATTEMPT / "errors" / "rank-00001.json", error)
    return 1


def say_hang() -> None:
    deadline, num_ranks = time.monotonic() + GIVE_UP_S, int(os.environ["WORLD_SIZE"])
    while len(list(ATTEMPT.glob("ready-*"))) < num_ranks and time.monotonic() < deadline:
        time.sleep(0.02)
    (ATTEMPT / "hangs").mkdir()
    write_json(ATTEMPT / "hangs" / "verdict.json", {"version": 1, "message": "no progress"})
    message = "no progress\nrank 1 sleeps"
    error = {"version": 1, "kind": "hang", "rank": 1, "host": "h", "message": message}
    write_json(ATTEMPT / "errors" / "rank-00001.json", error)
    (ATTEMPT / "hang").touch()


def write_outcome(outcome: str) -> None:
    if RANK == 0:
        write_json(ATTEMPT / "outcome.json", {"version": 1, "outcome": outcome, "step": NUMBER})
        if outcome == "done":
            (RUN_DIR / "DONE").touch()


def start_helper() -> None:
    code = f"import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep({GIVE_UP_S})"
    subprocess.Popen([sys.executable, "-I", "-S", "-c", code], start_new_session=True)


def write_json(path: Path, content: dict[str, object]) -> None:
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(content))
    aside.rename(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
