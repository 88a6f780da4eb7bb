"""Colours of one legend can be told apart, in both schemes, whatever one's eyes."""

from __future__ import annotations

import math
import re
from itertools import combinations

import pytest

from orchestrator.contract import EXIT_NAMES
from orchestrator.goodput import KINDS
from orchestrator.report.timeline import css
from orchestrator.template_folder import template_folder

STYLE = (template_folder() / "report" / "style.css").read_text()
LEGENDS = {
    "curves": [f".c{number}" for number in range(8)],
    "time": [f".k-{kind}" for kind in KINDS],
    "attempts": [
        f".k-{css(result)}" for result in (*EXIT_NAMES.values(), "drained", "lost", "not ended")
    ]
    + [".k-saved"],
}
NEAREST = 12.0  # CIE 1976 colour difference; about 2.3 can just be seen side by side
# Machado, Oliveira, Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency", severity 1.0, for linear RGB.
EYES = {
    "usual": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
                   (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                     (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                   (0.004733, 0.691367, 0.303900)),
}  # fmt: skip
# IEC 61966-2-1: linear sRGB to CIE XYZ, over the white point D65.
TO_XYZ = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0178, 0.1095, 0.8727))


def variables(scheme: str) -> dict[str, str]:
    """Colours by the names of the variables; those of dark come over those of light."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]
    given = light + (dark if scheme == "dark" else "")
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", given))


def colour(selector: str, known: dict[str, str]) -> str:
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", STYLE)
    names = [body for heads, body in rules if selector in re.split(r",\s*", heads.strip())]
    found = re.search(r"--c: var\((--[\w-]+)\)", " ".join(names))
    assert found, selector
    return known[found[1]]


def linear(value: int) -> float:
    share = value / 255
    return share / 12.92 if share <= 0.04045 else float(((share + 0.055) / 1.055) ** 2.4)


def times(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix]


def lab(value: str, eyes: str) -> list[float]:
    """CIE L*a*b* of a colour as such eyes see it."""
    rgb = [linear(int(value[at : at + 2], 16)) for at in (1, 3, 5)]
    seen = [min(1.0, max(0.0, one)) for one in times(EYES[eyes], rgb)]
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in times(TO_XYZ, seen))
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("legend", LEGENDS)
@pytest.mark.parametrize("eyes", EYES)
def test_no_two_of_a_legend_look_alike(scheme: str, legend: str, eyes: str) -> None:
    known = variables(scheme)
    seen = {name: lab(colour(name, known), eyes) for name in LEGENDS[legend]}
    near = [pair for pair in combinations(seen, 2)
            if math.dist(seen[pair[0]], seen[pair[1]]) < NEAREST]  # fmt: skip
    assert near == []


def test_a_line_of_each_colour_has_its_own_dashes_too() -> None:
    dashes = re.findall(r"\.d([1-4]) \{ stroke-dasharray: ([^;]+);", STYLE)
    assert [number for number, _ in dashes] == ["1", "2", "3", "4"]
    assert len({pattern for _, pattern in dashes}) == 4
