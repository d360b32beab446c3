//! Attaching by the library.

use std::time::Duration;

use futures::future;
use kube::core::ApiResource;
use lessor_client::{Error, Grant, LeaseClient, Target};
use serde_json::json;

use crate::world::{World, until};

const NONE: [&str; 0] = [];

async fn with_leases(world: &World, names: &[&str]) -> LeaseClient {
    let leases = LeaseClient::new(world.client.clone(), &world.namespace);
    for name in names {
        leases.grant(&Grant::new(*name, Duration::from_secs(60))).await.expect("a grant");
    }
    leases
}

#[tokio::test]
async fn what_is_attached_goes_with_its_lease_and_nothing_else_does() {
    let world = World::new("attach").await;
    let _operator = world.primary(&[]).await;
    let leases = with_leases(&world, &["ends", "stays"]).await;
    world.config_map("whole", json!({}), &["a"]).await;
    world.config_map("shared", json!({}), &["a", "b", "c", ".d"]).await;
    leases.attach("ends", &Target::config_map("whole"), NONE).await.expect("attached");
    let shared = Target::config_map("shared");
    let attached = leases.attach("ends", &shared, ["a", "b", ".d"]).await.expect("attached");
    assert!(attached.changed && attached.moved_from.is_empty());
    assert!(!leases.attach("ends", &shared, ["a", ".d"]).await.expect("attached").changed);
    let moved = leases.attach("stays", &shared, ["b"]).await.expect("moved");
    assert_eq!(moved.moved_from.iter().map(|lease| lease.as_str()).collect::<Vec<_>>(), ["ends"]);
    leases.revoke("ends", None).await.expect("a revoke");
    leases.wait_gone("ends").await.expect("gone");
    world.wait_map_gone("whole").await;
    assert_eq!(world.keys("shared").await, ["b", "c"]);
}

#[tokio::test]
async fn what_is_detached_stays() {
    let world = World::new("detach").await;
    let _operator = world.primary(&[]).await;
    let leases = with_leases(&world, &["ends"]).await;
    world.config_map("whole", json!({}), &["a"]).await;
    world.config_map("shared", json!({}), &["a", "b", ".c"]).await;
    let (whole, shared) = (Target::config_map("whole"), Target::config_map("shared"));
    leases.attach("ends", &whole, NONE).await.expect("attached");
    leases.attach("ends", &shared, ["a", "b", ".c"]).await.expect("attached");
    assert!(leases.detach("ends", &whole, NONE).await.expect("detached"));
    assert!(leases.detach("ends", &shared, ["a", ".c"]).await.expect("detached"));
    assert!(!leases.detach("ends", &shared, ["a"]).await.expect("an answer"));
    leases.revoke("ends", None).await.expect("a revoke");
    leases.wait_gone("ends").await.expect("gone");
    assert_eq!(world.keys("whole").await, ["a"]);
    assert_eq!(world.keys("shared").await, [".c", "a"]);
}

#[tokio::test]
async fn many_attach_to_one_object_at_once() {
    let world = World::new("crowd").await;
    let leases = LeaseClient::new(world.client.clone(), &world.namespace);
    world.config_map("shared", json!({}), &["a"]).await;
    let keys: Vec<String> = (0..20).map(|i| format!("key-{i}.")).collect();
    // A key that ends with a dot goes into the one list, so that everybody changes the same annotation.
    let attaching = keys.iter().map(|key| {
        let (leases, target) = (leases.clone(), Target::config_map("shared"));
        async move { leases.attach("crowd", &target, [key.as_str()]).await }
    });
    for attached in future::join_all(attaching).await {
        attached.expect("attached");
    }
    let found = leases
        .attached(&ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&()))
        .await
        .expect("found");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].attachments.keys.len(), 20, "{:?}", found[0].attachments);
}

#[tokio::test]
async fn services_register_in_a_map_that_the_first_one_makes() {
    let world = World::new("register").await;
    let _operator = world.primary(&[]).await;
    let names: Vec<String> = (0..8).map(|i| format!("web-{i}")).collect();
    let leases = with_leases(&world, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let registering = names.iter().map(|name| leases.register(name, "endpoints", name, "10.0.0.1:80"));
    for registered in future::join_all(registering).await {
        registered.expect("registered");
    }
    assert_eq!(world.keys("endpoints").await, names);
    leases.revoke("web-3", None).await.expect("a revoke");
    let others: Vec<&str> = names.iter().map(String::as_str).filter(|name| *name != "web-3").collect();
    world.wait_keys("endpoints", &others).await;
}

#[tokio::test]
async fn nothing_is_attached_to_what_is_not_there_or_by_what_is_no_key() {
    let world = World::new("wrong").await;
    let leases = LeaseClient::new(world.client.clone(), &world.namespace);
    let missing = leases.attach("a", &Target::config_map("missing"), NONE).await;
    assert!(matches!(missing, Err(Error::NotFound(_))), "{missing:?}");
    world.config_map("there", json!({}), &["a"]).await;
    let there = Target::config_map("there");
    let no_key = leases.attach("a", &there, ["/spec"]).await;
    assert!(matches!(no_key, Err(Error::Invalid(_))), "{no_key:?}");
    let no_lease = leases.attach("No Lease", &there, NONE).await;
    assert!(matches!(no_lease, Err(Error::Invalid(_))), "{no_lease:?}");
    world.patch_map("there", json!({"metadata": {"annotations": {"lessor.dev/keys": "{"}}})).await;
    let broken = leases.attach("a", &there, [".a"]).await.expect_err("a broken list");
    assert!(
        matches!(broken, Error::Annotation(_)) && broken.to_string().contains("lessor.dev/keys"),
        "{broken}"
    );
    until("nothing was written", async || {
        let map = world.map("there").await;
        (map.metadata.annotations?.len() == 1).then_some(())
    })
    .await;
}
