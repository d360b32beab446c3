//! Bad input gets a clear answer on the object that has it, touches nothing else, and delays no other.

use std::{sync::atomic::Ordering, time::Duration};

use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::api::{Patch, PatchParams};
use lessor_api::Lease;
use lessor_kit::{
    trial,
    world::{MOMENT, World, attached, condition, has_condition, holder, until},
};
use serde_json::{Value, json};
use tokio::time::sleep;

/// A lease that has nothing to do with what is wrong, and must end in time.
async fn witness(world: &World) -> &'static str {
    world.config_map("witness", json!({"lessor.dev/lease": "witness"}), &["a"]).await;
    world.granted("witness", json!({"ttlSeconds": 2})).await;
    "witness"
}

async fn assert_witness_ended_in_time(world: &World, witness: &str) {
    world.wait_map_gone(witness).await;
    world.wait_gone(witness).await;
    world.assert_punctual(witness);
}

/// Makes a ConfigMap of these annotations, and waits for the warning about it.
async fn warned(world: &World, name: &str, annotations: Value, reason: &str) -> (ConfigMap, Event) {
    let map = world.config_map(name, annotations, &["a", "b"]).await;
    let event = world.wait_event(name, reason).await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    let regarding = event.regarding.clone().expect("an object");
    assert_eq!((regarding.kind.as_deref(), regarding.uid), (Some("ConfigMap"), map.metadata.uid.clone()));
    world.print(format_args!("{name}: {}", event.note.as_deref().unwrap_or_default()));
    (map, event)
}

fn is_hindered(lease: &Lease) -> bool {
    has_condition(lease, "Released", "False", "Hindered")
}

fn why(lease: &Lease) -> &str {
    condition(lease, "Released").map(|condition| condition.message.as_str()).unwrap_or_default()
}

#[trial]
async fn invalid_annotations_cause_a_warning_and_change_nothing() {
    let world = World::new("annotations").await;
    let _operator = world.primary(&["--pending-warning", "1s"]).await;
    let witness = witness(&world).await;
    let long = "x".repeat(10 * 1024);
    let nested = json!({"a": {"lease": "x"}}).to_string();
    let cases = [
        ("empty", json!({"lessor.dev/lease": ""}), "empty"),
        ("spaces", json!({"lessor.dev/lease": "my lease"}), "my lease"),
        ("slashes", json!({"lessor.dev/lease": "shop/lease"}), "shop/lease"),
        ("long", json!({"lessor.dev/lease": long}), "10240 bytes"),
        ("long-key", json!({"key.lessor.dev/a": long}), "10240 bytes"),
        ("empty-key", json!({"key.lessor.dev/a": ""}), "empty"),
        ("empty-json", json!({"lessor.dev/keys": ""}), "not a JSON object"),
        ("long-json", json!({"lessor.dev/keys": long}), "not a JSON object"),
        ("nested-json", json!({"lessor.dev/keys": nested}), "not a JSON object"),
        ("twice-json", json!({"lessor.dev/keys": r#"{"a": "x", "a": "y"}"#}), "twice"),
        ("slash-json", json!({"lessor.dev/keys": r#"{"a/b": "x"}"#}), "a/b"),
        ("two-leases", json!({"key.lessor.dev/a": "one", "lessor.dev/keys": r#"{"a": "two"}"#}), "one"),
    ];
    let mut maps = Vec::new();
    for (name, annotations, hint) in cases {
        let (map, event) = warned(&world, name, annotations, "AttachmentInvalid").await;
        let note = event.note.expect("a note");
        assert!(note.contains(hint), "{name}: {note}");
        maps.push((name, map));
    }
    let (map, event) =
        warned(&world, "nobody", json!({"lessor.dev/lease": "nobody"}), "AttachmentPending").await;
    assert!(event.note.expect("a note").contains("nobody"));
    maps.push(("nobody", map));

    assert_witness_ended_in_time(&world, witness).await;
    for (name, map) in maps {
        assert_eq!(world.map(name).await, map, "{name} is as it was");
    }
    let removals = world.all_asked().resource("", "configmaps").writes();
    assert_eq!(removals.requests(), 1, "only the witness's: {removals}");
}

#[trial]
async fn an_invalid_annotation_leaves_others_of_its_object_in_force() {
    let world = World::new("partly").await;
    let _operator = world.primary(&[]).await;
    let annotations = json!({"key.lessor.dev/a": "no name", "key.lessor.dev/b": "lease"});
    warned(&world, "shared", annotations, "AttachmentInvalid").await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    let map = world.wait_keys("shared", &["a"]).await;
    assert_eq!(json!(map.metadata.annotations), json!({"key.lessor.dev/a": "no name"}));
    world.wait_gone("lease").await;
}

#[trial]
async fn a_missing_key_counts_as_attached_and_only_its_annotation_is_removed() {
    let world = World::new("no-key").await;
    let _operator = world.primary(&[]).await;
    let annotations = json!({"key.lessor.dev/missing": "lease", "example.com/kept": "yes"});
    let before = world.config_map("shared", annotations, &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 2})).await;
    world.wait_lease("lease", "counts the key", attached(0, 1)).await;
    world.wait_gone("lease").await;
    let after = world.map("shared").await;
    assert_eq!(after.data, before.data);
    assert_eq!(json!(after.metadata.annotations), json!({"example.com/kept": "yes"}));
    assert_eq!(after.metadata.uid, before.metadata.uid);
}

#[trial]
async fn an_immutable_config_map_keeps_its_keys_and_a_condition_gives_the_reason() {
    let world = World::new("immutable").await;
    let _operator = world.primary(&[]).await;
    let make = async |name: &str| {
        let annotations = json!({"key.lessor.dev/a": name});
        world
            .create_map(json!({"metadata": {"name": name, "annotations": annotations}, "data": {"a": "b"}, "immutable": true}))
            .await;
        world.granted(name, json!({"ttlSeconds": 1})).await;
    };
    for name in ["deleted", "detached"] {
        make(name).await;
    }
    // As a whole it can go like any other.
    let whole = json!({"metadata": {"name": "whole", "annotations": {"lessor.dev/lease": "whole"}}, "immutable": true});
    world.create_map(whole).await;
    world.lease("whole", json!({"ttlSeconds": 1})).await;
    let witness = witness(&world).await;
    for name in ["deleted", "detached"] {
        let stuck = world.wait_lease(name, "is hindered", is_hindered).await;
        assert!(why(&stuck).contains("immutable") && why(&stuck).contains(name), "{}", why(&stuck));
        let event = world.wait_event(name, "Hindered").await;
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.regarding.and_then(|object| object.kind).as_deref(), Some("ConfigMap"));
    }
    assert_witness_ended_in_time(&world, witness).await;
    world.wait_map_gone("whole").await;
    world.wait_gone("whole").await;

    // Tried once, and again only when it changes.
    let tries = || {
        let patches = world.all_asked().resource("", "configmaps").verb("patch");
        patches.filter(|entry| entry.name == "deleted").requests()
    };
    assert_eq!(tries(), 1);
    let mark = world.mark();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(world.asked(mark).requests(), 0, "{}", world.asked(mark));
    world.patch_map("deleted", json!({"metadata": {"labels": {"changed": "yes"}}})).await;
    until("it is tried again", async || (tries() > 1).then_some(())).await;
    sleep(MOMENT).await;
    assert_eq!(tries(), 2);

    world.delete_map("deleted").await;
    world.wait_gone("deleted").await;
    let annotations = json!({"key.lessor.dev/a": null});
    world.patch_map("detached", json!({"metadata": {"annotations": annotations}})).await;
    world.wait_gone("detached").await;
    assert_eq!(world.keys("detached").await, ["a"]);
}

#[trial]
async fn a_ttl_of_285_years_is_granted_and_delays_no_other_lease() {
    let world = World::new("centuries").await;
    let operator = world.primary(&[]).await;
    let spec = json!({"ttlSeconds": 9_000_000_000_i64, "maxLifetimeSeconds": 9_000_000_000_i64,
        "warnBeforeSeconds": 9_000_000_000_i64});
    let lease = world.granted("long", spec).await.status.expect("a status");
    assert_eq!(lease.granted_ttl_seconds, Some(9_000_000_000));
    let years = |time: k8s_openapi::jiff::Timestamp| time.to_string()[..4].parse::<i64>().expect("a year");
    let (granted, expires) = (lease.grant_time.expect("a time").0, lease.expiry_time.expect("a time").0);
    assert!((284..=286).contains(&(years(expires) - years(granted))), "{granted} … {expires}");
    world.renew("long").await.expect("a renewal");
    let witness = witness(&world).await;
    assert_witness_ended_in_time(&world, witness).await;
    // Neither does it confuse one that starts anew.
    operator.stop().await.expect("it stops");
    let _next = world.primary(&[]).await;
    sleep(Duration::from_secs(2)).await;
    assert!(!world.leases().get("long").await.expect("it lives").is_ended());
    world.change("long", json!({"ttlSeconds": 1})).await.expect("a renewal");
    world.wait_gone("long").await;
    world.assert_punctual("long");
}

/// As a backup tool leaves it that restores the status, too, in another cluster.
#[trial]
async fn a_lease_with_the_status_of_another_cluster_is_granted_anew_and_ends_with_what_is_attached() {
    let world = World::new("foreign").await;
    // It judges by what is written, and nothing of this was granted here.
    world.checks_itself.store(false, Ordering::Relaxed);
    let _operator = world.primary(&[]).await;
    world.config_map("attached", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    let lease = world.granted("lease", json!({"ttlSeconds": 4})).await;
    let token = lease.status.expect("its status").fencing_token;
    let foreign = json!({"status": {
        "leaseUID": "00000000-0000-4000-8000-000000000001", "term": 1_000_000_000_000_u64, "primary": "elsewhere",
        "endTime": "2026-01-31T12:00:00.000000Z",
    }});
    let restored =
        world.leases().patch_status("lease", &holder(), &Patch::Merge(foreign)).await.expect("a patch");
    let ended = restored.status.expect("its status").end_time;
    assert!(ended.is_some());
    let granted = world.wait_lease("lease", "is granted anew", Lease::is_granted).await;
    let status = granted.status.expect("its status");
    assert_eq!((status.end_time, status.lease_uid), (None, granted.metadata.uid));
    assert!(status.fencing_token > token);
    assert!(world.config_maps().get_opt("attached").await.expect("an answer").is_some());
    world.wait_map_gone("attached").await;
    world.wait_gone("lease").await;
}

#[trial]
async fn the_operator_waits_without_polling_for_an_object_with_other_finalizers() {
    let world = World::new("finalizers").await;
    let operator = world.primary(&[]).await;
    world
        .create_map(json!({"metadata": {
            "name": "stuck", "finalizers": ["example.com/backup"], "annotations": {"lessor.dev/lease": "lease"},
        }, "data": {"a": "b"}}))
        .await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    let witness = witness(&world).await;
    let stuck = world.wait_lease("lease", "is hindered", is_hindered).await;
    assert!(why(&stuck).contains("stuck") && why(&stuck).contains("finalizers"), "{}", why(&stuck));
    assert!(world.map("stuck").await.metadata.deletion_timestamp.is_some());
    assert_witness_ended_in_time(&world, witness).await;
    sleep(MOMENT).await;

    let mark = world.mark();
    sleep(Duration::from_secs(4)).await;
    assert_eq!(world.asked(mark).requests(), 0, "{}", world.asked(mark));
    let deletions = world.all_asked().verb("delete").filter(|entry| entry.name == "stuck");
    assert_eq!(deletions.requests(), 1);
    // A restart doesn't make it spin either.
    operator.stop().await.expect("it stops");
    let _next = world.primary(&[]).await;
    sleep(MOMENT).await;
    let mark = world.mark();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.asked(mark).requests(), 0, "{}", world.asked(mark));

    let finalizers = json!({"metadata": {"finalizers": null}});
    world.config_maps().patch("stuck", &holder(), &Patch::Merge(finalizers)).await.expect("a patch");
    world.wait_map_gone("stuck").await;
    world.wait_gone("lease").await;
}

#[trial]
async fn the_api_server_refuses_invalid_leases_and_the_operator_never_gets_them() {
    let world = World::new("refused").await;
    let operator = world.primary(&[]).await;
    for spec in [
        json!({"ttlSeconds": 0}),
        json!({"ttlSeconds": -1}),
        json!({"ttlSeconds": 9_000_000_001_i64}),
        json!({}),
    ] {
        let lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "metadata": {"name": "wrong"}, "spec": spec,
        });
        let applied = PatchParams::apply("holder");
        match world.leases().patch("wrong", &applied, &Patch::Apply(&lease)).await {
            Err(kube::Error::Api(status)) => assert_eq!(status.code, 422, "{spec}: {}", status.message),
            other => panic!("{spec}: {other:?}"),
        }
    }
    let witness = witness(&world).await;
    assert_witness_ended_in_time(&world, witness).await;
    assert_eq!(operator.exit_status(), None);
}
