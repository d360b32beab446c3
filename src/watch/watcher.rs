//! One watch, kept open: its events, and whether it works at all.
//!
//! kube's own watcher emits nothing when a watch that had failed is open again. Where nothing changes, that is the only sign of
//! it.

use std::{pin::pin, time::Duration};

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::{Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use kube::{
    Resource,
    api::{WatchEvent, WatchParams},
};
use lessor_core::{
    lease_object::version_of,
    listed_keys::ListedKeys,
    observation::{Event, Failure},
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::connectivity::outage::describe;

/// The API server ends a watch after so many seconds, and it is opened again. A right that was taken away is noticed then.
const MAX_AGE: u32 = 290;
/// How long the API server may take to begin its response, and to send anything during the initial list. Each time that it takes
/// longer, the watch doubles it, so that a slow API server succeeds in the end.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest that the watch waits so.
const MAX_PATIENCE: Duration = Duration::from_secs(60);
/// A watch counts as failing once its initial list takes longer than this, over all attempts. The attempt goes on, since it may
/// just be a long list, but a start doesn't wait for it.
const LISTING: Duration = Duration::from_secs(30);
/// One attempt at the initial list is given up after this time, though the API server should have ended it by then.
const MAX_LISTING: Duration = Duration::from_secs(MAX_AGE as u64 + 10);
/// A watch that brings nothing for this long is opened again: its connection may be dead without a sign. The API server sends a
/// bookmark each minute. For APIs without bookmarks, it costs one request each time, since the watch resumes.
const SILENCE: Duration = Duration::from_secs(90);
/// A watch that ends sooner than this is opened again only after as long a pause.
const SHORT: Duration = Duration::from_secs(1);
/// The annotation of the bookmark after the last object of the initial list.
const LIST_ENDS: &str = "k8s.io/initial-events-end";

/// How a watch fails that gets this error.
pub fn failure_of(error: &kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) if status.code == 404 => Failure::NoSuchKind,
        kube::Error::Api(status) if status.code == 401 => Failure::Unauthorized(status.message.clone()),
        kube::Error::Api(status) if status.code == 403 => Failure::Forbidden(status.message.clone()),
        kube::Error::Api(status) => Failure::Other(status.message.clone()),
        kube::Error::Auth(error) => Failure::Unauthorized(describe(error)),
        kube::Error::Service(error) => Failure::Unreachable(describe(&**error)),
        kube::Error::HyperError(error) => Failure::Unreachable(describe(error)),
        kube::Error::ReadEvents(error) => Failure::Unreachable(describe(error)),
        error => Failure::Other(describe(error)),
    }
}

/// The events of one watch, until the API server ends it.
pub type WatchEvents<K> = BoxStream<'static, kube::Result<WatchEvent<K>>>;

/// Sends the request of a watch from a version on, or with the initial list if that is empty.
pub(super) type OpenWatch<K> =
    Box<dyn Fn(WatchParams, String) -> BoxFuture<'static, kube::Result<WatchEvents<K>>> + Send + Sync>;

/// Keeps a watch open.
pub(super) struct Watcher<K, T> {
    /// Sends the request.
    pub(super) open: OpenWatch<K>,
    /// A field selector.
    pub(super) fields: Option<String>,
    /// Converts an object. One that can't be parsed counts as present, and its changes are dropped.
    pub(super) read: fn(K) -> Option<T>,
    /// Whether an object of the initial list counts. One that doesn't is treated as absent.
    pub(super) counts: fn(&K) -> bool,
    /// Whether bookmarks after the initial list are reported.
    pub(super) bookmarks: bool,
    /// Whether it begins with a list each time, and reports the version of that. For a single object it costs no more.
    pub(super) lists_anew: bool,
    /// Whether a missing kind is waited for. Otherwise the watch ends when the kind is uninstalled.
    pub(super) always_installed: bool,
}

/// How one opened watch ended.
enum WatchEnd {
    /// The API server ended it in good order.
    Ended,
    /// The version to go on from is too old (410).
    Expired,
    Failed(Failure),
    /// The receiver of the events is gone.
    Unreceived,
}

impl<K: Resource, T> Watcher<K, T> {
    /// Keeps the watch open and sends its events, until `send` returns false or the kind is uninstalled.
    pub(super) async fn keep<F: Future<Output = bool>>(self, send: impl Fn(Event<T>) -> F) {
        let mut state = WatchState::new(self.always_installed);
        loop {
            if self.lists_anew {
                state.version = None;
            }
            let opened_at = Instant::now();
            let failure = match self.watch_once(&mut state, &send).await {
                WatchEnd::Unreceived => return,
                WatchEnd::Failed(failure) => failure,
                // Each attempt may end in good order, and none with a complete list.
                WatchEnd::Ended | WatchEnd::Expired if state.is_list_late() => late_list(),
                WatchEnd::Ended | WatchEnd::Expired => {
                    if opened_at.elapsed() < SHORT {
                        sleep(SHORT).await;
                    }
                    continue;
                }
            };
            let delay = state.backoff.delay(&failure);
            let ends = !self.always_installed && failure == Failure::NoSuchKind;
            if !send(Event::Failing(failure)).await {
                return;
            }
            sleep(delay).await;
            if ends {
                return;
            }
        }
    }

    async fn watch_once<F: Future<Output = bool>>(
        &self,
        state: &mut WatchState,
        send: &impl Fn(Event<T>) -> F,
    ) -> WatchEnd {
        let params = WatchParams {
            field_selector: self.fields.clone(),
            timeout: Some(MAX_AGE),
            bookmarks: true,
            send_initial_events: state.version.is_none(),
            ..WatchParams::default()
        };
        let opened_at = Instant::now();
        let open = (self.open)(params, state.version.clone().unwrap_or_default());
        let events = match timeout(state.patience, open).await {
            Ok(Ok(events)) => events,
            Ok(Err(error)) if is_expired(&error) => return expired(&mut state.version),
            Ok(Err(error)) => return WatchEnd::Failed(failure_of(&error)),
            Err(_) => return state.too_slow("begin its response"),
        };
        if opened_at.elapsed() < PATIENCE {
            state.patience = PATIENCE;
        }
        if state.version.is_some() && !send(Event::Resumed).await {
            return WatchEnd::Unreceived;
        }
        let mut events = pin!(events);
        if state.version.is_none()
            && let Err(end) = self.list(&mut events, state, send).await
        {
            return end;
        }
        state.backoff.reset();
        match self.follow(&mut events, &mut state.version, send).await {
            WatchEnd::Ended | WatchEnd::Expired if !send(Event::Interrupted).await => WatchEnd::Unreceived,
            end => end,
        }
    }

    /// Sends the initial list, up to the bookmark after it.
    async fn list<F: Future<Output = bool>>(
        &self,
        events: &mut (impl Stream<Item = kube::Result<WatchEvent<K>>> + Unpin),
        state: &mut WatchState,
        send: &impl Fn(Event<T>) -> F,
    ) -> Result<(), WatchEnd> {
        let mut listed = ListedKeys::default();
        let (now, was_late) = (Instant::now(), state.is_list_late());
        let late_at = *state.listing_since.get_or_insert(now) + LISTING;
        let mut late = (!was_late).then_some(late_at);
        let give_up_at = now + MAX_LISTING;
        loop {
            let idle_at = Instant::now() + state.patience;
            let event = loop {
                let until = late.into_iter().fold(idle_at.min(give_up_at), Instant::min);
                match timeout_at(until, events.next()).await {
                    Ok(Some(Ok(event))) => break event,
                    Ok(Some(Err(error))) => return Err(WatchEnd::Failed(failure_of(&error))),
                    Ok(None) => return Err(WatchEnd::Ended),
                    Err(_) if late.take_if(|late_at| *late_at <= until).is_some() => {
                        if !send(Event::Failing(late_list())).await {
                            return Err(WatchEnd::Unreceived);
                        }
                    }
                    Err(_) if until == give_up_at => return Err(WatchEnd::Ended),
                    Err(_) => return Err(state.too_slow("go on with the initial list")),
                }
            };
            let event = match event {
                WatchEvent::Bookmark(bookmark) => {
                    if !bookmark.metadata.annotations.contains_key(LIST_ENDS) {
                        continue;
                    }
                    if !send(Event::Synced(listed)).await {
                        return Err(WatchEnd::Unreceived);
                    }
                    let listed_at = version_of(Some(&bookmark.metadata.resource_version));
                    if let Some(version) = listed_at.ok().filter(|_| self.lists_anew)
                        && !send(Event::Listed(version)).await
                    {
                        return Err(WatchEnd::Unreceived);
                    }
                    state.version = Some(bookmark.metadata.resource_version);
                    state.listing_since = None;
                    return Ok(());
                }
                WatchEvent::Error(status) => {
                    return Err(WatchEnd::Failed(failure_of(&kube::Error::Api(status))));
                }
                // Nothing is kept of objects that don't count.
                WatchEvent::Added(object) | WatchEvent::Modified(object) if !(self.counts)(&object) => {
                    let (namespace, name) = name_of(&object);
                    listed.remove(namespace, name);
                    continue;
                }
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let (namespace, name) = name_of(&object);
                    listed.insert(namespace, name);
                    (self.read)(object).map(|object| Event::Applied(Box::new(object)))
                }
                WatchEvent::Deleted(object) => {
                    let (namespace, name) = name_of(&object);
                    listed.remove(namespace, name);
                    (self.read)(object).map(|object| Event::Deleted(Box::new(object)))
                }
            };
            if let Some(event) = event
                && !send(event).await
            {
                return Err(WatchEnd::Unreceived);
            }
        }
    }

    /// Sends the changes after the initial list.
    async fn follow<F: Future<Output = bool>>(
        &self,
        events: &mut (impl Stream<Item = kube::Result<WatchEvent<K>>> + Unpin),
        version: &mut Option<String>,
        send: &impl Fn(Event<T>) -> F,
    ) -> WatchEnd {
        loop {
            let event = match timeout(SILENCE, events.next()).await {
                Ok(Some(Ok(event))) => event,
                Ok(Some(Err(error))) if is_expired(&error) => return expired(version),
                Ok(Some(Err(error))) => return WatchEnd::Failed(failure_of(&error)),
                Ok(None) | Err(_) => return WatchEnd::Ended,
            };
            let note = |version: &mut Option<String>, object: &K| {
                if let Some(current) = &object.meta().resource_version {
                    *version = Some(current.clone());
                }
            };
            let event = match event {
                WatchEvent::Bookmark(bookmark) => {
                    let at = version_of(Some(&bookmark.metadata.resource_version));
                    *version = Some(bookmark.metadata.resource_version);
                    at.ok().filter(|_| self.bookmarks).map(Event::Bookmark)
                }
                WatchEvent::Error(status) => {
                    let error = kube::Error::Api(status);
                    return if is_expired(&error) {
                        expired(version)
                    } else {
                        WatchEnd::Failed(failure_of(&error))
                    };
                }
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    note(version, &object);
                    (self.read)(object).map(|object| Event::Applied(Box::new(object)))
                }
                WatchEvent::Deleted(object) => {
                    note(version, &object);
                    (self.read)(object).map(|object| Event::Deleted(Box::new(object)))
                }
            };
            if let Some(event) = event
                && !send(event).await
            {
                return WatchEnd::Unreceived;
            }
        }
    }
}

/// What a watch keeps between attempts to open it.
struct WatchState {
    /// The version to go on from.
    version: Option<String>,
    backoff: WatchBackoff,
    patience: Duration,
    /// Since when the initial list is not complete.
    listing_since: Option<Instant>,
}

impl WatchState {
    fn new(always_installed: bool) -> Self {
        let backoff = WatchBackoff::new(always_installed);
        Self { version: None, backoff, patience: PATIENCE, listing_since: None }
    }

    fn is_list_late(&self) -> bool {
        self.listing_since.is_some_and(|since| since.elapsed() >= LISTING)
    }

    /// Waits longer next time.
    fn too_slow(&mut self, verb: &str) -> WatchEnd {
        self.patience = (self.patience * 2).min(MAX_PATIENCE);
        // The same text each time, so that it is logged once.
        WatchEnd::Failed(Failure::Other(format!("the API server takes longer than {PATIENCE:?} to {verb}")))
    }
}

fn late_list() -> Failure {
    Failure::Other(format!("the API server didn't complete the initial list within {LISTING:?}"))
}

fn expired(version: &mut Option<String>) -> WatchEnd {
    *version = None;
    WatchEnd::Expired
}

fn is_expired(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}

fn name_of<K: Resource>(object: &K) -> (&str, &str) {
    let meta = object.meta();
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// The pauses between attempts to open a watch: short while the API server is unreachable, since lease time stands still until it
/// responds; longer where an administrator has to install a kind or grant a right.
pub(super) struct WatchBackoff {
    always_installed: bool,
    delays: Option<backon::ExponentialBackoff>,
}

impl WatchBackoff {
    /// Short pauses even for a missing kind, if it is `always_installed`.
    pub(super) fn new(always_installed: bool) -> Self {
        Self { always_installed, delays: None }
    }

    /// Starts again with the shortest pause.
    pub(super) fn reset(&mut self) {
        self.delays = None;
    }

    /// The next pause.
    pub(super) fn delay(&mut self, failure: &Failure) -> Duration {
        let longest = Duration::from_secs(match failure {
            Failure::NoSuchKind | Failure::Unreachable(_) | Failure::Other(_) if self.always_installed => 1,
            Failure::Unreachable(_) | Failure::Unauthorized(_) | Failure::Other(_) => 5,
            Failure::NoSuchKind | Failure::Forbidden(_) | Failure::Unusable(_) => 15,
        });
        let delays = self.delays.get_or_insert_with(|| {
            ExponentialBuilder::default()
                .with_min_delay(Duration::from_millis(100))
                .with_max_delay(Duration::from_secs(15))
                .with_jitter()
                .without_max_times()
                .build()
        });
        delays.next().unwrap_or(longest).min(longest)
    }
}

#[cfg(test)]
mod tests;
