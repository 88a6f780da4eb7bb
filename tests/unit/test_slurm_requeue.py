"""When the batch script asks Slurm to start the job again, under real bash with stubs of Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_slurm_script import JOB, Call, Script, only, rendered, shown


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    return Script(tmp_path_factory.mktemp("scripts"))


def ended(calls: list[Call]) -> list[str]:
    """What the script told Slurm after the step."""
    return [" ".join(argv[1:]) for argv, _ in calls if argv[1] in ("requeue", "17", "9_2")]


def test_what_failed_is_requeued_with_a_note_of_it(script: Script) -> None:
    assert ended(script.run(rendered(JOB), SRUN_CODE="1")) == ["requeue 17"]
    assert (script.run_dir / "slurm-requeues").read_text() == "17.0 1\n"
    again = {"SRUN_CODE": "75", "SLURM_RESTART_COUNT": "3", "SHOWN": shown("3")}
    assert ended(script.run(rendered(JOB), **again)) == ["requeue 17"]
    assert (script.run_dir / "slurm-requeues").read_text() == "17.3 75\n"


@pytest.mark.parametrize("code", ["0", "78"])
def test_what_is_finished_or_misconfigured_is_not_requeued(script: Script, code: str) -> None:
    assert not ended(script.run(rendered(JOB), SRUN_CODE=code))


def test_what_slurm_has_requeued_itself_is_not_requeued_again(script: Script) -> None:
    """On a node that was cut off the script may end when the next attempt runs."""
    assert not ended(script.run(rendered(JOB), SRUN_CODE="1", SHOWN=shown("1")))
    assert not (script.run_dir / "slurm-requeues").exists()


def test_an_element_of_a_sweep_has_its_own_run_folder_and_is_requeued_alone(
    script: Script,
) -> None:
    element = {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "2"}
    text = rendered({**JOB, "sweep": {"grid": {"train.seed": [1, 2, 3]}, "at_once": 2}})
    folder = script.run_dir / "2"
    folder.mkdir()
    (folder / "launch").symlink_to("../launch")
    calls = script.run(text, SRUN_CODE="1", **element)
    argv, _ = only(calls, "srun")
    assert argv[argv.index("--run-dir") + 1] == str(folder)
    assert argv[argv.index("--config") + 1] == str(folder / "rendered/trainer.json")
    assert argv[argv.index("--id") + 1] == "9_2.0"
    assert ended(calls) == ["requeue 9_2"]
    assert (folder / "slurm-requeues").read_text() == "9_2.0 1\n"


@pytest.mark.parametrize("away", [{"SHOWN": ""}, {"REFUSED": "yes"}])
def test_an_answer_of_slurm_is_awaited_for_two_minutes(
    script: Script, away: dict[str, str]
) -> None:
    calls = script.run(rendered(JOB), SRUN_CODE="1", **away)
    pauses = [argv[1] for argv, _ in calls if Path(argv[0]).name == "sleep"]
    assert pauses == ["10"] * 12
    assert script.code == 1
    # Refused is taken back: should Slurm requeue the job itself, that is no failure of the run.
    noted = script.run_dir / "slurm-requeues"
    assert not noted.exists() or noted.read_text().splitlines()[-1] == "17.0 void"


def test_without_a_verdict_the_code_is_the_steps(script: Script) -> None:
    text = rendered(JOB).replace('batch.py" next', 'gone.py" next')
    assert not ended(script.run(text, SRUN_CODE="75"))
    assert script.code == 75
