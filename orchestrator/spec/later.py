"""What a later release owns: refused with "not supported yet", never ignored or called unknown."""

from __future__ import annotations

LATER_KEYS: dict[str, str] = {
    "script": "a program of your own instead of the bundled trainer",
    "preflight": "checks of the nodes before the first step",
    "code": "the version of the code that a run uses",
    "train.profiler": "a profile of some steps",
    "attempts.exclude_bad_nodes": "new attempts without the nodes that failed",
}
"""Key with dots, and what it will be for."""

LATER_VALUES: dict[str, tuple[str, ...]] = {
    "launcher": ("accelerate", "deepspeed"),
}
"""Values of a key that a later release knows."""
