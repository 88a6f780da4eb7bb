"""What a rank, and node.py for it, tell of themselves when the attempt hangs.

In the folder `attempts/N/hangs/`, R with five digits:
    rank-R.json            the rank's own words, with its last collectives
    rank-R.stacks.txt      the stacks of its threads
    rank-R.process.json    node.py's: the state of its process and of those below it
    flight-R               torch's flight recorder, a pickle
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainer.contract import Contract, write_json
from trainer.node import place_in
from trainer.phase import Phase

OWN, OF_PROCESS = "rank-?????.json", "rank-?????.process.json"


@dataclass(frozen=True)
class Group:
    """A process group as this rank sees it: its last collective, and the oldest that it waits in.

    last, waits_in: numbers from 1 within the group; waits_in is None if all are complete.
    operation: name and sizes of what it waits in, such as "all_reduce of [4]". aside: a thread
    that works beside the training waits there.
    """

    name: str
    last: int
    waits_in: int | None = None
    operation: str = ""
    aside: bool = False


@dataclass(frozen=True)
class Report:
    """A rank's own words. at: where its main thread is; quiet_s: seconds without progress."""

    rank: int
    host: str
    pid: int
    phase: str
    step: int
    quiet_s: float
    at: str
    groups: list[Group]


@dataclass(frozen=True)
class Place:
    """What node.py has seen of a rank. state: as in /proc/PID/status; below: in words, the
    processes that the rank has started; `host` is the node's, `at` may be empty."""

    rank: int
    host: str
    state: str
    at: str
    below: list[str]


def write_report(contract: Contract, seen: Phase, quiet_s: float, nccl: bool) -> None:
    """Write this rank's report, its stacks and its flight recorder's dump; raises OSError."""
    folder, rank = contract.hangs_dir, contract.rank
    folder.mkdir(parents=True, exist_ok=True)
    at = place_in(_written_stacks(folder / f"rank-{rank:05d}.stacks.txt"))
    groups = _recorded(folder / f"flight-{rank:05d}", nccl)
    host = socket.gethostname()
    report = Report(rank, host, os.getpid(), seen.name, seen.step, quiet_s, at, groups)
    write_json(folder / f"rank-{rank:05d}.json", asdict(report))


def _written_stacks(path: Path) -> str:
    with path.open("w+", encoding="utf-8", errors="replace") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def _recorded(path: Path, nccl: bool) -> list[Group]:
    """The groups as the flight recorder has them, which goes into the file `path`."""
    raw = flight_record(nccl)
    if raw:
        path.write_bytes(raw)
    main = threading.main_thread()
    # Threads of torch's own, as autograd's, belong to the training: Python does not list them.
    aside = {str(thread.ident) for thread in threading.enumerate() if thread is not main}
    # Beside NCCL's groups some are gloo's, as that of checkpoints, with a recorder of their own.
    dumps = [raw, flight_record(False)] if nccl else [raw]
    found = [pickle.loads(dump).get("entries", []) for dump in dumps if dump]
    return [group for entries in found for group in summary(entries, aside)]


def flight_record(nccl: bool) -> bytes:
    """What torch's flight recorder has, a pickle; nothing where torch is not there yet."""
    name = "_dump_nccl_trace" if nccl else "_dump_fr_trace"
    # No import: where torch has not been loaded yet, the main thread may be at it.
    torch_c = sys.modules.get("torch._C._distributed_c10d")
    dump: Callable[[bool, bool, bool], bytes] | None = getattr(torch_c, name, None)
    # With collectives, with stacks, not the active ones alone.
    return b"" if dump is None else dump(True, True, False)


def summary(entries: list[dict[str, Any]], aside: Collection[str] = ()) -> list[Group]:
    """The groups that a flight recorder's entries tell of, which are in the order of their time.

    aside: threads, by their number, that work beside the training.
    """
    groups: dict[str, Group] = {}
    for entry in entries:
        if entry["is_p2p"]:
            continue
        name, description = entry["process_group"]
        key = f"{name} ({description})" if description else str(name)
        number = int(entry["collective_seq_id"])
        before = groups.get(key, Group(key, number))
        if entry["retired"] or before.waits_in is not None:
            groups[key] = replace(before, last=number)
            continue
        sizes = ", ".join(map(str, entry["input_sizes"][:4]))
        operation = f"{entry['profiling_name'].partition(':')[2]} of {sizes}"
        groups[key] = Group(key, number, number, operation, entry["thread_id"] in aside)
    return list(groups.values())


def have_told(folder: Path, num_ranks: int) -> bool:
    """Whether node.py has told of all ranks, and each rank that can tell has done so itself."""
    own = {path.name.partition(".")[0] for path in folder.glob(OWN)}
    places = list(folder.glob(OF_PROCESS))
    silent = [path for path in places if path.name.partition(".")[0] not in own]
    return len(places) >= num_ranks and not any(_answers(path) for path in silent)


def _answers(path: Path) -> bool:
    """Whether a rank has come to where its watchdog is built; then its own words may be late."""
    return bool(json.loads(path.read_bytes()).get("answers", True))


def read_reports(folder: Path) -> dict[int, Report]:
    """The ranks' own reports that are there, by rank."""
    found = [json.loads(path.read_bytes()) for path in sorted(folder.glob(OWN))]
    reports = [Report(**{**told, "groups": [Group(**g) for g in told["groups"]]}) for told in found]
    return {report.rank: report for report in reports}


def read_places(folder: Path) -> dict[int, Place]:
    """What node.py has seen of the ranks, by rank."""
    found = [json.loads(path.read_bytes()) for path in sorted(folder.glob(OF_PROCESS))]
    places = [Place(t["rank"], t["host"], t["state"], t["at"], t["below"]) for t in found]
    return {place.rank: place for place in places}
