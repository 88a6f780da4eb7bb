"""`orchestrate render`: the files that a submit would send."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import (
    faults_as_json,
    job_argument,
    json_option,
    print_json,
    say,
    say_data,
    set_option,
)

if TYPE_CHECKING:
    from orchestrator.cli.common import Loaded
    from orchestrator.render import Rendered
