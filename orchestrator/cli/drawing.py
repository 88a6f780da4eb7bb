"""Drawing into a file with matplotlib, which is imported here alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError

FORMATS = (".png", ".svg")
# More bars cannot be told apart on a page.
MOST_BARS = 40


def draw(file: Path, num_bars: int, fill: Callable[[Any], None]) -> None:
    """Make a picture that `fill` draws into its figure. The same content gives the same svg.

    Raises UserError: another kind of file, no matplotlib, nothing or too much to draw, no folder.
    """
    if file.suffix.lower() not in FORMATS:
        raise UserError(f"--plot: {file}: write a name that ends with .png or .svg")
    if not 0 < num_bars <= MOST_BARS:
        raise UserError(f"--plot: {num_bars} bars to draw; from 1 to {MOST_BARS} are possible")
    matplotlib = _matplotlib()
    with matplotlib.rc_context({"svg.hashsalt": "orchestrate", "svg.fonttype": "none"}):
        from matplotlib.figure import Figure  # never pyplot: it looks for a screen

        figure = Figure(figsize=(max(7.0, 1.0 + 0.6 * num_bars), 8), layout="constrained")
        fill(figure)
        try:
            figure.savefig(file, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)
        except OSError as error:
            raise UserError(f"--plot: {file}: cannot write ({error.strerror})") from None


def _matplotlib() -> Any:
    try:
        import matplotlib  # late: few commands need it, and few have it
    except ImportError:
        raise UserError(
            "--plot needs matplotlib: pip install 'orchestrate-training[report]'"
        ) from None
    matplotlib.use("agg")
    return matplotlib
