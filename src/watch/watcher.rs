//! One watch, kept open: what it shows, and whether it shows anything at all.
//!
//! Why not kube's own watcher: it says nothing when a watch that had failed is open again, and where nobody changes
//! anything that is the only sign of it.

use std::{pin::pin, time::Duration};

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::{Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use kube::{
    Resource,
    api::{WatchEvent, WatchParams},
};
use lessor_core::{
    listed_keys::ListedKeys,
    observation::{Event, Failure},
};
use tokio::time::{Instant, sleep, timeout};

/// The server ends a watch after so many seconds, and it is opened anew: the time after which a right that was taken away
/// is noticed at the latest.
const LASTS: u32 = 290;
/// How long the server may take to begin an answer.
const OPENING: Duration = Duration::from_secs(10);
/// How long the server may be silent while it lists what there is.
const LISTING: Duration = Duration::from_secs(10);
/// How long a watch may be silent: as long as it lasts, and a little for the way.
const SILENCE: Duration = Duration::from_secs(LASTS as u64 + 10);
/// A watch that the server ends sooner than this is opened again only after a pause.
const SHORT: Duration = Duration::from_secs(1);
/// The annotation of the bookmark behind the last object of a list.
const LIST_ENDS: &str = "k8s.io/initial-events-end";

/// What an error of the client says about a kind.
pub fn failure_of(error: &kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) if status.code == 404 => Failure::NoSuchKind,
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => {
            Failure::Forbidden(status.message.clone())
        }
        kube::Error::Api(status) => Failure::Other(status.message.clone()),
        error => Failure::Other(error.to_string()),
    }
}

/// The events of one watch, until the server ends it.
pub type Events<K> = BoxStream<'static, kube::Result<WatchEvent<K>>>;

/// Sends the request of a watch, to see everything that changes after a version; empty: from the beginning.
pub(super) type Open<K> =
    Box<dyn Fn(WatchParams, String) -> BoxFuture<'static, kube::Result<Events<K>>> + Send + Sync>;

/// What is watched, and what of it counts.
pub(super) struct Watch<K, T> {
    /// Sends the request.
    pub(super) open: Open<K>,
    /// The objects to see; `None`: all.
    pub(super) fields: Option<String>,
    /// Turns an object into what is shown; `None`: it can't be read, and is there all the same.
    pub(super) read: fn(K) -> Option<T>,
    /// Whether an object counts while all are listed. One that doesn't is as good as gone.
    pub(super) counts: fn(&K) -> bool,
    /// Whether it is a resource of our own, to be waited for. The watch of any other ends when the kind isn't there.
    pub(super) of_our_own: bool,
}

/// How the events of one opened watch ended.
enum End {
    /// In good order.
    Ended,
    /// The version to go on from is too old.
    Expired,
    Failed(Failure),
    /// Nobody listens any more.
    Unheard,
}

impl<K: Resource, T> Watch<K, T> {
    /// Keeps the watch open and passes on what it shows, until `send` says that nobody listens, or the kind isn't there.
    pub(super) async fn keep<F: Future<Output = bool>>(self, send: impl Fn(Event<T>) -> F) {
        let mut version = None;
        let mut retry = Retry::new(self.of_our_own);
        loop {
            let opened_at = Instant::now();
            let end = self.watch_once(&mut version, &mut retry, &send).await;
            let failure = match end {
                End::Unheard => return,
                End::Ended | End::Expired if opened_at.elapsed() < SHORT => {
                    sleep(SHORT).await;
                    None
                }
                End::Ended | End::Expired => None,
                End::Failed(failure) => Some(failure),
            };
            let Some(failure) = failure else { continue };
            let delay = retry.delay(&failure);
            let ends = !self.of_our_own && failure == Failure::NoSuchKind;
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
        version: &mut Option<String>,
        retry: &mut Retry,
        send: &impl Fn(Event<T>) -> F,
    ) -> End {
        let params = WatchParams {
            field_selector: self.fields.clone(),
            timeout: Some(LASTS),
            bookmarks: true,
            send_initial_events: version.is_none(),
            ..WatchParams::default()
        };
        let events = match timeout(OPENING, (self.open)(params, version.clone().unwrap_or_default())).await {
            Ok(Ok(events)) => events,
            Ok(Err(error)) if is_expired(&error) => return expired(version),
            Ok(Err(error)) => return End::Failed(failure_of(&error)),
            Err(_) => return End::Failed(Failure::Other(format!("no answer within {OPENING:?}"))),
        };
        if version.is_some() && !send(Event::Resumed).await {
            return End::Unheard;
        }
        let mut events = pin!(events);
        if version.is_none() {
            match self.list(&mut events, send).await {
                Ok(listed) => *version = Some(listed),
                Err(end) => return end,
            }
        }
        retry.reset();
        match self.follow(&mut events, version, send).await {
            End::Ended | End::Expired if !send(Event::Interrupted).await => End::Unheard,
            end => end,
        }
    }

    /// Passes on what there is, up to the bookmark behind it.
    async fn list<F: Future<Output = bool>>(
        &self,
        events: &mut (impl Stream<Item = kube::Result<WatchEvent<K>>> + Unpin),
        send: &impl Fn(Event<T>) -> F,
    ) -> Result<String, End> {
        let mut shown = ListedKeys::default();
        loop {
            let event = match timeout(LISTING, events.next()).await {
                Ok(Some(Ok(event))) => event,
                Ok(Some(Err(error))) => return Err(End::Failed(failure_of(&error))),
                Ok(None) => return Err(End::Ended),
                Err(_) => {
                    let message = format!("nothing came for {LISTING:?} while it was listed");
                    return Err(End::Failed(Failure::Other(message)));
                }
            };
            let seen = match event {
                WatchEvent::Bookmark(bookmark) => {
                    if !bookmark.metadata.annotations.contains_key(LIST_ENDS) {
                        continue;
                    }
                    if !send(Event::Synced(shown)).await {
                        return Err(End::Unheard);
                    }
                    return Ok(bookmark.metadata.resource_version);
                }
                WatchEvent::Error(status) => {
                    return Err(End::Failed(failure_of(&kube::Error::Api(status))));
                }
                // Of what doesn't count nothing is kept, not even for the time of the list.
                WatchEvent::Added(object) | WatchEvent::Modified(object) if !(self.counts)(&object) => {
                    let (namespace, name) = place(&object);
                    shown.remove(namespace, name);
                    continue;
                }
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let (namespace, name) = place(&object);
                    shown.insert(namespace, name);
                    (self.read)(object).map(|object| Event::Applied(Box::new(object)))
                }
                WatchEvent::Deleted(object) => {
                    let (namespace, name) = place(&object);
                    shown.remove(namespace, name);
                    (self.read)(object).map(|object| Event::Deleted(Box::new(object)))
                }
            };
            if let Some(seen) = seen
                && !send(seen).await
            {
                return Err(End::Unheard);
            }
        }
    }

    /// Passes on what changes.
    async fn follow<F: Future<Output = bool>>(
        &self,
        events: &mut (impl Stream<Item = kube::Result<WatchEvent<K>>> + Unpin),
        version: &mut Option<String>,
        send: &impl Fn(Event<T>) -> F,
    ) -> End {
        loop {
            let event = match timeout(SILENCE, events.next()).await {
                Ok(Some(Ok(event))) => event,
                Ok(Some(Err(error))) if is_expired(&error) => return expired(version),
                Ok(Some(Err(error))) => return End::Failed(failure_of(&error)),
                Ok(None) => return End::Ended,
                Err(_) => return End::Failed(Failure::Other("the watch has fallen silent".to_owned())),
            };
            let note = |version: &mut Option<String>, object: &K| {
                if let Some(seen) = &object.meta().resource_version {
                    *version = Some(seen.clone());
                }
            };
            let seen = match event {
                WatchEvent::Bookmark(bookmark) => {
                    *version = Some(bookmark.metadata.resource_version);
                    continue;
                }
                WatchEvent::Error(status) => {
                    let error = kube::Error::Api(status);
                    return if is_expired(&error) {
                        expired(version)
                    } else {
                        End::Failed(failure_of(&error))
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
            if let Some(seen) = seen
                && !send(seen).await
            {
                return End::Unheard;
            }
        }
    }
}

fn expired(version: &mut Option<String>) -> End {
    *version = None;
    End::Expired
}

fn is_expired(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}

fn place<K: Resource>(object: &K) -> (&str, &str) {
    let meta = object.meta();
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// How long to wait before what failed is tried again: soon where the server is away, since lease time stands still
/// until it is heard again; ever more patiently where somebody has to install a kind or give a right.
pub(super) struct Retry {
    of_our_own: bool,
    delays: Option<backon::ExponentialBackoff>,
}

impl Retry {
    /// For resources of our own, without which nothing goes on, or for others.
    pub(super) fn new(of_our_own: bool) -> Self {
        Self { of_our_own, delays: None }
    }

    /// Begins anew with short pauses.
    pub(super) fn reset(&mut self) {
        self.delays = None;
    }

    /// The next pause.
    pub(super) fn delay(&mut self, failure: &Failure) -> Duration {
        let longest = Duration::from_secs(match failure {
            Failure::NoSuchKind | Failure::Other(_) if self.of_our_own => 1,
            Failure::Other(_) => 5,
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
