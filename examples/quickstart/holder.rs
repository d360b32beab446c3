//! The holder of a lease: the client that keeps it alive by renewing it.

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use lessor_api::{Lease, time};
use serde_json::json;
use tokio::time::Instant;

use crate::observer::{Observer, Span};

/// Renews one lease.
#[derive(Debug)]
pub(crate) struct Holder<'a> {
    lease: &'a str,
    leases: Api<Lease>,
    observer: Observer,
    last: Option<String>,
}

impl<'a> Holder<'a> {
    /// Of the lease of this name.
    pub(crate) fn new(lease: &'a str, leases: Api<Lease>, observer: &Observer) -> Self {
        Self { lease, leases, observer: observer.clone(), last: None }
    }

    /// Renews the lease: all it takes is a `renewTime` that is new.
    pub(crate) async fn renew(&mut self) -> kube::Result<()> {
        let renew_time = time::renewal(Timestamp::now(), self.last.as_deref());
        let patch = json!({"spec": {"renewTime": renew_time}});
        let params = PatchParams { field_manager: Some("holder".to_owned()), ..PatchParams::default() };
        let earliest = Instant::now();
        self.leases.patch(self.lease, &params, &Patch::Merge(patch)).await?;
        let latest = Instant::now();
        self.observer.note(self.lease, |seen| seen.renewed = Some(Span { earliest, latest }));
        self.last = Some(renew_time);
        Ok(())
    }
}
