"""What a job file and its folders are made of arrives unchanged, and none of it is executed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.backends.base import State
from slurm.cluster import Cluster
from slurm.probing import Probe, rendered, seen

FOLDER = "r u'n\"s %j%%\n$(touch gone)`touch gone` ;touch gone; k=v,w ü#!*&|<>~"


# What sbatch, bash and this tool may take for more than itself, beside ordinary characters.
LINES = st.text(st.sampled_from("ab ü\\'\"$`#;,=*~!&|<>%(){}[]-@:"), max_size=20)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(middle=LINES)
def test_sbatch_reads_what_was_written(site: Cluster, tmp_path: Path, middle: str) -> None:
    script = tmp_path / "job.sh"
    script.write_text(rendered({}, comment=f"x{middle}x").files["job.sh"])
    job = site.client("sbatch", "--parsable", "--hold", "--output=/dev/null", script).strip()
    assert comment_of(site, job) == f"x{middle}x"
    site.client("scancel", job)


def comment_of(site: Cluster, job: str) -> str:
    return site.client("squeue", "-h", "-t", "all", "-j", job, "-o", "%k").rstrip("\n")


@pytest.mark.case("L22", "L23")
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_hostile_folders_values_and_comment(site: Cluster, tmp_path: Path, launcher: str) -> None:
    (tmp_path / FOLDER).mkdir()
    probe = Probe(site, tmp_path / FOLDER)
    gone = tmp_path / "gone"
    run = f"touch {gone}"
    env = {
        "COMMAND": f"$({run}) `{run}` ; {run} & {run} | {run}",
        "QUOTES": f"'; {run}; ' \"; {run}; \" \\'; {run}; #",
        "LINES": f"a\n{run}\n#SBATCH --comment=other\r\t\x1b[0m",
        "COMMAS": "a,b=c,ALL,", "UNICODE": "ü ≠ 火 \u202e", "EMPTY": "",
        "lower_Case": "${HOME} ~ * \\",
    }  # fmt: skip
    comment = f'it\'s "a" $({run}) `{run}` \\ # ; k=v,w ü'
    job = {"resources": {"nodes": 2}, "launcher": launcher, "env": env}
    handle = probe.submit("done", job, comment=comment)
    probe.ends(handle, State.DONE)
    ranks = seen(handle)
    assert len(ranks) == 2
    for rank in ranks:
        assert {name: rank["environ"].get(name) for name in env} == env
        assert rank["workdir"] == str(probe.folder)
        assert rank["environ"]["ORCHESTRATE_RUN_DIR"] == str(handle.run_dir)
    assert comment_of(site, handle.ids["job"]) == comment
    assert handle.run_dir.parent == probe.folder / "runs"
    assert not list(tmp_path.rglob("gone"))
