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
    /// It begins after so many seconds, and each event follows so many seconds after the one before. Then nothing arrives.
    Slow(u64, Vec<(u64, Value)>),
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

fn bookmark(version: u64) -> Value {
    json!({"type": "BOOKMARK", "object": {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": version.to_string()},
    }})
}

fn refusal(code: u16) -> kube::Error {
    kube::Error::Api(Box::new(Status { code, message: format!("status {code}"), ..Status::default() }))
}

/// Watches while these responses last. Returns the events, and the versions from which it opened the watch.
async fn watch(responses: Vec<Response>) -> (Vec<String>, Vec<String>) {
    watch_for(8, responses).await
}

/// The same for so many seconds.
async fn watch_for(seconds: u64, responses: Vec<Response>) -> (Vec<String>, Vec<String>) {
    let responses = Arc::new(Mutex::new(VecDeque::from(responses)));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let open = move |params: WatchParams, version: String| {
        assert_eq!(params.send_initial_events, version.is_empty());
        noted.lock().push(version);
        let response = responses.lock().pop_front();
        async move {
            let parse = |event| Ok(serde_json::from_value::<WatchEvent<ConfigMap>>(event).expect("an event"));
            let events = match response {
                Some(Response::Events(events)) => events,
                Some(Response::Slow(begins_after, events)) => {
                    sleep(Duration::from_secs(begins_after)).await;
                    let events = stream::iter(events).then(move |(after, event)| async move {
                        sleep(Duration::from_secs(after)).await;
                        parse(event)
                    });
                    return Ok(events.chain(stream::pending()).boxed());
                }
                Some(Response::Refused(code)) => return Err(refusal(code)),
                Some(Response::None) | None => return std::future::pending().await,
            };
            Ok(stream::iter(events.into_iter().map(parse)).boxed())
        }
        .boxed()
    };
    let watcher = Watcher {
        open: Box::new(open),
        fields: None,
        read: |map: ConfigMap| Some(map.metadata),
        counts: |map| map.metadata.annotations.as_ref().is_some_and(|annotations| !annotations.is_empty()),
        bookmarks: true,
        lists_anew: false,
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
            Event::Bookmark(version) => format!("bookmark {version}"),
            Event::Listed(version) => format!("listed {version}"),
            Event::Interrupted => "interrupted".to_owned(),
            Event::Resumed => "resumed".to_owned(),
            Event::Failing(failure) => format!("failing: {failure}"),
        });
        async { true }
    });
    // The paused clock advances as soon as all tasks wait.
    let _ = timeout(Duration::from_secs(seconds), keeping).await;
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

#[tokio::test(start_paused = true)]
async fn a_watch_waits_longer_each_time_for_a_slow_api_server() {
    let slow = |begins_after| Response::Slow(begins_after, vec![(0, listed(3))]);
    let (events, asked) = watch_for(60, vec![slow(12), slow(12)]).await;
    assert_eq!(events, ["failing: the API server takes longer than 10s to begin its response", "synced "]);
    assert_eq!(asked, ["", ""]);
    // 10, 20, 40 and 60 s.
    let (events, _) = watch_for(200, vec![slow(59), slow(59), slow(59), slow(59)]).await;
    assert_eq!(events.last().map(String::as_str), Some("synced "), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_opened_again_and_one_with_bookmarks_is_not() {
    let begin = || (0, listed(3));
    let with_bookmarks =
        Response::Slow(0, vec![begin(), (60, bookmark(4)), (60, bookmark(5)), (60, bookmark(6))]);
    let (events, asked) = watch_for(265, vec![with_bookmarks]).await;
    assert_eq!(events, ["synced ", "bookmark 4", "bookmark 5", "bookmark 6"]);
    assert_eq!(asked, [""]);
    let silent = || Response::Slow(0, Vec::new());
    let (events, asked) = watch_for(200, vec![Response::Slow(0, vec![begin()]), silent(), silent()]).await;
    assert_eq!(events, ["synced ", "interrupted", "resumed", "interrupted", "resumed"], "it does not fail");
    assert_eq!(asked, ["", "3", "3"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_initial_list_never_ends_fails_after_thirty_seconds() {
    let late = "failing: the API server didn't complete the initial list within 30s";
    // It closes in good order before the end of the list.
    let closes = (0..40).map(|_| Response::Events(vec![object("ADDED", "a", 1, true)]));
    let (events, _) = watch_for(35, closes.collect()).await;
    let failed = events.iter().filter(|event| *event != "applied a").collect::<Vec<_>>();
    assert!(!failed.is_empty() && failed.iter().all(|event| *event == late), "{events:?}");
    // It sends changes and no bookmark. Once that comes, all is well.
    let changes = (0..8).map(|_| (5, object("MODIFIED", "a", 2, true))).chain([(5, listed(3))]);
    let (events, asked) = watch_for(60, vec![Response::Slow(0, changes.collect())]).await;
    let position = |text: &str| events.iter().position(|event| event == text);
    assert_eq!(events.len(), 10, "{events:?}");
    assert!(position(late) >= Some(5) && position(late) <= Some(6), "{events:?}");
    assert_eq!((position("synced a"), asked.len()), (Some(9), 1), "{events:?}");
}
