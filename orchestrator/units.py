"""Durations and sizes with their units, as the job file has them; seconds and bytes inside."""

from __future__ import annotations

import re

from orchestrator.errors import quoted

SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
MAX_DURATION_S = 3650 * SECONDS["d"]
MAX_SIZE_BYTES = 2**60
# A number this long is a mistake in any unit; the bound also keeps int() cheap.
MAX_DIGITS = 15

# One number for each unit, the larger unit first, then Slurm's [days-]hours:minutes:seconds.
DURATION_PATTERN = (
    r"^(?=\d)(\d{1,15}d)?(\d{1,15}h)?(\d{1,15}m)?(\d{1,15}s)?$"
    r"|^(\d{1,15}-)?\d{1,15}:[0-5]\d:[0-5]\d$"
)
SIZE_PATTERN = r"^\d{1,15}(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)$"
DURATION_EXAMPLES = "45s, 90m, 2h30m, 2d, 12:00:00, 1-12:00:00"
SIZE_EXAMPLES = "512MiB, 80GiB, 4GB"

_LONG_UNITS = {
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
}


class UnitError(ValueError):
    """A duration or size that cannot be read.

    Args:
        message: what is wrong.
        fix: what to write instead.
    """

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(f"{message}; {fix}")
        self.message = message
        self.fix = fix


def parse_duration(value: object) -> int:
    """Return a duration in seconds.

    Args:
        value: text such as `90m`, `2h30m`, `2d`, `12:00:00` (hours) or `1-12:00:00` (days-hours).

    Raises:
        UnitError: no such text, no unit, zero, or more than ten years.
    """
    if not isinstance(value, str):
        raise _no_text(value, "duration", "s", "m", "h")
    text = value.strip()
    if not re.fullmatch(DURATION_PATTERN, text, re.ASCII):
        raise _bad_duration(text)
    seconds = _clock_s(text) if ":" in text else _units_s(text)
    if seconds == 0:
        raise UnitError(f"{text} is no time at all", "give at least 1s")
    if seconds > MAX_DURATION_S:
        raise UnitError(f"{text} is more than ten years", f"write it as one of {DURATION_EXAMPLES}")
    return seconds


def _units_s(text: str) -> int:
    parts = re.findall(r"(\d+)([dhms])", text, re.ASCII)
    return sum(int(number) * SECONDS[unit] for number, unit in parts)


def _clock_s(text: str) -> int:
    days, _, clock = text.rpartition("-")
    hours, minutes, seconds = clock.split(":")
    return int(days or 0) * SECONDS["d"] + int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def _no_text(value: object, what: str, *units: str) -> UnitError:
    """Return the error for a value that is not text: mostly a number without a unit."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        written = [f"{value}{unit}" for unit in units]
        choices = f"{', '.join(written[:-1])} or {written[-1]}"
        return UnitError(f"{value} has no unit, so it could mean anything", f"write {choices}")
    examples = DURATION_EXAMPLES if what == "duration" else SIZE_EXAMPLES
    return UnitError(f"a {what} is a text with a unit", f"write it as one of {examples}")


def _bad_duration(text: str) -> UnitError:
    shown = quoted(text)
    if re.fullmatch(r"\d{1,15}", text, re.ASCII):
        return _no_text(int(text), "duration", "s", "m", "h")
    if re.fullmatch(r"\d{1,4}:\d{1,2}", text, re.ASCII):
        first, second = text.split(":")
        return UnitError(
            f"{shown} could be hours:minutes or minutes:seconds",
            f"write {first}h{second}m or {first}m{second}s",
        )
    if re.fullmatch(r"\d+-\d+(:\d+)?|(\d+-)?\d+:\d+:\d+", text, re.ASCII):
        return UnitError(
            f"{shown} is not a clock time",
            "write days-hours:minutes:seconds with two digits each, such as 1-12:00:00",
        )
    return UnitError(f"{shown} is not a duration", _duration_fix(text))


def _duration_fix(text: str) -> str:
    """Return the text as it was probably meant, or examples."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*([A-Za-z]+)", text, re.ASCII)
    if match:
        unit = match[2].lower()
        unit = _LONG_UNITS.get(unit, unit)
        seconds = float(match[1]) * SECONDS.get(unit, 0)
        if seconds >= 1 and seconds.is_integer():
            return f"write {format_duration(int(seconds))}"
    return f"write it as one of {DURATION_EXAMPLES}"


def format_duration(seconds: int) -> str:
    """Return seconds in the job file's form: `5400` is `1h30m`, `86400` is `1d`.

    Args:
        seconds: at least 0.
    """
    parts = []
    rest = seconds
    for unit, length in SECONDS.items():
        number, rest = divmod(rest, length)
        parts.append(f"{number}{unit}" if number else "")
    return "".join(parts) or "0s"


def parse_size(value: object) -> int:
    """Return a size in bytes.

    Args:
        value: text such as `80GiB` (2^30 each) or `4GB` (10^9 each).

    Raises:
        UnitError: no such text, no unit, an ambiguous unit, zero, or more than 1 EiB.
    """
    if not isinstance(value, str):
        raise _no_text(value, "size", "MiB", "GiB", "GB")
    text = value.strip()
    match = re.fullmatch(r"(\d{1,15})([A-Za-z]*)", text, re.ASCII)
    if not match or match[2] not in BYTES:
        raise _bad_size(text)
    size_bytes = int(match[1]) * BYTES[match[2]]
    if not 0 < size_bytes <= MAX_SIZE_BYTES:
        raise UnitError(f"{text} is not between 1B and 1 EiB", f"write it like {SIZE_EXAMPLES}")
    return size_bytes


def _bad_size(text: str) -> UnitError:
    shown = quoted(text)
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)\s*([A-Za-z]*)", text, re.ASCII)
    if not match:
        return UnitError(f"{shown} is not a size", f"write it as one of {SIZE_EXAMPLES}")
    number, unit = match[1], match[2]
    if not unit:
        return UnitError(
            f"{shown} has no unit, so it could mean anything",
            f"write {number}MiB, {number}GiB or {number}GB",
        )
    if unit == "m":
        return UnitError(
            f"{shown} would be {number} thousandths of a byte on Kubernetes, where m is milli",
            f"write {number}MiB (2^20 bytes each) or {number}MB (10^6 bytes each)",
        )
    if unit in ("k", "K", "M", "G", "T"):
        letter = unit.upper()
        power, iec = BYTES[f"{letter}B"], f"{letter}iB"
        return UnitError(
            f"{shown} is ambiguous: {unit} is 2^{BYTES[iec].bit_length() - 1} bytes to Slurm and "
            f"10^{len(str(power)) - 1} bytes to Kubernetes",
            f"write {number}{iec} or {number}{letter}B",
        )
    return UnitError(f"{shown} is not a size", _size_fix(number, unit))


def _size_fix(number: str, unit: str) -> str:
    """Return the size as it was probably meant, or examples."""
    meant = {name.lower(): name for name in BYTES} | {"ki": "KiB", "mi": "MiB"}
    meant |= {"gi": "GiB", "ti": "TiB", "g": "GiB", "t": "TiB"}
    name = meant.get(unit.lower())
    if name and "." not in number:
        return f"write {number}{name}"
    if name:
        size_bytes = float(number) * BYTES[name]
        if size_bytes >= 1 and size_bytes.is_integer():
            return f"write {format_size(int(size_bytes))}: whole numbers only"
    return f"write it as one of {SIZE_EXAMPLES}"


def format_size(size_bytes: int) -> str:
    """Return bytes in the job file's form, in the largest unit that divides them: `80GiB`.

    Args:
        size_bytes: at least 1.
    """
    units = sorted(BYTES, key=lambda name: -BYTES[name])
    exact = (name for name in units if name != "KB" and size_bytes % BYTES[name] == 0)
    name = next(exact, "B")
    return f"{size_bytes // BYTES[name]}{name}"
