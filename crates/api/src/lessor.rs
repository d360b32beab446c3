//! The `Lessor`: the object that says which replica is primary.

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

/// The condition that says whether all kinds can be attached that an administrator has listed.
pub const KINDS_READY: &str = "KindsReady";

/// A `Lessor` asks for nothing: the operator makes it, and only its status says something.
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
    doc = "Says which replica of the operator is the primary lessor, the one that acts. Made by the operator, and written \
           only when the primary changes or has to prove itself: it is no heartbeat.",
    printcolumn(name = "PRIMARY", type_ = "string", json_path = ".status.primary", description = "Who acts"),
    printcolumn(
        name = "TERM",
        type_ = "integer",
        json_path = ".status.term",
        description = "One more with each takeover"
    ),
    printcolumn(
        name = "LEASES",
        type_ = "integer",
        json_path = ".status.leases",
        description = "Leases, when this was last written"
    ),
    printcolumn(
        name = "TRANSITIONS",
        type_ = "integer",
        json_path = ".status.transitions",
        description = "Changes of primary"
    ),
    printcolumn(
        name = "VERSION",
        type_ = "string",
        json_path = ".status.version",
        description = "The version of the operator that is primary",
        priority = 1
    ),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct LessorSpec {}

/// Who is primary, and since when.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "schema", derive(KubeSchema))]
#[serde(rename_all = "camelCase")]
pub struct LessorStatus {
    /// The replica that is primary. Empty or absent: nobody, whoever comes may claim it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,

    /// One more with each takeover. It never decreases, and no lease accepts a write of a lower term than it carries. The
    /// first is the resourceVersion of this object, so that none is given out again after somebody has deleted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<i64>,

    /// When the primary claimed or took over this term.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<MicroTime>,

    /// When the primary last proved that it is still there, after it had nothing to do for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proved_time: Option<MicroTime>,

    /// How often the primary has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transitions: Option<i64>,

    /// For how many milliseconds altogether the API server could not write, as primaries have found out: it answered, but nobody
    /// could renew. All deadlines have moved by that, on every replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_milliseconds: Option<i64>,

    /// How many leases there were when this was last written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<i64>,

    /// The version of the operator that is primary, or was when nobody is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// Conditions of the operator as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", x_kube(merge_strategy = ListMerge::Map(vec!["type".into()])))]
    pub conditions: Vec<Condition>,
}
