"""A program of a few lines with torch: its ranks form a group by the environment alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total)
    print(f"the ranks add up to {int(total)}", flush=True)
    if dist.get_rank() == 0:
        attempt = Path(os.environ["ORCHESTRATE_RUN_DIR"], "attempts", "1")
        outcome = {"version": 1, "outcome": "done", "step": 1}
        (attempt / "outcome.json").write_text(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
