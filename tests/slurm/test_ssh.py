"""A site behind a real sshd: commands, run folders, and what is said when it cannot be reached."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.backends import remote, runstore
from orchestrator.backends.remote import SshSite
from orchestrator.backends.runstore import LocalRunStore
from orchestrator.backends.site import LocalSite, Site
from orchestrator.errors import BackendError
from slurm.cluster import Cluster
from slurm.sshd import HOST, Sshd, keygen, missing, running_sshd

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
HOSTILE = 'it\'s a "$HOME" `id`\n$(id) \\ ü*; -n'
SHELLS = ("dash", "bash", "tcsh", "fish", "zsh", "ksh", "busybox sh")


@pytest.fixture(scope="module", autouse=True)
def _short_socket_dir() -> Iterator[None]:
    """No test meets the connections of whoever runs it."""
    with (
        tempfile.TemporaryDirectory(prefix="ssh-", dir="/tmp") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.fixture(scope="module")
def sshd(_short_socket_dir: None) -> Iterator[Sshd]:
    with running_sshd() as server:
        yield server


@pytest.fixture(scope="module")
def site(sshd: Sshd) -> Iterator[SshSite]:
    there = SshSite(HOST, sshd.command())
    yield there
    there.connection.close()


@pytest.fixture(params=["local", "ssh"])
def any_site(request: pytest.FixtureRequest, site: SshSite) -> Site:
    """Both kinds of site: what they promise is the same."""
    return LocalSite() if request.param == "local" else site


@given(words=st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"))))
@settings(max_examples=25, deadline=None)
def test_arguments_arrive_unchanged(site: SshSite, words: list[str]) -> None:
    done = site.run(["printf", r"%s\0", "first", *words])
    assert done.raw == b"".join(word.encode() + b"\0" for word in ["first", *words])


def test_code_output_and_input_of_a_command(any_site: Site) -> None:
    done = any_site.run(["sh", "-c", "cat; echo words >&2; exit 3"], stdin=b"\0\xff\n")
    assert (done.code, done.raw, done.stderr) == (3, b"\0\xff\n", "words\n")
    assert any_site.run(["cat"]).raw == b""
    assert any_site.run(["sh", "-c", "kill -9 $$"]).code == 137
    assert any_site.run(["sh", "-c", "exit 255"]).code == 255


def test_a_command_that_is_not_there_and_one_that_does_not_end(any_site: Site) -> None:
    with pytest.raises(BackendError, match=f"{re.escape(any_site.label)}: no command 'sbatsh'"):
        any_site.run(["sbatsh", "--parsable"])
    with pytest.raises(BackendError, match=r"sleep did not end within 0\.5 s"):
        any_site.run(["sleep", "5"], timeout_s=0.5)
    with pytest.raises(BackendError, match="sh did not end within"):
        any_site.run(["sh", "-c", "sleep 5 & wait"], timeout_s=0.5)
    with pytest.raises(BackendError, match=r"NUL|null"):
        any_site.run(["echo", "a\0b"])
    with pytest.raises(BackendError, match="surrogates not allowed"):
        any_site.run(["echo", "\ud800"])


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_will_do(shell: str) -> None:
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"no {shell} here")
    noise = "echo noise; echo noise >&2"
    with running_sshd(forced_command=f'{noise}; exec {shell} -c "$SSH_ORIGINAL_COMMAND"') as server:
        there = SshSite(HOST, server.command(ControlPath=f"{server.folder}/no"))
        done = there.run(["sh", "-c", 'printf "%s|" "$@"; cat; echo words >&2', "x", HOSTILE, "!1"])
        assert (done.stdout, done.stderr) == (f"{HOSTILE}|!1|", "words\n")


def test_a_site_tells_absolute_paths(any_site: Site) -> None:
    home = any_site.absolute("~")
    assert home.is_dir()
    assert any_site.absolute("/a b") == Path("/a b")
    assert any_site.absolute("~/runs") == home / "runs"
    assert any_site.absolute("runs").is_absolute()


def test_the_home_of_another_is_refused(site: SshSite) -> None:
    with pytest.raises(BackendError, match="~ada/x: write the folder"):
        site.absolute("~ada/x")


def test_a_store_is_like_the_local_one(site: SshSite, tmp_path: Path) -> None:
    root = tmp_path / HOSTILE
    local = LocalRunStore(root)
    store = site.store(root)
    for path in (f"rendered/{HOSTILE}", "-n", "\udcff"):
        data = b"\0\xff\r\n" + path.encode(errors="surrogateescape")
        store.write(path, data)
        assert local.read(path) == store.read(path) == data
        assert store.tail(path, 2) == data[2:]
    for path in (".hidden", "..x"):
        local.write(path, b"old")
    store.write(".hidden", b"")
    assert local.read(".hidden") == store.read(".hidden") == b""
    assert store.tail("..x", 3) == store.tail("..x", 1000) == b""
    assert store.list() == local.list() != []
    assert store.list("rendered") == local.list("rendered") == [HOSTILE]
    assert store.list("no") == store.list("a") == []
    assert store.tail("no", 0) == store.tail("a/x", 3) == b""
    with pytest.raises(BackendError, match=rf"{HOST}.*no.*No such file"):
        store.read("no")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_paths_stay_in_the_run_folder(site: SshSite, tmp_path: Path, path: str) -> None:
    store = site.store(tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: store.list(path),
        lambda: store.read(path),
        lambda: store.tail(path, 0),
        lambda: store.write(path, b""),
    ]
    for call in calls:
        with pytest.raises(BackendError, match="relative"):
            call()


def test_a_huge_file_is_read_by_parts(
    site: SshSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runstore, "READ_LIMIT_BYTES", 100_000)
    store, data = site.store(tmp_path), bytes(range(256)) * 1000
    store.write("log", data)
    with pytest.raises(BackendError, match="larger than 100000 bytes"):
        store.read("log")
    parts = [store.tail("log", n) for n in (0, 100_000, 200_000)]
    assert b"".join(parts) == data
    assert len(parts[2]) == 56_000


def test_files_are_put_by_one_command_in_order(any_site: Site, tmp_path: Path) -> None:
    root = tmp_path / "runs" / HOSTILE
    files = {"rendered/job.sh": b"x" * 200_000, "empty": b"", "z/y/x": b"\n\n", HOSTILE: b"\0"}
    any_site.put(files, root)
    assert {path: (root / path).read_bytes() for path in files} == files
    assert len([path for path in root.rglob("*") if path.is_file()]) == len(files)
    (root / "folder").mkdir()
    with pytest.raises(BackendError, match="folder"):
        any_site.put({"before": b"1", "folder": b"2", "after": b"3"}, root)
    assert (root / "before").exists()
    assert not (root / "after").exists()


def test_a_transfer_that_is_cut_off_changes_nothing(site: SshSite, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(BackendError, match="cut off on its way"):
        remote.checked(site.connection, remote.WRITE, "tag", tmp_path / "file", 1000, stdin=b"ne")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert site.store(tmp_path).list() == ["file"]


def test_the_ends_of_many_files_by_one_command(any_site: Site, tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"0123456789\n")
    (tmp_path / HOSTILE).write_bytes(b"\0\xff")
    names = ["long", "no", HOSTILE, ".", *["no"] * 500]
    ends = any_site.ends([tmp_path / name for name in names], 4)
    assert ends == [b"789\n", b"", b"\0\xff", b"", *[b""] * 500]
    assert any_site.ends([], 4) == []


def test_one_connection_serves_many_commands(sshd: Sshd) -> None:
    there = SshSite(HOST, sshd.command())

    def port() -> str:
        return there.run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout.split()[1]

    first = port()
    assert port() == first
    there.connection.close()
    assert port() != first
    there.connection.close()


def test_the_users_own_shared_connection_is_used(sshd: Sshd) -> None:
    own = sshd.folder / "own"
    command = sshd.command(ControlPath=str(own), ControlMaster="auto", ControlPersist="60")
    there = SshSite(HOST, command)
    assert there.run(["echo", "1"]).stdout == "1\n"
    there.connection.close()
    assert own.is_socket()
    subprocess.run([*command, "-O", "exit", HOST], check=True, capture_output=True, timeout=20)


def test_forwardings_and_commands_of_the_users_configuration_do_not_disturb(sshd: Sshd) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        forward = f"{taken.getsockname()[1]} 127.0.0.1:1"
        command = sshd.command(
            LocalForward=forward,
            ExitOnForwardFailure="yes",
            RemoteCommand="echo other",
            RequestTTY="force",
            ControlPath=f"{sshd.folder}/no",
        )
        done = SshSite(HOST, command).run(["echo", "1"])
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.fixture
def lone(sshd: Sshd) -> Callable[..., SshSite]:
    """A site with a connection of its own."""

    def make(host: str = HOST, **options: str) -> SshSite:
        return SshSite(host, sshd.command(ControlPath=f"{sshd.folder}/no", **options))

    return make


def test_a_host_that_cannot_be_reached_is_named_with_advice(
    lone: Callable[..., SshSite], sshd: Sshd, tmp_path: Path
) -> None:
    keygen(tmp_path / "other")
    changed = (tmp_path / "other.pub").read_text()
    (tmp_path / "changed").write_text(f"[127.0.0.1]:{sshd.port} {changed}")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        sites = {
            r"Host key verification failed.*\n.*run `ssh login1` once by hand": lone(
                UserKnownHostsFile="/dev/null"
            ),
            r"has changed.*\n.*its host key is another": lone(
                UserKnownHostsFile=str(tmp_path / "changed")
            ),
            r"Permission denied.*\n.*ssh-add": lone(User="no-such-user"),
            r"Connection refused.*\n.*nothing listens": lone(Port=str(closed.getsockname()[1])),
            r"Could not resolve.*\n.*correct `ssh` in the profile": lone("no-host.invalid"),
        }
        for words, there in sites.items():
            with pytest.raises(BackendError, match=words) as caught:
                there.run(["true"])
            assert str(caught.value).startswith(there.label)


def test_a_configuration_or_client_that_does_not_work_is_reported(sshd: Sshd) -> None:
    with pytest.raises(BackendError, match=r"(?i)bad configuration option"):
        SshSite(HOST, sshd.command(NoSuchOption="1")).run(["true"])
    with pytest.raises(BackendError, match="no command 'no-ssh' on this machine"):
        SshSite(HOST, ["no-ssh"]).run(["true"])


def test_an_account_without_a_shell_is_reported() -> None:
    with running_sshd(forced_command="echo This account is closed; exit 1") as server:
        there = SshSite(HOST, server.command(ControlPath=f"{server.folder}/no"))
        with pytest.raises(BackendError, match=r"This account is closed\n.*by hand: `ssh login1`"):
            there.run(["true"])


def test_a_connection_that_is_lost_is_no_end_of_the_command(lone: Callable[..., SshSite]) -> None:
    there = lone()  # so much that some of it must have come here before the end
    with pytest.raises(BackendError, match="lost before the command's end"):
        there.connection.shell("head -c 9000000 /dev/zero; kill -9 $PPID")


def test_a_job_is_submitted_over_ssh(cluster: Cluster, tmp_path: Path) -> None:
    environ = {name: cluster.environ[name] for name in ("PATH", "SLURM_CONF")}
    with running_sshd(environ) as server:
        there = SshSite(HOST, server.command(ControlPath=f"{server.folder}/no"))
        root = tmp_path / HOSTILE
        there.put({"job.sh": b"#!/bin/bash\nprintf '%s|' \"$@\"\n"}, root)
        options = ["--parsable", "--wait", f"--output={tmp_path}/log", f"--chdir={root}"]
        done = there.run(["sbatch", *options, str(root / "job.sh"), HOSTILE])
        assert (done.code, done.stderr) == (0, "")
        assert done.stdout.strip().isdigit()
        assert there.store(tmp_path).read("log").decode() == f"{HOSTILE}|"
