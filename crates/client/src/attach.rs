//! Attaching objects, and keys of them, to leases; and finding what is attached.

use std::{collections::BTreeSet, fmt, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Resource,
    api::{ListParams, Patch, PostParams},
    core::{ApiResource, DynamicObject, ObjectList, PartialObjectMeta, Request},
};
use lessor_api::{Attachments, Key, KeyForm, LeaseName, attachment::KEY_PREFIX};
use serde_json::{Value, json};

use super::{
    Error, LeaseClient,
    annotate::{Annotations, Changes, attaching, detaching},
    http::Answer,
};

/// How often an object that others change at the same time is read and written anew.
const TRIES: u32 = 100;
/// How many objects one request lists.
const PAGE: u32 = 500;

/// An object to attach, in the namespace of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its kind.
    pub resource: ApiResource,
    /// Its name.
    pub name: String,
}

impl Target {
    /// A ConfigMap.
    pub fn config_map(name: impl Into<String>) -> Self {
        Self { resource: ApiResource::erase::<ConfigMap>(&()), name: name.into() }
    }

    /// A Secret.
    pub fn secret(name: impl Into<String>) -> Self {
        Self { resource: ApiResource::erase::<Secret>(&()), name: name.into() }
    }

    /// What the keys of this object are.
    pub fn key_form(&self) -> KeyForm {
        KeyForm::of(&self.resource.group, &self.resource.kind)
    }

    /// Reads keys of this object.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what can't be a key of this kind.
    pub fn keys<'a>(&self, keys: impl IntoIterator<Item = &'a str>) -> Result<BTreeSet<Key>, Error> {
        let form = self.key_form();
        let parse = |key| Key::parse(key, form).map_err(|fault| Error::Invalid(fault.to_string()));
        keys.into_iter().map(parse).collect()
    }
}

impl fmt::Display for Target {
    /// As kubectl writes it: `configmap/settings`, `deployment.apps/web`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.resource.kind.to_lowercase();
        match self.resource.group.as_str() {
            "" => write!(f, "{kind}/{}", self.name),
            group => write!(f, "{kind}.{group}/{}", self.name),
        }
    }
}

/// What attaching did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// The leases that the object, or one of the keys, was attached to before.
    pub moved_from: BTreeSet<LeaseName>,
    /// Whether there was anything to do.
    pub changed: bool,
}

/// An object that is attached to leases.
#[derive(Clone, Debug)]
pub struct AttachedObject {
    /// The object.
    pub target: Target,
    /// What its annotations say.
    pub attachments: Attachments,
    /// Whether its deletion is under way already.
    pub is_deleting: bool,
}

impl AttachedObject {
    /// Whether the object as a whole goes when `lease` ends.
    pub fn is_attached_whole(&self, lease: &LeaseName) -> bool {
        self.attachments.whole.as_ref() == Some(lease)
    }

    /// Whether anything of the object goes when `lease` ends.
    pub fn is_attached(&self, lease: &LeaseName) -> bool {
        self.is_attached_whole(lease) || self.attachments.keys_of(lease).next().is_some()
    }
}

impl LeaseClient {
    /// Attaches an object to a lease, or, if any are named, only these keys of it. Whatever they were
    /// attached to before, they aren't any more.
    ///
    /// The lease may come later, and so may a key: until the lease is there nothing happens.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such object; [`Error::Annotation`] if its annotations are broken;
    /// [`Error::Invalid`] if a key can't be one; [`Error::Conflict`] if others change the object all the
    /// time.
    pub async fn attach<'a>(
        &self,
        lease: &str,
        target: &Target,
        keys: impl IntoIterator<Item = &'a str>,
    ) -> Result<Attachment, Error> {
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
        Ok(Attachment { moved_from, changed })
    }

    /// Detaches an object from a lease, with all its keys or, if any are named, only these. Answers whether
    /// there was anything to detach.
    ///
    /// # Errors
    /// Like [`LeaseClient::attach`].
    pub async fn detach<'a>(
        &self,
        lease: &str,
        target: &Target,
        keys: impl IntoIterator<Item = &'a str>,
    ) -> Result<bool, Error> {
        let (lease, keys) = (lease_name(lease)?, target.keys(keys)?);
        self.annotate(target, |annotations| Ok(detaching(annotations, target.key_form(), &lease, &keys)))
            .await
    }

    /// Sets a key of a ConfigMap and attaches it to a lease, in one write: at no time is it there without its
    /// lease. A ConfigMap that isn't there is made.
    ///
    /// The key needs a name that an annotation can have: up to 63 letters, digits, `-`, `_` and `.`, the
    /// first and the last one a letter or digit.
    ///
    /// # Errors
    /// What can go wrong with any request.
    pub async fn register(&self, lease: &str, map: &str, key: &str, value: &str) -> Result<(), Error> {
        let (lease, target) = (lease_name(lease)?, Target::config_map(map));
        target.keys([key])?;
        let entry = json!({
            "metadata": {"name": map, "annotations": {format!("{KEY_PREFIX}{key}"): lease.as_str()}},
            "data": {key: value},
        });
        // Another one may make the ConfigMap, or delete it, in between.
        for _ in 0..TRIES {
            let patch = self.objects(&target).patch(map, &self.patch_params(), &Patch::Merge(&entry));
            match self.exchange::<Value>(patch, self.timeout).await {
                Err(Error::NotFound(_)) => {}
                other => return other.map(drop),
            }
            let params =
                PostParams { field_manager: Some(self.field_manager.clone()), ..PostParams::default() };
            match self
                .exchange::<Value>(
                    self.objects(&target).create(&params, entry.to_string().into_bytes()),
                    self.timeout,
                )
                .await
            {
                Err(Error::Exists(_)) => {}
                other => return other.map(drop),
            }
        }
        Err(Error::Conflict(format!("configmap {map:?} comes and goes")))
    }

    /// The objects of a kind in the namespace that have attachments, to whatever lease.
    ///
    /// # Errors
    /// What can go wrong with any request.
    pub async fn attached(&self, resource: &ApiResource) -> Result<Vec<AttachedObject>, Error> {
        let requests = Request::new(DynamicObject::url_path(resource, Some(&self.namespace)));
        let mut params = ListParams::default().limit(PAGE);
        let mut found = Vec::new();
        loop {
            let answer: Answer<ObjectList<PartialObjectMeta<DynamicObject>>> =
                self.exchange(requests.list_metadata(&params), self.timeout).await?;
            for item in answer.object.items {
                let target =
                    Target { resource: resource.clone(), name: item.metadata.name.unwrap_or_default() };
                let annotations = item.metadata.annotations.unwrap_or_default();
                let attachments = Attachments::parse(&annotations, target.key_form());
                if !attachments.is_empty() {
                    let is_deleting = item.metadata.deletion_timestamp.is_some();
                    found.push(AttachedObject { target, attachments, is_deleting });
                }
            }
            match answer.object.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(found),
            }
        }
    }

    /// Changes annotations of an object as `decide` says, bound to the version that it decided on. Answers
    /// whether anything was changed.
    async fn annotate(
        &self,
        target: &Target,
        mut decide: impl FnMut(&Annotations) -> Result<Changes, Error>,
    ) -> Result<bool, Error> {
        let requests = self.objects(target);
        let mut tries = 0;
        loop {
            let request = requests.get_metadata(&target.name, &Default::default());
            let answer: Answer<PartialObjectMeta<DynamicObject>> =
                self.exchange(request, self.timeout).await?;
            let meta = answer.object.metadata;
            let changes = decide(&meta.annotations.unwrap_or_default())?;
            if changes.is_empty() {
                return Ok(false);
            }
            let patch = json!({"metadata": {
                "uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": changes,
            }});
            let request = requests.patch_metadata(&target.name, &self.patch_params(), &Patch::Merge(patch));
            match self.exchange::<PartialObjectMeta<DynamicObject>>(request, self.timeout).await {
                Err(Error::Conflict(_)) if tries < TRIES => tries += 1,
                other => return other.map(|_| true),
            }
            // Those who collide shall not do so again.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..10))).await;
        }
    }

    fn objects(&self, target: &Target) -> Request {
        Request::new(DynamicObject::url_path(&target.resource, Some(&self.namespace)))
    }
}

fn lease_name(name: &str) -> Result<LeaseName, Error> {
    LeaseName::parse(name).map_err(|fault| Error::Invalid(format!("{name:?} is no name of a lease: {fault}")))
}
