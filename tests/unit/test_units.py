"""units: what is read, what is refused and with which fix."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.units import (
    BYTES,
    DURATION_PATTERN,
    MAX_DURATION_S,
    MAX_SIZE_BYTES,
    SIZE_PATTERN,
    UnitError,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

DAY = 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45s", 45),
        ("90m", 5400),
        ("2h30m", 9000),
        ("2d", 2 * DAY),
        ("1d2h3m4s", DAY + 7384),
        ("12:00:00", DAY // 2),
        ("100:00:01", 360001),
        ("1-12:00:00", DAY * 3 // 2),
        (" 5m ", 300),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("given", "message", "fix"),
    [
        (90, "90 has no unit", "90s, 90m or 90h"),
        ("90", "90 has no unit", "90s, 90m or 90h"),
        (1.5, "1.5 has no unit", "1.5s"),
        (True, "a text with a unit", "90m"),
        (None, "a text with a unit", "90m"),
        ([], "a text with a unit", "90m"),
        ("1.5h", '"1.5h" is not a duration', "write 1h30m"),
        ("90 min", '"90 min" is not a duration', "write 1h30m"),
        ("3 days", "not a duration", "write 3d"),
        ("2H", "not a duration", "write 2h"),
        ("30m2h", "not a duration", "90m"),
        ("5m5m", "not a duration", "90m"),
        ("100ms", "not a duration", "90m"),
        ("90:00", "hours:minutes or minutes:seconds", "90h00m or 90m00s"),
        ("1-12", "not a clock time", "1-12:00:00"),
        ("12:60:00", "not a clock time", "two digits"),
        ("1-1:00:00:00", "not a duration", "90m"),
        ("0s", "no time at all", "1s"),
        ("0:00:00", "no time at all", "1s"),
        ("99999d", "more than ten years", "90m"),
        ("", "not a duration", "90m"),
        ("-5m", "not a duration", "90m"),
        ("\u0665m", "not a duration", "90m"),
        ("9" * 500 + "s", "not a duration", "90m"),
    ],
)
def test_durations_that_are_refused(given: object, message: str, fix: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_duration(given)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert len(str(caught.value)) < 250


@settings(deadline=None)
@given(st.integers(1, MAX_DURATION_S))
def test_a_duration_written_and_read_is_the_same(seconds: int) -> None:
    text = format_duration(seconds)
    assert parse_duration(text) == seconds
    assert re.search(DURATION_PATTERN, text)


@settings(deadline=None)
@given(st.integers(0, 3649), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_slurms_form_means_what_slurm_means(days: int, hours: int, mins: int, secs: int) -> None:
    text = f"{days}-{hours:02}:{mins:02}:{secs:02}"
    assert parse_duration(text) == parse_duration(f"{days}d{hours}h{mins}m{secs}s")
    assert re.search(DURATION_PATTERN, text)


def test_zero_is_written_too() -> None:
    assert format_duration(0) == "0s"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1B", 1),
        ("512MiB", 2**29),
        ("80GiB", 80 * 2**30),
        ("4GB", 4 * 10**9),
        ("1kB", 1000),
        ("1KB", 1000),
        ("2TiB", 2**41),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("given", "message", "fix"),
    [
        ("512m", "thousandths of a byte on Kubernetes", "512MiB"),
        ("80G", "2^30 bytes to Slurm and 10^9 bytes to Kubernetes", "80GiB or 80GB"),
        ("80M", "2^20 bytes to Slurm and 10^6", "80MiB or 80MB"),
        ("80Gi", '"80Gi" is not a size', "write 80GiB"),
        ("80gb", "is not a size", "write 80GB"),
        ("80 GiB", "is not a size", "write 80GiB"),
        ("1.5GiB", "is not a size", "write 1536MiB"),
        (80, "80 has no unit", "80GiB"),
        ("80", '"80" has no unit', "80GiB"),
        ("0GiB", "not between 1B and 1 EiB", "80GiB"),
        ("9999999TiB", "not between", "80GiB"),
        ("lots", "is not a size", "80GiB"),
        ("0.5B", "is not a size", "80GiB"),
        ("1e3GB", "is not a size", "80GiB"),
        (None, "a text with a unit", "80GiB"),
    ],
)
def test_sizes_that_are_refused(given: object, message: str, fix: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_size(given)
    assert message in caught.value.message
    assert fix in caught.value.fix


@settings(deadline=None)
@given(st.integers(1, MAX_SIZE_BYTES))
def test_a_size_written_and_read_is_the_same(size_bytes: int) -> None:
    if size_bytes < 10**15:
        text = format_size(size_bytes)
        assert parse_size(text) == size_bytes
        assert re.search(SIZE_PATTERN, text)


@settings(deadline=None)
@given(st.integers(1, 1000), st.sampled_from(sorted(BYTES)))
def test_units_of_sizes_are_what_they_say(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number * BYTES[unit]


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    for parse in (parse_duration, parse_size):
        with contextlib.suppress(UnitError):
            assert parse(text) > 0
