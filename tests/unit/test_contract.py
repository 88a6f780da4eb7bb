"""docs/contract.md, the launcher and the program say the same."""

from __future__ import annotations

import argparse
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import contract
from orchestrator.contract import RunPaths, drain_limit_s

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
SHARED = ("ENV_", "EXIT_", "OUTCOME_", "KIND_", "METRICS_", "LEDGER_", "DRAIN_", "DONE_",
          "ATTEMPTS_", "CHECKPOINTS_", "ERRORS_", "GRACE_", "HANG_", "HANGS_",
          "VERSION")  # fmt: skip


def load(path: str) -> ModuleType:
    """A file of the trainer, without its package."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[module.__name__] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def constants(module: ModuleType) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if name.startswith(SHARED) and isinstance(value, str | int)
    }


def table_column(heading: str) -> list[str]:
    """The first column of the table below a heading of the page, without the backticks."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [match.strip("`") for match in re.findall(r"^\| (`[^`]+`) \|", section, re.MULTILINE)]


@pytest.mark.parametrize("path", ["trainer/contract.py", "trainer/node.py"])
def test_the_programs_constants_are_those_of_the_launcher(path: str) -> None:
    theirs, ours = constants(load(path)), constants(contract)
    assert theirs
    assert theirs == {name: ours.get(name) for name in theirs}


def test_the_variables_are_those_of_the_page() -> None:
    ours = {value for name, value in vars(contract).items() if name.startswith("ENV_")}
    assert set(table_column("Environment")) == ours


def test_the_exit_codes_are_those_of_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", PAGE, re.MULTILINE)
    assert {int(code): name for code, name in rows} == contract.EXIT_NAMES


def test_the_files_are_those_of_the_page() -> None:
    paths = RunPaths(Path("/run"))
    ours = {
        paths.job, paths.receipt, paths.rendered, paths.attempts / "N",
        paths.attempts / "N" / contract.OWNER_FILE, paths.attempts / "N" / contract.DRAIN_FILE,
        paths.attempts / "N" / contract.OUTCOME_FILE, paths.attempts / "N" / contract.END_FILE,
        paths.attempts / "N" / contract.ERRORS_DIR / "rank-R.json",
        paths.attempts / "N" / contract.HANG_FILE, paths.attempts / "N" / contract.HANGS_DIR,
        paths.attempts / "N" / contract.LOGS_DIR / "rank-R.log",
        paths.checkpoints, paths.metrics, paths.ledger, paths.grace, paths.done,
    }  # fmt: skip
    assert {Path("/run", name) for name in table_column("The run folder")} == ours


def test_the_page_has_the_words_of_outcomes_and_errors() -> None:
    outcomes = f'"outcome": "{contract.OUTCOME_DONE}" | "{contract.OUTCOME_DRAINED}"'
    kinds = '"kind": ' + " | ".join(
        f'"{kind}"'
        for kind in (contract.KIND_CONFIGURATION, contract.KIND_FAILURE, contract.KIND_HANG)
    )
    assert outcomes in PAGE
    assert kinds in PAGE
    assert f"`{contract.METRICS_TAG}`" in PAGE


@pytest.mark.parametrize(
    ("grace", "limit_s"),
    [('{"version": 1, "seconds": 50}', 50), ('{"version": 1, "seconds": 5}', 20),
     ('{"version": 1, "seconds": 1e9}', 200), ('{"seconds": Infinity}', 200),
     ('{"seconds": NaN}', 20), ('{"seconds": "soon"}', 20), ('{"version": 1}', 20), ("[]", 20),
     ("", 20), ("half of a fi", 20)],
)  # fmt: skip
@pytest.mark.case("T20")
def test_both_sides_give_a_stop_the_same_time(tmp_path: Path, grace: str, limit_s: float) -> None:
    (tmp_path / "grace.json").write_text(grace)
    args = argparse.Namespace(run_dir=str(tmp_path), shutdown_timeout_s=20)
    assert load("trainer/node.py").drain_limit_s(args) == limit_s
    assert drain_limit_s(20, grace.encode()) == limit_s


@given(number=st.integers(1, 10**6), rank=st.integers(0, 99_999))
def test_rank_files_sort_by_rank(number: int, rank: int) -> None:
    paths = RunPaths(Path("/run"))
    assert paths.log(number, rank).name < paths.log(number, rank + 1).name or rank == 99_999
    assert paths.error(number, rank).parent == paths.attempt(number) / "errors"
    assert paths.drain(number) == Path(f"/run/attempts/{number}/drain")


@given(numbers=st.sets(st.integers(1, 2000), max_size=5))
def test_the_newest_attempt_is_the_highest_number(
    tmp_path_factory: pytest.TempPathFactory, numbers: set[int]
) -> None:
    paths = RunPaths(tmp_path_factory.mktemp("run"))
    assert paths.newest_attempt() == 0
    for number in numbers:
        paths.attempt(number).mkdir(parents=True)
    assert paths.newest_attempt() == max(numbers, default=0)
