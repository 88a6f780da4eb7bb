"""What an API server refuses, in words: who, what, why, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.backends.kubernetes_kinds import OPERATORS, Kind
from orchestrator.backends.site import NoAnswer
from orchestrator.errors import BackendError, printable

TEXT_LIMIT = 2000
READS = ("get", "list", "watch")  # they change nothing


@dataclass(frozen=True)
class Asked:
    """A request, as a message and a permission name it.

    Args:
        verb: as RBAC has it: get, list, watch, create, patch, delete.
        kind: of the object.
        name: of the object; "" for many.
        namespace: where it is.
        cluster: the context, for people.
    """

    verb: str
    kind: Kind
    name: str
    namespace: str
    cluster: str

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"{self.cluster}: {self.verb} {self.kind.resource}{name} in {self.namespace}"


@dataclass(frozen=True)
class Answer:
    """An error of an API server: a Status object (Kubernetes API conventions), or another text."""

    code: int
    reason: str
    message: str
    details: Mapping[str, Any]

    @classmethod
    def of(cls, code: int, body: str | bytes | None) -> Answer:
        """From the code and body of an HTTP response."""
        text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
        try:
            content = json.loads(text)
        except ValueError:
            content = None
        if not isinstance(content, dict) or content.get("kind") != "Status":
            return cls(code, "", _short(text), {})
        message, details = str(content.get("message") or ""), content.get("details")
        found = details if isinstance(details, dict) else {}
        return cls(code, str(content.get("reason") or ""), _short(message), found)

    @property
    def causes(self) -> Sequence[Mapping[str, Any]]:
        """What the server says in detail."""
        causes = self.details.get("causes")
        return [cause for cause in causes or () if isinstance(cause, dict)]

    @property
    def is_missing_kind(self) -> bool:
        """Whether it is the kind that the server does not know, and not one object."""
        return self.code == 404 and not self.details.get("name")


class AlreadyThere(BackendError):
    """An object of this name has been made by another."""


class Gone(BackendError):
    """A watch, or a list in pages, is too old to go on: begin anew."""


class NotThere(BackendError):
    """No such object."""


class Unchangeable(BackendError):
    """What differs cannot be changed in the object that is there."""


class Conflict(BackendError):
    """The object has changed meanwhile, or other managers own what was to be changed."""


def refusal(asked: Asked, answer: Answer) -> BackendError:
    """The error for an answer of an API server that is none of success."""
    if answer.code in _BY_CODE:
        return _BY_CODE[answer.code](asked, answer)
    if "failed calling webhook" in answer.message:
        return NoAnswer(f"{asked}: {answer.message}. The operator that checks it does not answer: "
                        "does it run? `kubectl get pods --all-namespaces` shows it.")  # fmt: skip
    if answer.code == 429 or answer.code >= 500:
        return NoAnswer(f"{asked}: the server is busy or down (HTTP {answer.code}): "
                        f"{answer.message or answer.reason}. Try again in a while.")  # fmt: skip
    return BackendError(f"{asked}: HTTP {answer.code}: {answer.message or answer.reason}")


def unreachable(asked: Asked, reason: object, host: str) -> NoAnswer:
    """The error where no answer came, after all repetitions."""
    words = _short(str(reason))
    if "certificate" in words.lower():
        return NoAnswer(f"{asked}: the certificate of {host} is not accepted: {words}. The "
                        "kubeconfig's certificate-authority is not this cluster's.")  # fmt: skip
    doubt = "" if asked.verb in READS else " The request may have been carried out."
    return NoAnswer(f"{asked}: no answer from {host}: {words}. Is the cluster up, and this machine "
                    f"in its network (VPN)?{doubt}")  # fmt: skip


def unsendable(asked: Asked, error: Exception) -> BackendError:
    """The error where the client makes no request at all; its words may have a secret in them."""
    return BackendError(
        f"{asked}: the request cannot be made ({type(error).__name__}): look at the proxy "
        "(proxy-url of the kubeconfig, or $HTTPS_PROXY and $HTTP_PROXY: http://HOST:PORT) and at "
        "the credentials"
    )


def _unauthorized(asked: Asked, answer: Answer) -> BackendError:
    return BackendError(
        f"{asked}: the credentials have expired, or are not this cluster's (HTTP {answer.code}). "
        "Log in again, as your site has it; `kubectl auth whoami` shows whether it works."
    )


def _forbidden(asked: Asked, answer: Answer) -> BackendError:
    text = answer.message
    for mark, fix in _POLICIES.items():
        if mark in text:
            return BackendError(f"{asked}: refused: {text}. {fix}")
    user = re.search(r'User "([^"]*)"', text)
    if user and user[1] == "system:anonymous":  # a plug-in gave no credentials
        return _unauthorized(asked, answer)
    who = f" User {user[1]}" if user else " You"
    return BackendError(
        f"{asked}: no permission.{who} may not {asked.verb} {asked.kind.resource} in namespace "
        f"{asked.namespace}. Ask for it: k8s/rbac has a role with all that is needed; "
        f"`kubectl auth can-i {asked.verb} {asked.kind.resource} -n {asked.namespace}` tests it."
    )


# What a server says with 403 beside a lack of permission, and what helps.
_POLICIES = {
    "exceeded quota": "Ask for less in `resources`, wait until others have ended, or have the "
    "quota raised: `kubectl describe quota`.",
    "must specify limits": "The namespace's quota wants them: set resources.memory.",
    "violates PodSecurity": "See kubernetes.pod_security; on PyTorchJob the operator's own init "
    "container is refused by restricted.",
    "denied the request": "A policy of the cluster refuses it: change what it names, or ask "
    "whoever runs the cluster.",
    "is being terminated": "The namespace is being deleted: choose another one.",
}


def _not_found(asked: Asked, answer: Answer) -> BackendError:
    if answer.details.get("kind") == "namespaces":
        return BackendError(
            f"{asked}: there is no namespace {asked.namespace}: `kubectl create namespace "
            f"{asked.namespace}`, or kubernetes.namespace of the profile is wrong"
        )
    if not answer.is_missing_kind or not asked.kind.group:
        return NotThere(f"{asked}: not found")
    operator = OPERATORS.get(asked.kind.group, f"whatever serves {asked.kind.group}")
    other = "" if asked.kind.group == "batch" else ", or choose another target: --target job needs "
    other += "" if asked.kind.group == "batch" else "no operator"
    return MissingKind(
        f"{asked}: this cluster has no {asked.kind.name} ({asked.kind.api_version}): install "
        f"{operator}{other}. `kubectl get crd {asked.kind.resource}` shows whether it is there."
    )


class MissingKind(NotThere):
    """The cluster knows no objects of this kind."""


def _conflict(asked: Asked, answer: Answer) -> BackendError:
    if answer.reason == "AlreadyExists":
        return AlreadyThere(f"{asked}: there is one of this name already")
    owners = [_owned(cause) for cause in answer.causes if cause.get("field")]
    if owners:
        return Conflict(
            f"{asked}: fields of it belong to others: {'; '.join(owners)}. Have them give the "
            "fields up, or delete the object and submit again."
        )
    return Conflict(f"{asked}: it has changed meanwhile: {answer.message}. Try again.")


def _owned(cause: Mapping[str, Any]) -> str:
    """A field and its manager, from the cause of a conflict."""
    manager = re.search(r'conflict with "([^"]*)"', str(cause.get("message")))
    return f"{cause['field']} to {manager[1] if manager else cause.get('message')}"


def _invalid(asked: Asked, answer: Answer) -> BackendError:
    words = [f"{c.get('field')}: {c.get('message')}" for c in answer.causes if c.get("field")]
    text = "; ".join(words) or answer.message
    if "immutable" in text:
        return Unchangeable(
            f"{asked}: what differs cannot be changed in an object that is there: {text}. Cancel "
            "the run and submit again: it is then made anew."
        )
    return BackendError(f"{asked}: the server does not accept it: {text}{_denied(text)}")


def _bad_request(asked: Asked, answer: Answer) -> BackendError:
    text = answer.message
    if "unknown field" in text or "strict decoding" in text:
        text += ". The operator of this cluster has another version than the profile says"
    return BackendError(f"{asked}: the server does not accept it: {text}{_denied(text)}")


def _denied(text: str) -> str:
    return f". {_POLICIES['denied the request']}" if "denied the request" in text else ""


def _gone(asked: Asked, answer: Answer) -> BackendError:
    return Gone(f"{asked}: {answer.message or 'too old'}")


_BY_CODE = {
    400: _bad_request,
    401: _unauthorized,
    403: _forbidden,
    404: _not_found,
    409: _conflict,
    410: _gone,
    422: _invalid,
}


def _short(text: str) -> str:
    line = " ".join(printable(part) for part in text.split())
    return (line if len(line) <= TEXT_LIMIT else line[: TEXT_LIMIT - 3] + "...").rstrip(".")
