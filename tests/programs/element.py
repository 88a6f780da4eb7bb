"""Stands in for the trainer in the elements of a sweep; the standard library alone. ACTS, a JSON
object from seeds to words, says what one does, the others are done at once:

    meet     first waits until four of them have begun
    fail     leaves with 3 in its first attempt
    drain    waits for the drain file, or for the file `go` in the work folder

Each attempt leaves times.json: when it began and ended, by the machine's clock since boot.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

GIVE_UP_S = 120.0  # no test may leave this running
RUN_DIR = Path(os.environ["ORCHESTRATE_RUN_DIR"])
WORKDIR = Path(os.environ["ORCHESTRATE_WORKDIR"])
NUMBER = int(os.environ["ORCHESTRATE_ATTEMPT"])
ATTEMPT = RUN_DIR / "attempts" / str(NUMBER)


def main() -> int:
    began = time.monotonic()
    config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_bytes())
    act = json.loads(os.environ["ACTS"]).get(str(config["seed"]), "")
    (ATTEMPT / "ready").touch()
    if act == "fail" and NUMBER == 1:
        return 3
    if act == "meet":
        (WORKDIR / f"met-{config['seed']}").touch()
        await_any(lambda: len(list(WORKDIR.glob("met-*"))) >= 4)
    drained = act == "drain" and await_any(is_asked) and not (WORKDIR / "go").exists()
    write_metrics(config)
    write(ATTEMPT / "times.json", {"began": began, "ended": time.monotonic()})
    outcome = "drained" if drained else "done"
    write(ATTEMPT / "outcome.json", {"version": 1, "outcome": outcome, "step": config["steps"]})
    if not drained:
        (RUN_DIR / "DONE").touch()
    return 0


def is_asked() -> bool:
    return (ATTEMPT / "drain").exists() or (WORKDIR / "go").exists()


def await_any(condition: Any) -> bool:
    deadline = time.monotonic() + GIVE_UP_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(9)
        time.sleep(0.02)
    return True


def write_metrics(config: dict[str, Any]) -> None:
    steps, lr = config["steps"], config["optimizer"]["lr"]
    lines: list[dict[str, Any]] = [
        {"step": 1, "attempt": NUMBER, "loss": 9.0},
        {"event": "validation", "step": 1, "attempt": NUMBER, "loss": 1 + lr},
        {"step": steps, "attempt": NUMBER, "loss": 2 + lr},
        {"event": "validation", "step": steps, "attempt": NUMBER, "loss": 8.0},
    ]
    with (RUN_DIR / "metrics.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


def write(path: Path, content: dict[str, Any]) -> None:
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(content))
    aside.rename(path)


if __name__ == "__main__":
    sys.exit(main())
