//! What goes with a lease, and what stays.

use k8s_openapi::ByteString;
use lessor_kit::{
    trial,
    world::{MOMENT, World, attached},
};
use serde_json::json;
use tokio::time::sleep;

#[trial]
async fn objects_and_keys_attach_by_all_three_annotations() {
    let world = World::new("forms").await;
    let _operator = world.primary(&[]).await;
    let bystander = world.bystander().await;
    // A key that can be no annotation's name, and one with 64 characters.
    let long = "k".repeat(64);
    let keys = json!({".hidden": "lease", (long.as_str()): "lease", "of-another": "other"}).to_string();
    world.config_map("whole", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world
        .config_map("by-key", json!({"key.lessor.dev/a": "lease", "example.com/a": "kept"}), &["a", "b"])
        .await;
    world
        .config_map("by-json", json!({"lessor.dev/keys": keys}), &[".hidden", &long, "of-another", "b"])
        .await;
    world.lease("other", json!({"ttlSeconds": 600})).await;
    world.granted("lease", json!({"ttlSeconds": 3})).await;
    world.wait_lease("lease", "counts what is attached", attached(1, 3)).await;

    world.wait_gone("lease").await;
    world.wait_map_gone("whole").await;
    let by_key = world.map("by-key").await;
    assert_eq!(world.keys("by-key").await, ["b"]);
    assert_eq!(json!(by_key.metadata.annotations), json!({"example.com/a": "kept"}));
    let by_json = world.map("by-json").await;
    assert_eq!(world.keys("by-json").await, ["b", "of-another"]);
    assert_eq!(json!(by_json.metadata.annotations), json!({"lessor.dev/keys": r#"{"of-another":"other"}"#}));
    bystander.assert_untouched().await;
}

#[trial]
async fn only_attached_keys_go_and_other_keys_and_later_edits_stay() {
    let world = World::new("keys").await;
    let _operator = world.primary(&[]).await;
    world
        .create_map(json!({
            "metadata": {
                "name": "shared",
                "labels": {"app": "shop"},
                "annotations": {"key.lessor.dev/text": "lease", "key.lessor.dev/bytes": "lease"},
            },
            "data": {"text": "goes", "other": "first"},
            "binaryData": {"bytes": ByteString(vec![1]), "others": ByteString(vec![2])},
        }))
        .await;
    world.granted("lease", json!({"ttlSeconds": 2})).await;
    // An attached key goes whatever it holds at the end; what isn't attached stays as it was last written.
    let edit = json!({"data": {"text": "edited", "other": "edited", "new": "kept"}, "metadata": {"labels": {"app": "x"}}});
    let edited = world.patch_map("shared", edit).await;
    let left = world.wait_keys("shared", &["new", "other", "others"]).await;
    world.wait_gone("lease").await;
    assert_eq!(json!(left.data), json!({"new": "kept", "other": "edited"}));
    assert_eq!(json!(left.binary_data), json!({"others": ByteString(vec![2])}));
    assert_eq!(left.metadata.labels, edited.metadata.labels);
    assert_eq!(left.metadata.uid, edited.metadata.uid);
    assert_eq!(left.metadata.annotations.unwrap_or_default().len(), 0);
}

#[trial]
async fn two_keys_of_one_object_go_each_with_its_own_lease() {
    let world = World::new("two").await;
    let _operator = world.primary(&[]).await;
    let annotations = json!({"key.lessor.dev/a": "one", "lessor.dev/keys": r#"{"b": "two"}"#});
    world.config_map("shared", annotations, &["a", "b", "c"]).await;
    world.granted("two", json!({"ttlSeconds": 600})).await;
    world.granted("one", json!({"ttlSeconds": 1})).await;
    let after_one = world.wait_keys("shared", &["b", "c"]).await;
    assert_eq!(json!(after_one.metadata.annotations), json!({"lessor.dev/keys": r#"{"b": "two"}"#}));
    assert!(!world.leases().get("two").await.expect("it lives").is_ended());
    world.change("two", json!({"ttlSeconds": 1})).await.expect("a renewal");
    world.wait_keys("shared", &["c"]).await;
    world.wait_all_gone().await;
}

#[trial]
async fn an_object_of_one_lease_may_have_a_key_of_another() {
    let world = World::new("both").await;
    let _operator = world.primary(&[]).await;
    for name in ["key-first", "object-first"] {
        let annotations =
            json!({"lessor.dev/lease": format!("{name}-object"), "key.lessor.dev/a": format!("{name}-key")});
        world.config_map(name, annotations, &["a", "b"]).await;
    }
    for (name, ttl) in [
        ("key-first-key", 1),
        ("key-first-object", 600),
        ("object-first-object", 1),
        ("object-first-key", 600),
    ] {
        world.granted(name, json!({"ttlSeconds": ttl})).await;
    }
    world.wait_keys("key-first", &["b"]).await;
    world.wait_map_gone("object-first").await;
    let other = world.leases().get("object-first-key").await.expect("it lives");
    assert!(!other.is_ended(), "an object that goes with one lease ends no other");
    for name in ["key-first-object", "object-first-key"] {
        world.change(name, json!({"ttlSeconds": 1})).await.expect("a renewal");
    }
    world.wait_map_gone("key-first").await;
    world.wait_all_gone().await;
}

#[trial]
async fn an_attachment_may_precede_its_lease() {
    let world = World::new("pending").await;
    let _operator = world.primary(&["--pending-warning", "1s"]).await;
    let annotations = json!({"key.lessor.dev/a": "late"});
    let shared = world.config_map("shared", annotations, &["a", "b"]).await;
    let whole = world.config_map("whole", json!({"lessor.dev/lease": "late"}), &["a"]).await;
    let warning = world.wait_event("whole", "AttachmentPending").await;
    assert_eq!(warning.type_.as_deref(), Some("Warning"));
    assert!(warning.note.is_some_and(|note| note.contains("late")), "it names the lease that is missing");
    world.wait_event("shared", "AttachmentPending").await;
    assert_eq!((world.map("shared").await, world.map("whole").await), (shared, whole));

    world.granted("late", json!({"ttlSeconds": 600})).await;
    world.wait_lease("late", "counts what is attached", attached(1, 1)).await;
    world.change("late", json!({"ttlSeconds": 1})).await.expect("a renewal");
    world.wait_map_gone("whole").await;
    world.wait_keys("shared", &["b"]).await;
    world.wait_gone("late").await;
}

#[trial]
async fn objects_attached_between_an_end_and_the_release_are_removed_too() {
    let world = World::new("linger").await;
    let _operator = world.primary(&["--linger", "4s"]).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_ended("lease").await;
    world.config_map("late", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.wait_map_gone("late").await;
    assert!(world.leases().get_opt("lease").await.expect("an answer").is_some(), "it lingers");
    world.wait_gone("lease").await;
}

#[trial]
async fn an_object_detached_in_time_survives() {
    let world = World::new("detached").await;
    let _operator = world.primary(&[]).await;
    let annotations = json!({"lessor.dev/lease": "lease", "key.lessor.dev/a": "lease"});
    world.config_map("attached", annotations, &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 600})).await;
    let annotations = json!({"lessor.dev/lease": null, "key.lessor.dev/a": null});
    let detached = world.patch_map("attached", json!({"metadata": {"annotations": annotations}})).await;
    world.change("lease", json!({"ttlSeconds": 1})).await.expect("a renewal");
    world.wait_gone("lease").await;
    sleep(MOMENT).await;
    assert_eq!(world.map("attached").await, detached);
}
