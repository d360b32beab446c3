//! The objects that leases follow, with only the fields that count.

use std::borrow::Cow;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use lessor_api::Recorded;
use lessor_core::{
    index::sources::{SourceState, SourceStatus},
    lease_object::{NamespacedName, uid_of, version_of},
};
use serde::Deserialize;

/// A Lease of coordination.k8s.io: its metadata, and when it was renewed.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Heartbeat {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: HeartbeatSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeartbeatSpec {
    renew_time: Option<String>,
}

/// A Pod: its metadata and its phase.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PodState {
    metadata: ObjectMeta,
    #[serde(default)]
    status: PodPhase,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct PodPhase {
    phase: Option<String>,
}

impl Heartbeat {
    /// The state of the source, or `None` without the metadata that every stored object has.
    pub fn source_state(self) -> Option<SourceState> {
        let uid = uid_of(self.metadata.uid.as_deref()).ok()?;
        let recorded = Recorded::of_renewal(self.metadata.managed_fields.iter().flatten());
        let renew_time = self.spec.renew_time.map(Into::into);
        source_state(&self.metadata, SourceStatus::Heartbeat { uid, renew_time, recorded })
    }
}

impl PodState {
    /// The state of the source, or `None` without the metadata that every stored object has.
    pub fn source_state(self) -> Option<SourceState> {
        let uid = uid_of(self.metadata.uid.as_deref()).ok()?;
        let finished = matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let grace_ends = self.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        source_state(&self.metadata, SourceStatus::Pod { uid, finished, grace_ends })
    }
}

fn source_state(meta: &ObjectMeta, status: SourceStatus) -> Option<SourceState> {
    let name = NamespacedName::new(meta.namespace.as_deref()?, meta.name.as_deref()?);
    Some(SourceState { name, version: version_of(meta.resource_version.as_deref()).ok()?, status })
}

/// Implements kube's `Resource` for a kind that every cluster has.
macro_rules! resource {
    ($type:ty, $kind:literal, $group:literal, $version:literal, $plural:literal) => {
        impl Resource for $type {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind(_: &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group(_: &()) -> Cow<'_, str> {
                $group.into()
            }

            fn version(_: &()) -> Cow<'_, str> {
                $version.into()
            }

            fn plural(_: &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(Heartbeat, "Lease", "coordination.k8s.io", "v1", "leases");
resource!(PodState, "Pod", "", "v1", "pods");
