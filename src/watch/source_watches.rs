//! The watches of what leases follow: they come and go with the leases that follow something.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

use futures::{FutureExt, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use lessor_core::{
    index::sources::{SourceKind, SourceState, SourceWatch},
    observation::Observation,
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinError, JoinSet},
};

use super::{
    source_object::{Heartbeat, PodState},
    watcher::Watcher,
};

/// The open watches of sources.
pub struct SourceWatches {
    client: Client,
    sender: mpsc::Sender<Observation>,
    open: HashMap<SourceWatch, AbortHandle>,
    tasks: JoinSet<()>,
}

impl SourceWatches {
    /// No watches yet. What they bring goes to `sender`.
    pub fn new(client: Client, sender: mpsc::Sender<Observation>) -> Self {
        Self { client, sender, open: HashMap::new(), tasks: JoinSet::new() }
    }

    /// Keeps exactly these watches open. Returns those that were closed.
    pub fn set(&mut self, wanted: BTreeSet<SourceWatch>) -> Vec<SourceWatch> {
        let closed: Vec<_> = self.open.extract_if(|watch, _| !wanted.contains(watch)).collect();
        for (_, task) in &closed {
            task.abort();
        }
        for watch in wanted {
            if !self.open.contains_key(&watch) {
                let task = self.tasks.spawn(keep(self.client.clone(), watch.clone(), self.sender.clone()));
                self.open.insert(watch, task);
            }
        }
        closed.into_iter().map(|(watch, _)| watch).collect()
    }

    /// Waits until one ends that was not closed, which is a bug. `None` when none is open.
    pub async fn ended(&mut self) -> Option<Result<(), JoinError>> {
        loop {
            match self.tasks.join_next().await? {
                Err(error) if error.is_cancelled() => {}
                ended => return Some(ended),
            }
        }
    }
}

/// Keeps one watch open. Doesn't end by itself.
async fn keep(client: Client, watch: SourceWatch, sender: mpsc::Sender<Observation>) {
    match watch.kind {
        SourceKind::Pod => keep_of(client, watch, sender, PodState::source_state).await,
        SourceKind::CoordinationLease | SourceKind::Node | SourceKind::Lease => {
            keep_of(client, watch, sender, Heartbeat::source_state).await;
        }
    }
}

async fn keep_of<K>(
    client: Client,
    watch: SourceWatch,
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
    let api: Api<K> = match &watch.namespace {
        None => Api::all(client),
        Some(namespace) => Api::namespaced(client, namespace),
    };
    let fields = watch.name.as_ref().map(|name| format!("metadata.name={name}"));
    let open = move |params, version: String| {
        let api = api.clone();
        async move { Ok(api.watch(&params, &version).await?.boxed()) }.boxed()
    };
    // Every cluster has these kinds.
    let watcher = Watcher {
        open: Box::new(open),
        fields,
        read,
        counts: |_| true,
        bookmarks: false,
        lists_anew: false,
        always_installed: true,
    };
    watcher
        .keep(|event| sender.send(Observation::Source(watch.clone(), event)).map(|sent| sent.is_ok()))
        .await;
}
