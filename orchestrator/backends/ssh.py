"""Shell scripts on another machine, by the user's own ssh: its configuration, keys and agent.

Nothing is asked (`BatchMode`): no password is seen or kept here. One connection serves many
commands, and closes a minute after the last of them.

The script travels on standard input, and the command line is a fixed one that every login shell
reads alike, csh and fish too: so an argument is quoted once, for the POSIX shell that runs it.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from orchestrator.backends.site import COMMAND_TIMEOUT_S, Completed, NoAnswer, no_answer
from orchestrator.errors import BackendError, printable

# No option, nothing that a ProxyCommand would hand to a shell.
HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%@-]*")
# What the user's own configuration may ask for that does not go with commands one after another.
OPTIONS = {
    "BatchMode": "yes",
    "ClearAllForwardings": "yes",
    "ConnectTimeout": "20",
    "RemoteCommand": "none",
    "ServerAliveCountMax": "3",
    "ServerAliveInterval": "15",
}
KEEP_OPEN_S = 60
# A unix socket's path has 108 bytes (unix(7)); %C takes 40, ssh's own suffix 17, the rest 2.
SOCKET_DIR_BYTES = 108 - 40 - 17 - 2
PLAIN_PATH = re.compile(r"/[A-Za-z0-9/_.+-]*")
CLIENT_TIMEOUT_S = 20.0
LINES_SHOWN = 3

# What ssh says (OpenSSH's ssh.c, sshconnect.c, sshconnect2.c and strerror(3)), and what to do.
UNREACHABLE = "there is no way to it from here: is a VPN or a jump host needed?"
ADVICE = {
    "Could not resolve hostname": """\
no such host: correct `ssh` in the profile, or define it in ~/.ssh/config""",
    "REMOTE HOST IDENTIFICATION HAS CHANGED": """\
its host key is another one than before: ask its administrators before you remove the old key from \
known_hosts""",
    "Host key verification failed": """\
its host key is not known here: run `ssh {host}` once by hand, compare the key with the one that \
the site publishes, and accept it""",
    "Permission denied": """\
it takes none of your keys, and no password is asked here: load the key (`ssh-add`), or, where the \
site wants a password or a code, set ControlMaster and ControlPath in ~/.ssh/config and log in \
once by hand: that connection is used""",
    "Connection refused": "nothing listens there: check host and port with `ssh {host}`",
    "No route to host": UNREACHABLE,
    "Network is unreachable": UNREACHABLE,
    "timed out": UNREACHABLE,
}


class Connection:
    """A host as the user's ssh knows it.

    Args:
        host: a name, `user@name` or an alias of ~/.ssh/config.
        command: the ssh client and options that go first.

    Raises BackendError if `host` is no name of a host.
    """

    def __init__(self, host: str, command: Sequence[str] = ("ssh",)) -> None:
        if not HOST.fullmatch(host):
            raise BackendError(
                f"ssh: {host!r} is no host: write a name, user@name or an alias of ~/.ssh/config"
            )
        self.host = host
        self.label = f"{host} (by ssh)"
        self.command = tuple(command)

    def shell(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout_s: float = COMMAND_TIMEOUT_S,
        what: str = "a command",
    ) -> Completed:
        """Run a script in the host's POSIX shell and return its exit code and output.

        Args:
            script: it may leave by `exit` or `exec`.
            stdin: what the script finds on its standard input.
            what: the script, as a message names it.

        Raises BackendError if the host cannot be reached, or if the script does not end in time.
        """
        mark = secrets.token_hex(8)
        source = framed(script, mark, self.label)
        # Byte by byte, so that it takes nothing of what follows.
        start = f"""exec sh -c 'eval "$(dd bs=1 count={len(source)} 2>/dev/null)"'"""
        argv = [*self.command, *self._options, "-T", "--", self.host, start]
        done = self._client(argv, source + stdin, timeout_s, what)
        return self._unframed(done, mark.encode())

    def close(self) -> None:
        """End the shared connection now, if it is of this tool and not the user's own."""
        if not any(word.startswith("ControlPath=") for word in self._options):
            return
        argv = [*self.command, *self._options, "-O", "exit", "--", self.host]
        self._client(argv, b"", CLIENT_TIMEOUT_S)

    @cached_property
    def _options(self) -> list[str]:
        options = OPTIONS | self._multiplexing()
        return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]

    def _multiplexing(self) -> dict[str, str]:
        """Options for one shared connection; none where the user has set that up already."""
        done = self._client([*self.command, "-G", "--", self.host], b"", CLIENT_TIMEOUT_S)
        if done.code != 0:
            raise self._unreachable(done)
        own = re.search(r"^controlpath (?!none$)", done.stdout, re.MULTILINE)
        folder = None if own else socket_dir()
        if folder is None:
            return {}
        path = f"{folder}/%C"
        return {"ControlMaster": "auto", "ControlPath": path, "ControlPersist": str(KEEP_OPEN_S)}

    def _client(
        self, argv: Sequence[str], stdin: bytes, timeout_s: float, what: str = "ssh"
    ) -> Completed:
        """Run the ssh client to its end.

        Its errors go to a file: old versions keep that open for as long as the shared connection
        lives, so the end of a pipe would come a minute late.
        """
        with tempfile.TemporaryFile() as errors:
            try:
                done = subprocess.run(
                    argv,
                    input=stdin,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    timeout=timeout_s,
                    check=False,
                )
            except FileNotFoundError:
                text = f"no command {argv[0]!r} on this machine: install OpenSSH's client"
                raise BackendError(f"{self.label}: {text}") from None
            except subprocess.TimeoutExpired:
                raise no_answer(self.label, what, timeout_s) from None
            errors.seek(0)
            return Completed(done.returncode, done.stdout, errors.read().decode(errors="replace"))

    def _unframed(self, done: Completed, mark: bytes) -> Completed:
        """The script's own code and output, without what start-up files of the host have said."""
        parts = done.raw.split(mark)
        if len(parts) == 1:
            raise self._unreachable(done)
        code = parts[-1].strip()
        if len(parts) < 3 or not code.isdigit():
            words = f": {_tail(done.stderr)}" if done.stderr.strip() else ""
            text = f"the connection was lost before the command's end{words}"
            raise NoAnswer(f"{self.label}: {text}; look what it has done before you repeat it")
        output = done.raw[len(parts[0]) + len(mark) : -len(parts[-1]) - len(mark)]
        return Completed(int(code), output, done.stderr.rpartition(mark.decode())[2])

    def _unreachable(self, done: Completed) -> NoAnswer:
        said = done.stderr + done.stdout
        advice = next(
            (do for words, do in ADVICE.items() if words in said), "try it by hand: `ssh {host}`"
        )
        words = _tail(said) or f"ssh left with {done.code} and no word"
        return NoAnswer(f"{self.label}: {words}\n  fix: {advice.format(host=self.host)}")


def framed(script: str, mark: str, label: str) -> bytes:
    """The script between marks, as one compound command: cut off, it is no command at all."""
    if "\0" in script:
        raise BackendError(f"{label}: a command and its arguments cannot have a NUL character")
    text = (
        f"{{ printf %s {mark}; printf %s {mark} >&2\n(\n{script}\n)\nprintf '{mark}%d' \"$?\"\n}}"
    )
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise BackendError(f"{label}: a command's argument is no text: {error.reason}") from None


def _tail(text: str) -> str:
    """The last lines of a message, as one."""
    lines = [printable(line.strip()) for line in text.splitlines() if line.strip(" @\r\n")]
    return "; ".join(lines[-LINES_SHOWN:])


def socket_dir() -> str | None:
    """A folder for the sockets of shared connections that nobody else can enter; None if there
    is no place for one."""
    places = [
        Path(os.environ.get("XDG_RUNTIME_DIR") or "-", "orchestrate-ssh"),
        Path("/tmp", f"orchestrate-ssh-{os.geteuid()}"),
    ]
    return next((str(place) for place in places if _is_private(place)), None)


def _is_private(folder: Path) -> bool:
    """Make the folder if it is not there; whether it is the user's alone and its path fits."""
    if not PLAIN_PATH.fullmatch(str(folder)) or len(str(folder)) > SOCKET_DIR_BYTES:
        return False
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_own and not found.st_mode & 0o077
