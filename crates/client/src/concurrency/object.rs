//! The lock object: a ConfigMap that is attached to the lease of the session that holds the lock.

use std::time::Duration;

use futures::{Stream, StreamExt, future};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, Preconditions, WatchEvent, WatchParams},
    core::Request,
};
use lessor_api::attachment::LEASE_ANNOTATION;
use serde_json::{Value, json};

use super::{error::LockError, session::SessionState};
use crate::{client::LeaseClient, error::Error};

/// The longest name that is part of the object's name as it is, in characters.
const MAX_PLAIN_NAME: usize = 248;

/// The name of the lock object.
pub(super) fn object_name(name: &str) -> String {
    if name.len() <= MAX_PLAIN_NAME && is_subdomain(name) {
        return format!("lock.{name}");
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let digits: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("lock-sha256.{digits}")
}

fn is_subdomain(name: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.split('.').all(|label| {
        let bytes = label.as_bytes();
        bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
            && [bytes.first(), bytes.last()].into_iter().all(|end| end.is_some_and(alphanumeric))
    })
}

/// A lock object, as read.
#[derive(Clone, Debug)]
pub(super) struct LockObject(ConfigMap);

impl LockObject {
    pub(super) fn uid(&self) -> &str {
        self.0.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn version(&self) -> &str {
        self.0.metadata.resource_version.as_deref().unwrap_or_default()
    }

    pub(super) fn data(&self, key: &str) -> &str {
        self.0.data.as_ref().and_then(|data| data.get(key)).map(String::as_str).unwrap_or_default()
    }

    /// The fencing token of its holder. `Proclaim` changes the version, and leaves the token in the data.
    pub(super) fn token(&self) -> i64 {
        [self.data("token"), self.version()].iter().find_map(|text| text.parse().ok()).unwrap_or_default()
    }

    /// Whether this acquisition of this session created it.
    pub(super) fn is_of(&self, session: &SessionState, acquisition: &str) -> bool {
        self.data("acquisition") == acquisition && self.data("leaseUID") == session.lease_uid()
    }
}

/// Requests for the lock object of one name.
#[derive(Clone, Debug)]
pub(super) struct LockObjects {
    client: LeaseClient,
    pub(super) name: String,
}

impl LockObjects {
    pub(super) fn new(client: &LeaseClient, lock: &str) -> Self {
        Self { client: client.clone(), name: object_name(lock) }
    }

    pub(super) async fn create(
        &self,
        session: &SessionState,
        lock: &str,
        acquisition: &str,
        value: &str,
    ) -> Result<LockObject, LockError> {
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": self.name, "annotations": {LEASE_ANNOTATION: session.lease_name()}},
            "data": {
                "name": lock,
                "lease": session.lease_name(),
                "leaseUID": session.lease_uid(),
                "acquisition": acquisition,
                "holder": session.holder(),
                "value": value,
            },
        });
        let request = self.requests().create(&self.client.post_params(), body.to_string().into_bytes());
        Ok(LockObject(self.client.send(request).await?.object))
    }

    /// The object as it is now; `None` if it doesn't exist.
    pub(super) async fn get(&self) -> Result<Option<LockObject>, LockError> {
        let response = self.client.send(self.requests().get(&self.name, &Default::default())).await;
        existing(response.map(|response| LockObject(response.object)))
    }

    /// Deletes the object on these conditions. Returns once it doesn't exist, or is another.
    pub(super) async fn delete(&self, uid: &str, version: Option<&str>) -> Result<(), LockError> {
        let preconditions =
            Preconditions { uid: Some(uid.to_owned()), resource_version: version.map(str::to_owned) };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match self.client.send::<Value>(self.requests().delete(&self.name, &params)).await {
            Ok(_) | Err(Error::NotFound(_) | Error::Conflict(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the value, and leaves the token where readers find it.
    pub(super) async fn proclaim(&self, uid: &str, token: i64, value: &str) -> Result<(), LockError> {
        let patch = json!({"metadata": {"uid": uid}, "data": {"value": value, "token": token.to_string()}});
        let request = self.requests().patch(&self.name, &self.client.patch_params(), &Patch::Merge(patch));
        match self.client.send::<Value>(request).await {
            Ok(_) => Ok(()),
            Err(Error::NotFound(_) | Error::Replaced) => Err(LockError::NotLeader),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the lease of the holder has ended, so that no holder can rely on the lock.
    pub(super) async fn is_dead(&self, found: &LockObject) -> Result<bool, LockError> {
        let lease = existing(self.client.read(found.data("lease")).await)?;
        Ok(lease.is_none_or(|lease| {
            lease.object.metadata.uid.as_deref() != Some(found.data("leaseUID")) || lease.object.is_ended()
        }))
    }

    /// The changes of the object from a version on, for at most so long. `None` means its deletion.
    pub(super) async fn changes(
        &self,
        version: &str,
        limit: Duration,
    ) -> Result<impl Stream<Item = Result<Option<LockObject>, LockError>> + Send + Unpin + use<>, LockError>
    {
        let seconds = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX).clamp(1, 290);
        let params = WatchParams::default().fields(&format!("metadata.name={}", self.name)).timeout(seconds);
        let maps: Api<ConfigMap> = self.client.config_maps();
        let events = maps.watch(&params, version).await.map_err(Error::from)?;
        let changes = events.filter_map(|event| {
            future::ready(match event {
                Ok(WatchEvent::Added(map) | WatchEvent::Modified(map)) => Some(Ok(Some(LockObject(map)))),
                Ok(WatchEvent::Deleted(_)) => Some(Ok(None)),
                Ok(WatchEvent::Bookmark(_)) => None,
                Ok(WatchEvent::Error(status)) => Some(Err(Error::from(kube::Error::Api(status)).into())),
                Err(error) => Some(Err(Error::from(error).into())),
            })
        });
        Ok(changes.boxed())
    }

    /// The present object and the version to watch from.
    pub(super) async fn list(&self) -> Result<(Option<LockObject>, String), LockError> {
        let params = kube::api::ListParams::default().fields(&format!("metadata.name={}", self.name));
        let listed = self.client.config_maps().list(&params).await.map_err(Error::from)?;
        let version = listed.metadata.resource_version.unwrap_or_default();
        Ok((listed.items.into_iter().next().map(LockObject), version))
    }

    fn requests(&self) -> Request {
        Request::new(ConfigMap::url_path(&(), Some(self.client.namespace())))
    }
}

fn existing<T>(response: Result<T, impl Into<LockError>>) -> Result<Option<T>, LockError> {
    match response.map_err(Into::into) {
        Ok(found) => Ok(Some(found)),
        Err(LockError::Request(Error::NotFound(_))) => Ok(None),
        Err(error) => Err(error),
    }
}
