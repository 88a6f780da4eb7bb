"""Reference pages are made from the code and compared; `make golden` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from orchestrator.cards import FORMATS, cards, links
from orchestrator.cli import COMMANDS, orchestrate
from orchestrator.fabrics import Pods, names, preset
from orchestrator.spec import fields
from orchestrator.spec.hardware import HardwareFacts
from orchestrator.spec.keys import FieldInfo, part_fields

ROOT = Path(__file__).resolve().parent.parent.parent
REFERENCE = ROOT / "docs" / "reference"


def commands_page() -> str:
    blocks = ["# Commands\n\nMade from `--help` by `make golden`.\n"]
    runner = CliRunner()
    for name in ["", *COMMANDS]:
        argv = [name, "--help"] if name else ["--help"]
        result = runner.invoke(orchestrate, argv, prog_name="orchestrate", terminal_width=88)
        assert result.exit_code == 0, result.output
        title = f"orchestrate {name}".rstrip()
        blocks.append(f"## {title}\n\n```text\n{result.output.rstrip()}\n```\n")
    return "\n".join(blocks)


def job_file_page() -> str:
    head = (
        "# The job file\n\nMade from the models' own descriptions by `make golden`; "
        "`orchestrate explain KEY` shows one row.\n"
    )
    rows = [
        head,
        "| key | type | default | meaning |\n|---|---|---|---|",
    ]
    rows += map(key_row, fields())
    return "\n".join(rows) + "\n"


def key_row(field: FieldInfo) -> str:
    return row(f"`{field.path}`", field.type, field.default, field.description)


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def hardware_page() -> str:
    head = (
        "# Cards and links\n\nMade from `orchestrator/data/cards.yaml`, `links.yaml` and the "
        "profile's own descriptions by `make golden`. How to use them: "
        "[cluster profiles](../profiles.md#hardware).\n\nMemory in GiB is what the driver "
        "reports, in GB what the card is sold with.\n"
    )
    rows = [
        head,
        "| key of a profile | type | default | meaning |\n|---|---|---|---|",
        *map(key_row, part_fields(HardwareFacts, "hardware.")),
        "\nPeaks without sparsity, in TFLOP/s; one direction of a link.\n",
        "| card | memory | fp32 | tf32 | bf16 | fp16 | GB/s | link | also called | source |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for card in cards().values():
        unit, unit_bytes = ("GB", 1e9) if card.memory_is_sold else ("GiB", 2**30)
        size = f"{card.memory_bytes / unit_bytes:.4g} {unit}" if card.memory_bytes else ""
        peaks = (f"{card.peak[one] / 1e12:g}" if one in card.peak else "" for one in FORMATS)
        speed = f"{(card.memory_bandwidth or 0) / 1e9:g}"
        others = ", ".join(card.aliases)
        rows.append(row(card.name, size, *peaks, speed, card.link, others, card.source))
    rows += ["\n| link | GB/s | latency in µs | source |", "|---|---|---|---|"]
    for link in links().values():
        speed, latency = f"{link.bandwidth / 1e9:g}", f"{link.latency_s * 1e6:g}"
        rows.append(row(link.name, speed, latency, link.source))
    return "\n".join(rows) + "\n"


def fabrics_page() -> str:
    head = (
        "# Presets of network fabrics\n\nMade from `orchestrator/data/fabrics` by `make golden`; "
        "`orchestrate fabric show NAME` gives reasons and sources. How to use them: "
        "[network fabrics](../fabrics.md).\n"
    )
    rows = [
        head,
        "| fabric | for | backend | sets | must be reported between nodes | pods need | tried |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in map(preset, names()):
        sets = [
            f"`{name}={setting.value}`"
            + " (not in pods without the node's network)" * setting.of_node
            + " (not in pods without a volume that has it)" * setting.node_file
            for name, setting in found.variables.items()
        ]
        sets += [f"`source {found.script.path}`"] if found.script else []
        sets += [f"`{path}` in `LD_LIBRARY_PATH`" for path in found.library_path]
        pods = _pods_words(found.kubernetes) if found.kubernetes else []
        promised = [f"`{name}`" for name in found.promises]
        tried = "yes" if found.tried else "no"
        cells = [found.name, found.summary, ", ".join(found.backends)]
        cells += [" ".join(sets), " or ".join(promised), ", ".join(pods), tried]
        rows.append(row(*cells))
    return "\n".join(rows) + "\n"


def _pods_words(pods: Pods) -> list[str]:
    words = [f"GPUs as `{pods.gpu_resource}`"] if pods.gpu_resource else []
    words += [f"`{name}: {count}`" for name, count in pods.extra_resources.items()]
    words += ["IPC_LOCK"] * pods.rdma + ["the node's network"] * pods.host_network
    words += ["folders of the node"] * bool(pods.volumes)
    words += ["the cards, by the site"] * bool(pods.by_site)
    return words + [f"the side-car `{sidecar.name}`" for sidecar in pods.sidecars]


PAGES = {
    "commands.md": commands_page,
    "fabrics.md": fabrics_page,
    "hardware.md": hardware_page,
    "job-file.md": job_file_page,
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_says(name: str, update_golden: bool) -> None:
    text = PAGES[name]()
    page = REFERENCE / name
    if update_golden:
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, "utf-8")
    assert page.read_text("utf-8") == text, f"{name} differs; make golden, read the diff"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_help_has_an_example_and_a_short_line(name: str) -> None:
    command = orchestrate.get_command(click.Context(orchestrate), name)
    assert command is not None
    assert "Example" in (command.help or "")
    assert len(command.get_short_help_str(limit=200)) > 10


def test_links_of_the_docs_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
