//! Kinds: those that are listed can be attached, wholly and by keys, and no other is looked at.

use std::time::Duration;

use lessor_api::lease::condition;
use serde_json::json;

use crate::{
    things::{Things, annotations_of},
    world::{World, until},
};

#[tokio::test]
async fn secrets_go_wholly_and_by_keys() {
    let world = World::new("secrets").await;
    let secrets = Things::secrets(&world);
    let _operator = world.primary(&["--attachable", "secrets"]).await;
    secrets.make("whole", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    secrets.make("shared", json!({"key.lessor.dev/a": "lease"}), &["a", "b"]).await;
    secrets.make("docker", json!({"lessor.dev/keys": r#"{".cfg": "lease"}"#}), &[".cfg", "b"]).await;
    secrets.make("bystander", json!({"example.com/lease": "lease"}), &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    secrets.wait_gone("whole").await;
    let shared = secrets.wait_parts("shared", &["b"]).await;
    assert_eq!(annotations_of(&shared), json!({}));
    secrets.wait_parts("docker", &["b"]).await;
    assert!(secrets.get("bystander").await.is_some());
}

#[tokio::test]
async fn members_of_any_object_go_by_json_pointer_and_nothing_else_changes() {
    let world = World::new("members").await;
    let widgets = Things::widgets(&world).await;
    let _operator = world.primary(&["--attachable", &widgets.with_keys()]).await;
    let keys = json!({
        "/spec/token": "lease",
        "/spec/template/metadata/labels/te~1am": "lease",
        "/metadata/labels/session": "lease",
        "/metadata/annotations/note": "lease",
        "/spec/none/deeper": "lease",
        "/spec/list": "other",
    });
    widgets
        .create(json!({
            "metadata": {
                "name": "shared",
                "labels": {"session": "42", "app": "shop"},
                "annotations": {"lessor.dev/keys": keys.to_string(), "note": "goes", "other": "stays"},
            },
            "spec": {
                "token": "goes", "keep": {"token": "stays"}, "list": [{"a": 1}],
                "template": {"metadata": {"labels": {"te/am": "goes", "app": "stays"}}},
            },
        }))
        .await;
    widgets.make("whole", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.granted("other", json!({"ttlSeconds": 600})).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    widgets.wait_gone("whole").await;
    let shared = widgets.get("shared").await.expect("it stays");
    assert_eq!(
        shared.data["spec"],
        json!({
            "keep": {"token": "stays"}, "list": [{"a": 1}],
            "template": {"metadata": {"labels": {"app": "stays"}}},
        })
    );
    assert_eq!(json!(shared.metadata.labels), json!({"app": "shop"}));
    assert_eq!(
        annotations_of(&shared),
        json!({"lessor.dev/keys": r#"{"/spec/list":"other"}"#, "other": "stays"})
    );
}

#[tokio::test]
async fn an_index_into_an_array_removes_nothing_and_the_lease_says_why() {
    let world = World::new("array").await;
    let widgets = Things::widgets(&world).await;
    let _operator = world.primary(&["--attachable", &widgets.with_keys()]).await;
    let keys = json!({"/spec/list/0": "lease", "/spec/token": "lease"}).to_string();
    widgets
        .create(json!({
            "metadata": {"name": "shared", "annotations": {"lessor.dev/keys": keys}},
            "spec": {"token": "goes", "list": ["first", "second"]},
        }))
        .await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    let message = until("the release is hindered", async || {
        let status = world.leases().get("lease").await.ok()?.status?;
        let released = status.conditions.into_iter().find(|c| c.type_ == condition::RELEASED)?;
        (released.status == "False").then_some(released.message)
    })
    .await;
    assert!(message.contains("/spec/list/0") && message.contains("widget"), "{message}");
    let shared = widgets.get("shared").await.expect("it stays");
    assert_eq!(shared.data["spec"], json!({"list": ["first", "second"]}), "the other key is gone");
    widgets.patch("shared", json!({"metadata": {"annotations": {"lessor.dev/keys": null}}})).await;
    world.wait_gone("lease").await;
}

#[tokio::test]
async fn pointers_attach_only_where_they_are_allowed() {
    let world = World::new("nopointers").await;
    let widgets = Things::widgets(&world).await;
    let _operator = world.primary(&["--attachable", &widgets.name()]).await;
    widgets.make("shared", json!({"lessor.dev/keys": widgets.keys(&[("a", "lease")])}), &["a"]).await;
    widgets.make("whole", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    let event = world.wait_event("shared", "AttachmentInvalid").await;
    let note = event.note.unwrap_or_default();
    assert!(note.contains(":pointers"), "{note}");
    world.wait_gone("lease").await;
    widgets.wait_gone("whole").await;
    widgets.wait_parts("shared", &["a"]).await;
}

#[tokio::test]
async fn a_kind_that_is_not_listed_is_not_even_looked_at() {
    let world = World::new("unlisted").await;
    let born = world.mark();
    let secrets = Things::secrets(&world);
    let _operator = world.primary(&[]).await;
    secrets.make("whole", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    assert!(secrets.get("whole").await.is_some());
    let asked = world.audit(born).agent("lessor");
    assert_ne!(asked.requests(), 0);
    let asked = asked.resource("", "secrets");
    assert_eq!(asked.requests(), 0, "{asked}");
}

#[tokio::test]
async fn an_annotation_says_how_an_object_is_deleted() {
    let world = World::new("propagation").await;
    let born = world.mark();
    let _operator = world.primary(&[]).await;
    let maps = Things::config_maps(&world);
    for how in ["Foreground", "Orphan", "Background", ""] {
        let mut annotations = json!({"lessor.dev/lease": "lease"});
        if !how.is_empty() {
            annotations["lessor.dev/propagation"] = json!(how);
        }
        let name = format!("owner-{}", how.to_lowercase()).trim_end_matches('-').to_owned();
        let owner = maps.make(&name, annotations, &["a"]).await;
        maps.create(json!({"metadata": {
            "name": format!("dependent-of-{name}"),
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner.metadata.uid}],
        }}))
        .await;
    }
    let wrong = json!({"lessor.dev/lease": "lease", "lessor.dev/propagation": "foreground"});
    maps.make("wrong", wrong, &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    for (name, how) in [
        ("owner-foreground", "Foreground"),
        ("owner-orphan", "Orphan"),
        ("owner-background", "Background"),
        ("owner", "Background"),
    ] {
        maps.wait_gone(name).await;
        let deleted = world.audit(born).agent("lessor").verb("delete").accepted();
        let deleted = deleted.filter(|entry| entry.name == name);
        let options = deleted.first().and_then(|entry| entry.request_object.clone()).expect("a deletion");
        assert_eq!(options["propagationPolicy"], how, "{name}");
    }
    let event = world.wait_event("wrong", "AttachmentInvalid").await;
    assert!(event.note.is_some_and(|note| note.contains("Orphan")), "it shows what would be right");
    world.wait_gone("lease").await;
    assert!(maps.get("wrong").await.is_some());
    // Garbage is collected while the others were waited for.
    maps.wait_gone("dependent-of-owner-background").await;
    let orphan = maps.get("dependent-of-owner-orphan").await.expect("it stays");
    assert_eq!(orphan.metadata.owner_references.unwrap_or_default(), []);
}

#[tokio::test]
async fn what_is_attached_to_no_lease_is_warned_of_once_and_listed() {
    let world = World::new("listed").await;
    let address = format!("127.0.0.1:{}", free_port());
    let _operator = world.primary(&["--pending-warning", "1s", "--admin-address", &address]).await;
    world.config_map("pending", json!({"lessor.dev/lease": "nowhere"}), &["a"]).await;
    world.wait_event("pending", "AttachmentPending").await;
    // Whatever else happens to the object, the warning isn't repeated.
    for round in 0..3 {
        world.patch_map("pending", json!({"data": {"a": round.to_string()}})).await;
        tokio::time::sleep(Duration::from_millis(1200)).await;
    }
    let event = world.wait_event("pending", "AttachmentPending").await;
    assert!(event.series.is_none(), "{event:?}");
    let report = get(&address, "/debug/attachments").await;
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let lease = format!("{}/nowhere", world.namespace);
    assert_eq!(report["pending"][0]["lease"], lease, "{report}");
    assert_eq!(report["pending_total"], 1, "{report}");
    assert_eq!(report["kinds"]["configmaps"]["state"], "Seen", "{report}");
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("its address").port()
}

/// What the admin port answers.
pub(crate) async fn get(address: &str, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("the admin port");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(!head.to_ascii_lowercase().contains("chunked"), "{head}");
    body.to_owned()
}
