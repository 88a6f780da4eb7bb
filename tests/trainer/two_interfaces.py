"""A run of two ranks that talk over one of two interfaces; started in a namespace of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runs import Run, configuration


def use_the_second(_run: Run, _name: str, _step: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "net2"


if __name__ == "__main__":
    config = configuration(num_ranks=2, steps=2, network__interface="net2")
    Run(Path(sys.argv[1])).finish(config, listener=use_the_second)
