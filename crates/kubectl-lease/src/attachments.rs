//! Objects that are attached to leases.

use clap::Args;
use kube::core::ApiResource;
use lessor_api::LeaseName;
use lessor_client::{AttachedObject, Error};
use serde_json::{Value, json};

use crate::{connect::Session, error::CliResult, target::KindResolver};

/// The kinds in which to look for attached objects.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct KindsArgs {
    /// Kinds of objects to search
    #[arg(long, value_delimiter = ',', value_name = "KIND,…", default_value = "configmaps")]
    kinds: Vec<String>,

    /// Search all kinds that can be listed
    #[arg(long, conflicts_with = "kinds")]
    all_kinds: bool,
}

impl KindsArgs {
    async fn resources(&self, session: &Session) -> CliResult<Vec<ApiResource>> {
        let mut kinds = KindResolver::new(&session.client);
        if self.all_kinds {
            return kinds.listable().await;
        }
        let mut resources = Vec::new();
        for kind in &self.kinds {
            resources.push(kinds.find(kind).await?);
        }
        Ok(resources)
    }
}

/// The attached objects of a namespace.
pub(crate) struct AttachedObjects {
    objects: Vec<AttachedObject>,
    /// Kinds that couldn't be listed, and why.
    pub(crate) failed_kinds: Vec<(String, Error)>,
}

impl AttachedObjects {
    /// Lists the objects of each kind.
    pub(crate) async fn list(session: &Session, kinds: &KindsArgs) -> CliResult<Self> {
        let (mut objects, mut failed_kinds) = (Vec::new(), Vec::new());
        for resource in &kinds.resources(session).await? {
            match session.leases.attached(resource).await {
                Ok(found) => objects.extend(found),
                // Among all kinds, some are forbidden to most users.
                Err(Error::Forbidden(_) | Error::NotInstalled) if kinds.all_kinds => {}
                Err(error) => failed_kinds.push((resource.plural.clone(), error)),
            }
        }
        Ok(Self { objects, failed_kinds })
    }

    /// The objects that are attached to a lease.
    pub(crate) fn of<'a>(&'a self, lease: &'a LeaseName) -> impl Iterator<Item = &'a AttachedObject> {
        self.objects.iter().filter(move |object| object.is_attached(lease))
    }

    /// The objects that are attached to a lease, as JSON.
    pub(crate) fn to_json(&self, lease: &LeaseName) -> Value {
        let object = |object: &AttachedObject| {
            let keys: Vec<&str> = object.attachments.keys_of(lease).map(|key| key.as_str()).collect();
            json!({
                "apiVersion": object.target.resource.api_version,
                "kind": object.target.resource.kind,
                "name": object.target.name,
                "whole": object.is_attached_whole(lease),
                "keys": keys,
            })
        };
        self.of(lease).map(object).collect()
    }
}
