"""What looks like a secret, by a name and by a value: such things are neither rendered nor said."""

from __future__ import annotations

import re

MASK = "***"
# Words of a name, as it is split at _ - . and at capitals. These make it a secret's wherever they
# stand in it, those below only at its end.
_ALWAYS = re.compile(
    r"\w*(SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?|WEBHOOKS?|AUTHORIZATION"
    r"|\w*(API|SECRET|ACCESS|ACCOUNT|AUTH|PRIVATE|SIGNING|SSH|STORAGE)KEYS?"
)
_AT_END = re.compile(r"\w*TOKEN|AUTH|COOKIE|DSN|JWT|KEY|PASS|PAT|PWD|SAS")
# What may come after the word without changing what it is.
_QUALIFIERS = {"BASE", "CONFIG", "DATA", "DEV", "HEADER", "JSON", "PROD", "STAGING", "STRING",
               "TEST", "VALUE"}  # fmt: skip
# What a secret is not, by the word before: parts of a vocabulary, keys of tables, public keys.
_ORDINARY = {
    "TOKEN": {"BOS", "CLS", "END", "EOS", "FIRST", "IMAGE", "LAST", "MASK", "NEXT", "PAD", "PER",
              "SEP", "SPECIAL", "START", "STOP", "UNK"},
    "KEY": {"CACHE", "COLUMN", "FOREIGN", "GROUP", "IMAGE", "INPUT", "LABEL", "METRIC", "OUTPUT",
            "PARTITION", "PRIMARY", "PUB", "PUBLIC", "ROUTING", "SORT", "TEXT"},
    "PASS": {"BACKWARD", "FORWARD"},
    "DSN": {"USE"},
}  # fmt: skip
# A name with such an end says where a secret is, or something else about it.
_PLACES = {"DIR", "FILE", "PATH"}
_ABOUT = {"ARN", "CLASS", "ENABLED", "ENV", "HOST", "ID", "NAME", "NAMESPACE", "PORT", "PROVIDER",
          "REF", "REGION", "TIMEOUT", "TTL", "TYPE", "VERSION"}  # fmt: skip
_SWITCHES = {"", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"}
_PLACE = re.compile(r"[^\s/.]*[/.]\S*")
_NUMBER = re.compile(r"[0-9.]+")

# The shapes are those of the makers' tokens in GitHub's "Supported secret scanning patterns"; the
# password in a URL is RFC 3986, 3.2.1; a private key RFC 7468; a JWT RFC 7519; Bearer RFC 6750.
# Repeats are bounded where they would be tried anew from each place of a long value.
_SHAPES = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s/@:]*:[^\s/@]+@"
    r"|-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY"
    r"|(?<![A-Za-z0-9])(?:"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|hf_[A-Za-z0-9]{20,}"
    r"|sk-(?=[A-Za-z_-]{0,60}[0-9])[\w-]{20,}"
    r"|xox[a-z]-[\w-]{10,}|AIza[\w-]{35}|nvapi-[\w-]{20,}"
    r"|eyJ[\w-]{10,1000}\.eyJ[\w-]{10,1000}\.[\w-]*"
    r"|AccountKey=[\w+/=]{20,}"
    r"|(?:Bearer|Basic) [\w+/=.~-]{16,}"
    r")"
    r"|hooks\.slack\.com/services/[\w/]+",
    re.ASCII,
)
_ASSIGNED = re.compile(r"""(?<![\w./-])([\w./-]+)["']?\s*[:=]\s*(?=[^\s,}])""")


def is_secret(name: str, value: str) -> bool:
    """Return whether a value of that name should not be readable, by its looks or by its name."""
    return has_secret(value) or is_named_secret(name, value)


def has_secret(text: str) -> bool:
    """Return whether a password in a URL, a private key or a well-known token is in a text."""
    return _SHAPES.search(text) is not None


def is_named_secret(name: str, value: str) -> bool:
    """Return whether a name's words say that the value is a secret.

    The names of files with a secret (`HF_TOKEN_FILE: /run/token`), switches and empty values are
    none.
    """
    words = _words(name)
    if not words or value.lower() in _SWITCHES:
        return False
    if any(_ALWAYS.fullmatch(word) for word in words):
        return not _says_where(words, value)
    while len(words) > 1 and words[-1] in _QUALIFIERS:
        if words[-2:] == ["CONNECTION", "STRING"]:
            return True
        words.pop()
    return not _NUMBER.fullmatch(value) and (
        _ends_secret(words) or (words[-1] in _PLACES and _is_bare(words[:-1], value))
    )


def _words(name: str) -> list[str]:
    """The words of a name, or of what comes after the prefix of an annotation, in capitals."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition("/")[2])
    return [word.upper() for word in re.split(r"[^A-Za-z]+", parted) if word]


def _ends_secret(words: list[str]) -> bool:
    if not words or not _AT_END.fullmatch(words[-1]):
        return False
    if len(words) == 1:
        return words[0] not in ("KEY", "PASS", "PAT", "PWD")  # PWD is the shell's own
    return words[-2] not in _ORDINARY.get(words[-1], ()) and words[-2:] != ["OLD", "PWD"]


def _says_where(words: list[str], value: str) -> bool:
    if words[-1] in _ABOUT:
        return True
    is_place = _PLACE.fullmatch(value) is not None
    # Google Cloud's GOOGLE_APPLICATION_CREDENTIALS is a file.
    return is_place and (
        words[-1] in _PLACES or (words[-1] == "CREDENTIALS" and value.startswith("/"))
    )


def _is_bare(words: list[str], value: str) -> bool:
    """Whether the name says that a secret's file is named, and the value names none."""
    return _ends_secret(words) and not _PLACE.fullmatch(value)


def masked(text: str) -> str:
    """Return a text with *** in the place of what has the looks of a secret."""
    return _SHAPES.sub(MASK, text)


def masked_line(line: str) -> str:
    """Return a source line without what comes after the name of a secret, and masked."""
    for found in _ASSIGNED.finditer(line):
        if is_named_secret(found[1], line[found.end() :][:200].strip("\"' \t},")):
            return masked(line[: found.end()]) + MASK
    return masked(line)
