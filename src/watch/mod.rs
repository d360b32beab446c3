//! Watches: everything that a replica sees, as one stream of observations.

use std::{fmt, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource, api::DynamicObject};
use lessor_core::observation::{Event, Observation};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, task::JoinSet};

pub mod discovery;
pub mod lenient;
pub mod source_object;
pub mod watcher;

use lessor_core::{
    attachable::{Attachable, KindName},
    index::{
        attachments::{Kind, is_attached},
        sources::{SourceKind, SourceState, SourceWatch},
    },
    settings::Settings,
    watch_health::Scope,
};

use crate::{
    runtime::Error,
    watch::{
        discovery::discover,
        lenient::{Lenient, Readable},
        source_object::{Heartbeat, PodLife},
        watcher::{Retry, Watch},
    },
};

/// How long to wait before a kind is looked for that has just gone.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Starts all watches: of our `Lessor`, of leases, and of each kind that can be attached. None of them ends by itself.
pub fn start(
    client: &Client,
    settings: &Settings,
    sender: &mpsc::Sender<Observation>,
    tasks: &mut JoinSet<Result<(), Error>>,
) {
    let lessor = Some(format!("metadata.name={}", settings.lessor));
    let lessors = keep(Api::all(client.clone()), lessor, sender.clone(), Observation::Lessor);
    tasks.spawn(lessors.map(Ok));
    for scope in settings.scopes() {
        let leases = match &scope {
            None => Api::all(client.clone()),
            Some(namespace) => Api::namespaced(client.clone(), namespace),
        };
        let leases = keep(leases, None, sender.clone(), move |seen| Observation::Lease(scope.clone(), seen));
        tasks.spawn(leases.map(Ok));
    }
    for attachable in &settings.attachable {
        let (attachable, scopes) = (attachable.clone(), settings.scopes());
        tasks.spawn(watch_kind(client.clone(), attachable, scopes, sender.clone()).map(Ok));
    }
}

/// Watches resources of our own.
async fn keep<K>(
    api: Api<Lenient<K>>,
    fields: Option<String>,
    sender: mpsc::Sender<Observation>,
    observation: impl Fn(Event<K>) -> Observation + Send + Sync + 'static,
) where
    K: Readable + Clone + fmt::Debug + Send + 'static,
{
    let open = move |params, version: String| {
        let api = api.clone();
        async move { Ok(api.watch(&params, &version).await?.boxed()) }.boxed()
    };
    let watch = Watch { open: Box::new(open), fields, read: readable, counts: |_| true, of_our_own: true };
    watch.keep(|seen| sender.send(observation(seen)).map(|sent| sent.is_ok())).await;
}

/// An object, unless it can't be read.
fn readable<K>(object: Lenient<K>) -> Option<K> {
    match object.0 {
        Ok(object) => Some(object),
        Err(unreadable) => {
            let name = unreadable.metadata.name.as_deref().unwrap_or_default();
            let namespace = unreadable.metadata.namespace.as_deref().unwrap_or_default();
            tracing::warn!(object = %format!("{namespace}/{name}"), error = %unreadable.error, "unreadable object");
            None
        }
    }
}

/// Watches what leases follow. Doesn't end by itself.
pub async fn watch_source(client: Client, source_watch: SourceWatch, sender: mpsc::Sender<Observation>) {
    match source_watch.kind {
        SourceKind::Pod => look_for(client, source_watch, sender, PodLife::source_state).await,
        SourceKind::CoordinationLease | SourceKind::Node | SourceKind::Lease => {
            look_for(client, source_watch, sender, Heartbeat::source_state).await;
        }
    }
}

async fn look_for<K>(
    client: Client,
    source_watch: SourceWatch,
    sender: mpsc::Sender<Observation>,
    read: fn(K) -> Option<SourceState>,
) where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + fmt::Debug
        + Send
        + 'static,
{
    let api: Api<K> = match &source_watch.namespace {
        None => Api::all(client),
        Some(namespace) => Api::namespaced(client, namespace),
    };
    let fields = source_watch.name.as_ref().map(|name| format!("metadata.name={name}"));
    let open = move |params, version: String| {
        let api = api.clone();
        async move { Ok(api.watch(&params, &version).await?.boxed()) }.boxed()
    };
    // These kinds are always there: one that seems to be missing is waited for.
    let watch = Watch { open: Box::new(open), fields, read, counts: |_| true, of_our_own: true };
    watch
        .keep(|seen| sender.send(Observation::Source(source_watch.clone(), seen)).map(|sent| sent.is_ok()))
        .await;
}

/// Finds a kind and watches it everywhere, until it isn't there any more; then looks for it again.
async fn watch_kind(
    client: Client,
    attachable: Attachable,
    scopes: Vec<Scope>,
    sender: mpsc::Sender<Observation>,
) {
    let name: KindName = attachable.to_string().into();
    let mut retry = Retry::new(false);
    loop {
        let found = discover(&client, &attachable).await.map(Arc::new);
        if sender.send(Observation::Kind(name.clone(), found.clone())).await.is_err() {
            return;
        }
        match found {
            Ok(kind) => {
                retry.reset();
                let mut watches: FuturesUnordered<_> = scopes
                    .iter()
                    .map(|scope| watch_objects(&client, kind.clone(), scope.clone(), sender.clone()))
                    .collect();
                // The first that ends has found that there is no such kind: the others will find the same.
                watches.next().await;
                if sender.is_closed() {
                    return;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(failure) => tokio::time::sleep(retry.delay(&failure)).await,
        }
    }
}

/// Watches the metadata of objects of one kind. Ends when the kind isn't there.
async fn watch_objects(client: &Client, kind: Arc<Kind>, scope: Scope, sender: mpsc::Sender<Observation>) {
    let client = client.clone();
    let request = kube::core::Request::new(DynamicObject::url_path(&kind.resource, scope.as_deref()));
    let open = move |params, version: String| {
        let client = client.clone();
        let request = request.watch_metadata(&params, &version).map_err(kube::Error::BuildRequest);
        async move { Ok(client.request_events(request?).await?.boxed()) }.boxed()
    };
    let watch = Watch {
        open: Box::new(open),
        fields: None,
        read: |object| readable(object).map(|object: DynamicObject| object.metadata),
        counts: |object| object.meta().annotations.as_ref().is_some_and(is_attached),
        of_our_own: false,
    };
    watch
        .keep(|seen| {
            sender.send(Observation::Object(kind.clone(), scope.clone(), seen)).map(|sent| sent.is_ok())
        })
        .await;
}
