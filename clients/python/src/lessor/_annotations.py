"""The changes of annotations that attach to a lease and detach from it: pure functions.

An annotation is valid as a whole or not at all. What is invalid attaches nothing, and is never overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from lessor import _names
from lessor.errors import AnnotationError

LEASE = "lessor.dev/lease"
KEY_PREFIX = "key.lessor.dev/"
KEYS = "lessor.dev/keys"
PROPAGATION = "lessor.dev/propagation"

#: The longest name of an annotation after its prefix, in characters.
MAX_ANNOTATION_NAME = 63

#: The keys of ConfigMaps and Secrets are keys of `data`; those of other kinds are JSON Pointers.
KeyForm = Literal["data", "pointer"]
Annotations = Mapping[str, str]
#: New values of annotations; None removes one.
Changes = dict[str, "str | None"]


@dataclass
class Attachments:
    """What the annotations of an object attach to leases."""

    whole: str | None = None
    keys: dict[str, str] = field(default_factory=dict)
    problems: list[AnnotationError] = field(default_factory=list)


def check_key(key: str, form: KeyForm) -> None:
    """Raises ValueError if the key is invalid for the kind."""
    if form == "data":
        _names.check_data_key(key)
    else:
        _names.check_pointer(key)


def parse(annotations: Annotations, form: KeyForm) -> Attachments:
    """What the annotations attach."""
    found = Attachments()
    policy = annotations.get(PROPAGATION, "Background")
    if policy not in ("Background", "Foreground", "Orphan"):
        found.problems.append(
            AnnotationError(f'annotation "{PROPAGATION}" has the invalid value "{policy}"; the object stays as it is')
        )
        return found
    if LEASE in annotations:
        try:
            _names.check_lease_name(annotations[LEASE])
            found.whole = annotations[LEASE]
        except ValueError as error:
            found.problems.append(AnnotationError(f'annotation "{LEASE}": {error}'))
    own = {name.removeprefix(KEY_PREFIX): lease for name, lease in annotations.items() if _is_own(name)}
    for key, lease in own.items():
        try:
            _check_own(key, lease, form)
            found.keys[key] = lease
        except ValueError as error:
            found.problems.append(AnnotationError(f'annotation "{KEY_PREFIX}{key}": {error}'))
    if KEYS in annotations:
        try:
            listed = _parse_keys(annotations[KEYS], form)
        except ValueError as error:
            found.problems.append(AnnotationError(f'annotation "{KEYS}" attaches nothing: {error}'))
        else:
            # If the key's own annotation is invalid, it may have been meant for another lease than the listed one.
            _merge(found, {key: lease for key, lease in listed.items() if key not in own or key in found.keys})
    return found


def attaching(annotations: Annotations, form: KeyForm, lease: str, keys: Collection[str]) -> Changes:
    """The changes that attach `keys`, or the whole object if there are none, to `lease` and to no other lease."""
    if not keys:
        return _effective(annotations, {LEASE: lease})
    # First detach the keys from other leases.
    changes = _without(annotations, form, set(keys))
    listed = {}
    for key in keys:
        if form == "data" and _fits_an_annotation(key):
            changes[KEY_PREFIX + key] = lease
        else:
            listed[key] = lease
    if listed:
        rest = _applied(annotations, changes).get(KEYS)
        if rest is not None:
            existing = parse({KEYS: rest}, form)
            # An invalid value would be lost by adding a key to it.
            if existing.problems:
                raise existing.problems[0]
            listed |= existing.keys
        changes[KEYS] = _keys_json(listed)
    for problem in parse(_applied(annotations, changes), form).problems:
        if _concerns(problem, keys):
            raise problem
    return _effective(annotations, changes)


def detaching(annotations: Annotations, form: KeyForm, lease: str, keys: Collection[str]) -> Changes:
    """The changes that detach `keys` from `lease`; if there are none, everything of the object."""
    attached = parse(annotations, form)
    gone = {key for key, owner in attached.keys.items() if owner == lease and (not keys or key in keys)}
    changes = _without(annotations, form, gone)
    if not keys and attached.whole == lease:
        changes[LEASE] = None
    return changes


def _is_own(annotation: str) -> bool:
    return annotation.startswith(KEY_PREFIX)


def _check_own(key: str, lease: str, form: KeyForm) -> None:
    if form != "data":
        raise ValueError(f"this kind has no data; attach a member by a JSON pointer in {KEYS}")
    _names.check_data_key(key)
    _names.check_lease_name(lease)


def _parse_keys(text: str, form: KeyForm) -> dict[str, str]:
    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # A dict would keep the last of two.
        if len(dict(pairs)) < len(pairs):
            raise ValueError("it has a key twice; keep one of them")
        return dict(pairs)

    listed = json.loads(text, object_pairs_hook=members)
    if not isinstance(listed, dict) or not all(isinstance(lease, str) for lease in listed.values()):
        raise ValueError('not a JSON object from keys to lease names, like \'{"KEY": "session-42"}\'')
    if not listed:
        raise ValueError("it has no keys")
    for key, lease in listed.items():
        check_key(key, form)
        _names.check_lease_name(lease)
    if form == "pointer":
        for outer in listed:
            for inner in listed:
                if _names.is_inside(inner, outer):
                    raise ValueError(f'"{inner}" lies inside "{outer}"; keep one of them')
    return dict(listed)


def _merge(found: Attachments, listed: dict[str, str]) -> None:
    for key, lease in listed.items():
        other = found.keys.setdefault(key, lease)
        if other != lease:
            del found.keys[key]
            problem = AnnotationError(
                f'key "{key}" is attached to lease "{other}" by annotation "{KEY_PREFIX}{key}" and to lease "{lease}" by '
                f'annotation "{KEYS}": remove one of them'
            )
            problem.key = key
            found.problems.append(problem)


def _without(annotations: Annotations, form: KeyForm, gone: set[str]) -> Changes:
    """The changes that remove the attachments of the keys `gone`."""
    attached = parse(annotations, form).keys
    changes: Changes = {}
    for annotation, lease in annotations.items():
        key = annotation.removeprefix(KEY_PREFIX)
        if _is_own(annotation) and key in gone and attached.get(key) == lease:
            changes[annotation] = None
    try:
        listed = _parse_keys(annotations[KEYS], form) if KEYS in annotations else {}
    except ValueError:
        return changes
    rest = {key: lease for key, lease in listed.items() if not (key in gone and key in attached)}
    if len(rest) < len(listed):
        changes[KEYS] = _keys_json(rest) if rest else None
    return changes


def _keys_json(keys: Mapping[str, str]) -> str:
    return json.dumps(dict(sorted(keys.items())), separators=(",", ":"), ensure_ascii=False)


def _fits_an_annotation(key: str) -> bool:
    """Whether the key is valid in the name of an annotation, which allows less than a key."""
    return len(key) <= MAX_ANNOTATION_NAME and key[0].isalnum() and key[-1].isalnum()


def _concerns(problem: AnnotationError, keys: Collection[str]) -> bool:
    """Whether a problem prevents one of these keys from being attached."""
    return problem.key in keys if problem.key else "lies inside" in str(problem)


def _applied(annotations: Annotations, changes: Changes) -> dict[str, str]:
    after = dict(annotations) | changes
    return {name: value for name, value in after.items() if value is not None}


def _effective(annotations: Annotations, changes: Changes) -> Changes:
    """The changes without those that have no effect."""
    return {name: value for name, value in changes.items() if annotations.get(name) != value}
