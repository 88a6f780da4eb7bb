"""What the log of a pod says of its run: the lines that node.py copies from the ranks, and its own.

A line is `[rank R HOST] TEXT` or `[node] TEXT` (trainer/node.py), where it comes from the API
server with its time in front.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.backends.folder import parsed
from orchestrator.contract import METRICS_TAG
from orchestrator.progress import read_progress

# A rank's line of metrics; HOST has no blank and no bracket.
METRICS = re.compile(rb"(?:\S+ )?\[rank \d+ [^\]\s]*\] " + re.escape(METRICS_TAG.encode()))
ENDED = re.compile(rb"(?:\S+ )?\[node\] attempt (\d+) ended with (\d+): (.*)")
RANKS = re.compile(rb"(?:\S+ )?\[rank \d+ [^\]\s]*\] ")
TAG = re.compile(rb"^\[node\] ")
BEGUN = re.compile(rb"(?:\S+ )?\[node\] attempt (\d+): ")


@dataclass(frozen=True)
class Said:
    """What the end of node 0's log says; None or "" where it does not.

    Args:
        attempt: the newest.
        step: optimizer steps done.
        steps: optimizer steps in all.
        end: why that attempt has ended; "" while it runs.
        last: the launcher's last words: why no attempt has begun, or the error of a launcher that
            cannot start.
    """

    attempt: int | None = None
    step: int | None = None
    steps: int | None = None
    end: str = ""
    last: str = ""


def metrics_lines(log: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of metrics.jsonl, without line ends, in the lines of a pod's log."""
    for line in log:
        if match := METRICS.match(line):
            text = line[match.end() :].rstrip(b"\r\n")
            if parsed(text):  # a line may have been cut in two by the node's own limit
                yield text


def read_said(log: bytes) -> Said:
    """What the end of a log says."""
    lines = log.splitlines()
    metrics = list(metrics_lines(lines))
    progress = read_progress(metrics)
    attempt, end = progress.attempt, ""
    for line in metrics[-1:]:
        number = parsed(line).get("attempt")
        attempt = number if isinstance(number, int) else attempt
    for line in lines:
        if match := BEGUN.match(line):
            attempt, end = int(match[1]), ""
        elif match := ENDED.match(line):
            attempt, end = int(match[1]), match[3].decode(errors="replace")
    step = progress.step if metrics else None
    return Said(attempt or None, step, progress.steps, end, _last_words(lines))


def _last_words(lines: Sequence[bytes]) -> str:
    """The last line that no rank has printed, without its tag."""
    for line in reversed(lines):
        if line.strip() and not RANKS.match(line):
            return TAG.sub(b"", line).decode(errors="replace").strip()
    return ""
