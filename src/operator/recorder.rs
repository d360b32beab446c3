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
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    notice::{About, Notice},
    settings::Settings,
};
use crate::api::{Lease, Lessor};

/// How many Events may wait, of each type.
const WAITING: usize = 1000;
/// The longest note that the API accepts, in bytes.
const LONGEST_NOTE: usize = 1024;
/// How long one Event may take to write.
const PATIENCE: Duration = Duration::from_secs(5);

/// Takes notices. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    warnings: VecDeque<Notice>,
    others: VecDeque<Notice>,
}

impl Recorder {
    /// A recorder, and the task that writes its Events at `settings.event_rate`, which never ends.
    pub fn new(client: Client, settings: &Settings) -> (Self, impl Future<Output = ()> + use<>) {
        let queue = Arc::new(Queue::default());
        let reporter = Reporter {
            controller: "lessor.dev/lessor".to_owned(),
            instance: Some(settings.identity.clone()),
        };
        let writing =
            write(Events::new(client, reporter), queue.clone(), settings.event_rate, settings.lessor.clone());
        (Self { queue }, writing)
    }

    /// Logs a notice, and queues it to be written as an Event.
    pub fn tell(&self, notice: Notice) {
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
        }
        drop(waiting);
        self.queue.filled.notify_one();
    }
}

async fn write(events: Events, queue: Arc<Queue>, per_second: f64, lessor: String) {
    let pause = Duration::try_from_secs_f64(1.0 / per_second).unwrap_or(Duration::from_secs(1));
    loop {
        let next = {
            let mut waiting = queue.waiting.lock();
            waiting.warnings.pop_front().or_else(|| waiting.others.pop_front())
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
        match tokio::time::timeout(PATIENCE, events.publish(&event, &reference)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(about = %notice.about, %error, "event not written"),
            Err(_) => tracing::debug!(about = %notice.about, "event not written in time"),
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
            namespace: Some(object.place.namespace.to_string()),
            name: Some(object.place.name.to_string()),
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
    use super::*;

    #[test]
    fn a_note_is_cut_between_characters() {
        assert_eq!(cut("short", 1024), "short");
        assert_eq!(cut("größe", 3), "gr");
    }
}
