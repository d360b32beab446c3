//! What watches and discovery report.

use std::{fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lessor_api::{Lease, Lessor};

use crate::{
    index::sources::{SourceState, SourceWatch},
    kind::{Kind, KindName},
    listed_keys::ListedKeys,
    metadata::{ResourceVersion, version_of},
};

/// The scope of a watch: a namespace, or all of them (`None`).
pub type Scope = Option<Arc<str>>;

/// A report of one watch, or of discovery.
#[derive(Debug)]
pub enum Observation {
    /// On our `Lessor`.
    Lessor(Event<Lessor>),
    /// On the `Lessor`s of other installations.
    OtherLessor(Event<Lessor>),
    /// On the leases in a scope.
    Lease(Scope, Event<Lease>),
    /// On an attachable kind: the API server serves it, in this version, or discovery fails.
    Kind(KindName, Result<Arc<Kind>, Failure>),
    /// On the objects of a kind, in a scope.
    Object(Arc<Kind>, Scope, Event<ObjectMeta>),
    /// On sources that leases follow.
    Source(SourceWatch, Event<SourceState>),
}

impl Observation {
    /// The version of the `Lessor` or lease in it.
    pub fn version(&self) -> Option<ResourceVersion> {
        let meta = match self {
            Self::Lessor(Event::Applied(lessor) | Event::Deleted(lessor)) => &lessor.metadata,
            Self::Lease(_, Event::Applied(lease) | Event::Deleted(lease)) => &lease.metadata,
            _ => return None,
        };
        version_of(meta.resource_version.as_deref()).ok()
    }
}

/// An event of one watch.
#[derive(Debug)]
pub enum Event<T> {
    /// The object exists, in this version.
    Applied(Box<T>),
    /// The object is gone; this was its last version.
    Deleted(Box<T>),
    /// The watch has listed all objects, at its start or anew: these. Others don't exist any more.
    Synced(ListedKeys),
    /// Nothing up to this version is missing: the API server sends this each minute.
    Bookmark(ResourceVersion),
    /// The list that was just synced was read from the storage, at this version, after the watch had been interrupted. Reported of
    /// the `Lessor` alone, whose watch never resumes: to list one object costs no more.
    Listed(ResourceVersion),
    /// The watch has ended regularly, or its version has expired. It reports nothing until it is open again.
    Interrupted,
    /// The watch is open again, and continues where it had stopped.
    Resumed,
    /// The watch fails, and is being retried.
    Failing(Failure),
}

/// How a watch fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The kind isn't installed.
    NoSuchKind,
    /// The kind is served, but can't be used, for this reason.
    Unusable(String),
    /// The operator lacks the right to watch; the API server's message.
    Forbidden(String),
    /// The API server refuses the operator's credentials (401); its message.
    Unauthorized(String),
    /// There is no connection to the API server. The runtime logs that, once for all watches.
    Unreachable(String),
    /// Any other failure; its message.
    Other(String),
}

impl Failure {
    /// Whether it may pass by itself.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Other(_) | Self::Unreachable(_) | Self::Unauthorized(_))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchKind => f.write_str("the kind is not installed"),
            Self::Unusable(message)
            | Self::Forbidden(message)
            | Self::Unreachable(message)
            | Self::Other(message) => f.write_str(message),
            Self::Unauthorized(message) => write!(f, "the API server refuses the credentials: {message}"),
        }
    }
}
