"""The files that the communication library and torch write for people into `attempts/N/network/`.

    HOST.PID.nccl.log    NCCL's messages of one rank; HOST.PID.nccl.log.old what came before
    flight-rank-R        torch's flight recorder of rank R, a pickle

They are made only where network.watch or network.debug asks for them, and never where the user's
own variables say otherwise.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from trainer import signals
from trainer.config import TrainerConfig
from trainer.contract import Contract, given_variable, suggest_variables
from trainer.hang_report import flight_record

LOOK_S = 0.5  # between two looks at the size of the log, and for a request to stop
PATIENCE_S = 5.0  # for a look that is under way at the end
MOST_BYTES = 64 * 2**20  # of the log of one rank, old and new together
MOST_READ_BYTES = 16 * 2**20  # of it, for the transports: they are told at its beginning
INFO_LEVELS = ("INFO", "TRACE")  # of NCCL_DEBUG, at which the transports are told
RECORDED_COLLECTIVES = 2000


class Unreadable(Exception):
    """The library's log cannot be read, and why."""


def _nccl_variables(config: TrainerConfig, contract: Contract) -> dict[str, str]:
    """What makes NCCL write a log of its own (NCCL user guide, environment variables)."""
    network, traced = config.network, config.network.debug == "trace"
    if not config.uses_nccl or (network.watch, network.debug) == ("off", "off"):
        return {}
    if given_variable("NCCL_DEBUG") and network.debug == "off":
        return {}  # whoever has asked for messages expects them where they would have gone
    level = "INFO" if traced or network.watch != "off" else "WARN"
    folder = str(contract.network_dir).replace("%", "%%")
    # The lines of all transports are of the part INIT; ALL also has each collective.
    parts = "ALL" if traced else "INIT"
    return {
        "NCCL_DEBUG": level,
        "NCCL_DEBUG_SUBSYS": parts,
        "NCCL_DEBUG_FILE": f"{folder}/%h.%p.nccl.log",
    }


def _torch_variables(config: TrainerConfig, contract: Contract) -> dict[str, str]:
    """The flight recorder, and with trace what DDP tells of a model's parameters (torch 2.13).

    DETAIL would compare the ranks' collectives, but DDP over gloo dies of it (SIGSEGV).
    """
    debug = config.network.debug
    if debug == "off":
        return {}
    recorder = {
        "TORCH_FR_BUFFER_SIZE": str(RECORDED_COLLECTIVES),
        "TORCH_FR_DUMP_TEMP_FILE": f"{contract.network_dir}/flight-rank-",
    }
    return {**recorder, **({"TORCH_DISTRIBUTED_DEBUG": "INFO"} if debug == "trace" else {})}


@contextlib.contextmanager
def kept(config: TrainerConfig, contract: Contract) -> Iterator[None]:
    """Have the files written while the block runs, before which no group may have been made.

    With network.debug the flight recorder's content is there from a request to stop on, and after
    an error; the log stays within its bound.
    """
    variables = {**_nccl_variables(config, contract), **_torch_variables(config, contract)}
    if variables:
        contract.network_dir.mkdir(parents=True, exist_ok=True)
        suggest_variables(variables)
    if config.network.debug == "off":
        yield
        return
    keeper = Keeper(config, contract)
    keeper.start()
    try:
        yield
    finally:
        keeper.finish()


def log_path() -> Path | None:
    """Where NCCL writes in this process, as it understands NCCL_DEBUG_FILE; None: to no file."""
    pattern = given_variable("NCCL_DEBUG_FILE")
    if not pattern:
        return None
    meaning = {"%%": "%", "%h": socket.gethostname().partition(".")[0], "%p": str(os.getpid())}
    return Path(re.sub("%[%hp]", lambda found: meaning[found[0]], pattern))


def read_log() -> str:
    """The beginning of this process's log; raises Unreadable."""
    level = given_variable("NCCL_DEBUG").upper()
    if level not in INFO_LEVELS:
        raise Unreadable(f"NCCL_DEBUG is {level or 'not set'}: only at INFO the library tells")
    path = log_path()
    if path is None:
        raise Unreadable("NCCL_DEBUG is set and NCCL_DEBUG_FILE is not: it writes to no file")
    old = Path(f"{path}.old")
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable(f"NCCL_DEBUG_FILE: {path} is no file")
        with (old if old.exists() else path).open("rb") as file:
            return file.read(MOST_READ_BYTES).decode(errors="replace")
    except OSError as error:
        raise Unreadable(f"NCCL_DEBUG_FILE: {path}: {error.strerror}") from error


def end_log(contract: Contract) -> None:
    """Remove the log of this process if it was made for the proof alone: NCCL writes on to nowhere.

    Does nothing to a file of the user's.
    """
    path = log_path()
    if path is not None and path.parent == contract.network_dir:
        _point(path, Path(os.devnull))
        with contextlib.suppress(OSError):  # what stays does no harm
            path.unlink()
            path.parent.rmdir()  # by the last one


def rotate(path: Path, most_bytes: int) -> None:
    """Begin the log anew if it has half of most_bytes; what was in it is PATH.old then."""
    if path.stat().st_size >= most_bytes // 2:
        path.rename(f"{path}.old")
        _point(Path(f"{path}.old"), path)


def _point(old: Path, new: Path) -> None:
    """Let this process's open files `old` be `new` instead, at once and with nothing lost.

    The library holds the number of the file and does not see it.
    """
    # As the kernel names it, which knows no links: but for its folder it may have been renamed.
    known = os.path.join(os.path.realpath(old.parent), old.name)
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{entry}") == known:
                file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(file, int(entry), inheritable=False)
                os.close(file)


class Keeper(threading.Thread):
    """Keeps the log within its bound, and saves the flight recorder when a stop is asked for."""

    def __init__(self, config: TrainerConfig, contract: Contract) -> None:
        super().__init__(name="library log", daemon=True)
        self._nccl, self._contract = config.uses_nccl, contract
        self._finished = threading.Event()

    def run(self) -> None:
        """Look every LOOK_S seconds."""
        saved = False
        while not self._finished.wait(LOOK_S):
            path = log_path()
            with contextlib.suppress(OSError):  # not there yet, or a disk that refuses
                if path is not None and path.parent == self._contract.network_dir:
                    rotate(path, MOST_BYTES)
            if not saved and (signals.received or os.path.exists(self._contract.drain_file)):
                saved = self._save()

    def finish(self) -> None:
        """The group is gone, or is to be given up: save what the recorder has at the end."""
        self._finished.set()
        self.join(PATIENCE_S)
        if not os.path.exists(self._contract.hang_file):  # its report has the same
            self._save()

    def _save(self) -> bool:
        """Write the flight recorder's content; whether it is there."""
        path = self._contract.network_dir / f"flight-rank-{self._contract.rank}"
        try:
            aside = path.with_name(f".{path.name}.{os.getpid()}")
            aside.write_bytes(flight_record(self._nccl))
            aside.replace(path)
        except (OSError, RuntimeError) as error:  # of the disk, or of torch
            print(f"trainer: no flight record: {error}", file=sys.stderr)
            return False
        return True
