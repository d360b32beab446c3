//! Requests for the leases of one namespace.

use std::{fmt, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::{Request, request},
};
use lessor_api::Lease;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    error::Error,
    http::{self, TimedResponse},
    informer::{Informer, Subscription},
};

/// The default field manager of a client's writes.
pub const FIELD_MANAGER: &str = "kubectl-lease";

/// The default timeout of a request.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A client for the leases of one namespace. Cheap to clone.
///
/// All leases that a client and its clones grant and keep alive share one watch, so a program needs one for each namespace. The
/// watch selects them by the label `lessor.dev/client`.
#[derive(Clone)]
pub struct LeaseClient {
    client: Client,
    namespace: String,
    field_manager: String,
    timeout: Duration,
    informer: Arc<Informer>,
}

impl LeaseClient {
    /// A client for the leases of `namespace`, with the kubeconfig or the service account that [`Config::infer`] finds, and
    /// without kube's own retries.
    ///
    /// # Errors
    /// If neither is there, or can't be used.
    pub async fn try_default(namespace: impl Into<String>) -> Result<Self, kube::Error> {
        let mut config = Config::infer().await.map_err(kube::Error::InferConfig)?;
        config.default_retry = false;
        Ok(Self::new(Client::try_from(config)?, namespace))
    }

    /// A client for the leases of `namespace`.
    ///
    /// Turn off the retries of `client` ([`Config::default_retry`]), as [`LeaseClient::try_default`] does: kube repeats a
    /// request that was answered with 429, 503 or 504 after less than a second, whatever `Retry-After` says. A `KeepAlive`
    /// repeats renewals by itself, and obeys `Retry-After` as far as the deadline of the lease allows.
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        let field_manager = FIELD_MANAGER.to_owned();
        let (timeout, informer) = (REQUEST_TIMEOUT, Arc::new(Informer::new()));
        Self { client, namespace: namespace.into(), field_manager, timeout, informer }
    }

    /// Sets the field manager of writes.
    #[must_use]
    pub fn with_field_manager(self, name: impl Into<String>) -> Self {
        Self { field_manager: name.into(), ..self }
    }

    /// Sets the timeout of each request.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn informer(&self) -> &Arc<Informer> {
        &self.informer
    }

    /// Subscribes to a lease that this client creates.
    pub(super) fn subscribe(&self, name: &str) -> Subscription {
        self.informer.subscribe(|| self.api(), name)
    }

    /// Revokes a lease: ends it now, even if it has another holder. Everything attached is deleted, and the lease last.
    ///
    /// Returns once the API server has accepted the deletion; [`LeaseClient::wait_gone`] waits for its completion. With
    /// `uid`, a later lease of the same name isn't revoked.
    ///
    /// # Errors
    /// [`Error::NotFound`], and the errors of any request.
    pub async fn revoke(&self, name: &str, uid: Option<&str>) -> Result<(), Error> {
        let uid = uid.map(str::to_owned);
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::background() };
        let request = self.requests().delete(name, &params);
        self.send::<Value>(request).await.map(drop)
    }

    /// An [`Api`] of the leases, for requests that this client doesn't offer.
    pub fn api(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// An [`Api`] of the ConfigMaps in the namespace.
    pub(super) fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) async fn create(&self, lease: &Lease) -> Result<TimedResponse<Lease>, Error> {
        let body = serde_json::to_vec(lease).map_err(|error| Error::Invalid(error.to_string()))?;
        self.send(self.requests().create(&self.post_params(), body)).await
    }

    pub(super) async fn read(&self, name: &str) -> Result<TimedResponse<Lease>, Error> {
        self.send(self.requests().get(name, &Default::default())).await
    }

    pub(super) async fn patch_lease(
        &self,
        name: &str,
        patch: Value,
        timeout: Duration,
    ) -> Result<TimedResponse<Lease>, Error> {
        let request = self.requests().patch(name, &self.patch_params(), &Patch::Merge(patch));
        let response: TimedResponse<Lease> = self.send_within(request, timeout).await?;
        // The API server accepts a patch that changes nothing even after the end.
        if response.object.is_ended() { Err(Error::Ended) } else { Ok(response) }
    }

    pub(super) fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.field_manager.clone()), ..PatchParams::default() }
    }

    pub(super) fn post_params(&self) -> PostParams {
        PostParams { field_manager: Some(self.field_manager.clone()), ..PostParams::default() }
    }

    fn requests(&self) -> Request {
        Request::new(Lease::url_path(&(), Some(&self.namespace)))
    }

    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        request: Result<::http::Request<Vec<u8>>, request::Error>,
    ) -> Result<TimedResponse<T>, Error> {
        self.send_within(request, self.timeout).await
    }

    async fn send_within<T: DeserializeOwned>(
        &self,
        request: Result<::http::Request<Vec<u8>>, request::Error>,
        timeout: Duration,
    ) -> Result<TimedResponse<T>, Error> {
        // kube rejects requests that are never valid, such as one for a lease without a name.
        let request = request.map_err(|error| Error::Invalid(error.to_string()))?;
        http::send(&self.client, request, timeout).await
    }
}

impl fmt::Debug for LeaseClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseClient").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
