"""Axes that are easy to read: round steps, few digits, a unit that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# The largest first: a value is shown in the largest unit that it reaches.
Units = Sequence[tuple[float, str]]
PLAIN: Units = ((1, ""),)
NUMBERS: Units = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"), (1, ""))
BYTES: Units = ((1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1, " B"))
SECONDS: Units = ((172800, " d"), (7200, " h"), (120, " min"), (1, " s"))
# How long one of them is, where a value is shown in it only from more than one on.
LENGTHS = {" d": 86400.0, " h": 3600.0, " min": 60.0}
MAX_TICKS = 6
MAX_DIGITS = 8  # after the point
LARGEST = 1e12  # that is written with all its digits
TINY = 1e-200  # near the end of what a float can hold, and nothing to draw
CLOSEST = 1e-9  # relative: what is closer has one height


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, with ticks at round values and what is written there."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def share(self, value: float) -> float:
        """Where a value lies, from 0 (low) to 1 (high)."""
        return (value - self.low) / (self.high - self.low)


def axis_of(
    low: float, high: float, units: Units = PLAIN, *, from_zero: bool = False, tight: bool = False
) -> Axis:
    """The axis for values from `low` to `high`; it begins and ends at a tick, or at the values
    themselves if it is to be tight."""
    if from_zero:
        low, high = min(0.0, low), max(0.0, high)
    largest = max(abs(low), abs(high))
    if high - low <= max(largest * CLOSEST, TINY):
        pad = largest / 2 if largest > TINY else 1.0
        low, high = low - (0 if from_zero else pad), high + pad
    size, unit = unit_of(max(abs(low), abs(high)), units)
    step = round_step((high - low) / (MAX_TICKS - 1) / size) * size
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    values = [k * step for k in range(first, last + 1)]
    ticks = tuple((value, f"{_label(value, step, size)}{unit}") for value in values)
    if not tight:
        return Axis(values[0], values[-1], ticks)
    return Axis(low, high, tuple(tick for tick in ticks if low <= tick[0] <= high))


def _label(value: float, step: float, size: float) -> str:
    """A tick's number, with as many digits as tell it from its neighbours."""
    digits = max(0, -math.floor(math.log10(step / size) + 1e-9))
    if digits > MAX_DIGITS or abs(value / size) >= LARGEST:
        significant = math.ceil(math.log10(max(1.0, abs(value) / step)) + 1e-9)
        return f"{value / size:.{significant}e}"
    return f"{value / size + 0.0:,.{digits}f}"


def round_step(step: float) -> float:
    """The next larger one of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def unit_of(value: float, units: Units) -> tuple[float, str]:
    """The size and the name of the unit in which a value is shown."""
    reach, name = next(((r, n) for r, n in units if abs(value) >= r), units[-1])
    return LENGTHS.get(name, reach), name


def words(value: float | None, units: Units = PLAIN, digits: int = 4, *, even: bool = False) -> str:
    """A value in its unit, to so many digits; a dash for none.

    even: whether a round value has as many digits as others, as in a column of them.
    """
    if value is None:
        return "-"
    size, name = unit_of(value, units)
    shown = value / size
    if abs(shown) >= LARGEST or 0 < abs(shown) < 1e-4:
        return f"{shown:.{digits - 1}e}{name}"
    if shown == int(shown) and not (even and shown):
        return f"{int(shown):,}{name}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(shown))))
    return f"{shown:,.{places}f}{name}"
