"""profiles: which file wins, which is trusted, and faults in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import FaultsError, UserError
from orchestrator.profiles import ProfileSource, embedded_profiles, find_profiles
from orchestrator.trust import config_folder, trust

FILE = "clusters:\n  mine: {target: local, runs_root: /data}\n"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def write(path: Path, text: str = FILE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_embedded_profiles_hold_without_any_file(environ: dict[str, str], cwd: Path) -> None:
    source = find_profiles(None, environ, cwd)
    assert source.label == "embedded profiles"
    assert source.warnings == ()
    assert {name: p.target for name, p in source.profiles.items()} == {
        "local": "local",
        "slurm": "slurm",
        "kubernetes": "pytorchjob",
        "kubernetes-trainjob": "trainjob",
        "kubernetes-jobset": "jobset",
        "kubernetes-job": "job",
    }
    assert source.choose().name == "local"
    assert source.choose().runs_root == "./runs"
    assert source.choose("slurm").file == "embedded profiles"
    assert embedded_profiles() == source


def test_a_named_file_wins_over_all(environ: dict[str, str], cwd: Path) -> None:
    write(cwd / "a.yaml", FILE.replace("mine", "a"))
    write(cwd / "b.yaml", FILE.replace("mine", "b"))
    write(Path(environ["HOME"]) / ".config/orchestrate/clusters.yaml")
    environ["ORCHESTRATE_CLUSTERS"] = "b.yaml"
    source = find_profiles("a.yaml", environ, cwd)
    assert (source.label, source.own) == ("a.yaml (--clusters)", ("a",))
    source = find_profiles(None, environ, cwd)
    assert (source.label, source.own) == ("b.yaml ($ORCHESTRATE_CLUSTERS)", ("b",))
    del environ["ORCHESTRATE_CLUSTERS"]
    source = find_profiles(None, environ, cwd)
    assert source.own == ("mine",)
    assert source.label.endswith("/.config/orchestrate/clusters.yaml (user)")


def test_the_configuration_folder(tmp_path: Path) -> None:
    home = str(tmp_path)
    assert config_folder({"HOME": home}) == tmp_path / ".config/orchestrate"
    xdg = {"HOME": home, "XDG_CONFIG_HOME": str(tmp_path / "x")}
    assert config_folder(xdg) == tmp_path / "x/orchestrate"
    assert config_folder({"HOME": home, "XDG_CONFIG_HOME": "x"}) == tmp_path / ".config/orchestrate"
    assert config_folder({}) is None
    assert find_profiles(None, {}, tmp_path).label == "embedded profiles"


def test_a_file_in_the_working_folder_is_passed_over_until_trusted(
    environ: dict[str, str], cwd: Path
) -> None:
    here = write(cwd / "clusters.yaml")
    source = find_profiles(None, environ, cwd)
    assert source.label == "embedded profiles"
    assert "mine" not in source.profiles
    assert "is not used: not trusted" in source.warnings[0]
    assert str(here) in source.warnings[0]

    listed = trust(here, environ)
    assert listed == Path(environ["HOME"]) / ".config/orchestrate/trusted"
    source = find_profiles(None, environ, cwd)
    assert source.label == "clusters.yaml (working folder, trusted)"
    assert source.choose().runs_root == "/data"
    assert source.warnings == ()


def test_a_trusted_file_that_changes_is_trusted_no_more(environ: dict[str, str], cwd: Path) -> None:
    here = write(cwd / "clusters.yaml")
    trust(here, environ)
    write(here, FILE + "# more\n")
    source = find_profiles(None, environ, cwd)
    assert source.label == "embedded profiles"
    assert "changed since it was trusted" in source.warnings[0]
    trust(here, environ)
    assert find_profiles(None, environ, cwd).own == ("mine",)


def test_trust_holds_for_its_place_only(environ: dict[str, str], cwd: Path, tmp_path: Path) -> None:
    trust(write(cwd / "clusters.yaml"), environ)
    other = tmp_path / "other"
    write(other / "clusters.yaml")
    assert find_profiles(None, environ, other).label == "embedded profiles"


def test_an_untrusted_file_that_is_not_even_yaml_hinders_nobody(
    environ: dict[str, str], cwd: Path
) -> None:
    write(cwd / "clusters.yaml", "a: [")
    assert find_profiles(None, environ, cwd).choose().name == "local"


def test_what_cannot_be_trusted(environ: dict[str, str], cwd: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        trust(cwd / "none.yaml", environ)
    with pytest.raises(UserError, match="neither HOME nor XDG_CONFIG_HOME"):
        trust(write(cwd / "clusters.yaml"), {})
    with pytest.raises(UserError, match="line break"):
        trust(write(cwd / "a\nb" / "clusters.yaml"), environ)


def test_a_named_file_must_be_there(environ: dict[str, str], cwd: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: no such file"):
        find_profiles("none.yaml", environ, cwd)


def source_of(text: str, cwd: Path) -> ProfileSource:
    write(cwd / "c.yaml", text)
    return find_profiles("c.yaml", {}, cwd)


def test_embedded_profiles_stay_under_names_that_the_file_leaves_free(cwd: Path) -> None:
    source = source_of("clusters:\n  slurm: {target: local}\n  b: {target: slurm}\n", cwd)
    assert source.choose("slurm").target == "local"
    assert source.choose("slurm").file == "c.yaml"
    assert source.choose("local").file == "embedded profiles"


def test_which_profile_holds_without_a_name(cwd: Path) -> None:
    two = "clusters:\n  a: {target: local}\n  b: {target: slurm}\n"
    with pytest.raises(UserError, match=r"no default profile; choose one with --cluster: a, b"):
        source_of(two, cwd).choose()
    assert source_of(f"default: b\n{two}", cwd).choose().name == "b"
    assert source_of(FILE, cwd).choose().name == "mine"


def test_how_often_the_nodes_of_a_cluster_fail(cwd: Path) -> None:
    silent = source_of(FILE, cwd).choose()
    assert silent.mean_time_between_failures == 154 * 86400
    assert silent.origin("mean_time_between_failures") == "default"
    told = source_of(
        "clusters:\n  mine:\n    target: slurm\n    mean_time_between_failures: 30d\n", cwd
    )
    assert told.choose().mtbf_s(1) == 30 * 86400
    assert told.choose().mtbf_s(4) == 7.5 * 86400
    assert told.choose().origin("mean_time_between_failures") == "profile mine (c.yaml:4:5)"


def test_an_unknown_profile_is_answered_with_what_was_meant(cwd: Path) -> None:
    with pytest.raises(UserError, match='no profile "min"; did you mean "mine"') as caught:
        source_of(FILE, cwd).choose("min")
    assert "kubernetes" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where", "message", "fix"),
    [
        ("cluster: {}\nclusters: {}", "1:1", "unknown key", '"clusters"'),
        ("x: 1\nclusters: {}", "1:1", "unknown key", "clusters, default"),
        ("default: a", "1:1", "a map of profiles is required", "target"),
        ("clusters: [a]", "1:1", "a map of profiles is required", "target"),
        ("clusters: {a: b}", "1:15", "a map belongs here", "target"),
        ("clusters: {a: {}}", "1:12", "required, and not given", "target"),
        (
            "clusters: {a: {target: slrm}}",
            "1:24",
            "none of local, slurm, pytorchjob",
            '"slurm"',
        ),
        ("clusters: {a: {target: 1}}", "1:24", "none of local", ""),
        ("clusters: {a: {target: local, run_root: x}}", "1:31", "unknown key", '"runs_root"'),
        ("clusters: {a: {target: local, zzz: x}}", "1:31", "unknown key", "the keys here are"),
        ("clusters: {a: {target: local, name: x}}", "1:31", "unknown key", "remove"),
        ("clusters: {a: {target: local, document: x}}", "1:31", "unknown key", "remove"),
        ("clusters: {a: {target: local, runs_root: 1}}", "1:42", "text", ""),
        ("clusters: {a: {target: local, defaults: [1]}}", "1:41", "belongs here, not a list", ""),
        (
            "clusters: {a: {target: local, defaults: {resources: {node: 1}}}}",
            "1:54",
            "unknown key",
            '"nodes"',
        ),
        (
            "clusters: {a: {target: local, mean_time_between_failures: 154}}",
            "1:59",
            "154 has no unit",
            "154h",
        ),
        ("clusters: {a: {target: local, mean_time_between: 9d}}", "1:31", "unknown", '"mean_time_'),
        ("default: b\nclusters: {a: {target: local}}", "1:10", 'no profile "b"', "name one"),
        ("default: [a]\nclusters: {a: {target: local}}", "1:10", "no profile", "name one"),
        ("clusters: {a: {target: local}, a: {target: slurm}}", "1:32", "already", "remove one"),
        ("a: [", "1:4", "not closed", ""),
    ],
)
def test_faults_in_a_file(text: str, where: str, message: str, fix: str, cwd: Path) -> None:
    with pytest.raises(FaultsError) as caught:
        source_of(text, cwd)
    fault = caught.value.faults[0]
    assert fault.where() == f"c.yaml:{where}"
    assert message in fault.message
    assert fix in fault.fix
    assert len(caught.value.faults) == (2 if text.startswith("default: a") else 1)
