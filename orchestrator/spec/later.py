"""What a later release owns: refused with "not supported yet", never ignored or called unknown."""

from __future__ import annotations

LATER_KEYS: dict[str, str] = {
    "script": "a program of your own instead of the bundled trainer",
    "preflight": "checks of the nodes before the first step",
    "code": "the version of the code that a run uses",
    "train.profiler": "a profile of some steps",
    "network.fabric": "the kind of network between nodes",
    "network.debug": "more messages from the communication libraries",
    "network.watch": "a watchdog over the network",
    "network.address_family": "IPv4 or IPv6 between the ranks",
    "timeouts.queue": "a limit on the wait in the scheduler's queue",
    "timeouts.rendezvous": "a limit for the ranks to find one another",
    "timeouts.load": "a limit for model, data and checkpoint to load",
    "timeouts.first_step": "a limit for the first step",
    "timeouts.evaluation": "a limit for one evaluation",
    "attempts.exclude_bad_nodes": "new attempts without the nodes that failed",
}
"""Key with dots, and what it will be for."""

LATER_VALUES: dict[str, tuple[str, ...]] = {
    "launcher": ("accelerate", "deepspeed"),
    "network.backend": ("xccl", "hccl", "cncl"),
}
"""Values of a key that a later release knows."""
