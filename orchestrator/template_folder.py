"""Where the templates are."""

from __future__ import annotations

from pathlib import Path


def template_folder() -> Path:
    """The templates in an installed package, or those of a checkout."""
    package = Path(__file__).parent
    installed = package / "_templates"
    return installed if installed.is_dir() else package.parent / "templates"
