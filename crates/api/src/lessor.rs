//! The `Lessor`: the object that names the primary replica.

#![allow(clippy::duplicated_attributes, reason = "each column has a type of its own")]
#![cfg_attr(
    feature = "schema",
    expect(unreachable_pub, reason = "KubeSchema repeats the structs inside its functions, `pub` and all")
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use super::{lease::TERM_MESSAGE, rules::TERM_RULE};

/// The condition that is True while every kind in `--attachable` can be attached.
pub const KINDS_READY: &str = "KindsReady";

/// The condition that is False while namespaces of this installation are left to another one.
pub const NAMESPACES_SERVED: &str = "NamespacesServed";

/// Stands for all namespaces in [`LessorStatus::namespaces`].
pub const ALL_NAMESPACES: &str = "*";

/// Empty: the operator creates the `Lessor`, and writes only its status.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(crates(kube_core = "::kube_core"))]
#[cfg_attr(feature = "schema", kube(validation = Rule::new(TERM_RULE).message(TERM_MESSAGE).reason(Reason::FieldValueForbidden).field_path(".status")))]
#[kube(
    group = "lessor.dev",
    version = "v1alpha1",
    kind = "Lessor",
    plural = "lessors",
    shortname = "lsr",
    category = "lessor",
    no_spec,
    status = "LessorStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "The Lessor names the primary replica of the operator, which is the only one that grants and ends leases. The operator \
           creates it, and writes it only when the primary changes or has to confirm that it is alive; it is not a heartbeat.",
    printcolumn(
        name = "PRIMARY",
        type_ = "string",
        json_path = ".status.primary",
        description = "The replica that grants and ends leases"
    ),
    printcolumn(
        name = "TERM",
        type_ = "integer",
        json_path = ".status.term",
        description = "Increases with each takeover"
    ),
    printcolumn(
        name = "LEASES",
        type_ = "integer",
        json_path = ".status.leases",
        description = "Number of leases at the last write of this status"
    ),
    printcolumn(
        name = "TRANSITIONS",
        type_ = "integer",
        json_path = ".status.transitions",
        description = "Number of changes of the primary"
    ),
    printcolumn(
        name = "VERSION",
        type_ = "string",
        json_path = ".status.version",
        description = "Version of the primary",
        priority = 1
    ),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct LessorSpec {}

/// The primary, and what it publishes.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[serde(rename_all = "camelCase")]
pub struct LessorStatus {
    /// The name of the primary replica. If it is empty or absent, any replica may become primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,

    /// Increases by one with each takeover, and never decreases. A lease rejects status writes with a term lower than its
    /// own. The first term is the resourceVersion of this object, so that no term repeats after this object is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<i64>,

    /// When the primary acquired this term.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<MicroTime>,

    /// When the primary last confirmed that it is alive, after it had been idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proved_time: Option<MicroTime>,

    /// The number of changes of the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transitions: Option<i64>,

    /// The replica that asks whether the primary is alive: by its own knowledge a lease should have ended. The primary
    /// removes this when it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenged_by: Option<String>,

    /// When that replica asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge_time: Option<MicroTime>,

    /// The number of leases whose time was over when the primary last answered, and which it could not end yet. Absent
    /// if there was none: then no lease that still exists was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overdue: Option<i64>,

    /// The number of leases at the last write of this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<i64>,

    /// The namespaces that this installation serves; `*` stands for all. Of installations that overlap, one that names a
    /// namespace serves it rather than one for all, and among equals the one with the older Lessor. Delete the Lessor of an
    /// installation that is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 10_000)))]
    pub namespaces: Vec<String>,

    /// The version of the operator that is, or last was, primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// Conditions of the operator as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", x_kube(merge_strategy = ListMerge::Map(vec!["type".into()])))]
    pub conditions: Vec<Condition>,
}
