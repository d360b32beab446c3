//! Logs each user event at once, and writes it as a Kubernetes Event within a budget.
//!
//! Events delay no other work, and their cost is bounded: a few per second, Warnings first, and for each object a few per minute.
//! What doesn't fit is only logged.

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use lease_engine::Rate;
use lessor_api::{Lease, Lessor};
use lessor_core::{
    settings::Settings,
    user_event::{About, UserEvent},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::runtime::metrics::EventCounts;

/// How many Events of each type the queue holds.
const CAPACITY: usize = 1000;
/// The longest note that the API accepts, in bytes.
const LONGEST_NOTE: usize = 1024;
/// How many Events kube's recorder keeps, before it is replaced by a new one. It keeps each for six minutes, to count repetitions
/// in a series: at the default rate 3,600 Events, which take more memory than 1,000 leases.
const RECORDER_CAPACITY: usize = 500;
/// How many Events of one object are written: so many at once, and one more per [`INTERVAL`].
const BURST: NonZeroU32 = NonZeroU32::new(20).expect("above zero: the compiler checks it");
/// See [`BURST`].
const INTERVAL: u32 = 30;
/// How many objects are remembered for that. Those of which nothing was written for long are forgotten first.
const OBJECTS: usize = 4096;
/// The time limit of writing one Event.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Takes user events. Clones share one queue.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    queue: Arc<EventQueue>,
    counts: EventCounts,
}

#[derive(Debug, Default)]
struct EventQueue {
    events: Mutex<QueuedEvents>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct QueuedEvents {
    warnings: VecDeque<UserEvent>,
    normals: VecDeque<UserEvent>,
    by_object: ByObject,
}

/// How many Events of each object may still be written. Times count from the first Event.
#[derive(Debug, Default)]
struct ByObject {
    since: Option<Instant>,
    rates: HashMap<String, Rate>,
}

impl ByObject {
    /// Whether another Event of this object may be written.
    fn admits(&mut self, about: &About) -> bool {
        if matches!(about, About::Lessor) {
            return true;
        }
        // One per second of a clock that is slower by this factor.
        let now = self.since.get_or_insert_with(Instant::now).elapsed() / INTERVAL;
        if self.rates.len() >= OBJECTS {
            self.rates.retain(|_, rate| rate.available(now) < BURST.get() as usize);
        }
        if self.rates.len() >= OBJECTS {
            self.rates.clear();
        }
        // An object that is created anew again and again has a new uid each time, and the same name.
        let rate = self.rates.entry(about.to_string()).or_insert(Rate::new(NonZeroU32::MIN, BURST));
        let admits = rate.available(now) > 0;
        if admits {
            rate.take(1, now);
        }
        admits
    }
}

impl EventRecorder {
    /// A recorder, and the endless task that writes its Events at `settings.event_rate`.
    pub fn new(
        client: Client,
        settings: &Settings,
        counts: EventCounts,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let queue = Arc::new(EventQueue::default());
        let reporter = Reporter {
            controller: "lessor.dev/lessor".to_owned(),
            instance: Some(settings.identity.clone()),
        };
        let recorder = Self { queue, counts };
        let new_writer = move || Recorder::new(client.clone(), reporter.clone());
        let writing = write(new_writer, recorder.clone(), settings.event_rate, settings.lessor.clone());
        (recorder, writing)
    }

    /// Logs a user event, and queues it to be written.
    pub fn record(&self, event: UserEvent) {
        let (about, reason, note) = (&event.about, event.reason, &event.note);
        match (&event.about, event.warning) {
            (About::Lease(name, _), true) => tracing::warn!(lease = %name, reason, "{note}"),
            (About::Lease(name, _), false) => tracing::info!(lease = %name, reason, "{note}"),
            (About::Object(..), true) => tracing::warn!(object = %about, reason, "{note}"),
            (About::Object(..), false) => tracing::info!(object = %about, reason, "{note}"),
            (About::Lessor, true) => tracing::warn!(reason, "{note}"),
            (About::Lessor, false) => tracing::info!(reason, "{note}"),
        }
        let mut queued = self.queue.events.lock();
        let admits = queued.by_object.admits(&event.about);
        let queue = if event.warning { &mut queued.warnings } else { &mut queued.normals };
        if admits && queue.len() < CAPACITY {
            queue.push_back(event);
        } else {
            self.counts.count(event.warning, "dropped");
        }
        self.counts.queued(queued.warnings.len(), queued.normals.len());
        drop(queued);
        self.queue.filled.notify_one();
    }
}

async fn write(new_writer: impl Fn() -> Recorder, recorder: EventRecorder, per_second: f64, lessor: String) {
    let EventRecorder { queue, counts } = recorder;
    let pause = Duration::try_from_secs_f64(1.0 / per_second).unwrap_or(Duration::from_secs(1));
    let (mut writer, mut written) = (new_writer(), 0);
    let mut failure_logged = false;
    loop {
        if written == RECORDER_CAPACITY {
            (writer, written) = (new_writer(), 0);
        }
        let next = {
            let mut queued = queue.events.lock();
            let next = queued.warnings.pop_front().or_else(|| queued.normals.pop_front());
            counts.queued(queued.warnings.len(), queued.normals.len());
            next
        };
        let Some(user_event) = next else {
            queue.filled.notified().await;
            continue;
        };
        let event = Event {
            type_: if user_event.warning { EventType::Warning } else { EventType::Normal },
            reason: user_event.reason.to_owned(),
            note: Some(cut(&user_event.note, LONGEST_NOTE).to_owned()),
            action: user_event.reason.to_owned(),
            secondary: None,
        };
        let reference = reference(&user_event.about, &lessor);
        written += 1;
        let published = tokio::time::timeout(TIMEOUT, writer.publish(&event, &reference)).await;
        let error = match published {
            Ok(Ok(())) => None,
            Ok(Err(kube::Error::Api(status))) => Some(status.message),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no response within {TIMEOUT:?}")),
        };
        counts.count(user_event.warning, if error.is_none() { "written" } else { "failed" });
        if let Some(error) = error {
            // Once, since a missing right would fill the log. The metrics count all.
            match std::mem::replace(&mut failure_logged, true) {
                false => tracing::warn!(about = %user_event.about, %error, "event not written"),
                true => tracing::debug!(about = %user_event.about, %error, "event not written"),
            }
        }
        tokio::time::sleep(pause).await;
    }
}

fn reference(about: &About, lessor: &str) -> ObjectReference {
    match about {
        About::Lease(lease, uid) => ObjectReference {
            api_version: Some(Lease::api_version(&()).into_owned()),
            kind: Some(Lease::kind(&()).into_owned()),
            namespace: Some(lease.namespace.to_string()),
            name: Some(lease.name.to_string()),
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

    /// An API server that takes Events, and notes the reason of each.
    fn server(reasons: Arc<Mutex<Vec<String>>>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let reasons = reasons.clone();
            async move {
                let body = request.into_body().collect_bytes().await.unwrap_or_default();
                let event: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
                reasons.lock().push(event["reason"].as_str().unwrap_or_default().to_owned());
                Ok::<_, Infallible>(
                    Response::builder().status(201).body(Body::from(body.to_vec())).expect("a response"),
                )
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_written_at_a_bounded_rate_and_warnings_first() {
        let reasons = Arc::new(Mutex::new(Vec::new()));
        let settings = Settings { event_rate: 10.0, ..Settings::default() };
        let (recorder, writing) =
            EventRecorder::new(server(reasons.clone()), &settings, EventCounts::default());
        let writing = tokio::spawn(writing);
        for n in 0..10_000 {
            let about = About::Lease(NamespacedName::new("shop", format!("lease-{n}")), Uuid::from_u128(n));
            recorder.record(UserEvent::normal(about, "Expired", "expired"));
        }
        let about = About::Lease(NamespacedName::new("shop", "stuck"), Uuid::from_u128(10_000));
        recorder.record(UserEvent::warning(about, "Hindered", "hindered"));
        tokio::time::sleep(Duration::from_secs(10)).await;
        {
            let reasons = reasons.lock();
            assert_eq!(reasons.first().map(String::as_str), Some("Hindered"));
            assert!((90..=101).contains(&reasons.len()), "{} events in ten seconds", reasons.len());
        }
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(reasons.lock().len(), CAPACITY + 1);
        writing.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn the_events_of_one_object_leave_those_of_others_their_budget() {
        let reasons = Arc::new(Mutex::new(Vec::new()));
        let (recorder, writing) =
            EventRecorder::new(server(reasons.clone()), &Settings::default(), EventCounts::default());
        let writing = tokio::spawn(writing);
        for n in 0..60_000 {
            // It is created anew all the time.
            let about = About::Lease(NamespacedName::new("shop", "busy"), Uuid::from_u128(n));
            recorder.record(UserEvent::normal(about, "Expired", "expired"));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let about = About::Lease(NamespacedName::new("shop", "calm"), Uuid::from_u128(60_000));
        recorder.record(UserEvent::normal(about, "Granted", "granted"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let reasons = reasons.lock();
        assert_eq!(reasons.last().map(String::as_str), Some("Granted"));
        assert!((20..=23).contains(&reasons.len()), "{} events in a minute", reasons.len());
        writing.abort();
    }

    #[test]
    fn a_long_note_is_cut_between_characters() {
        assert_eq!(cut("short", 1024), "short");
        assert_eq!(cut("größe", 3), "gr");
    }
}
