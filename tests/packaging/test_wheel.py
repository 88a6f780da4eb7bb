"""The wheel is what people install: built, installed in a clean environment, used elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "files"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel and its launcher dependencies.

    The dependencies come from the environment that runs the tests, by a .pth file behind the
    wheel's own files; an editable install is not seen from there: its .pth is not followed.
    """
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=True)
    run(
        str(folder / "bin" / "pip"),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
        cwd=folder,
    )
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def run(*argv: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    result = subprocess.run(
        argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert not check or result.returncode == 0, f"{argv}\n{result.stdout}\n{result.stderr}"
    return result


def test_the_wheel_holds_templates_and_data_and_no_foreign_names(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"orchestrator", "trainer"}
    assert "orchestrator/_templates/local/node.sh.j2" in names
    assert "orchestrator/_templates/k8s/job.yaml.j2" in names
    assert "orchestrator/data/profiles.yaml" in names
    assert "trainer/node.py" in names


def test_slurm_k8s_and_templates_cannot_be_imported(clean: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.util as u, orchestrator, trainer\n"
        "assert '/clean' in orchestrator.__file__, orchestrator.__file__\n"
        "print([n for n in ('slurm', 'k8s', 'templates') if u.find_spec(n)])"
    )
    assert run(str(clean / "python"), "-c", code, cwd=tmp_path).stdout == "[]\n"


def test_validate_and_render_away_from_the_checkout(clean: Path, tmp_path: Path) -> None:
    job = tmp_path / "demo.yaml"
    job.write_bytes((ROOT / "examples" / "demo.yaml").read_bytes())
    orchestrate = str(clean / "orchestrate")
    assert "valid" in run(orchestrate, "validate", str(job), cwd=tmp_path).stdout
    run(orchestrate, "render", str(job), "-o", "out", cwd=tmp_path)
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (GOLDEN / f"demo.local.{path.name}").read_bytes()
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_the_trainers_command_wins_over_a_folder_of_that_name(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    said = run(str(clean / "orchestrate-trainer"), "export", "--help", cwd=tmp_path).stdout
    assert said.startswith("usage: orchestrate-trainer export [-h] SOURCE OUT")


@pytest.mark.e2e
def test_submit_of_an_example_trains_away_from_the_checkout(clean: Path, tmp_path: Path) -> None:
    job = tmp_path / "hello.yaml"
    job.write_bytes((ROOT / "examples" / "hello.yaml").read_bytes())
    result = run(str(clean / "orchestrate"), "submit", str(job), "--watch", cwd=tmp_path)
    assert "hello: DONE" in result.stdout
    assert (tmp_path / "runs" / "hello" / "DONE").is_file()
