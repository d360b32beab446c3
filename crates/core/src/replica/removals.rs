//! What is next for an attached object: whether something of it has to be removed, and when.

use std::time::Duration;

use writer_lease::Lane;

use super::{Replica, Work, hash_of, schedule::Timer};
use crate::{
    clocks::Now,
    decide::removal::Removal,
    index::attachments::{Object, ObjectId},
    kind::Kind,
};

/// How long a follower waits for a write of the primary before it tries a removal that the primary reported as hindered. A
/// primary retries after a minute at most, and proves itself before that if it has written nothing for a lease duration.
const HINDERED_PATIENCE: Duration = Duration::from_secs(120);

impl Replica {
    /// An object, or a lease that it is attached to, has changed.
    pub(super) fn enqueue_object(&mut self, id: &ObjectId, now: &Now) {
        let work = Work::Object(id.clone());
        if self.leadership.is_running(&work) {
            return;
        }
        let timer = Timer::Object(Box::new(id.clone()));
        self.schedule.clear(&timer);
        if self.removal(id).is_none() {
            self.leadership.drop_work(&work);
            // The keys that were refused are tried again, one at a time.
            let object = self.index.attachments.get(id).filter(|object| object.refused_keys().is_some());
            if let Some(at) = object.and_then(|object| object.hindrance()?.retry_at) {
                self.schedule.set(timer, at);
            }
            return;
        }
        if !self.leadership.is_primary() && self.index.is_hindered(id) {
            self.leadership.drop_work(&work);
            if self.index.hindrance_may_be_over(id) {
                self.schedule.set(timer, now.mono + HINDERED_PATIENCE);
            }
            return;
        }
        match self.index.attachments.get(id).and_then(Object::hindrance) {
            Some(hindrance) if hindrance.retry_at.is_none_or(|at| at > now.mono) => {
                if let Some(at) = hindrance.retry_at {
                    self.schedule.set(timer, at);
                }
                self.leadership.drop_work(&work);
            }
            _ if self.leadership.has_work(&work) => {}
            _ => self.queue_removal(id, now),
        }
    }

    /// The timer of an object has fired. A follower checks whether the primary that reported a hindrance is still alive.
    pub(super) fn retry_removal(&mut self, id: &ObjectId, now: &Now) {
        self.index.attachments.retry_refused(id);
        if self.leadership.is_primary() || self.removal(id).is_none() || !self.index.is_hindered(id) {
            self.enqueue_object(id, now);
            return;
        }
        let patient_until = self.leadership.last_followed().saturating_add(HINDERED_PATIENCE);
        if patient_until <= now.mono {
            self.queue_removal(id, now);
        } else if self.index.is_retried(id) {
            self.schedule.set(Timer::Object(Box::new(id.clone())), patient_until);
        }
        // Otherwise the object has changed. The primary has observed that, and is alive.
    }

    /// Queues the removal of what is due in an object: due now, whenever it was before.
    fn queue_removal(&mut self, id: &ObjectId, now: &Now) {
        let again = self.index.attachments.get(id).is_some_and(|object| object.hindrance().is_some())
            || self.index.was_hindered(id);
        self.leadership.queue(lane(&id.kind, again), Work::Object(id.clone()), now.mono);
    }

    /// What is due in an object.
    pub(super) fn removal(&self, id: &ObjectId) -> Option<Removal> {
        if self.settings.dry_run {
            return None;
        }
        self.index.removal(id, self.leadership.term())
    }
}

/// The lane of removals from objects of a kind, since an API or a webhook may hang. Those that failed before have another, so
/// that they don't delay the others.
fn lane(kind: &Kind, again: bool) -> Lane {
    let id = hash_of((&kind.resource.group, &kind.resource.plural));
    if again { Lane::spare(id) } else { Lane::bounded(id) }
}
