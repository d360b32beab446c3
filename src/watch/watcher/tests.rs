//! One watch, against answers that are written down here.

use std::{collections::VecDeque, sync::Arc};

use futures::{FutureExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::Status;
use lessor_core::lease_object::NamespacedName;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

/// An answer: events and then the end of the watch, or an HTTP status.
enum Response {
    Events(Vec<Value>),
    Refused(u16),
    /// It doesn't come.
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
    kube::Error::Api(Box::new(Status { code, message: format!("says {code}"), ..Status::default() }))
}

/// Watches while these answers last. Answers with what was seen, and with the versions that were asked for.
async fn watch(answers: Vec<Response>) -> (Vec<String>, Vec<String>) {
    let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let open = move |params: WatchParams, version: String| {
        assert_eq!(params.send_initial_events, version.is_empty());
        noted.lock().push(version);
        let answer = answers.lock().pop_front();
        async move {
            let events = match answer {
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
    let watch = Watch {
        open: Box::new(open),
        fields: None,
        read: |map: ConfigMap| Some(map.metadata),
        counts: |map| map.metadata.annotations.as_ref().is_some_and(|annotations| !annotations.is_empty()),
        of_our_own: false,
    };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let keeping = watch.keep(|seen| {
        let name = |meta: &kube::core::ObjectMeta| meta.name.clone().unwrap_or_default();
        noted.lock().push(match &seen {
            Event::Applied(meta) => format!("there {}", name(meta)),
            Event::Deleted(meta) => format!("gone {}", name(meta)),
            Event::Synced(places) => {
                let names = ["a", "other"]
                    .into_iter()
                    .filter(|name| places.contains(&NamespacedName::new("shop", *name)));
                format!("all {}", names.collect::<Vec<_>>().join(" "))
            }
            Event::Interrupted => "interrupted".to_owned(),
            Event::Resumed => "resumed".to_owned(),
            Event::Failing(failure) => format!("failing: {failure}"),
        });
        async { true }
    });
    // The clock is stopped, and moves on as soon as everybody waits.
    let _ = timeout(Duration::from_secs(8), keeping).await;
    (seen.lock().clone(), asked.lock().clone())
}

#[tokio::test(start_paused = true)]
async fn of_what_is_not_attached_nothing_is_passed_on_while_all_is_listed() {
    let events = vec![
        object("ADDED", "a", 1, true),
        object("ADDED", "other", 2, false),
        listed(3),
        object("MODIFIED", "other", 4, false),
        object("DELETED", "a", 5, true),
    ];
    let (seen, asked) = watch(vec![Response::Events(events), Response::None]).await;
    assert_eq!(seen, ["there a", "all a", "there other", "gone a", "interrupted"]);
    assert_eq!(asked, ["", "5"], "it goes on where it was");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_detached_while_all_is_listed_is_not_among_them() {
    let events = vec![object("ADDED", "a", 1, true), object("MODIFIED", "a", 2, false), listed(3)];
    let (seen, _) = watch(vec![Response::Events(events), Response::None]).await;
    assert_eq!(seen, ["there a", "all ", "interrupted"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_in_good_order_says_so_until_it_is_open_again() {
    let answers = vec![Response::Events(vec![listed(3)]), Response::Events(vec![]), Response::None];
    let (seen, _) = watch(answers).await;
    assert_eq!(seen, ["all ", "interrupted", "resumed", "interrupted"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_open_again_says_so_though_nothing_changes() {
    let answers = vec![
        Response::Events(vec![listed(3)]),
        Response::Refused(503),
        Response::Events(vec![]),
        Response::None,
    ];
    let (seen, asked) = watch(answers).await;
    assert_eq!(seen, ["all ", "interrupted", "failing: says 503", "resumed", "interrupted"]);
    assert_eq!(asked, ["", "3", "3", "3"]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_begins_anew_and_is_no_failure() {
    let gone = json!({"type": "ERROR", "object": {"code": 410, "status": "Failure", "message": "too old", "reason": "Expired"}});
    for expired in [Response::Refused(410), Response::Events(vec![gone])] {
        let answers = vec![
            Response::Events(vec![listed(3)]),
            expired,
            Response::Events(vec![listed(9)]),
            Response::None,
        ];
        let (seen, asked) = watch(answers).await;
        assert_eq!(seen.iter().filter(|seen| *seen == "all ").count(), 2, "{seen:?}");
        assert!(!seen.iter().any(|seen| seen.starts_with("failing")), "{seen:?}");
        assert!(seen.iter().any(|seen| seen == "interrupted"), "{seen:?}");
        assert_eq!(asked[..4], ["", "3", "", "9"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_begins_anew() {
    let half = vec![object("ADDED", "a", 1, true)];
    let (seen, asked) =
        watch(vec![Response::Events(half), Response::Events(vec![listed(3)]), Response::None]).await;
    assert_eq!(seen, ["there a", "all ", "interrupted"]);
    assert_eq!(asked, ["", "", "3"]);
}

#[tokio::test(start_paused = true)]
async fn without_its_kind_a_watch_of_others_ends() {
    let (seen, asked) = watch(vec![Response::Refused(404), Response::Events(vec![listed(3)])]).await;
    assert_eq!(seen, ["failing: the kind is not installed"]);
    assert_eq!(asked.len(), 1);
}
