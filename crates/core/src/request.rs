//! Requests and responses as data: everything that a replica sends beside its watches.
//!
//! So the core can be tested, simulated and replayed without an API server.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lessor_api::{Lease, Lessor};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    decide::removal::Removal,
    index::{
        attachments::ObjectId,
        sources::{Source, SourceState},
    },
    lease_object::{NamespacedName, ResourceVersion},
};

/// The field manager of the operator's writes, except [grants](lessor_api::recorded::GRANT_MANAGER).
pub const FIELD_MANAGER: &str = "lessor";

/// The number of a request, so that its response finds it.
pub type Ticket = u64;

/// A request. Each write names the version at which it was decided, so that the API server refuses it after any change.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Reads our `Lessor`.
    ReadLessor,
    /// Creates our `Lessor`.
    CreateLessor,
    /// Writes the status of our `Lessor`: a claim, a proof, or a release.
    WriteLessor {
        /// The version that must be there.
        version: ResourceVersion,
        /// The whole status.
        status: Value,
    },
    /// Reads a lease.
    ReadLease {
        /// Which.
        lease: NamespacedName,
    },
    /// Replaces the finalizers of a lease.
    SetFinalizers {
        /// Which.
        lease: NamespacedName,
        /// The uid that must be there.
        uid: Uuid,
        /// The version that must be there.
        version: ResourceVersion,
        /// The whole list.
        finalizers: Vec<String>,
    },
    /// Writes the status of a lease.
    WriteStatus {
        /// Which.
        lease: NamespacedName,
        /// The uid that must be there.
        uid: Uuid,
        /// The version that must be there.
        version: ResourceVersion,
        /// A merge patch of the status.
        status: Value,
        /// Whether it is the grant: the API server has to record when it accepted it.
        grants: bool,
    },
    /// Deletes a lease whose release is complete.
    DeleteLease {
        /// Which.
        lease: NamespacedName,
        /// The uid that must be there.
        uid: Uuid,
    },
    /// Reads a source that isn't a lease of ours.
    ReadSource {
        /// Which.
        source: Source,
    },
    /// Reads the metadata of an attached object.
    ReadObject {
        /// Which.
        object: ObjectId,
    },
    /// Removes an attached object, or keys of it.
    Remove {
        /// Which.
        object: ObjectId,
        /// What, bound to a version.
        removal: Removal,
    },
}

impl Request {
    /// A word for logs and metrics.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::ReadLessor => "read-lessor",
            Self::CreateLessor => "create-lessor",
            Self::WriteLessor { .. } => "write-lessor",
            Self::ReadLease { .. } => "read-lease",
            Self::SetFinalizers { .. } => "set-finalizers",
            Self::WriteStatus { .. } => "write-status",
            Self::DeleteLease { .. } => "delete-lease",
            Self::ReadSource { .. } => "read-source",
            Self::ReadObject { .. } => "read-object",
            Self::Remove { removal: Removal::Delete { .. }, .. } => "delete-object",
            Self::Remove { removal: Removal::Keys { .. } | Removal::Members { .. }, .. } => "remove-keys",
        }
    }

    /// Whether it is for our own kinds, so that its response shows whether holders can renew. Other kinds may be served by an
    /// aggregated API server.
    pub fn is_for_leases(&self) -> bool {
        !matches!(self, Self::ReadSource { .. } | Self::ReadObject { .. } | Self::Remove { .. })
    }

    /// The lease that it reads or writes.
    pub fn lease(&self) -> Option<&NamespacedName> {
        match self {
            Self::ReadLease { lease }
            | Self::SetFinalizers { lease, .. }
            | Self::WriteStatus { lease, .. }
            | Self::DeleteLease { lease, .. } => Some(lease),
            _ => None,
        }
    }

    /// The version of the lease or `Lessor` that it writes.
    pub fn version(&self) -> Option<ResourceVersion> {
        match self {
            Self::WriteLessor { version, .. }
            | Self::SetFinalizers { version, .. }
            | Self::WriteStatus { version, .. } => Some(*version),
            _ => None,
        }
    }

    /// The attached object that it reads or writes.
    pub fn object(&self) -> Option<&ObjectId> {
        match self {
            Self::ReadObject { object } | Self::Remove { object, .. } => Some(object),
            _ => None,
        }
    }
}

/// The response of the API server.
#[derive(Clone, Debug)]
pub enum Response {
    /// The current `Lessor`.
    Lessor(Box<Lessor>),
    /// The current lease.
    Lease(Box<Lease>),
    /// The current state of the source.
    Source(Box<SourceState>),
    /// The current metadata of the object.
    Object(Box<ObjectMeta>),
    /// This request has deleted the object.
    Deleted,
    /// The object doesn't exist (404).
    Gone,
    /// The request failed, or it is unknown whether it was done.
    Refused(RequestError),
}

impl Response {
    /// A word for metrics.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Lessor(_) | Self::Lease(_) | Self::Source(_) | Self::Object(_) | Self::Deleted => "ok",
            Self::Gone => "gone",
            Self::Refused(refusal) => refusal.outcome(),
        }
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The object has changed since the version that the request names (409).
    Conflict,
    /// The object carries a higher term: another replica is primary.
    LowerTerm,
    /// The kind isn't installed (404 without a name).
    NoSuchKind,
    /// In this version of the object, what is due can't be removed, for this reason.
    Unremovable(String),
    /// The request is invalid (400, 422); the API server's message.
    Invalid(String),
    /// The operator lacks a right, or a policy refuses the request (403); the API server's message.
    Forbidden(String),
    /// Too many requests (429), with the time of `Retry-After`.
    Throttled(Option<Duration>),
    /// The same, from an admission webhook: it concerns this object alone.
    Deferred(Option<Duration>),
    /// The API server fails (5xx); its message.
    Failing(String),
    /// No response arrived: it is unknown whether the request was done.
    NoAnswer(String),
}

impl RequestError {
    /// Whether the operator lacks a right. A policy or a webhook that refuses a request may answer in nearly the same way.
    pub fn is_missing_right(&self) -> bool {
        matches!(self, Self::Forbidden(message) if message.contains("is forbidden: User ") && message.contains(" cannot "))
    }

    /// A word for metrics.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::LowerTerm => "lower-term",
            Self::NoSuchKind => "no-such-kind",
            Self::Invalid(_) => "invalid",
            Self::Unremovable(_) => "unremovable",
            Self::Forbidden(_) => "forbidden",
            Self::Throttled(_) | Self::Deferred(_) => "throttled",
            Self::Failing(_) => "failing",
            Self::NoAnswer(_) => "no-answer",
        }
    }
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Conflict => f.write_str("the object has changed"),
            Self::LowerTerm => f.write_str("the object carries a higher term"),
            Self::NoSuchKind => f.write_str("the kind is not installed"),
            Self::Unremovable(message) => f.write_str(message),
            Self::Invalid(message) => write!(f, "invalid: {message}"),
            Self::Forbidden(message) => write!(f, "forbidden: {message}"),
            Self::Throttled(_) => f.write_str("too many requests"),
            Self::Deferred(_) => f.write_str("too many requests for an admission webhook"),
            Self::Failing(message) => write!(f, "API server error: {message}"),
            Self::NoAnswer(message) => write!(f, "no response: {message}"),
        }
    }
}
