"""What holds of ssh without a server: names of hosts, scripts cut off, where sockets may lie."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.backends.remote import SshSite
from orchestrator.backends.site import LocalSite, site_of
from orchestrator.backends.ssh import framed, socket_dir
from orchestrator.errors import BackendError


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An XDG_RUNTIME_DIR with a short path, as sockets want it."""
    with tempfile.TemporaryDirectory(prefix="ssh-", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.mark.parametrize("host", ["", "-oProxyCommand=touch x", "a b", "a;b", "$(id)", "a\n", "é"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(BackendError, match="is no host"):
        site_of(host)


@pytest.mark.parametrize("host", ["login1", "ada@login.site.org", "::1", "ada@fe80::1%eth0"])
def test_hosts(host: str) -> None:
    site = site_of(host)
    assert isinstance(site, SshSite)
    assert site.label == f"{host} (by ssh)"


def test_without_ssh_the_site_is_here() -> None:
    assert isinstance(site_of(None), LocalSite)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_script_that_is_cut_off_does_nothing(shell: str, tmp_path: Path) -> None:
    mark = tmp_path / "done"
    source = framed(f"touch {mark}; exit 0", "x", "host")
    argv = [shell, "-c", f'eval "$(dd bs=1 count={len(source)} 2>/dev/null)"']
    for length in range(len(source) + 1):
        assert not mark.exists()
        subprocess.run(argv, input=source[:length], capture_output=True, timeout=60, check=False)
    assert mark.exists()


def test_sockets_lie_where_nobody_else_can_enter(runtime_dir: Path) -> None:
    assert socket_dir() == f"{runtime_dir}/orchestrate-ssh"
    assert (runtime_dir / "orchestrate-ssh").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_enter_is_not_used(runtime_dir: Path) -> None:
    (runtime_dir / "orchestrate-ssh").mkdir()
    (runtime_dir / "orchestrate-ssh").chmod(0o711)
    assert not str(socket_dir()).startswith(str(runtime_dir))


def test_a_link_is_not_followed(runtime_dir: Path) -> None:
    (runtime_dir / "elsewhere").mkdir(mode=0o700)
    (runtime_dir / "orchestrate-ssh").symlink_to("elsewhere")
    assert not str(socket_dir()).startswith(str(runtime_dir))


@pytest.mark.parametrize("name", ["x" * 60, "a b", "a%h", "${HOME}", "relative"])
def test_a_path_that_ssh_would_not_take_is_not_used(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = Path(name) if name == "relative" else runtime_dir / name
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert name not in str(socket_dir())
