"""Validity, renew times, names, annotations and errors: pure functions."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lessor
from lessor import _annotations, _clock, _names, errors
from lessor._flow import Answer
from lessor._spec import lease_spec
from lessor._validity import Validity, parsed, renew_time


def answer(spec: Any, status: Any, generation: int = 1, sent: float = 100.0) -> Answer:
    lease = {"metadata": {"name": "a", "generation": generation}, "spec": spec, "status": status}
    return Answer(lease, sent, "Sat, 31 Jan 2026 12:00:10 GMT")


def valid(found: Validity | None) -> Validity:
    assert found is not None
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have other clocks")
def test_the_clock_counts_the_time_of_a_suspension_and_is_no_wall_clock() -> None:
    assert abs(_clock.now() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 1
    with open("/proc/uptime", encoding="ascii") as uptime:  # noqa: PTH123
        assert abs(_clock.now() - float(uptime.read().split()[0])) < 1


def test_the_granted_ttl_counts_from_before_the_request() -> None:
    found = valid(Validity.of(answer({"ttlSeconds": 10}, {"grantedTTLSeconds": 30, "specGeneration": 1})))
    assert (found.ttl, found.since, found.deadline) == (30, 100, 130)
    assert Validity.of(answer({"ttlSeconds": 10}, {})) is None


def test_a_shorter_ttl_counts_at_once_and_a_longer_one_once_it_is_granted() -> None:
    def status(granted: int, observed: int) -> Any:
        return {"grantedTTLSeconds": granted, "specGeneration": observed}

    first = valid(Validity.of(answer({"ttlSeconds": 30}, status(30, 1))))
    shorter = valid(first.renewed(answer({"ttlSeconds": 10}, status(30, 1), 5)))
    assert shorter.ttl == 10
    # The primary has written the status since, but for an earlier generation.
    shorter = valid(shorter.renewed(answer({"ttlSeconds": 10}, status(30, 4), 6)))
    assert shorter.ttl == 10
    # The operator's minimum is 15 s.
    assert valid(shorter.renewed(answer({"ttlSeconds": 10}, status(15, 5), 7))).ttl == 15
    longer = valid(first.renewed(answer({"ttlSeconds": 60}, status(30, 1), 5)))
    assert longer.ttl == 30
    assert valid(longer.renewed(answer({"ttlSeconds": 60}, status(60, 5), 6))).ttl == 60


@pytest.mark.parametrize(("lifetime", "left", "capped"), [(20, 9, True), (60, 30, False), (5, 0, True)])
def test_the_validity_ends_with_the_maximum_lifetime(lifetime: int, left: float, capped: bool) -> None:
    # Granted ten seconds ago, perhaps eleven.
    status = {"grantedTTLSeconds": 30, "grantTime": "2026-01-31T12:00:00.000000Z"}
    found = valid(Validity.of(answer({"ttlSeconds": 30, "maxLifetimeSeconds": lifetime}, status)))
    assert (found.deadline - found.since, found.capped) == (left, capped)


def test_a_renewal_within_a_microsecond_or_after_a_clock_step_has_a_new_renew_time() -> None:
    now = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)
    assert renew_time(now, None) == "2026-01-31T12:00:00.123456Z"
    assert renew_time(now, "2026-01-31T12:00:00.123456Z") == "2026-01-31T12:00:00.123457Z"
    assert renew_time(now, "2026-01-31T12:00:01Z") == "2026-01-31T12:00:01.000001Z"
    assert renew_time(now, "2026-01-31T14:00:01.5+02:00") == "2026-01-31T12:00:01.500001Z"
    assert renew_time(now, "nonsense") == "2026-01-31T12:00:00.123456Z"
    assert renew_time(now, "9999-12-31T23:59:59.999999Z") == "9999-12-31T23:59:59.999998Z"


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)), st.lists(st.integers(-3, 3), max_size=8))
def test_each_renewal_is_new_and_later(now: datetime, steps: list[int]) -> None:
    now = now.replace(tzinfo=UTC)
    last = renew_time(now, None)
    for step in steps:
        now += timedelta(microseconds=step)
        text = renew_time(now, last)
        assert parsed(text) > parsed(last)  # type: ignore[operator]
        last = text


def test_parts_of_a_second_are_rounded_up() -> None:
    spec = lease_spec(10.001, holder="web-1", max_lifetime=60, warn_before=0.5, retain=True)
    assert spec == {
        "ttlSeconds": 11,
        "holder": "web-1",
        "maxLifetimeSeconds": 60,
        "warnBeforeSeconds": 1,
        "afterExpiry": "Retain",
    }
    assert lease_spec(10) == {"ttlSeconds": 10}
    with pytest.raises(lessor.InvalidError):
        lease_spec(float("nan"))


@pytest.mark.parametrize(
    "pointer", ["/spec/suspend", "/metadata/labels/session", "/metadata/annotations/a~1b", "/data"]
)
def test_a_pointer_to_a_member_is_accepted(pointer: str) -> None:
    _names.check_pointer(pointer)


@pytest.mark.parametrize(
    "pointer",
    [
        "spec",
        "/spec/",
        "/a~2",
        "/spec/-",
        "/status/phase",
        "/metadata/name",
        "/metadata/labels",
        "/metadata/annotations/lessor.dev~1lease",
        "/metadata/annotations/key.lessor.dev~1a",
        "/" + "x" * 1024,
    ],
)
def test_a_pointer_to_what_may_not_be_removed_is_refused(pointer: str) -> None:
    with pytest.raises(ValueError, match=r"pointer|protected|array"):
        _names.check_pointer(pointer)


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a.", "a\n", "x" * 254])
def test_an_invalid_name_of_a_lease_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="lower case"):
        _names.check_lease_name(name)


def test_a_key_that_is_invalid_in_an_annotations_name_is_attached_by_the_json_annotation() -> None:
    changes = _annotations.attaching({}, "data", "a", ["bob", ".bob.token"])
    assert changes == {"key.lessor.dev/bob": "a", "lessor.dev/keys": '{".bob.token":"a"}'}


def test_attaching_again_changes_nothing() -> None:
    before = {"lessor.dev/lease": "a", "key.lessor.dev/bob": "a"}
    assert _annotations.attaching(before, "data", "a", []) == {}
    assert _annotations.attaching(before, "data", "a", ["bob"]) == {}


def test_an_invalid_json_annotation_is_not_overwritten() -> None:
    for text in ["{", "[]", "{}", '{"a": 1}', '{"a": "x", "a": "y"}', '{"a": "X"}']:
        before = {"lessor.dev/keys": text}
        with pytest.raises(lessor.AnnotationError):
            _annotations.attaching(before, "data", "a", [".bob"])
        # A key with an annotation of its own is not affected.
        assert _annotations.attaching(before, "data", "a", ["bob"]) == {"key.lessor.dev/bob": "a"}


def test_a_member_inside_another_attached_member_is_refused() -> None:
    before = {"lessor.dev/keys": '{"/spec/template":"a"}'}
    with pytest.raises(lessor.AnnotationError):
        _annotations.attaching(before, "pointer", "a", ["/spec/template/metadata"])


def test_a_key_that_two_annotations_attach_to_different_leases_is_attached_to_none() -> None:
    found = _annotations.parse({"key.lessor.dev/a": "x", "lessor.dev/keys": '{"a":"y","b":"y"}'}, "data")
    assert found.keys == {"b": "y"}
    assert len(found.problems) == 1


def test_detaching_keeps_attachments_to_other_leases() -> None:
    before = {
        "lessor.dev/lease": "b",
        "key.lessor.dev/bob": "a",
        "lessor.dev/keys": '{".bob":"a",".eve":"b"}',
        "example.com/other": "a",
    }
    assert _annotations.detaching(before, "data", "a", []) == {
        "key.lessor.dev/bob": None,
        "lessor.dev/keys": '{".eve":"b"}',
    }


KEYS = st.dictionaries(st.from_regex(r"[.a-c]{1,3}", fullmatch=True), st.sampled_from("xy"), max_size=4)


def is_key(key: str) -> bool:
    try:
        _names.check_data_key(key)
    except ValueError:
        return False
    return True


@given(own=KEYS, listed=KEYS, chosen=st.sets(st.from_regex(r"[.a-c]{1,3}", fullmatch=True).filter(is_key), min_size=1))
def test_attaching_moves_the_given_keys_and_no_others(
    own: dict[str, str], listed: dict[str, str], chosen: set[str]
) -> None:
    before = {f"key.lessor.dev/{key}": lease for key, lease in own.items() if is_key(key)}
    listed = {key: lease for key, lease in listed.items() if is_key(key)}
    if listed:
        before["lessor.dev/keys"] = json.dumps(listed)
    old = _annotations.parse(before, "data")
    try:
        changes = _annotations.attaching(before, "data", "new", sorted(chosen))
    except lessor.AnnotationError:
        return
    after = {key: value for key, value in (before | changes).items() if value is not None}
    new = _annotations.parse(after, "data")
    assert all(new.keys.get(key) == "new" for key in chosen)
    assert all(new.keys.get(key) == lease for key, lease in old.keys.items() if key not in chosen)
    detached = after | _annotations.detaching(after, "data", "new", [])
    rest = _annotations.parse({key: value for key, value in detached.items() if value is not None}, "data")
    assert "new" not in rest.keys.values()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, {"details": {"name": "x"}}, errors.NotFoundError),
        (404, {}, errors.NotInstalledError),
        (409, {"reason": "AlreadyExists"}, errors.ExistsError),
        (409, {}, errors.ConflictError),
        (422, {"message": "spec: Forbidden: lease has ended: grant a new one"}, errors.EndedError),
        (422, {"details": {"causes": [{"field": "metadata.uid"}]}}, errors.ReplacedError),
        (422, {"message": "something else"}, errors.InvalidError),
        (401, {}, errors.UnauthorizedError),
        (403, {}, errors.ForbiddenError),
        (500, {}, errors.ServerError),
    ],
)
def test_a_response_is_an_error_that_a_caller_can_act_on(status: int, body: Any, expected: type) -> None:
    assert type(errors.of_response(status, None, json.dumps(body).encode())) is expected


def test_the_message_is_that_of_the_api_server_or_of_a_proxy_without_one() -> None:
    body = json.dumps({"message": 'leases.lessor.dev "x" not found', "details": {"name": "x"}}).encode()
    assert str(errors.of_response(404, None, body)) == 'leases.lessor.dev "x" not found'
    assert "502" in str(errors.of_response(502, None, b"<html>Bad Gateway</html>"))


def test_a_retry_after_is_read_from_the_header_or_the_body() -> None:
    assert errors.retry_after(errors.of_response(429, "3", b"{}")) == 3
    assert errors.retry_after(errors.of_response(429, None, b'{"details": {"retryAfterSeconds": 2}}')) == 2
    assert errors.retry_after(errors.of_response(429, "soon", b"{}")) is None


def test_the_hint_for_a_missing_right_names_a_role_that_has_it() -> None:
    text = 'leases.lessor.dev "x" is forbidden: User "jane" cannot {} resource "leases" in API group "lessor.dev"'
    assert "lessor-view" in str(errors.ForbiddenError(text.format("watch")).hint())
    assert "lessor-edit" in str(errors.ForbiddenError(text.format("patch")).hint())
