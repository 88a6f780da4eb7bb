"""Runs of two ranks that talk over the second of two interfaces, where each of them is named in
turn; started in a namespace of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runs import Run, configuration


def use_the_second(_run: Run, _name: str, _step: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "net2"


if __name__ == "__main__":
    for interface in ("net1", "net2"):
        config = configuration(num_ranks=2, steps=1, network__interface=interface)
        Run(Path(sys.argv[1]) / interface).finish(config, listener=use_the_second)
