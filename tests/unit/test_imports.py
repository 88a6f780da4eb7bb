"""What is imported when: a login node pays for what a command needs and for nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "kubernetes", "rich", "submitit")


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a new interpreter holds after running `code`."""
    code += "\nimport sys\nprint(*{m.split('.')[0] for m in sys.modules})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("module", HEAVY)
def test_importing_orchestrator_loads_no_heavy_module(module: str) -> None:
    assert module not in loaded_after("import orchestrator, orchestrator.cli")


def test_version_costs_click_and_nothing_else() -> None:
    loaded = loaded_after(
        "from orchestrator.cli import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    pass"
    )
    assert "click" in loaded
    assert not loaded & {"pydantic", "yaml", "jinja2", "rich"}


def test_plan_loads_nothing_heavy(root: object) -> None:
    loaded = loaded_after(
        "from orchestrator.cli import main\n"
        f"try:\n    main(['plan', {f'{root}/examples/auto-strategy.yaml'!r}])\n"
        "except SystemExit:\n    pass"
    )
    assert {"pydantic", "yaml"} <= loaded
    assert not loaded & {*HEAVY, "matplotlib", "jinja2"}


def test_render_loads_neither_rich_nor_torch(root: object) -> None:
    loaded = loaded_after(
        "from orchestrator.cli import main\n"
        f"try:\n    main(['render', {f'{root}/examples/demo.yaml'!r}])\n"
        "except SystemExit:\n    pass"
    )
    assert {"jinja2", "pydantic", "yaml"} <= loaded
    assert not loaded & set(HEAVY)
