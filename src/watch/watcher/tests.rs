//! A watcher against scripted responses.

use std::{collections::VecDeque, sync::Arc};

use futures::{FutureExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::Status;
use lessor_core::lease_object::NamespacedName;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

/// A response: events and then the end of the watch, or an HTTP status.
enum Response {
    Events(Vec<Value>),
    Refused(u16),
    /// None arrives.
    None,
}

fn object(kind: &str, name: &str, version: u64, attached: bool) -> Value {
    let annotations = if attached { json!({"lessor.dev/lease": "x"}) } else { json!({}) };
    json!({"type": kind, "object": {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "namespace": "shop", "name": name, "resourceVersion": version.to_string(), "annotations": annotations,
        },
    }})
}

fn listed(version: u64) -> Value {
    json!({"type": "BOOKMARK", "object": {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"resourceVersion": version.to_string(), "annotations": {LIST_ENDS: "true"}},
    }})
}

fn refusal(code: u16) -> kube::Error {
    kube::Error::Api(Box::new(Status { code, message: format!("status {code}"), ..Status::default() }))
}

/// Watches while these responses last. Returns the events, and the versions from which it opened the watch.
async fn watch(responses: Vec<Response>) -> (Vec<String>, Vec<String>) {
    let responses = Arc::new(Mutex::new(VecDeque::from(responses)));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let open = move |params: WatchParams, version: String| {
        assert_eq!(params.send_initial_events, version.is_empty());
        noted.lock().push(version);
        let response = responses.lock().pop_front();
        async move {
            let events = match response {
                Some(Response::Events(events)) => events,
                Some(Response::Refused(code)) => return Err(refusal(code)),
                Some(Response::None) | None => return std::future::pending().await,
            };
            let events: Vec<kube::Result<WatchEvent<ConfigMap>>> = events
                .into_iter()
                .map(|event| Ok(serde_json::from_value(event).expect("an event")))
                .collect();
            Ok(stream::iter(events).boxed())
        }
        .boxed()
    };
    let watcher = Watcher {
        open: Box::new(open),
        fields: None,
        read: |map: ConfigMap| Some(map.metadata),
        counts: |map| map.metadata.annotations.as_ref().is_some_and(|annotations| !annotations.is_empty()),
        always_installed: false,
    };
    let events = Arc::new(Mutex::new(Vec::new()));
    let noted = events.clone();
    let keeping = watcher.keep(|event| {
        let name = |meta: &kube::core::ObjectMeta| meta.name.clone().unwrap_or_default();
        noted.lock().push(match &event {
            Event::Applied(meta) => format!("applied {}", name(meta)),
            Event::Deleted(meta) => format!("deleted {}", name(meta)),
            Event::Synced(listed) => {
                let names = ["a", "other"]
                    .into_iter()
                    .filter(|name| listed.contains(&NamespacedName::new("shop", *name)));
                format!("synced {}", names.collect::<Vec<_>>().join(" "))
            }
            Event::Interrupted => "interrupted".to_owned(),
            Event::Resumed => "resumed".to_owned(),
            Event::Failing(failure) => format!("failing: {failure}"),
        });
        async { true }
    });
    // The paused clock advances as soon as all tasks wait.
    let _ = timeout(Duration::from_secs(8), keeping).await;
    (events.lock().clone(), asked.lock().clone())
}

#[test]
fn a_failure_names_its_root_cause_and_401_is_not_403() {
    let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    let connect = kube::Error::Service(Box::new(std::io::Error::other(refused)));
    assert_eq!(failure_of(&connect), Failure::Unreachable("connection refused".to_owned()));
    assert_eq!(failure_of(&refusal(401)), Failure::Unauthorized("status 401".to_owned()));
    assert_eq!(failure_of(&refusal(403)), Failure::Forbidden("status 403".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn unattached_objects_of_the_initial_list_are_dropped() {
    let events = vec![
        object("ADDED", "a", 1, true),
        object("ADDED", "other", 2, false),
        listed(3),
        object("MODIFIED", "other", 4, false),
        object("DELETED", "a", 5, true),
    ];
    let (events, asked) = watch(vec![Response::Events(events), Response::None]).await;
    assert_eq!(events, ["applied a", "synced a", "applied other", "deleted a", "interrupted"]);
    assert_eq!(asked, ["", "5"], "it goes on from the last version");
}

#[tokio::test(start_paused = true)]
async fn an_object_detached_during_the_initial_list_is_not_in_it() {
    let events = vec![object("ADDED", "a", 1, true), object("MODIFIED", "a", 2, false), listed(3)];
    let (events, _) = watch(vec![Response::Events(events), Response::None]).await;
    assert_eq!(events, ["applied a", "synced ", "interrupted"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_in_good_order_is_interrupted_until_it_is_open_again() {
    let responses = vec![Response::Events(vec![listed(3)]), Response::Events(vec![]), Response::None];
    let (events, _) = watch(responses).await;
    assert_eq!(events, ["synced ", "interrupted", "resumed", "interrupted"]);
}

#[tokio::test(start_paused = true)]
async fn a_reopened_watch_is_resumed_even_if_nothing_changes() {
    let responses = vec![
        Response::Events(vec![listed(3)]),
        Response::Refused(503),
        Response::Events(vec![]),
        Response::None,
    ];
    let (events, asked) = watch(responses).await;
    assert_eq!(events, ["synced ", "interrupted", "failing: status 503", "resumed", "interrupted"]);
    assert_eq!(asked, ["", "3", "3", "3"]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_causes_a_new_list_and_no_failure() {
    let gone = json!({"type": "ERROR", "object": {"code": 410, "status": "Failure", "message": "too old", "reason": "Expired"}});
    for expired in [Response::Refused(410), Response::Events(vec![gone])] {
        let responses = vec![
            Response::Events(vec![listed(3)]),
            expired,
            Response::Events(vec![listed(9)]),
            Response::None,
        ];
        let (events, asked) = watch(responses).await;
        assert_eq!(events.iter().filter(|event| *event == "synced ").count(), 2, "{events:?}");
        assert!(!events.iter().any(|event| event.starts_with("failing")), "{events:?}");
        assert!(events.iter().any(|event| event == "interrupted"), "{events:?}");
        assert_eq!(asked[..4], ["", "3", "", "9"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_initial_list_that_breaks_off_starts_again() {
    let half = vec![object("ADDED", "a", 1, true)];
    let (events, asked) =
        watch(vec![Response::Events(half), Response::Events(vec![listed(3)]), Response::None]).await;
    assert_eq!(events, ["applied a", "synced ", "interrupted"]);
    assert_eq!(asked, ["", "", "3"]);
}

#[tokio::test(start_paused = true)]
async fn the_watch_of_an_uninstalled_kind_ends() {
    let (events, asked) = watch(vec![Response::Refused(404), Response::Events(vec![listed(3)])]).await;
    assert_eq!(events, ["failing: the kind is not installed"]);
    assert_eq!(asked.len(), 1);
}
