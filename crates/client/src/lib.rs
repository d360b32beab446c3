//! Leases for programs: grant one, keep it alive, attach things to it.
//!
//! ```no_run
//! use std::time::Duration;
//! use lessor_client::{Grant, LeaseClient, Target};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = LeaseClient::new(kube::Client::try_default().await?, "default");
//! let lease = leases.grant(&Grant::new("web-1", Duration::from_secs(15)).holder("web-1")).await?;
//! leases.attach("web-1", &Target::config_map("endpoints"), ["web-1"]).await?;
//!
//! let mut alive = lease.keep_alive();
//! tokio::select! {
//!     lost = alive.lost() => println!("stop what the lease stands for: {lost}"),
//!     _ = tokio::signal::ctrl_c() => alive.stop().revoke().await?,
//! }
//! # Ok(()) }
//! ```
//!
//! All of it needs nothing but the API server, and rights on leases (and on what is attached).
//!
//! # Guarantees
//!
//! A [`HeldLease`] and its [`KeepAlive`] never believe longer in the lease than the server keeps it: they
//! count from the moment before a request was sent, by a monotonic clock that counts the time that the
//! machine sleeps, and at most the TTL that was granted. No wall clock matters, with one exception:
//! `maxLifetimeSeconds` runs by the API server's clock. A revoke is the exception: it's somebody's decision,
//! and no deadline announces it.

mod annotate;
mod attach;
mod clock;
mod error;
mod grant;
mod http;
mod keep_alive;
mod lease;
mod observe;
mod snapshot;
mod validity;

use std::time::Duration;

use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::Request,
};
use lessor_api::Lease;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::http::{Answer, exchange};

pub use self::{
    attach::{AttachedObject, Attachment, Target},
    clock::Moment,
    error::Error,
    grant::Grant,
    keep_alive::{Beat, KeepAlive, Lost, Pace},
    lease::HeldLease,
    snapshot::{Listing, Reading, State},
};

/// Under this name the server records what a client writes, unless it's given another.
pub const FIELD_MANAGER: &str = "kubectl-lease";

/// How long a request may take, unless a client is given another time.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Leases of one namespace, for those who hold them. Clones are cheap.
#[derive(Clone)]
pub struct LeaseClient {
    client: Client,
    namespace: String,
    field_manager: String,
    timeout: Duration,
}

impl LeaseClient {
    /// The leases of `namespace`.
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        let field_manager = FIELD_MANAGER.to_owned();
        Self { client, namespace: namespace.into(), field_manager, timeout: REQUEST_TIMEOUT }
    }

    /// Has the server record writes under this name.
    #[must_use]
    pub fn with_field_manager(self, name: impl Into<String>) -> Self {
        Self { field_manager: name.into(), ..self }
    }

    /// Waits this long for each answer, at most.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Renews a lease by its name, whoever granted it. What comes back can be kept alive.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::NotFound`] and [`Error::NotGranted`], and what can go wrong with any
    /// request.
    pub async fn renew(&self, name: &str) -> Result<HeldLease, Error> {
        let answer = self.patch_lease(name, lease::renewal(None, None), self.timeout).await?;
        HeldLease::new(self.clone(), answer)
    }

    /// Revokes a lease: ends it now, whoever holds it. What is attached to it goes, and the lease last.
    ///
    /// The answer comes as soon as the server has taken note; [`LeaseClient::wait_gone`] waits for the rest.
    /// With `uid`, only that very lease is revoked, and none that has been made under the same name since.
    ///
    /// # Errors
    /// [`Error::NotFound`], and what can go wrong with any request.
    pub async fn revoke(&self, name: &str, uid: Option<&str>) -> Result<(), Error> {
        let uid = uid.map(str::to_owned);
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::background() };
        let request = self.requests().delete(name, &params);
        self.exchange::<Value>(request, self.timeout).await.map(drop)
    }

    /// Waits until a lease is gone, and all that was attached to it: it goes last. For ever, if its release
    /// is hindered.
    ///
    /// # Errors
    /// What can go wrong with any request, unless waiting may help.
    pub async fn wait_gone(&self, name: &str) -> Result<(), Error> {
        observe::until(self, name, |lease| lease.is_none().then_some(())).await
    }

    /// The leases of this namespace, for requests that this client doesn't offer.
    pub fn api(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create(&self, lease: &Lease) -> Result<Answer<Lease>, Error> {
        let params = PostParams { field_manager: Some(self.field_manager.clone()), ..PostParams::default() };
        let body = serde_json::to_vec(lease).map_err(|error| Error::Invalid(error.to_string()))?;
        self.exchange(self.requests().create(&params, body), self.timeout).await
    }

    /// Reads a lease.
    async fn read(&self, name: &str) -> Result<Answer<Lease>, Error> {
        self.exchange(self.requests().get(name, &Default::default()), self.timeout).await
    }

    async fn patch_lease(&self, name: &str, patch: Value, timeout: Duration) -> Result<Answer<Lease>, Error> {
        let request = self.requests().patch(name, &self.patch_params(), &Patch::Merge(patch));
        let answer: Answer<Lease> = self.exchange(request, timeout).await?;
        // A renewal that changed nothing (the same time was there) is accepted even after the end.
        if answer.object.is_ended() { Err(Error::Ended) } else { Ok(answer) }
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.field_manager.clone()), ..PatchParams::default() }
    }

    fn requests(&self) -> Request {
        Request::new(Lease::url_path(&(), Some(&self.namespace)))
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        request: Result<::http::Request<Vec<u8>>, kube::core::request::Error>,
        timeout: Duration,
    ) -> Result<Answer<T>, Error> {
        // The library refuses to build what no server would take, like a lease without a name.
        let request = request.map_err(|error| Error::Invalid(error.to_string()))?;
        exchange(&self.client, request, timeout).await
    }
}

impl std::fmt::Debug for LeaseClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseClient").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
