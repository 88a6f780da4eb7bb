"""What rank 0 tells: JSON lines in metrics.jsonl and on standard output, and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import IO, Any

import torch

from trainer.contract import METRICS_TAG, Contract
from trainer.devices import module_of

# Peak dense bf16 FLOP/s by name of the device: NVIDIA's data sheets of A100 (2021), H100 SXM (2023)
# and H200 SXM (2024).
PEAK_FLOPS = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}


TENSORBOARD_DIR = "tensorboard"


class Metrics:
    """Writer of metric lines; on other ranks than 0 it does nothing.

    TensorBoard files go to <run folder>/tensorboard if they are wanted and the package is there;
    what an earlier attempt wrote there after `step` is hidden.
    """

    def __init__(self, contract: Contract, tensorboard: bool, step: int) -> None:
        self._attempt = contract.attempt
        self._board: Any = None
        self._file: IO[str] | None = None
        if contract.rank == 0:
            self._file = open_for_lines(contract.metrics_file)
            if tensorboard:
                self._board = _open_board(contract.run_dir / TENSORBOARD_DIR, step)

    def line(self, step: int, **values: Any) -> None:
        """Write the metrics of an interval that ended with `step`."""
        self._write({"step": step, "attempt": self._attempt, **values})
        if self._board is not None:
            for name in ("loss", "lr", "grad_norm", "tokens_per_s"):
                if values.get(name) is not None:
                    self._board.add_scalar(f"train/{name}", values[name], step)

    def event(self, name: str, step: int, **values: Any) -> None:
        """Write that something happened after `step` steps."""
        head = {"event": name, "step": step, "attempt": self._attempt}
        self._write(head | {"time": round(time.time(), 3)} | values)
        if self._board is not None and values.get("loss") is not None:
            self._board.add_scalar(f"{name}/loss", values["loss"], step)

    def close(self) -> None:
        """Flush and close everything."""
        if self._board is not None:
            self._board.close()
        if self._file is not None:
            with contextlib.suppress(OSError):  # of what the disk has refused before
                self._file.close()

    def _write(self, content: dict[str, Any]) -> None:
        """Write a line. A full disk costs the line alone: standard output may lie there too."""
        if self._file is None:
            return
        text = json.dumps(finite(content), allow_nan=False, default=str) + "\n"
        try:
            self._file.write(text)
            self._file.flush()
            sys.stdout.write(METRICS_TAG + text)
            sys.stdout.flush()
        except OSError as error:
            with contextlib.suppress(OSError):
                print(f"trainer: a line of metrics is not written: {error}", file=sys.stderr)


def finite(value: Any) -> Any:
    """`value` with None in place of each number that JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return value


def open_for_lines(path: Path) -> IO[str]:
    """Open for appending; a line that a killed writer left unfinished is ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
    return path.open("a", encoding="utf-8")


def _open_board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        print(
            "trainer: no TensorBoard files, since its package is missing: install"
            f" 'orchestrate-training[trainer]' or set train.logging.tensorboard: false ({error})",
            file=sys.stderr,
        )
        return None
    return SummaryWriter(str(folder), purge_step=step)


class Clock:
    """Where the seconds of an interval went; what is not booked counts as compute.

    totals: seconds of each kind up to the last read().
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.data_s = 0.0
        self.checkpoint_s = 0.0
        self.evaluation_s = 0.0
        self.totals = dict.fromkeys(("data", "compute", "checkpoint", "evaluation"), 0.0)

    def read(self) -> tuple[float, dict[str, float]]:
        """Seconds of training (data and compute), and the share of each kind; starts anew."""
        now = time.perf_counter()
        wall_s = max(now - self._began, 1e-9)
        pauses_s = self.checkpoint_s + self.evaluation_s
        training_s = max(wall_s - pauses_s, 1e-9)
        seconds = {
            "data": self.data_s,
            "compute": max(training_s - self.data_s, 0.0),
            "checkpoint": self.checkpoint_s,
            "evaluation": self.evaluation_s,
        }
        for name, part_s in seconds.items():
            self.totals[name] += part_s
        self._began = now
        self.data_s = self.checkpoint_s = self.evaluation_s = 0.0
        return training_s, {name: round(part_s / wall_s, 4) for name, part_s in seconds.items()}


def peak_memory_bytes(device: torch.device) -> int:
    """Highest memory use so far of this process: allocated on the GPU, resident on the CPU."""
    if device.type != "cpu":
        return int(module_of(device).max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def utilization(flops_per_s: float | None, device: torch.device) -> float | None:
    """Share of the device's peak that one rank reaches, None where the peak is not known."""
    if device.type != "cuda" or flops_per_s is None:
        return None
    peak = PEAK_FLOPS.get(torch.cuda.get_device_name(device))
    return None if peak is None else flops_per_s / peak
