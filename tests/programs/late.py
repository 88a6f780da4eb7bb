"""The bundled trainer on ranks one of which sleeps: late.py CONFIG PHASE STEP RANK ATTEMPT MODE.

It notes in the run folder, in the file `slept-from`, when it begins to. "before" as PHASE is the
time before the trainer runs. MODE is not used.
"""

import os
import sys
import time
from pathlib import Path

LONG_S = 120.0

config, wanted, after, rank, attempt = sys.argv[1:6]


def sleep_at(name: str, step: int) -> None:
    if (name, step) == (wanted, int(after)):
        note = Path(os.environ["ORCHESTRATE_RUN_DIR"], "slept-from")
        note.write_text(str(time.time()))
        time.sleep(LONG_S)


if (os.environ["RANK"], os.environ["ORCHESTRATE_ATTEMPT"]) == (rank, attempt):
    sleep_at("before", 0)
    from trainer import phase

    phase.listeners.append(sleep_at)

from trainer.main import main  # noqa: E402  # it takes time, and comes after "before"

sys.exit(main(["--config", config]))
