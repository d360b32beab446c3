//! Everything in: all watches of a replica, as one stream of observations.

pub mod discovery;
pub mod lenient;
pub mod source_object;
pub mod source_watches;
pub mod watcher;

use std::{fmt, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use kube::{Api, Client, Resource, api::DynamicObject};
use lessor_core::{
    attachable::{Attachable, KindName},
    index::attachments::{Kind, is_attached},
    observation::{Event, Observation},
    settings::Settings,
    watch_health::Scope,
};
use tokio::sync::mpsc;

use self::{
    discovery::discover,
    lenient::{Lenient, LenientObject},
    watcher::{WatchBackoff, Watcher},
};

/// How long to wait before a kind is looked up again that was just uninstalled.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A watch that is kept open for as long as the replica runs.
pub type EndlessWatch = BoxFuture<'static, ()>;

/// All watches of a replica: of its `Lessor` and of others, of leases, and of each attachable kind. The watches of
/// [sources](source_watches) come and go.
pub fn all(client: &Client, settings: &Settings, sender: &mpsc::Sender<Observation>) -> Vec<EndlessWatch> {
    let lessor = Some(format!("metadata.name={}", settings.lessor));
    let lessors = watch_own(Api::all(client.clone()), lessor, sender.clone(), Observation::Lessor);
    let others = Some(format!("metadata.name!={}", settings.lessor));
    let others = watch_own(Api::all(client.clone()), others, sender.clone(), Observation::OtherLessor);
    let mut watches = vec![lessors.boxed(), others.boxed()];
    for scope in settings.scopes() {
        let leases = match &scope {
            None => Api::all(client.clone()),
            Some(namespace) => Api::namespaced(client.clone(), namespace),
        };
        let leases =
            watch_own(leases, None, sender.clone(), move |event| Observation::Lease(scope.clone(), event));
        watches.push(leases.boxed());
    }
    for attachable in &settings.attachable {
        let (attachable, scopes) = (attachable.clone(), settings.scopes());
        watches.push(watch_kind(client.clone(), attachable, scopes, sender.clone()).boxed());
    }
    watches
}

/// Watches one of our own kinds.
async fn watch_own<K>(
    api: Api<Lenient<K>>,
    fields: Option<String>,
    sender: mpsc::Sender<Observation>,
    observation: impl Fn(Event<K>) -> Observation + Send + Sync + 'static,
) where
    K: LenientObject + Clone + fmt::Debug + Send + 'static,
{
    let open = move |params, version: String| {
        let api = api.clone();
        async move { Ok(api.watch(&params, &version).await?.boxed()) }.boxed()
    };
    let watcher = Watcher {
        open: Box::new(open),
        lists_anew: fields.is_some(),
        fields,
        read: readable,
        counts: |_| true,
        bookmarks: false,
        always_installed: true,
    };
    watcher.keep(|event| sender.send(observation(event)).map(|sent| sent.is_ok())).await;
}

/// The object, or `None` and a log line if it can't be parsed.
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

/// Looks up a kind and watches it in all scopes until it is uninstalled, then looks it up again.
async fn watch_kind(
    client: Client,
    attachable: Attachable,
    scopes: Vec<Scope>,
    sender: mpsc::Sender<Observation>,
) {
    let name: KindName = attachable.to_string().into();
    let mut backoff = WatchBackoff::new(false);
    loop {
        let found = discover(&client, &attachable).await.map(Arc::new);
        if sender.send(Observation::Kind(name.clone(), found.clone())).await.is_err() {
            return;
        }
        match found {
            Ok(kind) => {
                backoff.reset();
                let mut watches: FuturesUnordered<_> = scopes
                    .iter()
                    .map(|scope| watch_objects(&client, kind.clone(), scope.clone(), sender.clone()))
                    .collect();
                // A watch ends when the kind is uninstalled, and so do the others.
                watches.next().await;
                if sender.is_closed() {
                    return;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(failure) => tokio::time::sleep(backoff.delay(&failure)).await,
        }
    }
}

/// Watches the metadata of objects of one kind. Ends when the kind is uninstalled.
async fn watch_objects(client: &Client, kind: Arc<Kind>, scope: Scope, sender: mpsc::Sender<Observation>) {
    let client = client.clone();
    let request = kube::core::Request::new(DynamicObject::url_path(&kind.resource, scope.as_deref()));
    let open = move |params, version: String| {
        let client = client.clone();
        let request = request.watch_metadata(&params, &version).map_err(kube::Error::BuildRequest);
        async move { Ok(client.request_events(request?).await?.boxed()) }.boxed()
    };
    let watcher = Watcher {
        open: Box::new(open),
        fields: None,
        read: |object| readable(object).map(|object: DynamicObject| object.metadata),
        counts: |object| object.meta().annotations.as_ref().is_some_and(is_attached),
        bookmarks: true,
        lists_anew: false,
        always_installed: false,
    };
    watcher
        .keep(|event| {
            sender.send(Observation::Object(kind.clone(), scope.clone(), event)).map(|sent| sent.is_ok())
        })
        .await;
}
