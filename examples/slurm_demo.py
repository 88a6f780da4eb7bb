"""The main job on a real Slurm of two nodes on this machine: `make slurm-demo`.

Brings up slurm/dev-cluster, which needs root, submits examples/demo.yaml to it, judges the run as
`make demo` does, and takes the cluster down. Run folders are in runs/slurm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import demo

DEV_CLUSTER = Path(__file__).resolve().parent.parent / "slurm" / "dev-cluster"
UP_DEADLINE_S = 180
PROFILE = {
    "target": "slurm",
    "runs_root": "./runs/slurm",
    "slurm": {"python": sys.executable},
    "defaults": {"resources": {"time_limit": "30m"}},
}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="slurm-demo-", dir="/tmp") as name:
        state, profiles = Path(name) / "cluster", Path(name) / "clusters.yaml"
        profiles.write_text(json.dumps({"clusters": {"dev": PROFILE}}))
        # It goes down by itself if this process is killed.
        if dev_cluster(state, "up", "2", "--until-pid", str(os.getpid())):
            return 1
        os.environ["PATH"] = f"{state / 'bin'}:{os.environ['PATH']}"
        os.environ["SLURM_CONF"] = str(state / "slurm.conf")
        try:
            return demo.main(["--clusters", str(profiles), "--cluster", "dev"])
        finally:
            dev_cluster(state, "down", "--purge")


def dev_cluster(state: Path, *argv: str) -> int:
    """Run a command of dev-cluster, which says itself what went wrong; returns its exit code."""
    command = [str(DEV_CLUSTER), "--state", str(state), *argv]
    return subprocess.run(command, check=False, timeout=UP_DEADLINE_S).returncode


if __name__ == "__main__":
    sys.exit(main())
