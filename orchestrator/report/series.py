"""A curve in bounded memory, that keeps its spikes however long the run is."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator

Point = tuple[int, float]
MAX_BUCKETS = 600  # about one for each pixel of a chart
BUCKET_POINTS = 32  # that are held before a bucket is thinned, since that takes its time


def thinned(points: list[Point]) -> list[Point]:
    """The first, the lowest, the highest and the last of some points, in their order."""
    if len(points) <= 2:
        return points
    lowest = min(points, key=_height)
    highest = max(points, key=_height)
    return sorted({points[0], lowest, highest, points[-1]})


def _height(point: Point) -> float:
    return point[1]


class Series:
    """Points by rising x, each a whole number from 0.

    They lie in buckets of equal width, each of which keeps its first, lowest, highest and last
    point. With too many buckets their width doubles, so that a short series is whole. A point at or
    below the last x takes the place of all from there on: the step was made again.
    """

    def __init__(self, max_buckets: int = MAX_BUCKETS) -> None:
        self._max = max_buckets
        self._width = 1
        self._buckets: list[list[Point]] = []

    def add(self, x: int, y: float) -> None:
        """Take a point in; one that is no finite number is left out."""
        if not math.isfinite(y):
            return
        self.cut(x)
        if not self._buckets or self._index(self._buckets[-1]) != x // self._width:
            self._buckets.append([])
        bucket = self._buckets[-1]
        bucket.append((x, y))
        if len(bucket) == BUCKET_POINTS:
            self._buckets[-1] = thinned(bucket)
        while len(self._buckets) > self._max:
            self._widen()

    def cut(self, x: int) -> None:
        """Leave out what lies at `x` and beyond."""
        while self._buckets and self._buckets[-1][-1][0] >= x:
            kept = [point for point in self._buckets.pop() if point[0] < x]
            if kept:
                self._buckets.append(kept)

    def shorten(self, x: int) -> None:
        """End the line at `x`, at its height there, if it goes beyond."""
        after: Point | None = None
        for point in self._backwards():
            if point[0] <= x:
                if after is not None:
                    height = Between([point, after])(x)
                    self.cut(x)
                    self.add(x, height)
                return
            after = point

    def _backwards(self) -> Iterator[Point]:
        for bucket in reversed(self._buckets):
            yield from reversed(bucket)

    def points(self) -> list[Point]:
        """What is kept, in order: at most four points a bucket."""
        return [point for bucket in self._buckets for point in thinned(bucket)]

    def __bool__(self) -> bool:
        return bool(self._buckets)

    @property
    def last(self) -> Point | None:
        return self._buckets[-1][-1] if self._buckets else None

    @property
    def lowest(self) -> Point | None:
        return min(self.points(), key=_height, default=None)

    @property
    def highest(self) -> Point | None:
        return max(self.points(), key=_height, default=None)

    def _index(self, bucket: list[Point]) -> int:
        return bucket[0][0] // self._width

    def _widen(self) -> None:
        self._width *= 2
        merged: list[list[Point]] = []
        for bucket in map(thinned, self._buckets):
            if merged and self._index(merged[-1]) == self._index(bucket):
                merged[-1] = thinned(merged[-1] + bucket)
            else:
                merged.append(bucket)
        self._buckets = merged


class Between:
    """A curve's height anywhere, on straight lines between its points; level beyond both ends."""

    def __init__(self, points: list[Point]) -> None:
        self._points = points
        self._xs = [x for x, _ in points]

    def __call__(self, x: float) -> float:
        """Raises IndexError if there is no point."""
        right = bisect_right(self._xs, x)
        if right in (0, len(self._xs)):
            return self._points[0 if right == 0 else -1][1]
        (x0, y0), (x1, y1) = self._points[right - 1 : right + 1]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
