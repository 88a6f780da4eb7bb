"""A real sshd on loopback for tests: own port, own keys, own configuration, on both sides."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from running import free_port, wait_until

HOST = "login1"  # the alias in the client's configuration
START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 20.0


def missing() -> str:
    """What this machine lacks for an sshd; empty if nothing."""
    lacking = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    lacking += [] if _sshd() else ["sshd"]
    hint = "apt-get install openssh-server openssh-client"
    return f"no {', '.join(lacking)}: {hint}" if lacking else ""


@dataclass(frozen=True)
class Sshd:
    """An sshd that runs. `folder` has its files and the client's."""

    folder: Path
    port: int

    def command(self, **options: str) -> list[str]:
        """The ssh client with a configuration for this server alone, and `options` in it."""
        lines = [f"  {name} {value}" for name, value in options.items()]
        descriptor, path = tempfile.mkstemp(prefix="config-", dir=self.folder)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(["Host *", *lines, _client_config(self)]))
        return ["ssh", "-F", path]


def keygen(path: Path) -> str:
    """Make a key pair without a passphrase; returns the public key."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(argv, check=True, timeout=END_TIMEOUT_S)
    return path.with_suffix(".pub").read_text(encoding="ascii").strip()


@contextmanager
def running_sshd(
    environ: Mapping[str, str] | None = None, forced_command: str = "none"
) -> Iterator[Sshd]:
    """Start an sshd that takes this user's new key.

    Args:
        environ: variables that every session finds.
        forced_command: what runs in place of each command (sshd_config(5), ForceCommand).
    """
    with tempfile.TemporaryDirectory(prefix="sshd-", dir="/tmp") as name:
        folder = Path(name)
        server = Sshd(folder, free_port())
        host_key = keygen(folder / "host_key")
        (folder / "authorized_keys").write_text(keygen(folder / "user_key") + "\n")
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {host_key}\n")
        (folder / "sshd_config").write_text(_server_config(server, environ or {}, forced_command))
        with _process(server):
            yield server


@contextmanager
def _process(server: Sshd) -> Iterator[None]:
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants its empty folder
    argv = [_sshd(), "-D", "-e", "-f", str(server.folder / "sshd_config")]
    with (server.folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(server.port), "sshd answers", START_TIMEOUT_S)
        yield
    finally:
        process.terminate()
        process.wait(END_TIMEOUT_S)


def _sshd() -> str:
    """sshd must be started by its full path; Debian has it where a user's PATH does not look."""
    return shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin") or ""


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _server_config(server: Sshd, environ: Mapping[str, str], forced_command: str) -> str:
    values = " ".join(f'"{name}={value}"' for name, value in environ.items())
    lines = [
        f"Port {server.port}",
        "ListenAddress 127.0.0.1",
        f"HostKey {server.folder}/host_key",
        f"AuthorizedKeysFile {server.folder}/authorized_keys",
        "PidFile none",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "PrintMotd no",
        f"ForceCommand {forced_command}",
        *([f"SetEnv {values}"] if values else []),
    ]
    return "\n".join(lines) + "\n"


def _client_config(server: Sshd) -> str:
    return f"""Host {HOST}
  HostName 127.0.0.1
  Port {server.port}
  User {getpass.getuser()}
  IdentityFile {server.folder}/user_key
  IdentitiesOnly yes
  IdentityAgent none
Host *
  UserKnownHostsFile {server.folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""
