//! What watches report.

use std::{fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lessor_api::{Lease, Lessor};

use crate::{
    index::sources::{SourceState, SourceWatch},
    kind::{Kind, KindName},
    listed_keys::ListedKeys,
    metadata::{ResourceVersion, version_of},
};

/// Where something is watched: a namespace, or all of them.
pub type Scope = Option<Arc<str>>;

/// What a replica saw.
#[derive(Debug)]
pub enum Observation {
    /// Of our `Lessor`.
    Lessor(Event<Lessor>),
    /// Of leases in a namespace (`None`: in all).
    Lease(Scope, Event<Lease>),
    /// Of a kind that can be attached: it is there, in this version, or it can't be found.
    Kind(KindName, Result<Arc<Kind>, Failure>),
    /// Of objects of a kind, in a namespace (`None`: in all).
    Object(Arc<Kind>, Scope, Event<ObjectMeta>),
    /// Of what leases follow.
    Source(SourceWatch, Event<SourceState>),
}

impl Observation {
    /// The version of the `Lessor` or lease that it shows.
    pub fn version(&self) -> Option<ResourceVersion> {
        let meta = match self {
            Self::Lessor(Event::Applied(lessor) | Event::Deleted(lessor)) => &lessor.metadata,
            Self::Lease(_, Event::Applied(lease) | Event::Deleted(lease)) => &lease.metadata,
            _ => return None,
        };
        version_of(meta.resource_version.as_deref()).ok()
    }
}

/// What one watch shows.
#[derive(Debug)]
pub enum Event<T> {
    /// The object is there and looks like this.
    Applied(Box<T>),
    /// The object is gone; this is how it looked last.
    Deleted(Box<T>),
    /// All objects have been shown since the watch began, or began anew: these. Others aren't there any more.
    Synced(ListedKeys),
    /// The watch was ended in good order, or its version is too old by now: nothing is shown until it is open again.
    Interrupted,
    /// The watch had broken or ended, and goes on where it was.
    Resumed,
    /// The watch fails, and is being tried again.
    Failing(Failure),
}

/// How a watch fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The kind isn't installed.
    NoSuchKind,
    /// The kind is served, but not in a way that could be used; why.
    Unusable(String),
    /// We lack the right to watch, in the server's words.
    Forbidden(String),
    /// Anything else.
    Other(String),
}

impl Failure {
    /// Whether it may pass without anybody's help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Other(_))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchKind => f.write_str("the kind is not installed"),
            Self::Unusable(message) | Self::Forbidden(message) | Self::Other(message) => f.write_str(message),
        }
    }
}
