//! One watch for all leases that a client has granted, however many of them are kept alive.

use std::{collections::HashMap, fmt, pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use kube::{
    Api,
    runtime::{
        utils::Backoff,
        watcher::{self, DefaultBackoff, Event, watcher},
    },
};
use lessor_api::Lease;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinHandle};
use uuid::Uuid;

/// The label of each lease that a client creates. It selects the leases of one client for its watch.
const CLIENT_LABEL: &str = "lessor.dev/client";

/// How often an informer looks whether it has subscribers. Without any it stops, but not between one lease and the next.
const IDLE_CHECK: Duration = Duration::from_secs(5);

/// What the watch shows of a lease: a version, or `None` if it has none of this name.
///
/// `None` is no proof that the lease is gone: a user may have removed its label.
pub(super) type Seen = Option<Arc<Lease>>;

/// Watches the leases of one client while there are subscribers. Its errors aren't reported: without it, renewals notice the
/// same later.
pub(super) struct Informer {
    /// The value of the label.
    id: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    subscribers: HashMap<String, Vec<Arc<Slot>>>,
    /// The leases as last seen; `None` before the first list is complete.
    leases: Option<HashMap<String, Arc<Lease>>>,
    task: Option<JoinHandle<()>>,
}

/// Where a subscriber finds the newest version. One that wasn't fetched is replaced.
#[derive(Default)]
struct Slot {
    seen: Mutex<Option<Seen>>,
    changed: Notify,
}

impl Slot {
    fn put(&self, seen: Seen) {
        *self.seen.lock() = Some(seen);
        self.changed.notify_one();
    }
}

impl Informer {
    pub(super) fn new() -> Self {
        Self { id: Uuid::new_v4().simple().to_string(), state: Mutex::default() }
    }

    /// Makes the watch select a lease that is about to be created.
    pub(super) fn label(&self, lease: &mut Lease) {
        lease.metadata.labels.get_or_insert_default().insert(CLIENT_LABEL.to_owned(), self.id.clone());
    }

    /// Whether the watch selects this lease.
    pub(super) fn selects(&self, lease: &Lease) -> bool {
        lease.metadata.labels.as_ref().and_then(|labels| labels.get(CLIENT_LABEL)) == Some(&self.id)
    }

    /// Subscribes to a lease: to the version that was seen last, and to each from now on.
    pub(super) fn subscribe(self: &Arc<Self>, api: impl FnOnce() -> Api<Lease>, name: &str) -> Subscription {
        let slot = Arc::<Slot>::default();
        let mut state = self.state.lock();
        // The task has ended, too, if the runtime that it ran in is gone.
        if state.task.as_ref().is_none_or(JoinHandle::is_finished) {
            state.leases = None;
            state.task = Some(tokio::spawn(Arc::clone(self).run(api())));
        }
        if let Some(leases) = &state.leases {
            slot.put(leases.get(name).cloned());
        }
        state.subscribers.entry(name.to_owned()).or_default().push(Arc::clone(&slot));
        Subscription { informer: Arc::clone(self), name: name.to_owned(), slot }
    }

    async fn run(self: Arc<Self>, api: Api<Lease>) {
        let config = watcher::Config::default().labels(&format!("{CLIENT_LABEL}={}", self.id));
        let mut events = pin!(watcher(api, config));
        // Not kube's stream with delays: each attempt to list begins with an event, after which its delays begin anew.
        let mut delays = DefaultBackoff::default();
        let mut idle = tokio::time::interval(IDLE_CHECK);
        let mut listed = HashMap::new();
        loop {
            tokio::select! {
                Some(event) = events.next() => match event {
                    Ok(event) => {
                        if !matches!(event, Event::Init) {
                            delays.reset();
                        }
                        self.examine(event, &mut listed);
                    }
                    Err(_) => tokio::time::sleep(delays.next().unwrap_or(IDLE_CHECK)).await,
                },
                _ = idle.tick() => if self.stops() {
                    return;
                },
            }
        }
    }

    /// Takes in an event. `listed` has the leases of a list that isn't complete yet.
    fn examine(&self, event: Event<Lease>, listed: &mut HashMap<String, Arc<Lease>>) {
        let mut state = self.state.lock();
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(lease) => {
                let (name, lease) = named(lease);
                state.publish(&name, Some(&lease));
                listed.insert(name, lease);
            }
            Event::InitDone => {
                let leases = std::mem::take(listed);
                for (name, slots) in &state.subscribers {
                    if !leases.contains_key(name) {
                        slots.iter().for_each(|slot| slot.put(None));
                    }
                }
                state.leases = Some(leases);
            }
            Event::Apply(lease) => {
                let (name, lease) = named(lease);
                state.publish(&name, Some(&lease));
                state.leases.get_or_insert_default().insert(name, lease);
            }
            Event::Delete(lease) => {
                let (name, _) = named(lease);
                state.publish(&name, None);
                state.leases.get_or_insert_default().remove(&name);
            }
        }
    }

    /// Whether it stops, because there are no subscribers.
    fn stops(&self) -> bool {
        let mut state = self.state.lock();
        let is_unused = state.subscribers.is_empty();
        if is_unused {
            *state = State::default();
        }
        is_unused
    }
}

impl fmt::Debug for Informer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl State {
    fn publish(&self, name: &str, lease: Option<&Arc<Lease>>) {
        self.subscribers.get(name).into_iter().flatten().for_each(|slot| slot.put(lease.cloned()));
    }
}

/// A lease and its name. The record of who wrote which field is as large as the rest, and isn't needed.
fn named(mut lease: Lease) -> (String, Arc<Lease>) {
    lease.metadata.managed_fields = None;
    (lease.metadata.name.clone().unwrap_or_default(), Arc::new(lease))
}

/// Receives what the watch of an [`Informer`] shows of one lease.
pub(super) struct Subscription {
    informer: Arc<Informer>,
    name: String,
    slot: Arc<Slot>,
}

impl Subscription {
    /// What is seen next. Cancel-safe.
    pub(super) async fn next(&self) -> Seen {
        loop {
            if let Some(seen) = self.slot.seen.lock().take() {
                return seen;
            }
            self.slot.changed.notified().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.informer.state.lock();
        if let Some(slots) = state.subscribers.get_mut(&self.name) {
            slots.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
            if slots.is_empty() {
                state.subscribers.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests;
