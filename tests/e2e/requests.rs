//! The requests of the operator, to be held on their way: each names a step on the way of a lease from its end to its
//! deletion.

use lessor_api::lease::FINALIZER;
use lessor_cluster::proxy::{Hold, Seen};
use serde_json::Value;

use crate::world::PATIENCE;

/// A step that takes one request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The status with `endTime`.
    Commit,
    /// The deletion of an object.
    DeleteObject,
    /// The patch that removes keys.
    RemoveKeys,
    /// The finalizer's removal.
    Release,
    /// The deletion of the lease itself.
    DeleteLease,
}

impl Step {
    pub(crate) const ALL: [Self; 5] =
        [Self::Commit, Self::DeleteObject, Self::RemoveKeys, Self::Release, Self::DeleteLease];

    /// Whether a request is this step for the lease or object of this name.
    pub(crate) fn of(self, name: &str) -> impl Fn(&Seen) -> bool + Send + Sync + use<> {
        let (lease, status) = (format!("/leases/{name}"), format!("/leases/{name}/status"));
        let object = format!("/configmaps/{name}");
        move |request| {
            let body = || request.json().unwrap_or_default();
            match self {
                Self::Commit => request.is("PATCH", &status) && !body()["status"]["endTime"].is_null(),
                Self::DeleteObject => request.is("DELETE", &object),
                Self::RemoveKeys => request.is("PATCH", &object),
                Self::Release => request.is("PATCH", &lease) && drops_finalizer(&body()),
                Self::DeleteLease => request.is("DELETE", &lease),
            }
        }
    }
}

/// Waits until a request has come to the hold.
pub(crate) async fn reached(hold: &Hold) {
    tokio::time::timeout(PATIENCE, hold.reached()).await.expect("a request to be held");
}

fn drops_finalizer(patch: &Value) -> bool {
    let finalizers = patch["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|finalizers| finalizers.iter().all(|name| name != FINALIZER))
}
