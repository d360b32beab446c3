//! Kinds that aren't there, may not be seen, or are served by an API that fails: reported once, retried, and in the way of no other.

use std::time::Duration;

use k8s_openapi::api::events::v1::Event;
use kube::{
    Api,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use lessor_api::lessor::KINDS_READY;
use lessor_kit::world::{World, until};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    rights::{operator_token, set_verbs},
    things::Things,
};

/// Waits until the condition of kinds has this reason, and a message that contains a text.
pub(crate) async fn wait_kinds(world: &World, reason: &str, text: &str) {
    until(&format!("the kinds are {reason}"), async || {
        let status = world.get_lessor().await.status?;
        let kinds = status.conditions.into_iter().find(|condition| condition.type_ == KINDS_READY)?;
        (kinds.reason == reason && kinds.message.contains(text)).then_some(())
    })
    .await;
}

/// Events about the world's Lessor with this reason.
async fn events(world: &World, reason: &str) -> Vec<Event> {
    let events: Api<Event> = Api::namespaced(world.client.clone(), "default");
    let of_lessor = |event: &Event| {
        event.regarding.as_ref().and_then(|object| object.name.as_ref()) == Some(&world.lessor)
            && event.reason.as_deref() == Some(reason)
    };
    let mut events = events.list(&Default::default()).await.expect("events").items;
    events.retain(of_lessor);
    events
}

/// That a lease with a ConfigMap is granted, ends and is released without delay.
async fn assert_others_go_on(world: &World, name: &str) {
    world.config_map(name, json!({"lessor.dev/lease": name}), &["a"]).await;
    world.granted(name, json!({"ttlSeconds": 1})).await;
    let start = tokio::time::Instant::now();
    world.wait_map_gone(name).await;
    world.wait_gone(name).await;
    assert!(start.elapsed() < Duration::from_secs(10), "released after {:?}", start.elapsed());
}

#[tokio::test]
async fn a_kind_that_comes_later_is_found_and_one_that_goes_holds_up_nothing() {
    let world = World::new("later").await;
    let widgets = Things::widgets_to_be(&world);
    let _operator = world.primary(&["--attachable", &widgets.with_keys()]).await;
    wait_kinds(&world, "NotInstalled", &format!("{}: the kind is not installed", widgets.name())).await;
    assert_others_go_on(&world, "one").await;
    let event = until("an event", async || events(&world, "NotInstalled").await.pop()).await;
    assert!(event.note.is_some_and(|note| note.contains(&widgets.name())), "it names the kind");

    widgets.install(world.client.clone()).await;
    wait_kinds(&world, "Ready", "").await;
    widgets.make("whole", json!({"lessor.dev/lease": "two"}), &["a"]).await;
    world.granted("two", json!({"ttlSeconds": 1})).await;
    widgets.wait_gone("whole").await;
    world.wait_gone("two").await;

    widgets.make("whole", json!({"lessor.dev/lease": "three"}), &["a"]).await;
    world.granted("three", json!({"ttlSeconds": 3})).await;
    widgets.uninstall(world.client.clone()).await;
    wait_kinds(&world, "NotInstalled", "").await;
    world.wait_gone("three").await;
}

#[tokio::test]
async fn a_kind_without_watch_permission_is_reported_once_retried_rarely_and_recovers() {
    let world = World::new("forbidden").await;
    let born = world.mark();
    let args = ["--attachable", "secrets"];
    let secrets = Things::secrets(&world);
    let token = operator_token(&world, &args).await;
    set_verbs(&world, &args, "secrets", &[]).await;
    let proxy = world.cluster.proxy().await.expect("a proxy");
    let kubeconfig = proxy.kubeconfig_with_token(&world.namespace, &token).expect("a kubeconfig");
    let operator = world.operator_with(&kubeconfig, &args);
    world.wait_for_primary(&operator).await;
    wait_kinds(&world, "Forbidden", "secrets: the operator may not watch them").await;
    assert_others_go_on(&world, "one").await;
    sleep(Duration::from_secs(5)).await;
    let event = until("an event", async || events(&world, "Forbidden").await.pop()).await;
    assert!(event.note.is_some_and(|note| note.contains("secrets")), "it names the kind");
    assert_eq!(events(&world, "Forbidden").await.len(), 1);
    let asked = world.audit(born).agent("lessor").resource("", "secrets").verb("watch");
    assert!(asked.requests() < 20, "{asked}");
    let written = world.all_asked().resource("lessor.dev", "lessors").writes().accepted();
    assert!(written.requests() <= 4, "{written}");

    secrets.make("whole", json!({"lessor.dev/lease": "two"}), &["a"]).await;
    set_verbs(&world, &args, "secrets", &["get", "watch", "delete", "patch"]).await;
    wait_kinds(&world, "Ready", "").await;
    world.granted("two", json!({"ttlSeconds": 1})).await;
    secrets.wait_gone("whole").await;

    // The API server lets a watch that is open live on; a new one shows that the right is gone.
    set_verbs(&world, &args, "secrets", &[]).await;
    proxy.disconnect();
    sleep(Duration::from_millis(500)).await;
    proxy.heal();
    wait_kinds(&world, "Forbidden", "secrets").await;
    assert_others_go_on(&world, "three").await;
}

#[tokio::test]
async fn an_api_that_answers_503_delays_no_other_and_is_used_once_it_works() {
    let world = World::new("unavailable").await;
    let widgets = Things::widgets_to_be(&world);
    let group = &widgets.resource.group;
    let services =
        ApiResource::from_gvk(&GroupVersionKind::gvk("apiregistration.k8s.io", "v1", "APIService"));
    let services: Api<DynamicObject> = Api::all_with(world.client.clone(), &services);
    let name = format!("v1.{group}");
    let service: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name},
        "spec": {
            "group": group, "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
            "insecureSkipTLSVerify": true, "service": {"namespace": world.namespace, "name": "nobody"},
        },
    }))
    .expect("an object");
    services.create(&PostParams::default(), &service).await.expect("an API service");
    let _operator = world.primary(&["--attachable", &format!("{}/v1", widgets.name())]).await;
    wait_kinds(&world, "Unavailable", &widgets.name()).await;
    sleep(Duration::from_secs(25)).await;
    assert_others_go_on(&world, "one").await;

    services.delete(&name, &Default::default()).await.expect("a deletion");
    widgets.install(world.client.clone()).await;
    wait_kinds(&world, "Ready", "").await;
    widgets.make("whole", json!({"lessor.dev/lease": "two"}), &["a"]).await;
    world.granted("two", json!({"ttlSeconds": 1})).await;
    widgets.wait_gone("whole").await;
}

#[tokio::test]
async fn an_api_that_never_answers_delays_no_start() {
    let world = World::new("hanging").await;
    let widgets = Things::widgets(&world).await;
    let proxy = world.cluster.proxy().await.expect("a proxy");
    let group = format!("/apis/{}", widgets.resource.group);
    let hold = proxy.hold_request(move |seen| seen.path.starts_with(&group));
    let operator = world.operator_with(proxy.kubeconfig_path(), &["--attachable", &widgets.with_keys()]);
    world.wait_for_primary(&operator).await;
    wait_kinds(&world, "Unavailable", &widgets.name()).await;
    widgets.make("whole", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_ended("lease").await;
    // What can't be seen is waited for, for a while.
    assert!(world.leases().get_opt("lease").await.expect("an answer").is_some());
    hold.release();
    widgets.wait_gone("whole").await;
    world.wait_gone("lease").await;
}
