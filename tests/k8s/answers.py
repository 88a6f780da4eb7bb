"""Errors as a Kubernetes API server words them (meta/v1 Status)."""

from __future__ import annotations

from k8s.discovery import Json, Resource

REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict",
    410: "Expired", 415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests",
    500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip


class ApiError(Exception):
    """An answer with a Status.

    Args:
        code: of HTTP.
        reason: in one word; by default the usual one of the code.
        details: of the Status, such as {"causes": [...]}.
        is_text: whether it is a text and no Status, as for a group that is not there.
    """

    def __init__(
        self,
        code: int,
        message: str,
        reason: str = "",
        details: Json | None = None,
        *,
        is_text: bool = False,
    ) -> None:
        super().__init__(message)
        self.is_text = is_text
        self.code, self.message = code, message
        self.reason = reason or REASONS.get(code, "")
        self.details = details or {}

    @property
    def status(self) -> Json:
        shell = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        words = {"message": self.message, "reason": self.reason, "code": self.code}
        return {**shell, **words, **({"details": self.details} if self.details else {})}


def not_found(resource: Resource, name: str) -> ApiError:
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return ApiError(404, f'{resource.full_name} "{name}" not found', details=details)


def exists(resource: Resource, name: str) -> ApiError:
    return ApiError(409, f'{resource.full_name} "{name}" already exists', "AlreadyExists")


def modified(resource: Resource, name: str) -> ApiError:
    return ApiError(
        409,
        f'Operation cannot be fulfilled on {resource.full_name} "{name}": the object has been '
        "modified; please apply your changes to the latest version and try again",
    )


def forbidden(resource: Resource, verb: str, namespace: str, name: str = "") -> ApiError:
    where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
    what = f' "{name}"' if name else ""
    text = (
        f'{resource.full_name}{what} is forbidden: User "tester" cannot {verb} resource '
        f'"{resource.plural}" in API group "{resource.group}"{where}'
    )
    details = {"group": resource.group, "kind": resource.plural}
    return ApiError(403, text, details={**details, **({"name": name} if name else {})})


def twice(path: str, key: str, value: str) -> ApiError:
    """An entry that a list has twice, as server-side apply finds it before anything else."""
    text = "failed to create typed patch object: errors:\n"
    return ApiError(500, f'{text}  .{path}: duplicate entries for key [{key}="{value}"]')


def field_conflict(api_version: str, fields: dict[str, str]) -> ApiError:
    """Fields, by path, that other managers hold, whose names are the values."""
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{manager}" using {api_version}',
            "field": path,
        }
        for path, manager in fields.items()
    ]
    lines = [f"{cause['message']}: {cause['field']}" for cause in causes]
    count = f"{len(causes)} conflict{'s' if len(causes) > 1 else ''}"
    return ApiError(
        409, f"Apply failed with {count}: " + "\n".join(lines), details={"causes": causes}
    )
