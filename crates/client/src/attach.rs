//! Attaching objects, and keys of objects, to leases, and listing what is attached.

use std::{collections::BTreeSet, fmt, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Resource,
    api::{ListParams, Patch},
    core::{ApiResource, DynamicObject, ObjectList, PartialObjectMeta, Request},
};
use lessor_api::{Attachments, Key, KeyForm, LeaseName, attachment::KEY_PREFIX};
use serde_json::{Value, json};

use super::{
    annotate::{Annotations, Changes, attaching, detaching},
    client::LeaseClient,
    error::Error,
    http::TimedResponse,
};

/// The maximum number of attempts while other writers change the same object.
const MAX_ATTEMPTS: u32 = 100;
/// The maximum number of objects in one response.
const PAGE_SIZE: u32 = 500;

/// An object to attach, in the namespace of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachTarget {
    /// The kind.
    pub resource: ApiResource,
    /// The name.
    pub name: String,
}

impl AttachTarget {
    /// A ConfigMap.
    pub fn config_map(name: impl Into<String>) -> Self {
        Self { resource: ApiResource::erase::<ConfigMap>(&()), name: name.into() }
    }

    /// A Secret.
    pub fn secret(name: impl Into<String>) -> Self {
        Self { resource: ApiResource::erase::<Secret>(&()), name: name.into() }
    }

    /// The form of this object's keys.
    pub fn key_form(&self) -> KeyForm {
        KeyForm::of(&self.resource.group, &self.resource.kind)
    }

    /// Parses keys of this object.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a key is invalid for this kind.
    pub fn keys<'a>(&self, keys: impl IntoIterator<Item = &'a str>) -> Result<BTreeSet<Key>, Error> {
        let form = self.key_form();
        let parse = |key| Key::parse(key, form).map_err(|reason| Error::Invalid(reason.to_string()));
        keys.into_iter().map(parse).collect()
    }
}

impl fmt::Display for AttachTarget {
    /// The object in kubectl's notation: `configmap/settings`, `deployment.apps/web`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.resource.kind.to_lowercase();
        match self.resource.group.as_str() {
            "" => write!(f, "{kind}/{}", self.name),
            group => write!(f, "{kind}.{group}/{}", self.name),
        }
    }
}

/// The effect of [`LeaseClient::attach`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachOutcome {
    /// The other leases to which the object, or one of the keys, was attached.
    pub moved_from: BTreeSet<LeaseName>,
    /// Whether the annotations were changed.
    pub changed: bool,
}

/// An object with annotations of Lessor.
#[derive(Clone, Debug)]
pub struct AttachedObject {
    /// The object.
    pub target: AttachTarget,
    /// Its parsed annotations.
    pub attachments: Attachments,
    /// Whether it is being deleted.
    pub is_deleting: bool,
}

impl AttachedObject {
    /// Whether the whole object is deleted when `lease` ends.
    pub fn is_attached_whole(&self, lease: &LeaseName) -> bool {
        self.attachments.whole.as_ref() == Some(lease)
    }

    /// Whether the object, or a key of it, is removed when `lease` ends.
    pub fn is_attached(&self, lease: &LeaseName) -> bool {
        self.is_attached_whole(lease) || self.attachments.keys_of(lease).next().is_some()
    }
}

impl LeaseClient {
    /// Attaches `keys` of an object to a lease, or the whole object if `keys` is empty. Attachments of the same object or
    /// keys to other leases are removed.
    ///
    /// The lease and the keys may be created later. Nothing is removed as long as the lease doesn't exist.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the object doesn't exist; [`Error::Annotation`] if its annotations are invalid;
    /// [`Error::Invalid`] if a key is invalid; [`Error::Conflict`] if other writers keep changing the object.
    pub async fn attach<'a>(
        &self,
        lease: &str,
        target: &AttachTarget,
        keys: impl IntoIterator<Item = &'a str>,
    ) -> Result<AttachOutcome, Error> {
        let (lease, keys) = (lease_name(lease)?, target.keys(keys)?);
        let form = target.key_form();
        let mut moved_from = BTreeSet::new();
        let changed = self
            .annotate(target, |annotations| {
                let before = Attachments::parse(annotations, form);
                let owners =
                    before.keys.iter().filter(|(key, _)| keys.contains(*key)).map(|(_, lease)| lease);
                moved_from = if keys.is_empty() {
                    before.whole.clone().into_iter().collect()
                } else {
                    owners.cloned().collect()
                };
                moved_from.remove(&lease);
                Ok(attaching(annotations, form, &lease, &keys)?)
            })
            .await?;
        Ok(AttachOutcome { moved_from, changed })
    }

    /// Detaches `keys` of an object from a lease; if `keys` is empty, the object and all its keys. Returns whether anything
    /// was attached.
    ///
    /// # Errors
    /// Like [`LeaseClient::attach`].
    pub async fn detach<'a>(
        &self,
        lease: &str,
        target: &AttachTarget,
        keys: impl IntoIterator<Item = &'a str>,
    ) -> Result<bool, Error> {
        let (lease, keys) = (lease_name(lease)?, target.keys(keys)?);
        self.annotate(target, |annotations| Ok(detaching(annotations, target.key_form(), &lease, &keys)))
            .await
    }

    /// Sets a key of a ConfigMap and attaches it to a lease in one write, so that the key never exists without its lease.
    /// Creates the ConfigMap if it doesn't exist.
    ///
    /// The key must be valid in the name of an annotation: at most 63 letters, digits, `-`, `_` and `.`, beginning and ending
    /// with a letter or digit.
    ///
    /// # Errors
    /// The errors of any request.
    pub async fn register(&self, lease: &str, map: &str, key: &str, value: &str) -> Result<(), Error> {
        let (lease, target) = (lease_name(lease)?, AttachTarget::config_map(map));
        target.keys([key])?;
        let entry = json!({
            "metadata": {"name": map, "annotations": {format!("{KEY_PREFIX}{key}"): lease.as_str()}},
            "data": {key: value},
        });
        // Another client may create or delete the ConfigMap between the two requests.
        for _ in 0..MAX_ATTEMPTS {
            let patch = self.objects(&target).patch(map, &self.patch_params(), &Patch::Merge(&entry));
            match self.send::<Value>(patch).await {
                Err(Error::NotFound(_)) => {}
                other => return other.map(drop),
            }
            let create = self.objects(&target).create(&self.post_params(), entry.to_string().into_bytes());
            match self.send::<Value>(create).await {
                Err(Error::Exists(_)) => {}
                other => return other.map(drop),
            }
        }
        Err(Error::Conflict(format!("configmap {map:?} is created and deleted repeatedly")))
    }

    /// The objects of a kind in the namespace that are attached to any lease.
    ///
    /// # Errors
    /// The errors of any request.
    pub async fn attached(&self, resource: &ApiResource) -> Result<Vec<AttachedObject>, Error> {
        let requests = Request::new(DynamicObject::url_path(resource, Some(self.namespace())));
        let mut params = ListParams::default().limit(PAGE_SIZE);
        let mut found = Vec::new();
        loop {
            let page: TimedResponse<ObjectList<PartialObjectMeta<DynamicObject>>> =
                self.send(requests.list_metadata(&params)).await?;
            for item in page.object.items {
                let target =
                    AttachTarget { resource: resource.clone(), name: item.metadata.name.unwrap_or_default() };
                let annotations = item.metadata.annotations.unwrap_or_default();
                let attachments = Attachments::parse(&annotations, target.key_form());
                if !attachments.is_empty() {
                    let is_deleting = item.metadata.deletion_timestamp.is_some();
                    found.push(AttachedObject { target, attachments, is_deleting });
                }
            }
            match page.object.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(found),
            }
        }
    }

    /// Reads an object, and applies the changes that `decide` returns, on condition that the object is unchanged. Returns
    /// whether there were any changes.
    async fn annotate(
        &self,
        target: &AttachTarget,
        mut decide: impl FnMut(&Annotations) -> Result<Changes, Error>,
    ) -> Result<bool, Error> {
        let requests = self.objects(target);
        let mut attempts = 0;
        loop {
            let request = requests.get_metadata(&target.name, &Default::default());
            let response: TimedResponse<PartialObjectMeta<DynamicObject>> = self.send(request).await?;
            let meta = response.object.metadata;
            let changes = decide(&meta.annotations.unwrap_or_default())?;
            if changes.is_empty() {
                return Ok(false);
            }
            let patch = json!({"metadata": {
                "uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": changes,
            }});
            let request = requests.patch_metadata(&target.name, &self.patch_params(), &Patch::Merge(patch));
            match self.send::<PartialObjectMeta<DynamicObject>>(request).await {
                Err(Error::Conflict(_)) if attempts < MAX_ATTEMPTS => attempts += 1,
                other => return other.map(|_| true),
            }
            // A random delay, so that writers that collided don't collide again.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..10))).await;
        }
    }

    fn objects(&self, target: &AttachTarget) -> Request {
        Request::new(DynamicObject::url_path(&target.resource, Some(self.namespace())))
    }
}

fn lease_name(name: &str) -> Result<LeaseName, Error> {
    LeaseName::parse(name).map_err(|reason| Error::Invalid(format!("invalid lease name {name:?}: {reason}")))
}
