"""Presets of fabrics, and the list of the libraries' variables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli import orchestrate
from orchestrator.errors import FaultsError, UserError
from orchestrator.fabrics import FOLDER, conflicts, lint, names, preset
from orchestrator.variables import find, is_communication, libraries, remark


@pytest.mark.parametrize("name", names())
def test_each_preset_is_of_the_form_and_has_names_that_libraries_have(name: str) -> None:
    found = preset(name)
    assert (found.name, lint(found)) == (name, [])
    for variable, setting in found.variables.items():
        known = find(variable)
        assert known is not None or not is_communication(variable), variable
        assert setting.since == {} or known is not None


# Of drivers, which have no list here: CUDA programming guide, ROCm and Level Zero documentation.
DRIVERS = {"CUDA_DEVICE_ORDER", "HSA_FORCE_FINE_GRAIN_PCIE", "ZE_FLAT_DEVICE_HIERARCHY"}


def release(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]


@pytest.mark.parametrize("name", names())
def test_each_variable_is_one_of_the_releases_that_are_named(name: str) -> None:
    """In the list of its library, not gone there, and with the release that brought it where that
    is younger than the oldest of the list."""
    for variable, setting in preset(name).variables.items():
        known = find(variable)
        if known is None:
            assert variable in DRIVERS
            continue
        assert (known.until, known.use) == ("", ""), variable
        assert set(setting.since) <= {known.library}, variable
        if known.library == "nccl":
            oldest, newest = libraries()["nccl"].versions.split(" to ")
            least = setting.since.get("nccl", oldest)
            assert release(known.since or "0") <= release(least) <= release(newest), variable


@pytest.mark.parametrize("name", names())
def test_what_a_preset_leaves_alone_is_a_name_too(name: str) -> None:
    for variable in preset(name).leave:
        assert find(variable) is not None or not is_communication(variable), variable


def test_no_preset_states_what_the_library_does_by_itself() -> None:
    """Defaults of NCCL 2.30, from its user guide."""
    defaults = {
        "NCCL_IB_TIMEOUT": "20", "NCCL_IB_RETRY_CNT": "7", "NCCL_IB_GID_INDEX": "-1",
        "NCCL_IB_ROCE_VERSION_NUM": "2", "NCCL_IB_QPS_PER_CONNECTION": "1", "NCCL_IB_TC": "-1",
        "NCCL_IB_PCI_RELAXED_ORDERING": "2", "NCCL_CROSS_NIC": "2", "NCCL_IB_MERGE_NICS": "1",
        "NCCL_DMABUF_ENABLE": "1", "NCCL_P2P_NET_CHUNKSIZE": "131072", "NCCL_MNNVL_ENABLE": "2",
        "NCCL_RAS_ENABLE": "1", "NCCL_NVLS_ENABLE": "2",
    }  # fmt: skip
    for name in names():
        own = preset(name).variables
        assert not [v for v in own if defaults.get(v) == own[v].value], name


def test_a_preset_takes_over_what_it_extends() -> None:
    oldest, old = preset("efa-ofi-1.5"), preset("efa-ofi-1.6")
    assert {"FI_PROVIDER", "NCCL_PROTO", "FI_EFA_USE_DEVICE_RDMA", "FI_EFA_USE_HUGE_PAGE"} <= set(
        oldest.variables
    )
    assert "FI_PROVIDER" in old.leave
    assert "FI_PROVIDER" not in oldest.leave  # it sets it
    assert oldest.kubernetes == preset("efa").kubernetes


def test_what_names_the_node_does_so_with_another_value(tmp_path: Path) -> None:
    """Until the file itself says otherwise, over any number of files."""
    head = "version: 1\nsummary: s\nbackends: [nccl]\nreviewed: now\ntried: true\n"
    variable = "variables: {{{}: {{value: x, why: w, source: s{}}}}}\n"
    for name, extends, own in [
        ("a", "efa", variable.format("NCCL_SOCKET_IFNAME", "")),
        ("b", "./a.yaml", variable.format("NCCL_SOCKET_IFNAME", "")),
        ("c", "./b.yaml", variable.format("NCCL_SOCKET_IFNAME", ", of_node: false")),
        ("d", "azure-nd-h100-v5", variable.format("NCCL_TOPO_FILE", "")),
    ]:
        (tmp_path / f"{name}.yaml").write_text(f"{head}name: {name}\nextends: {extends}\n{own}")
    a, b, c = (preset(f"{tmp_path}/{n}.yaml").variables["NCCL_SOCKET_IFNAME"] for n in "abc")
    assert [(s.value, s.of_node) for s in (a, b, c)] == [("x", True), ("x", True), ("x", False)]
    assert preset(f"{tmp_path}/d.yaml").variables["NCCL_TOPO_FILE"].node_file


def test_the_users_value_holds_and_is_told() -> None:
    given = {"NCCL_IB_HCA": "=mlx5_0", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "INFO"}
    told = {conflict.name: conflict.message for conflict in conflicts(preset("infiniband"), given)}
    assert set(told) == {"NCCL_IB_HCA", "NCCL_IB_DISABLE"}
    assert "'mlx5' in the fabric infiniband" in told["NCCL_IB_HCA"]
    assert "'=mlx5_0' here, which holds" in told["NCCL_IB_HCA"]
    assert "would turn InfiniBand off" in told["NCCL_IB_DISABLE"]
    assert conflicts(preset("infiniband"), {"NCCL_IB_HCA": "mlx5"}) == []


@pytest.mark.parametrize(
    ("name", "message", "fix"),
    [
        ("NCCL_ASYNC_ERROR_HANDLING", "an old name", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("NCCL_IB_GDR_LEVEL", "does nothing since nccl 2.4", "NCCL_NET_GDR_LEVEL"),
        ("NCCL_TREE_THRESHOLD", "does nothing since nccl 2.5", "remove it"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "an old name", "TORCH_FR_BUFFER_SIZE"),
        ("NCCL_SOCKET_IFNAM", "not among the names of", "did you mean NCCL_SOCKET_IFNAME?"),
        ("FI_EFA_USE_HUGEPAGE", "not among the names of", "did you mean FI_EFA_USE_HUGE_PAGE?"),
        ("UCX_NET_DEVICE", "not among the names of", "did you mean UCX_NET_DEVICES?"),
        ("HCCL_CONECT_TIMEOUT", "not among the names of", "did you mean HCCL_CONNECT_TIMEOUT?"),
        ("CCL_ATL_TRANSPRT", "not among the names of", "did you mean CCL_ATL_TRANSPORT?"),
        ("GLOO_SOCKET_IFNAMES", "not among the names of", "did you mean GLOO_SOCKET_IFNAME?"),
        ("NCCL_HEARTBEAT_TIMEOUT_SEC", "not among", "mean TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC?"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT", "not among", "mean TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC?"),
        ("NCCL_IB_TIMEOUTS", "not among", "did you mean NCCL_IB_TIMEOUT?"),
        ("NCCL_TIMEOUT", "no variable of any library", "write timeouts.step"),
        ("NCCL_TIMEOUT_MS", "the process group's timeout", "write timeouts.step"),
        ("TORCH_NCCL_TIMEOUT", "the process group's timeout", "write timeouts.step"),
        ("TORCH_NCCL_BLOCKING_WAIT_TIMEOUT", "process group's timeout", "write timeouts.step"),
        ("GLOO_TIMEOUT_SECONDS", "the process group's timeout", "write timeouts.step"),
        ("HCCL_TIMEOUT", "the process group's timeout", "write timeouts.step"),
        ("UCX_ZZZZZZZZ", "a list that is not whole", "check its spelling"),
    ],
)
def test_names_that_are_not_right_are_found(name: str, message: str, fix: str) -> None:
    said = remark(name)
    assert said is not None
    assert message in said.message
    assert fix in said.fix


def test_timeouts_that_libraries_have_are_left_to_them() -> None:
    known = [v for lib in libraries().values() for v in lib.variables if "TIMEOUT" in v]
    assert {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "NCCL_IB_TIMEOUT", "HCCL_EXEC_TIMEOUT"} <= set(
        known
    )
    assert [name for name in known if remark(name)] == []


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "PATH", "MY_NCCL_THING"])
def test_nothing_is_said_of_right_names_and_of_others(name: str) -> None:
    assert remark(name) is None


@given(st.text(max_size=60))
def test_any_text_can_be_asked_for(name: str) -> None:
    for prefix in ("", "NCCL_", "FI_", "TORCH_NCCL_"):
        said = remark(prefix + name)
        assert said is None or (said.message and said.fix)


def test_the_list_holds_together() -> None:
    everything = {v: lib for lib in libraries().values() for v in lib.variables}
    for library in libraries().values():
        for variable in library.variables.values():
            assert not variable.use or variable.use in everything, variable
            assert variable.until != variable.since or not variable.until, variable


def test_a_site_can_have_a_preset_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(
        "version: 1\nname: ours\nsummary: ours\nbackends: [nccl]\nreviewed: 2026-11\ntried: true\n"
        "extends: infiniband\nvariables:\n"
        "  NCCL_IB_HCA: {value: '=mlx5_0', why: no storage, source: us}\n"
    )
    found = preset(str(file))
    assert found.variables["NCCL_IB_HCA"].value == "=mlx5_0"
    assert "NCCL_IB_DISABLE" in found.leave


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 2", "2"),
        ("name: ours\nvariable: {}", "variable"),
        ("version: 1\nname: x\nvariables: {A: 1}", "variables.A"),
        ("- a", "map"),
    ],
)
def test_a_faulty_preset_is_told_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(FaultsError) as caught:
        preset(str(file))
    assert "bad.yaml:" in str(caught.value)
    assert words in str(caught.value)


def test_presets_that_extend_one_another_end(tmp_path: Path) -> None:
    text = "version: 1\nname: a\nsummary: a\nbackends: [nccl]\nreviewed: now\ntried: false\n"
    (tmp_path / "a.yaml").write_text(f"{text}extends: {tmp_path}/b.yaml\n")
    (tmp_path / "b.yaml").write_text(f"{text}extends: {tmp_path}/a.yaml\n")
    with pytest.raises(UserError, match="extend one another"):
        preset(str(tmp_path / "a.yaml"))


def test_no_such_preset() -> None:
    with pytest.raises(UserError, match="did you mean infiniband"):
        preset("infinband")


def test_the_command_line() -> None:
    run = CliRunner().invoke
    listed = run(orchestrate, ["fabric", "list"])
    assert [line.split()[0] for line in listed.output.splitlines()[1:]] == names()
    shown = run(orchestrate, ["fabric", "show", "slingshot"])
    assert "NCCL_NET=AWS Libfabric" in shown.output
    assert json.loads(run(orchestrate, ["fabric", "show", "efa", "--json"]).output)["name"] == "efa"
    assert run(orchestrate, ["fabric", "lint"]).exit_code == 0
    bad = run(orchestrate, ["fabric", "lint", "NCCL_IB_GDR_LEVEL=3", "NCCL_DEBUG=INFO"])
    assert bad.exit_code == 1
    assert "write NCCL_NET_GDR_LEVEL" in bad.output
    assert "NCCL_DEBUG=INFO: good" in bad.output


def test_every_row_of_the_folder_is_a_preset() -> None:
    assert {path.suffix for path in FOLDER.iterdir()} == {".yaml"}


def test_what_pods_do_not_get_is_shown() -> None:
    lines = CliRunner().invoke(orchestrate, ["fabric", "show", "efa"]).output.splitlines()
    at = lines.index("  NCCL_SOCKET_IFNAME=en")
    assert "      not in pods without the node's network (kubernetes.host_network)" in lines[at:]
    assert not [line for line in lines[:at] if "not in pods" in line]
