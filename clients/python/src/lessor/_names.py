"""Names of leases, and keys of objects. Invalid ones raise `ValueError` with the reason."""

from __future__ import annotations

import re

MAX_NAME_LENGTH = 253
MAX_POINTER_LENGTH = 1024

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")


def is_subdomain(name: str) -> bool:
    """Whether a text is a DNS subdomain, as names of objects are."""
    return len(name) <= MAX_NAME_LENGTH and _SUBDOMAIN.fullmatch(name) is not None


def check_lease_name(name: str) -> None:
    """Checks that a text can be the name of a lease."""
    if not is_subdomain(name):
        raise ValueError(
            f'invalid lease name "{name}": lease names consist of at most {MAX_NAME_LENGTH} lower case letters, digits, '
            '"-" and ".", and begin and end with a letter or digit, like "session-42"'
        )


def check_data_key(key: str) -> None:
    """Checks a key of a ConfigMap or Secret."""
    valid = len(key) <= MAX_NAME_LENGTH and _DATA_KEY.fullmatch(key) is not None
    if not valid or key == "." or key.startswith(".."):
        raise ValueError(
            f'invalid key "{key}": keys of ConfigMaps and Secrets consist of at most {MAX_NAME_LENGTH} letters, digits, '
            '"-", "_" and ".", like "session-42.token"'
        )


def check_pointer(pointer: str) -> None:
    """Checks a JSON Pointer to a member that may be removed."""
    if len(pointer.encode()) > MAX_POINTER_LENGTH:
        raise ValueError(f'invalid JSON pointer "{pointer[:50]}…": longer than {MAX_POINTER_LENGTH} bytes')
    if not pointer.startswith("/"):
        raise ValueError(f'invalid JSON pointer "{pointer}": it must begin with a slash, like "/spec/suspend"')
    raw = pointer.split("/")[1:]
    if "" in raw:
        raise ValueError(f'invalid JSON pointer "{pointer}": an empty token; use one like "/spec/suspend"')
    if re.search(r"~(?![01])", pointer):
        raise ValueError(f'invalid JSON pointer "{pointer}": escape "~" as "~0" and "/" as "~1"')
    if "-" in raw:
        raise ValueError(f'"{pointer}" points into an array: use a member of an object, like "/spec/suspend"')
    if _is_protected([token.replace("~1", "/").replace("~0", "~") for token in raw]):
        raise ValueError(
            f'"{pointer}" is protected: "/status", "/kind", "/apiVersion" and "/metadata" can\'t be removed, except single '
            'labels and annotations outside lessor.dev, like "/metadata/labels/session"'
        )


def is_inside(inner: str, outer: str) -> bool:
    """Whether one pointer lies inside another."""
    return inner.startswith(outer + "/")


def _is_protected(tokens: list[str]) -> bool:
    match tokens:
        case [("status" | "kind" | "apiVersion"), *_]:
            return True
        case ["metadata", "labels", _]:
            return False
        case ["metadata", "annotations", name]:
            domain = name.partition("/")[0] if "/" in name else ""
            return domain == "lessor.dev" or domain.endswith(".lessor.dev")
        case ["metadata", *_]:
            return True
        case _:
            return False
