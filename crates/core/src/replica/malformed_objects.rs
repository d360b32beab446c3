//! What strangers write into the objects that a replica reads: anything at all.

use k8s_openapi::jiff::Timestamp;
use lessor_api::{Lease, Lessor};
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};

use super::tests::Play;
use crate::{
    observation::{Event, Observation},
    request::Request,
};

/// Where a stranger may write, in a lease.
const PLACES: [&str; 22] = [
    "/metadata/uid",
    "/metadata/resourceVersion",
    "/metadata/generation",
    "/metadata/finalizers",
    "/metadata/deletionTimestamp",
    "/metadata/managedFields",
    "/spec/ttlSeconds",
    "/spec/renewTime",
    "/spec/holder",
    "/spec/maxLifetimeSeconds",
    "/spec/suspend",
    "/spec/warnBeforeSeconds",
    "/spec/afterExpiry",
    "/status/conditions",
    "/status/specGeneration",
    "/status/grantedTTLSeconds",
    "/status/grantTime",
    "/status/expiryTime",
    "/status/endTime",
    "/status/remainingSeconds",
    "/status/term",
    "/status/attached",
];

/// Where a stranger may write, in a `Lessor`.
const PLACES_OF_LESSOR: [&str; 11] = [
    "/metadata/resourceVersion",
    "/status/primary",
    "/status/term",
    "/status/acquireTime",
    "/status/provedTime",
    "/status/transitions",
    "/status/challengeTime",
    "/status/overdue",
    "/status/leases",
    "/status/version",
    "/status/conditions",
];

fn anything() -> impl Strategy<Value = Value> {
    let number =
        prop_oneof![select(vec![i64::MIN, -1, 0, 1, 5, 1 << 33, 9_000_000_001, i64::MAX]), any::<i64>(),];
    let text = prop_oneof![
        select(vec![
            "",
            "5",
            "5s",
            "true",
            "Retain",
            "retain",
            "9999-12-31T23:59:59.999999Z",
            "2026-01-31T12:00:00Z"
        ])
        .prop_map(str::to_owned),
        any::<String>(),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number.prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let name = select(vec!["type", "status", "reason", "time", "manager", "objects", "f:spec", "other"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(name.prop_map(str::to_owned), inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// A lease that is granted, with these changes.
fn lease(version: u64, changes: &[(&str, Value)]) -> Value {
    let mut lease = json!({
        "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
        "metadata": {
            "namespace": "shop", "name": "cart", "uid": "0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10", "generation": 1,
            "resourceVersion": version.to_string(), "finalizers": ["lessor.dev/revoke"],
        },
        "spec": {"ttlSeconds": 10},
        "status": {
            "specGeneration": 1, "grantedTTLSeconds": 10, "grantTime": "2027-01-15T08:00:00.000000Z",
            "primary": "me_1", "term": 1,
        },
    });
    change(&mut lease, changes);
    lease
}

/// A `Lessor` whose primary is another, with these changes.
fn lessor(version: u64, changes: &[(&str, Value)]) -> Value {
    let mut lessor = json!({
        "apiVersion": "lessor.dev/v1alpha1", "kind": "Lessor",
        "metadata": {"name": "default", "resourceVersion": version.to_string()},
        "status": {"primary": "other_1", "term": 1, "transitions": 1, "leases": 1},
    });
    change(&mut lessor, changes);
    lessor
}

fn change(object: &mut Value, changes: &[(&str, Value)]) {
    for (place, value) in changes {
        let (parent, member) = place.rsplit_once('/').unwrap_or_default();
        if let Some(parent) = object.pointer_mut(parent) {
            parent[member] = value.clone();
        }
    }
}

proptest! {
    #[test]
    fn what_a_lease_says_is_understood_wholly_or_not_at_all(place in select(PLACES.to_vec()), value in anything()) {
        let Ok(read) = serde_json::from_value::<Lease>(lease(42, &[(place, value.clone())])) else { return Ok(()) };
        let said = serde_json::to_value(&read).expect("a lease is JSON");
        let said = said.pointer(place).cloned().unwrap_or_default();
        // Kubernetes itself drops members that it doesn't know, and writes times in one form.
        let is_time = place.ends_with("Time") && place != "/spec/renewTime" || place.ends_with("Timestamp");
        let instant = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
        match &value {
            Value::Object(_) | Value::Array(_) => {}
            // What is empty, or the default, is left out.
            _ if said.is_null() => prop_assert!(value.is_null() || value == false || value == "Delete", "{place}: {value}"),
            _ if is_time => prop_assert_eq!(
                instant(&said).map(|time| time.as_second()), instant(&value).map(|time| time.as_second())
            ),
            _ => prop_assert_eq!(said, value),
        }
    }

    #[test]
    fn no_lease_makes_a_replica_stumble(
        changes in prop::collection::vec((select(PLACES.to_vec()), anything()), 1..4),
        later in prop::collection::vec((select(PLACES.to_vec()), anything()), 0..3),
        leads in any::<bool>(),
    ) {
        let mut play = if leads { Play::primary() } else { Play::follower() };
        for (version, changes) in [(100, &changes), (101, &later)] {
            // Whatever can't be read never comes so far.
            if let Ok(lease) = serde_json::from_value(lease(version, changes)) {
                play.observe(Observation::Lease(None, Event::Applied(Box::new(lease))));
            }
            play.pass(7_000);
        }
        play.see_lease(|_| {});
        play.pass(7_000);
    }

    #[test]
    fn no_lessor_makes_a_replica_stumble(
        changes in prop::collection::vec((select(PLACES_OF_LESSOR.to_vec()), anything()), 1..4),
        leads in any::<bool>(),
    ) {
        let mut play = if leads { Play::primary() } else { Play::follower() };
        if let Ok(lessor) = serde_json::from_value::<Lessor>(lessor(100, &changes)) {
            play.observe(Observation::Lessor(Event::Applied(Box::new(lessor))));
        }
        play.pass(7_000);
        play.see_lease(|_| {});
        play.pass(7_000);
    }

    #[test]
    fn no_annotations_make_a_replica_stumble(
        annotations in prop::collection::btree_map(
            prop_oneof![select(vec!["lessor.dev/lease", "lessor.dev/keys", "key.lessor.dev/a", "key.lessor.dev/"])
                .prop_map(str::to_owned), any::<String>()],
            prop_oneof![Just("cart".to_owned()), anything().prop_map(|json| json.to_string()), any::<String>()],
            0..4,
        ),
    ) {
        let mut play = Play::primary();
        play.see_map("x", json!(annotations));
        play.see_lease(|lease| {
            lease["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:00:00Z");
            lease["status"] = json!({"specGeneration": 1, "endTime": "2027-01-15T08:00:00.000000Z", "term": 1});
        });
        play.pass(7_000);
        // What isn't attached stays.
        let asks = |request: &Request| matches!(request, Request::Remove { .. });
        if play.asked.iter().any(|(_, request)| asks(request)) {
            prop_assert!(annotations.values().any(|value| value.contains("cart")));
        }
    }
}
