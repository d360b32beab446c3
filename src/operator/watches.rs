//! Watches: everything that a replica sees, as one stream of observations.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client, Resource,
    api::DynamicObject,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::watcher,
};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, task::JoinSet};

use super::{attached::Kind, record::Place, run::Error, settings::Settings};
use crate::api::{Lease, Lessor};

/// What a replica saw.
#[derive(Debug)]
pub enum Observation {
    /// Of our `Lessor`.
    Lessor(Seen<Lessor>),
    /// Of leases in a namespace (`None`: in all).
    Lease(Option<Arc<str>>, Seen<Lease>),
    /// Of objects of a kind, in a namespace (`None`: in all).
    Object(Arc<Kind>, Option<Arc<str>>, Seen<ObjectMeta>),
}

/// What one watch shows.
#[derive(Debug)]
pub enum Seen<T> {
    /// The object is there and looks like this.
    There(Box<T>),
    /// The object is gone; this is how it looked last.
    Gone(Box<T>),
    /// All objects have been shown since the watch began, or began anew: these. Others aren't there any more.
    All(HashSet<Place>),
    /// The watch fails, and is being tried again.
    Failing(Failure),
}

/// How a watch fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The kind isn't installed.
    NoSuchKind,
    /// We lack the right to watch, in the server's words.
    Forbidden(String),
    /// Anything else.
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchKind => f.write_str("the kind is not installed"),
            Self::Forbidden(message) | Self::Other(message) => f.write_str(message),
        }
    }
}

/// Starts all watches: of our `Lessor`, of leases, and of each kind that can be attached. None of them ends by itself.
pub fn start(
    client: &Client,
    settings: &Settings,
    kinds: &[Arc<Kind>],
    sender: &mpsc::Sender<Observation>,
    tasks: &mut JoinSet<Result<(), Error>>,
) {
    let mut watch = Watch { sender: sender.clone(), tasks };
    let named = config().fields(&format!("metadata.name={}", settings.lessor));
    watch.spawn(Api::all(client.clone()), named, readable, Observation::Lessor);

    let scopes: Vec<Option<Arc<str>>> = match settings.namespaces.as_slice() {
        [] => vec![None],
        namespaces => namespaces.iter().map(|namespace| Some(namespace.as_str().into())).collect(),
    };
    for scope in scopes {
        let leases = match &scope {
            None => Api::all(client.clone()),
            Some(namespace) => Api::namespaced(client.clone(), namespace),
        };
        let lease_scope = scope.clone();
        watch.spawn(leases, config(), readable, move |seen| Observation::Lease(lease_scope.clone(), seen));
        for kind in kinds {
            let objects = match &scope {
                None => Api::all_with(client.clone(), &kind.resource),
                Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind.resource),
            };
            let (kind, scope) = (kind.clone(), scope.clone());
            let metadata = |object: PartialObjectMeta<DynamicObject>| Some(object.metadata);
            watch.spawn(objects, config(), metadata, move |seen| {
                Observation::Object(kind.clone(), scope.clone(), seen)
            });
        }
    }
}

fn config() -> watcher::Config {
    watcher::Config::default().streaming_lists()
}

/// A lease or lessor, unless it can't be read: one bad object must not stop the watch of all.
fn readable<K>(object: DeserializeGuard<K>) -> Option<K> {
    match object.0 {
        Ok(object) => Some(object),
        Err(invalid) => {
            let name = invalid.metadata.name.as_deref().unwrap_or_default();
            let namespace = invalid.metadata.namespace.as_deref().unwrap_or_default();
            tracing::warn!(lease = %format!("{namespace}/{name}"), error = %invalid.error, "unreadable object");
            None
        }
    }
}

struct Watch<'a> {
    sender: mpsc::Sender<Observation>,
    tasks: &'a mut JoinSet<Result<(), Error>>,
}

impl Watch<'_> {
    fn spawn<K, T>(
        &mut self,
        api: Api<K>,
        config: watcher::Config,
        read: impl Fn(K) -> Option<T> + Send + Sync + 'static,
        observation: impl Fn(Seen<T>) -> Observation + Send + Sync + 'static,
    ) where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
        T: Send + 'static,
    {
        let sender = self.sender.clone();
        self.tasks.spawn(async move {
            let events = std::pin::pin!(watcher(api, config));
            let forwarding = forward(events, read, |seen| {
                let observation = observation(seen);
                let sender = sender.clone();
                async move { sender.send(observation).await.is_ok() }
            });
            forwarding.await;
            Ok(())
        });
    }
}

/// Turns what kube's watcher says into what a replica sees, until `send` says that nobody listens.
async fn forward<K, T, F>(
    mut events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Unpin,
    read: impl Fn(K) -> Option<T>,
    send: impl Fn(Seen<T>) -> F,
) where
    K: Resource,
    F: Future<Output = bool>,
{
    let mut retry = Retry::default();
    let mut shown = HashSet::new();
    while let Some(event) = events.next().await {
        let seen = match event {
            Ok(event) => {
                retry = Retry::default();
                match event {
                    watcher::Event::Init => {
                        shown.clear();
                        continue;
                    }
                    watcher::Event::InitApply(object) => {
                        shown.insert(place(&object));
                        read(object).map(|object| Seen::There(Box::new(object)))
                    }
                    watcher::Event::InitDone => Some(Seen::All(std::mem::take(&mut shown))),
                    watcher::Event::Apply(object) => read(object).map(|object| Seen::There(Box::new(object))),
                    watcher::Event::Delete(object) => read(object).map(|object| Seen::Gone(Box::new(object))),
                }
            }
            Err(error) => {
                let failure = failure(&error);
                let delay = retry.delay(&failure);
                if !send(Seen::Failing(failure)).await {
                    return;
                }
                tokio::time::sleep(delay).await;
                continue;
            }
        };
        if let Some(seen) = seen
            && !send(seen).await
        {
            return;
        }
    }
}

fn place<K: Resource>(object: &K) -> Place {
    let meta = object.meta();
    Place::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn failure(error: &watcher::Error) -> Failure {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let status = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => Some(status),
        _ => None,
    };
    match status {
        Some(status) if status.code == 404 => Failure::NoSuchKind,
        Some(status) if matches!(status.code, 401 | 403) => Failure::Forbidden(status.message.clone()),
        Some(status) => Failure::Other(status.message.clone()),
        None => Failure::Other(error.to_string()),
    }
}

/// How long to wait before a failed watch is tried again: soon where the server is away, since lease time stands still
/// until it is heard again; ever more patiently where somebody has to install a kind or give a right.
#[derive(Default)]
struct Retry {
    delays: Option<backon::ExponentialBackoff>,
}

impl Retry {
    fn delay(&mut self, failure: &Failure) -> Duration {
        let longest = match failure {
            Failure::NoSuchKind | Failure::Other(_) => Duration::from_secs(1),
            Failure::Forbidden(_) => Duration::from_secs(15),
        };
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
