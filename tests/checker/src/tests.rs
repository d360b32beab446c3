//! Made-up logs, each of which breaks one promise (or none), and what the checker reports of them.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{Checker, Promise, Report, Request};

const OPERATOR: &str = "lessor-0";

/// An API server that stores every write, and its log.
#[derive(Default)]
struct Log {
    now: Duration,
    version: u64,
    objects: Vec<Value>,
    requests: Vec<Request>,
}

impl Log {
    fn time(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + self.now
    }

    fn sleep(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
    }

    fn log(&mut self, user: &str, verb: &str, path: &str, body: Value, code: u16, answer: Value) {
        let mut parts = path.split('/');
        let mut part = || parts.next().unwrap_or_default().to_owned();
        let (resource, name, subresource) = (part(), part(), part());
        let received = self.time();
        self.now += Duration::from_millis(2);
        self.requests.push(Request {
            received,
            answered: self.time(),
            user: user.to_owned(),
            verb: verb.to_owned(),
            group: match &*resource {
                "configmaps" | "pods" => "",
                "heartbeats" => "coordination.k8s.io",
                _ => "lessor.dev",
            }
            .to_owned(),
            namespace: if resource == "lessors" { "" } else { "shop" }.to_owned(),
            resource: if resource == "heartbeats" { "leases".to_owned() } else { resource },
            subresource,
            name,
            code,
            body: Some(body),
            answer: Some(answer),
        });
    }

    fn create(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        let name = path.split('/').nth(1).expect("a name");
        object["metadata"]["name"] = json!(name);
        object["metadata"]["namespace"] = json!("shop");
        object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["kind"] = json!(path.split('/').next());
        self.objects.push(object.clone());
        self.log("holder", "create", path, object.clone(), 201, object);
    }

    fn object(&mut self, path: &str) -> &mut Value {
        let mut parts = path.split('/');
        let (kind, name) = (parts.next(), parts.next());
        let matches = |object: &&mut Value| {
            object["kind"].as_str() == kind && object["metadata"]["name"].as_str() == name
        };
        self.objects.iter_mut().find(matches).expect("an object")
    }

    fn patch(&mut self, user: &str, path: &str, patch: Value) {
        let next = (self.version + 1).to_string();
        let object = self.object(path);
        merge(object, &patch);
        let meta = &object["metadata"];
        if meta["deletionTimestamp"].is_string() && meta["finalizers"].is_null() {
            let answer = object.clone();
            self.objects.retain(|other| *other != answer);
            return self.log(user, "patch", path, patch, 200, answer);
        }
        object["metadata"]["resourceVersion"] = json!(next);
        let answer = object.clone();
        self.version += 1;
        self.log(user, "patch", path, patch, 200, answer);
    }

    /// Deletes it, on these preconditions.
    fn delete(&mut self, user: &str, path: &str, body: Value) {
        let object = self.object(path).clone();
        if object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty()) {
            self.version += 1;
            let version = self.version.to_string();
            let object = self.object(path);
            object["metadata"]["deletionTimestamp"] = json!("2026-01-31T12:00:00Z");
            object["metadata"]["resourceVersion"] = json!(version);
            let answer = object.clone();
            return self.log(user, "delete", path, body, 200, answer);
        }
        self.objects.retain(|other| *other != object);
        let answer = json!({"kind": "Status", "details": {"uid": object["metadata"]["uid"]}});
        self.log(user, "delete", path, body, 200, answer);
    }

    /// What binds a request to an object as it is now.
    fn bound(&mut self, path: &str) -> Value {
        let meta = &self.object(path)["metadata"];
        json!({"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]})
    }

    // --- What the operator does --------------------------------------------------------------------------------

    fn grant(&mut self, name: &str, spec: Value) {
        let path = format!("leases/{name}");
        self.create(&path, json!({"spec": spec}));
        self.patch(OPERATOR, &path, json!({"metadata": {"finalizers": ["lessor.dev/revoke"]}}));
        self.patch(
            OPERATOR,
            &format!("{path}/status"),
            json!({"status": {"specGeneration": 1, "term": 1, "primary": OPERATOR}}),
        );
    }

    fn renew(&mut self, name: &str) {
        let time = self.time().to_string();
        self.patch("holder", &format!("leases/{name}"), json!({"spec": {"renewTime": time}}));
    }

    fn suspend(&mut self, name: &str, suspend: bool) {
        self.patch("holder", &format!("leases/{name}"), json!({"spec": {"suspend": suspend}}));
        let reason = if suspend { "Suspended" } else { "Granted" };
        let condition = json!({"type": "Active", "reason": reason});
        let status = json!({"status": {"term": 1, "conditions": [condition]}});
        self.patch(OPERATOR, &format!("leases/{name}/status"), status);
    }

    fn end(&mut self, name: &str) {
        let time = self.time().to_string();
        self.patch(
            OPERATOR,
            &format!("leases/{name}/status"),
            json!({"status": {"endTime": time, "term": 1}}),
        );
    }

    fn release(&mut self, name: &str) {
        self.patch(OPERATOR, &format!("leases/{name}"), json!({"metadata": {"finalizers": null}}));
    }

    fn remove(&mut self, path: &str) {
        let preconditions = self.bound(path);
        self.delete(OPERATOR, path, json!({"preconditions": preconditions}));
    }

    fn remove_key(&mut self, path: &str, key: &str) {
        let mut metadata = self.bound(path);
        metadata["annotations"] = json!({format!("key.lessor.dev/{key}"): null});
        self.patch(
            OPERATOR,
            path,
            json!({"metadata": metadata, "data": {key: null}, "binaryData": {key: null}}),
        );
    }

    fn attached(&mut self, name: &str, annotations: Value) {
        let object = json!({"metadata": {"annotations": annotations}, "data": {"a": "1", "b": "2"}});
        self.create(&format!("configmaps/{name}"), object);
    }

    // --- What the checker says ---------------------------------------------------------------------------------

    fn report(&self) -> Report {
        Checker::new("lessor-").check(&self.requests)
    }

    fn assert_kept(&self) -> Report {
        let report = self.report();
        assert!(report.violations.is_empty(), "{report}");
        report
    }

    fn assert_broken(&self, promise: Promise, what: &str) {
        let report = self.report();
        let [violation] = &report.violations[..] else { panic!("not one violation: {report}") };
        assert_eq!(violation.promise, promise, "{report}");
        assert!(violation.what.contains(what), "{what:?} isn't in {report}");
        assert!(!violation.requests.is_empty(), "it shows no request: {report}");
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(members) = patch.as_object() else { return *target = patch.clone() };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in members {
        match (value, target.as_object_mut()) {
            (Value::Null, Some(target)) => drop(target.remove(name)),
            _ => merge(&mut target[name], value),
        }
    }
}

/// A lease with TTL 5 that was renewed once, expired in time, and took a whole object and a key with it.
fn good() -> Log {
    let mut log = Log::default();
    log.attached("whole", json!({"lessor.dev/lease": "a"}));
    log.attached("keys", json!({"key.lessor.dev/a": "a", "key.lessor.dev/b": "other"}));
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(4.0);
    log.renew("a");
    log.sleep(5.0);
    log.end("a");
    log.remove("configmaps/whole");
    log.remove_key("configmaps/keys", "a");
    log.release("a");
    log.remove("leases/a");
    log
}

#[test]
fn a_life_in_order_breaks_no_promise_and_is_counted() {
    let report = good().assert_kept();
    let figures = &report.figures;
    assert_eq!((figures.granted, figures.renewed, figures.expired, figures.released), (1, 1, 1, 1));
    assert_eq!((figures.objects, figures.keys, figures.revoked), (1, 1, 0));
    assert_eq!(figures.lateness.len(), 1);
    assert!(figures.late(1.0) < Duration::from_millis(10), "{figures}");
    assert_eq!(figures.late_of("a"), Some(figures.late(1.0)));
    assert_eq!(figures.late_in("shop"), figures.late(1.0));
    assert_eq!(figures.late_in("other"), Duration::ZERO);
}

#[test]
fn the_order_of_the_log_does_not_matter() {
    let mut log = good();
    log.requests.reverse();
    log.assert_kept();
}

// --- P1, P2 -----------------------------------------------------------------------------------------------------

#[test]
fn an_expiry_within_the_ttl_after_the_grant_is_early() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(4.9);
    log.end("a");
    log.assert_broken(Promise::NeverEarly, "after its grant");
}

#[test]
fn an_expiry_within_the_ttl_after_a_renewal_dishonours_it() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(4.0);
    log.renew("a");
    log.sleep(1.0);
    log.end("a");
    log.assert_broken(Promise::OneOutcome, "after an accepted renewal");
}

#[test]
fn a_longer_ttl_renews_and_other_changes_of_spec_do_not() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 5}));
    log.grant("b", json!({"ttlSeconds": 5}));
    log.sleep(4.0);
    log.patch("holder", "leases/a", json!({"spec": {"ttlSeconds": 10}}));
    log.patch("holder", "leases/b", json!({"spec": {"holder": "me"}}));
    log.sleep(1.0);
    log.end("b");
    log.assert_kept();
    log.end("a");
    log.assert_broken(Promise::OneOutcome, "TTL is 10s");
}

#[test]
fn an_expiry_without_a_grant_is_early() {
    let mut log = Log::default();
    log.create(
        "leases/a",
        json!({"spec": {"ttlSeconds": 5}, "metadata": {"finalizers": ["lessor.dev/revoke"]}}),
    );
    log.sleep(9.0);
    log.end("a");
    log.assert_broken(Promise::NeverEarly, "without a grant");
}

#[test]
fn a_maximum_lifetime_ends_a_renewed_lease_and_not_before_its_time() {
    for (lifetime, kept) in [(6, true), (7, false)] {
        let mut log = Log::default();
        log.grant("a", json!({"ttlSeconds": 5, "maxLifetimeSeconds": lifetime}));
        log.sleep(4.0);
        log.renew("a");
        log.sleep(2.0);
        log.end("a");
        assert_eq!(log.report().violations.is_empty(), kept, "{}", log.report());
    }
}

#[test]
fn a_maximum_ttl_is_what_is_granted() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 500}));
    log.sleep(10.0);
    log.end("a");
    let report = Checker::new("lessor-").max_ttl(Duration::from_secs(10)).check(&log.requests);
    assert!(report.violations.is_empty(), "{report}");
    log.assert_broken(Promise::NeverEarly, "its grant");
}

#[test]
fn the_time_of_a_suspension_does_not_count() {
    for (suspended, kept) in [(1.0, true), (4.0, false)] {
        let mut log = Log::default();
        log.grant("a", json!({"ttlSeconds": 5}));
        log.sleep(2.0);
        log.suspend("a", true);
        log.sleep(suspended);
        log.suspend("a", false);
        log.sleep(5.0 - suspended);
        log.sleep(if kept { suspended } else { 0.0 });
        log.end("a");
        assert_eq!(log.report().violations.is_empty(), kept, "{}", log.report());
    }
}

#[test]
fn a_suspended_lease_does_not_expire() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 5}));
    log.suspend("a", true);
    log.sleep(60.0);
    log.end("a");
    log.assert_broken(Promise::NeverEarly, "its grant");
}

#[test]
fn the_time_of_an_outage_does_not_count() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(3.0);
    let from = log.time();
    log.sleep(60.0);
    let to = log.time();
    log.sleep(1.0);
    log.end("a");
    log.assert_kept();
    let report = Checker::new("lessor-").outage(from, to).check(&log.requests);
    assert_eq!(report.violations.len(), 1, "{report}");
}

#[test]
fn an_outage_counts_for_ends_before_the_last_replica_goes_that_has_met_it() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(3.0);
    let from = log.time();
    log.sleep(60.0);
    let to = log.time();
    log.sleep(1.0);
    let before_end = log.time();
    log.end("a");
    let broken = |known_until| {
        let checker = Checker::new("lessor-").outage_known_until(from, to, known_until);
        checker.check(&log.requests).violations.len()
    };
    assert_eq!(broken(before_end), 0);
    assert_eq!(broken(log.time()), 1);
}

#[test]
fn a_revoke_may_come_at_any_time() {
    let mut log = Log::default();
    log.attached("keys", json!({"key.lessor.dev/a": "a"}));
    log.grant("a", json!({"ttlSeconds": 5}));
    log.delete("holder", "leases/a", json!({}));
    log.end("a");
    log.remove_key("configmaps/keys", "a");
    log.release("a");
    let report = log.assert_kept();
    assert_eq!((report.figures.revoked, report.figures.released), (1, 1));
}

#[test]
fn a_refused_renewal_moves_no_deadline() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(4.0);
    log.log(
        "holder",
        "patch",
        "leases/a",
        json!({"spec": {"renewTime": "x"}}),
        422,
        json!({"kind": "Status"}),
    );
    log.sleep(1.0);
    log.end("a");
    log.assert_kept();
}

#[test]
fn a_spec_that_changes_after_the_end_is_a_second_outcome() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(5.0);
    log.end("a");
    log.renew("a");
    log.assert_broken(Promise::OneOutcome, "spec changed after its end");
}

#[test]
fn an_end_stays_where_it_is() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(5.0);
    log.end("a");
    log.sleep(1.0);
    log.end("a");
    log.assert_broken(Promise::OneOutcome, "its end was moved");
}

#[test]
fn an_end_that_was_stored_and_not_logged_is_no_early_end() {
    let mut log = Log::default();
    log.attached("whole", json!({"lessor.dev/lease": "a"}));
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(5.0);
    log.end("a");
    log.remove("configmaps/whole");
    log.release("a");
    log.requests.retain(|request| request.body_at("/status/endTime").is_none());
    let report = log.assert_kept();
    assert_eq!((report.figures.expired, report.figures.unlogged), (0, 1));
}

#[test]
fn a_grant_or_renewal_that_was_stored_though_the_answer_does_not_say_so_counts_from_its_request() {
    for renewed in [false, true] {
        let mut log = Log::default();
        log.grant("a", json!({"ttlSeconds": 5}));
        if renewed {
            log.sleep(4.0);
            log.patch("holder", "leases/a", json!({"spec": {"renewTime": "2026-01-31T12:00:00Z"}}));
        }
        log.requests.last_mut().expect("a request").code = 504;
        log.sleep(4.0);
        log.patch(OPERATOR, "leases/a/status", json!({"status": {"term": 1}}));
        log.sleep(1.5);
        log.end("a");
        log.assert_kept();
    }
}

// --- P3 ---------------------------------------------------------------------------------------------------------

#[test]
fn a_renewal_that_was_stored_and_not_logged_is_older_than_what_shows_it() {
    let mut log = Log::default();
    log.grant("session", json!({"ttlSeconds": 10}));
    log.sleep(8.0);
    log.renew("session");
    // The API server died before it could log that.
    log.requests.pop();
    log.sleep(8.0);
    log.patch(OPERATOR, "leases/session/status", json!({"status": {"term": 1, "expiryTime": "later"}}));
    log.sleep(2.0);
    log.end("session");
    log.assert_kept();
}

#[test]
fn an_object_goes_only_after_the_end_of_its_lease() {
    let mut log = Log::default();
    log.attached("whole", json!({"lessor.dev/lease": "a"}));
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(5.0);
    log.remove("configmaps/whole");
    log.assert_broken(Promise::NothingUnattached, "had not ended");
    log.end("a");
    log.assert_broken(Promise::NothingUnattached, "had not ended yet");
}

#[test]
fn a_key_goes_only_after_the_end_of_its_lease() {
    let mut log = Log::default();
    log.attached("keys", json!({"key.lessor.dev/a": "a"}));
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(5.0);
    log.remove_key("configmaps/keys", "a");
    log.end("a");
    log.assert_broken(Promise::NothingUnattached, "had not ended yet");
}

#[test]
fn what_is_attached_to_no_lease_stays() {
    let mut log = Log::default();
    log.attached("whole", json!({"lessor.dev/lease": "nobody"}));
    log.remove("configmaps/whole");
    log.assert_broken(Promise::NothingUnattached, "there is no lease");
}

#[test]
fn what_was_attached_elsewhere_before_the_removal_stays() {
    let mut log = Log::default();
    log.attached("keys", json!({"key.lessor.dev/a": "a"}));
    log.grant("a", json!({"ttlSeconds": 5}));
    log.grant("b", json!({"ttlSeconds": 50}));
    log.sleep(5.0);
    log.end("a");
    log.patch("holder", "configmaps/keys", json!({"metadata": {"annotations": {"key.lessor.dev/a": "b"}}}));
    log.remove_key("configmaps/keys", "a");
    log.assert_broken(Promise::NothingUnattached, "lease \"b\" had not ended");
}

#[test]
fn what_was_attached_to_a_later_lease_of_the_name_stays() {
    let mut log = good();
    log.grant("a", json!({"ttlSeconds": 50}));
    log.attached("whole", json!({"lessor.dev/lease": "a"}));
    log.remove("configmaps/whole");
    log.assert_broken(Promise::NothingUnattached, "had not ended");
}

#[test]
fn what_was_attached_after_the_release_stays() {
    let mut log = good();
    log.sleep(1.0);
    log.attached("whole", json!({"lessor.dev/lease": "a"}));
    log.remove("configmaps/whole");
    log.assert_broken(Promise::NothingUnattached, "released before");
}

#[test]
fn what_was_detached_before_the_removal_stays() {
    let mut log = Log::default();
    log.attached("whole", json!({"lessor.dev/lease": "a"}));
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(5.0);
    log.end("a");
    log.patch("holder", "configmaps/whole", json!({"metadata": {"annotations": {"lessor.dev/lease": null}}}));
    log.remove("configmaps/whole");
    log.assert_broken(Promise::NothingUnattached, "was not attached");
}

#[test]
fn a_removal_is_bound_to_uid_and_version() {
    for (member, left) in [("resourceVersion", "uid"), ("uid", "resourceVersion")] {
        let mut log = Log::default();
        log.attached("whole", json!({"lessor.dev/lease": "a"}));
        log.grant("a", json!({"ttlSeconds": 5}));
        log.sleep(5.0);
        log.end("a");
        let bound = log.bound("configmaps/whole");
        let body = json!({"preconditions": {left: bound[left]}});
        log.delete(OPERATOR, "configmaps/whole", body);
        log.assert_broken(Promise::NothingUnattached, &format!("isn't bound to a {member}"));
    }
}

#[test]
fn a_removal_of_keys_changes_nothing_else() {
    for (extra, what) in [
        (json!({"data": {"b": null}}), "\"b\" was not attached"),
        (json!({"data": {"b": "3"}}), "it writes the key \"b\""),
        (json!({"metadata": {"labels": {"x": null}}}), "it changes metadata.labels"),
        (json!({"metadata": {"annotations": {"note": null}}}), "none of the operator's business"),
        (json!({"immutable": true}), "it changes immutable"),
    ] {
        let mut log = Log::default();
        log.attached("keys", json!({"key.lessor.dev/a": "a"}));
        log.grant("a", json!({"ttlSeconds": 5}));
        log.sleep(5.0);
        log.end("a");
        let mut patch = json!({"metadata": log.bound("configmaps/keys"), "data": {"a": null}});
        patch["metadata"]["annotations"] = json!({"key.lessor.dev/a": null});
        merge_keeping_nulls(&mut patch, &extra);
        log.patch(OPERATOR, "configmaps/keys", patch);
        log.assert_broken(Promise::NothingUnattached, what);
    }
}

fn merge_keeping_nulls(target: &mut Value, extra: &Value) {
    for (name, value) in extra.as_object().into_iter().flatten() {
        if value.is_object() && target.get(name).is_some_and(Value::is_object) {
            merge_keeping_nulls(&mut target[name], value);
        } else {
            target[name] = value.clone();
        }
    }
}

#[test]
fn what_others_delete_is_their_business() {
    let mut log = Log::default();
    log.attached("whole", json!({"lessor.dev/lease": "a"}));
    log.delete("holder", "configmaps/whole", json!({}));
    log.assert_kept();
}

// --- P4 ---------------------------------------------------------------------------------------------------------

#[test]
fn a_lease_is_not_released_before_its_objects_are_gone() {
    let mut log = Log::default();
    log.attached("whole", json!({"lessor.dev/lease": "a"}));
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(5.0);
    log.end("a");
    log.release("a");
    log.assert_broken(Promise::Complete, "the whole of configmaps shop/whole was left");
}

#[test]
fn a_revoked_lease_is_not_released_before_its_keys_are_gone() {
    let mut log = Log::default();
    log.attached("keys", json!({"key.lessor.dev/a": "a"}));
    log.grant("a", json!({"ttlSeconds": 5}));
    log.delete("holder", "leases/a", json!({}));
    log.end("a");
    log.release("a");
    log.assert_broken(Promise::Complete, "key \"a\" of configmaps shop/keys was left");
    log.sleep(1.0);
    log.remove_key("configmaps/keys", "a");
    assert_eq!(log.report().violations.len(), 2, "{}", log.report());
}

#[test]
fn a_lease_is_not_released_before_its_keys_are_gone() {
    let mut log = Log::default();
    log.attached("keys", json!({"lessor.dev/keys": r#"{"a": "a", "b": "a"}"#}));
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(5.0);
    log.end("a");
    let mut metadata = log.bound("configmaps/keys");
    metadata["annotations"] = json!({"lessor.dev/keys": r#"{"b":"a"}"#});
    log.patch(OPERATOR, "configmaps/keys", json!({"metadata": metadata, "data": {"a": null}}));
    log.release("a");
    log.assert_broken(Promise::Complete, "key \"b\" of configmaps shop/keys was left");
}

#[test]
fn what_was_removed_and_not_logged_is_left_behind_only_if_it_is_seen_again() {
    let mut log = Log::default();
    log.grant("session", json!({"ttlSeconds": 10}));
    log.attached("whole", json!({"lessor.dev/lease": "session"}));
    log.sleep(10.0);
    log.end("session");
    let death = log.time();
    log.sleep(1.0);
    log.release("session");
    let violations = |log: &Log| Checker::new("lessor-").death(death).check(&log.requests).violations.len();
    assert_eq!((log.report().violations.len(), violations(&log)), (1, 0));
    log.patch("other", "configmaps/whole", json!({"data": {"a": "still there"}}));
    assert_eq!(violations(&log), 1);
}

#[test]
fn what_was_detached_or_attached_after_the_end_may_be_left() {
    let mut log = Log::default();
    log.attached("whole", json!({"lessor.dev/lease": "a"}));
    log.grant("a", json!({"ttlSeconds": 5}));
    log.sleep(5.0);
    log.end("a");
    log.patch("holder", "configmaps/whole", json!({"metadata": {"annotations": null}}));
    log.attached("late", json!({"lessor.dev/lease": "a"}));
    log.release("a");
    log.assert_kept();
}

#[test]
fn a_lease_is_granted_with_its_finalizer() {
    let mut log = Log::default();
    log.create("leases/a", json!({"spec": {"ttlSeconds": 5}}));
    log.patch(OPERATOR, "leases/a/status", json!({"status": {"specGeneration": 1, "term": 1}}));
    log.assert_broken(Promise::Complete, "without the finalizer");
}

// --- P5 ---------------------------------------------------------------------------------------------------------

#[test]
fn the_term_of_an_object_never_decreases() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 5}));
    log.patch(OPERATOR, "leases/a/status", json!({"status": {"term": 2}}));
    log.assert_kept();
    log.patch("lessor-1", "leases/a/status", json!({"status": {"term": 1}}));
    log.assert_broken(Promise::Harmless, "from 2 to Some(1)");
}

#[test]
fn a_status_of_the_operator_carries_a_term() {
    let mut log = Log::default();
    log.grant("a", json!({"ttlSeconds": 5}));
    log.patch(OPERATOR, "leases/a/status", json!({"status": {"attached": {"objects": 1}}}));
    log.assert_broken(Promise::Harmless, "without a term");
}

#[test]
fn a_term_has_one_primary() {
    let mut log = Log::default();
    log.create("lessors/default", json!({}));
    log.patch(OPERATOR, "lessors/default/status", json!({"status": {"primary": "x", "term": 1}}));
    log.patch(OPERATOR, "lessors/default/status", json!({"status": {"primary": null, "term": 1}}));
    log.patch("lessor-1", "lessors/default/status", json!({"status": {"primary": "y", "term": 2}}));
    assert_eq!(log.assert_kept().figures.primaries, [(1, "x".to_owned()), (2, "y".to_owned())]);
    log.patch(OPERATOR, "lessors/default/status", json!({"status": {"primary": "x", "term": 2}}));
    log.assert_broken(Promise::Harmless, "term 2 was held by y and by x");
}

// --- Leases that follow something -------------------------------------------------------------------------------

impl Log {
    fn beat(&mut self, name: &str) {
        let time = self.time().to_string();
        self.patch("node", &format!("heartbeats/{name}"), json!({"spec": {"renewTime": time}}));
    }
}

fn follows_heart() -> Value {
    json!({"ttlSeconds": 10, "renewFrom": {"coordinationLease": {"name": "heart"}}})
}

#[test]
fn a_beat_of_what_a_lease_follows_is_a_renewal() {
    for (rest, early) in [(9.0, true), (10.1, false)] {
        let mut log = Log::default();
        log.create("heartbeats/heart", json!({"spec": {"renewTime": "0"}}));
        log.grant("lease", follows_heart());
        for _ in 0..3 {
            log.sleep(6.0);
            log.beat("heart");
        }
        log.sleep(rest);
        log.end("lease");
        let report = Checker::new(OPERATOR).check(&log.requests);
        assert_eq!(!report.violations.is_empty(), early, "{report}");
    }
}

#[test]
fn a_beat_after_the_deadline_saves_nothing() {
    let mut log = Log::default();
    log.create("heartbeats/heart", json!({"spec": {"renewTime": "0"}}));
    log.grant("lease", follows_heart());
    log.sleep(10.5);
    log.beat("heart");
    log.end("lease");
    let report = Checker::new(OPERATOR).check(&log.requests);
    assert!(report.violations.is_empty(), "{report}");
}

#[test]
fn a_renewal_of_a_lease_renews_those_that_follow_it() {
    for (rest, early) in [(9.0, true), (10.1, false)] {
        let mut log = Log::default();
        log.grant("held", json!({"ttlSeconds": 60}));
        log.grant("middle", json!({"ttlSeconds": 60, "renewFrom": {"lease": {"name": "held"}}}));
        log.grant("lease", json!({"ttlSeconds": 10, "renewFrom": {"lease": {"name": "middle"}}}));
        log.sleep(8.0);
        log.renew("held");
        log.sleep(rest);
        log.end("lease");
        let report = Checker::new(OPERATOR).check(&log.requests);
        assert_eq!(!report.violations.is_empty(), early, "{report}");
    }
}

#[test]
fn no_lease_expires_as_long_as_its_pod_lives_nor_within_its_ttl_after_that() {
    for (lost, rest, on_loss, early) in [
        (false, 60.0, "RunOut", true),
        (true, 9.0, "RunOut", true),
        (true, 10.1, "RunOut", false),
        (true, 0.1, "End", false),
        (false, 0.1, "End", true),
    ] {
        let mut log = Log::default();
        log.create("pods/web", json!({"spec": {}}));
        let uid = log.object("pods/web")["metadata"]["uid"].clone();
        let from = json!({"pod": {"name": "web", "onLoss": on_loss}});
        log.grant("lease", json!({"ttlSeconds": 10, "renewFrom": from}));
        let follows = json!({"status": {"term": 1, "follows": {"source": "pod/web", "uid": uid}}});
        log.patch(OPERATOR, "leases/lease/status", follows);
        log.sleep(100.0);
        if lost {
            log.patch("kubelet", "pods/web/status", json!({"status": {"phase": "Failed"}}));
        }
        log.sleep(rest);
        log.end("lease");
        let report = Checker::new(OPERATOR).check(&log.requests);
        assert_eq!(!report.violations.is_empty(), early, "{lost} {rest} {on_loss}: {report}");
    }
}

#[test]
fn a_pod_that_was_lost_before_it_was_followed_keeps_nothing_alive() {
    for (rest, early) in [(9.0, true), (10.1, false)] {
        let mut log = Log::default();
        log.create("pods/web", json!({"spec": {}}));
        let uid = log.object("pods/web")["metadata"]["uid"].clone();
        log.grant("lease", json!({"ttlSeconds": 10}));
        log.sleep(1.0);
        log.patch("kubelet", "pods/web/status", json!({"status": {"phase": "Failed"}}));
        log.sleep(1.0);
        log.patch(
            "holder",
            "leases/lease",
            json!({"spec": {"renewFrom": {"pod": {"name": "web", "uid": uid}}}}),
        );
        log.sleep(rest - 2.0);
        log.end("lease");
        let report = Checker::new(OPERATOR).check(&log.requests);
        assert_eq!(!report.violations.is_empty(), early, "{rest}: {report}");
    }
}

#[test]
fn a_lease_that_is_not_granted_yet_keeps_nothing_alive() {
    for (granted, early) in [(false, false), (true, true)] {
        let mut log = Log::default();
        log.grant("lease", json!({"ttlSeconds": 10, "renewFrom": {"lease": {"name": "held"}}}));
        log.sleep(5.0);
        if granted {
            log.grant("held", json!({"ttlSeconds": 60}));
        } else {
            log.create("leases/held", json!({"spec": {"ttlSeconds": 60}}));
        }
        log.renew("held");
        log.sleep(5.1);
        log.end("lease");
        let report = Checker::new(OPERATOR).check(&log.requests);
        assert_eq!(!report.violations.is_empty(), early, "{report}");
    }
}

#[test]
fn a_pod_that_is_named_once_is_the_same_when_only_its_name_is_left() {
    for (first, early) in [(json!("its own"), false), (json!(null), true)] {
        let mut log = Log::default();
        log.create("pods/web", json!({"spec": {}}));
        let uid = log.object("pods/web")["metadata"]["uid"].clone();
        log.patch("kubelet", "pods/web/status", json!({"status": {"phase": "Failed"}}));
        log.sleep(1.0);
        let from =
            |uid| json!({"spec": {"renewFrom": {"pod": {"name": "web", "onLoss": "End", "uid": uid}}}});
        log.grant("lease", json!({"ttlSeconds": 10}));
        log.patch("holder", "leases/lease", from(if first.is_null() { first } else { uid.clone() }));
        let follows = json!({"status": {"term": 1, "follows": {"source": "pod/web", "uid": uid}}});
        log.patch(OPERATOR, "leases/lease/status", follows);
        log.sleep(1.0);
        log.patch("holder", "leases/lease", from(json!(null)));
        log.end("lease");
        let report = Checker::new(OPERATOR).check(&log.requests);
        assert_eq!(!report.violations.is_empty(), early, "{report}");
    }
}

#[test]
fn a_pod_that_is_named_in_place_of_another_is_followed_from_then_on() {
    for (rest, early) in [(6.0, true), (7.1, false)] {
        let mut log = Log::default();
        log.create("pods/old", json!({"spec": {}}));
        log.create("pods/web", json!({"spec": {}}));
        let mut uid = |name: &str| log.object(name)["metadata"]["uid"].clone();
        let (old, new) = (uid("pods/old"), uid("pods/web"));
        log.grant("lease", json!({"ttlSeconds": 10, "renewFrom": {"pod": {"name": "web"}}}));
        // It had the name before.
        let follows = json!({"status": {"term": 1, "follows": {"source": "pod/web", "uid": old}}});
        log.patch(OPERATOR, "leases/lease/status", follows);
        log.patch("kubelet", "pods/old/status", json!({"status": {"phase": "Failed"}}));
        log.sleep(1.0);
        log.patch("kubelet", "pods/web/status", json!({"status": {"phase": "Failed"}}));
        log.sleep(2.0);
        let named = json!({"spec": {"renewFrom": {"pod": {"name": "web", "uid": new}}}});
        log.patch("holder", "leases/lease", named);
        log.sleep(rest);
        log.end("lease");
        let report = Checker::new(OPERATOR).check(&log.requests);
        assert_eq!(!report.violations.is_empty(), early, "{rest}: {report}");
    }
}

#[test]
fn a_beat_after_the_end_of_a_lease_in_between_saves_nothing() {
    for (rest, early) in [(8.0, true), (10.1, false)] {
        let mut log = Log::default();
        log.create("heartbeats/heart", json!({"spec": {"renewTime": "0"}}));
        log.grant("middle", follows_heart());
        log.grant("lease", json!({"ttlSeconds": 10, "renewFrom": {"lease": {"name": "middle"}}}));
        log.delete("holder", "leases/middle", json!({}));
        log.end("middle");
        log.sleep(1.0);
        log.beat("heart");
        log.sleep(rest - 1.0);
        log.end("lease");
        log.beat("heart");
        let report = Checker::new(OPERATOR).check(&log.requests);
        assert_eq!(!report.violations.is_empty(), early, "{rest}: {report}");
    }
}

#[test]
fn a_beat_after_the_deadline_of_a_lease_in_between_saves_nothing() {
    let mut log = Log::default();
    log.create("heartbeats/heart", json!({"spec": {"renewTime": "0"}}));
    log.grant("middle", follows_heart());
    log.grant("lease", json!({"ttlSeconds": 20, "renewFrom": {"lease": {"name": "middle"}}}));
    log.sleep(10.1);
    log.beat("heart");
    log.end("middle");
    log.sleep(10.0);
    log.end("lease");
    let report = Checker::new(OPERATOR).check(&log.requests);
    assert!(report.violations.is_empty(), "{report}");
}
