//! Every request that a replica sends beside its watches, as data, and what comes of it.
//!
//! That the core of the operator speaks in these makes it a plain function of what it has seen: it can be tested,
//! simulated and replayed without a server.

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

/// The field manager under which the API server records the writes of the operator, except [grants](lessor_api::recorded::GRANT_MANAGER).
pub const FIELD_MANAGER: &str = "lessor";

/// A request. Each write names the version that it was decided at, so that the server refuses it when anything has
/// changed since.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Reads our `Lessor`.
    ReadLessor,
    /// Makes our `Lessor`.
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
        /// Whether it is the grant: the server is to keep when it accepted that.
        grants: bool,
    },
    /// Deletes a lease whose release is complete.
    DeleteLease {
        /// Which.
        lease: NamespacedName,
        /// The uid that must be there.
        uid: Uuid,
    },
    /// Reads what leases follow, where that is no lease of ours.
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
        /// What, and bound to which version.
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

    /// Whether it is for our own kinds: its answer tells whether holders can renew. Other kinds may be served by some other
    /// program behind the API server.
    pub fn is_for_leases(&self) -> bool {
        !matches!(self, Self::ReadSource { .. } | Self::ReadObject { .. } | Self::Remove { .. })
    }

    /// The lease that it is about.
    pub fn lease(&self) -> Option<&NamespacedName> {
        match self {
            Self::ReadLease { lease }
            | Self::SetFinalizers { lease, .. }
            | Self::WriteStatus { lease, .. }
            | Self::DeleteLease { lease, .. } => Some(lease),
            _ => None,
        }
    }

    /// The attached object that it is about.
    pub fn object(&self) -> Option<&ObjectId> {
        match self {
            Self::ReadObject { object } | Self::Remove { object, .. } => Some(object),
            _ => None,
        }
    }
}

/// What the server answered.
#[derive(Clone, Debug)]
pub enum Response {
    /// The `Lessor`, as it now is.
    Lessor(Box<Lessor>),
    /// The lease, as it now is.
    Lease(Box<Lease>),
    /// What is followed, as it now is.
    Source(Box<SourceState>),
    /// The metadata of the object, as it now is.
    Object(Box<ObjectMeta>),
    /// This request deleted it, and it is gone.
    Deleted,
    /// It wasn't there (any more): read, written or deleted, it makes no difference.
    Gone,
    /// It was not done, or nobody knows whether it was.
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

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The object has changed since the version that the request names (409): read again, decide again.
    Conflict,
    /// The object carries a higher term: another replica is primary.
    LowerTerm,
    /// The kind isn't installed (404 without a name).
    NoSuchKind,
    /// What should go can't, as the object is now; why.
    Unremovable(String),
    /// The server found the request wrong (400, 422), in its words.
    Invalid(String),
    /// We lack a right (401, 403), in the server's words.
    Forbidden(String),
    /// The server asks for patience (429).
    Throttled(Option<Duration>),
    /// The server can't do its work (5xx), in its words.
    Failing(String),
    /// No answer came: whether the request was done is unknown.
    NoAnswer(String),
}

impl RequestError {
    /// A word for metrics.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::LowerTerm => "lower-term",
            Self::NoSuchKind => "no-such-kind",
            Self::Invalid(_) => "invalid",
            Self::Unremovable(_) => "unremovable",
            Self::Forbidden(_) => "forbidden",
            Self::Throttled(_) => "throttled",
            Self::Failing(_) => "failing",
            Self::NoAnswer(_) => "no-answer",
        }
    }
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Conflict => f.write_str("the object has changed meanwhile"),
            Self::LowerTerm => f.write_str("the object carries a higher term"),
            Self::NoSuchKind => f.write_str("the kind is not installed"),
            Self::Unremovable(message) => f.write_str(message),
            Self::Invalid(message) => write!(f, "refused as invalid: {message}"),
            Self::Forbidden(message) => write!(f, "forbidden: {message}"),
            Self::Throttled(_) => f.write_str("the API server asks for patience"),
            Self::Failing(message) => write!(f, "the API server fails: {message}"),
            Self::NoAnswer(message) => write!(f, "no answer: {message}"),
        }
    }
}
