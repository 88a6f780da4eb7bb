"""Speeds with their units, as a cluster profile has them; bytes, operations and seconds inside."""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestrator.errors import quoted
from orchestrator.units import UnitError

# Bytes are B, bits are b: links are sold by the bit, and memory by the byte.
PER_SECOND = {
    "MB/s": 10**6,
    "GB/s": 10**9,
    "TB/s": 10**12,
    "MiB/s": 2**20,
    "GiB/s": 2**30,
    "TiB/s": 2**40,
    "Mb/s": 10**6 / 8,
    "Gb/s": 10**9 / 8,
    "Tb/s": 10**12 / 8,
}
OPERATIONS = {"GFLOP/s": 10**9, "TFLOP/s": 10**12, "PFLOP/s": 10**15}
MOMENTS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

RATE_EXAMPLES = "450GB/s, 400Gb/s, 3.35TB/s"
FLOPS_EXAMPLES = "989TFLOP/s, 50GFLOP/s"
LATENCY_EXAMPLES = "5us, 0.4ms"

_NUMBER = r"\d{1,9}(\.\d{1,9})?"
RATE_PATTERN = rf"^{_NUMBER} ?(M|G|T)(i?B|b)/s$"
FLOPS_PATTERN = rf"^{_NUMBER} ?(G|T|P)FLOP/s$"
LATENCY_PATTERN = rf"^{_NUMBER} ?(ns|us|ms|s)$"


def parse_rate(value: object) -> float:
    """Return bytes per second of a text such as `450GB/s` (bytes) or `400Gb/s` (bits).

    Raises:
        UnitError: no such text, no unit, or zero.
    """
    return _parse(value, PER_SECOND, "bandwidth", RATE_EXAMPLES)


def parse_flops(value: object) -> float:
    """Return operations per second of a text such as `989TFLOP/s`; see parse_rate."""
    return _parse(value, OPERATIONS, "speed", FLOPS_EXAMPLES)


def parse_latency(value: object) -> float:
    """Return seconds of a text such as `5us`; see parse_rate."""
    return _parse(value, MOMENTS, "latency", LATENCY_EXAMPLES)


def _parse(value: object, units: Mapping[str, float], what: str, examples: str) -> float:
    if not isinstance(value, str):
        raise UnitError(f"a {what} is a text with a unit", f"write it as one of {examples}")
    match = re.fullmatch(rf"({_NUMBER}) ?([A-Za-z/]+)", value.strip(), re.ASCII)
    if match is None or match[3] not in units:
        raise UnitError(f"{quoted(value)} is not a {what}", _fix(match, units, examples))
    number = float(match[1]) * units[match[3]]
    if number == 0:
        raise UnitError(f"{value} is no {what} at all", f"write it as one of {examples}")
    return number


def _fix(match: re.Match[str] | None, units: Mapping[str, float], examples: str) -> str:
    """Return the unit as it was probably meant, where letters alone are of the wrong size."""
    alike = [unit for unit in units if match and unit.lower() == match[3].lower()]
    if match and alike:
        return f"write {' or '.join(f'{match[1]}{unit}' for unit in alike)}"
    return f"write it as one of {examples}"
