//! Tells people: each notice is logged at once and written as an Event when the budget allows.
//!
//! Events are a courtesy. They never hold up the work, and what they cost is bounded: a few per second, warnings before
//! the rest, and what doesn't fit into the queue is only logged.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder as Events, Reporter},
};
use lessor_api::{Lease, Lessor};
use lessor_core::{
    settings::Settings,
    user_event::{About, UserEvent},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::runtime::metrics::EventCounts;

/// How many Events may wait, of each type.
const WAITING: usize = 1000;
/// The longest note that the API accepts, in bytes.
const LONGEST_NOTE: usize = 1024;
/// After so many Events those before are forgotten. kube's recorder remembers each for six minutes, to count repetitions of it
/// in a series: at the default rate that would be 3,600, which take more memory than 1,000 leases do.
const REMEMBERED: usize = 500;
/// How long one Event may take to write.
const PATIENCE: Duration = Duration::from_secs(5);

/// Takes notices. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: Arc<Queue>,
    counts: EventCounts,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    warnings: VecDeque<UserEvent>,
    others: VecDeque<UserEvent>,
}

impl Recorder {
    /// A recorder, and the task that writes its Events at `settings.event_rate`, which never ends.
    pub fn new(
        client: Client,
        settings: &Settings,
        counts: EventCounts,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let queue = Arc::new(Queue::default());
        let reporter = Reporter {
            controller: "lessor.dev/lessor".to_owned(),
            instance: Some(settings.identity.clone()),
        };
        let recorder = Self { queue, counts };
        let events = move || Events::new(client.clone(), reporter.clone());
        let writing = write(events, recorder.clone(), settings.event_rate, settings.lessor.clone());
        (recorder, writing)
    }

    /// Logs a notice, and queues it to be written as an Event.
    pub fn tell(&self, notice: UserEvent) {
        let (about, reason, note) = (&notice.about, notice.reason, &notice.note);
        match (&notice.about, notice.warning) {
            (About::Lease(place, _), true) => tracing::warn!(lease = %place, reason, "{note}"),
            (About::Lease(place, _), false) => tracing::info!(lease = %place, reason, "{note}"),
            (About::Object(..), true) => tracing::warn!(object = %about, reason, "{note}"),
            (About::Object(..), false) => tracing::info!(object = %about, reason, "{note}"),
            (About::Lessor, true) => tracing::warn!(reason, "{note}"),
            (About::Lessor, false) => tracing::info!(reason, "{note}"),
        }
        let mut waiting = self.queue.waiting.lock();
        let queue = if notice.warning { &mut waiting.warnings } else { &mut waiting.others };
        if queue.len() < WAITING {
            queue.push_back(notice);
        } else {
            self.counts.count(notice.warning, "dropped");
        }
        self.counts.waiting(waiting.warnings.len(), waiting.others.len());
        drop(waiting);
        self.queue.filled.notify_one();
    }
}

async fn write(anew: impl Fn() -> Events, recorder: Recorder, per_second: f64, lessor: String) {
    let Recorder { queue, counts } = recorder;
    let pause = Duration::try_from_secs_f64(1.0 / per_second).unwrap_or(Duration::from_secs(1));
    let (mut events, mut remembered) = (anew(), 0);
    let mut told = false;
    loop {
        if remembered == REMEMBERED {
            (events, remembered) = (anew(), 0);
        }
        let next = {
            let mut waiting = queue.waiting.lock();
            let next = waiting.warnings.pop_front().or_else(|| waiting.others.pop_front());
            counts.waiting(waiting.warnings.len(), waiting.others.len());
            next
        };
        let Some(notice) = next else {
            queue.filled.notified().await;
            continue;
        };
        let event = Event {
            type_: if notice.warning { EventType::Warning } else { EventType::Normal },
            reason: notice.reason.to_owned(),
            note: Some(cut(&notice.note, LONGEST_NOTE).to_owned()),
            action: notice.reason.to_owned(),
            secondary: None,
        };
        let reference = reference(&notice.about, &lessor);
        remembered += 1;
        let published = tokio::time::timeout(PATIENCE, events.publish(&event, &reference)).await;
        let error = match published {
            Ok(Ok(())) => None,
            Ok(Err(kube::Error::Api(status))) => Some(status.message),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("no answer in time".to_owned()),
        };
        counts.count(notice.warning, if error.is_none() { "written" } else { "failed" });
        if let Some(error) = error {
            // A missing right shows, and fills no log: the metrics say how many were not written.
            match std::mem::replace(&mut told, true) {
                false => tracing::warn!(about = %notice.about, %error, "event not written"),
                true => tracing::debug!(about = %notice.about, %error, "event not written"),
            }
        }
        tokio::time::sleep(pause).await;
    }
}

fn reference(about: &About, lessor: &str) -> ObjectReference {
    match about {
        About::Lease(place, uid) => ObjectReference {
            api_version: Some(Lease::api_version(&()).into_owned()),
            kind: Some(Lease::kind(&()).into_owned()),
            namespace: Some(place.namespace.to_string()),
            name: Some(place.name.to_string()),
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        },
        About::Object(object, uid) => ObjectReference {
            api_version: Some(object.kind.resource.api_version.clone()),
            kind: Some(object.kind.resource.kind.clone()),
            namespace: Some(object.name.namespace.to_string()),
            name: Some(object.name.name.to_string()),
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        },
        About::Lessor => ObjectReference {
            api_version: Some(Lessor::api_version(&()).into_owned()),
            kind: Some(Lessor::kind(&()).into_owned()),
            name: Some(lessor.to_owned()),
            ..ObjectReference::default()
        },
    }
}

/// The beginning of a text, `bytes` long at most, cut between characters.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use lessor_core::lease_object::NamespacedName;
    use uuid::Uuid;

    use super::*;

    /// The API server, as far as it takes Events: notes the reason of each.
    fn server(reasons: Arc<Mutex<Vec<String>>>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let reasons = reasons.clone();
            async move {
                let body = request.into_body().collect_bytes().await.unwrap_or_default();
                let event: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
                reasons.lock().push(event["reason"].as_str().unwrap_or_default().to_owned());
                Ok::<_, Infallible>(
                    Response::builder().status(201).body(Body::from(body.to_vec())).expect("an answer"),
                )
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_expiries_write_no_ten_thousand_events_and_a_warning_comes_first() {
        let reasons = Arc::new(Mutex::new(Vec::new()));
        let settings = Settings { event_rate: 10.0, ..Settings::default() };
        let (recorder, writing) = Recorder::new(server(reasons.clone()), &settings, EventCounts::default());
        let writing = tokio::spawn(writing);
        for n in 0..10_000 {
            let about = About::Lease(NamespacedName::new("shop", format!("lease-{n}")), Uuid::from_u128(n));
            recorder.tell(UserEvent::normal(about, "Expired", "expired"));
        }
        let about = About::Lease(NamespacedName::new("shop", "stuck"), Uuid::from_u128(10_000));
        recorder.tell(UserEvent::warning(about, "Hindered", "hindered"));
        tokio::time::sleep(Duration::from_secs(10)).await;
        {
            let reasons = reasons.lock();
            assert_eq!(reasons.first().map(String::as_str), Some("Hindered"));
            assert!((90..=101).contains(&reasons.len()), "{} events in ten seconds", reasons.len());
        }
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(reasons.lock().len(), WAITING + 1);
        writing.abort();
    }

    #[test]
    fn a_note_is_cut_between_characters() {
        assert_eq!(cut("short", 1024), "short");
        assert_eq!(cut("größe", 3), "gr");
    }
}
