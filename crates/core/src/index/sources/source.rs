//! What can be followed.

use std::{fmt, str::FromStr, sync::Arc};

use lessor_api::{OnLoss, RenewFrom};
use uuid::Uuid;

use crate::metadata::NamespacedName;

/// Where the heartbeats of nodes are.
pub const NODE_NAMESPACE: &str = "kube-node-lease";

/// A kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SourceKind {
    /// A Lease of coordination.k8s.io, in the namespace of its followers.
    CoordinationLease,
    /// The heartbeat of a node.
    Node,
    /// A Pod.
    Pod,
    /// One of our own leases.
    Lease,
}

impl SourceKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::CoordinationLease, Self::Node, Self::Pod, Self::Lease];

    /// What it is called before the name of a source, and in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::CoordinationLease => "coordination",
            Self::Node => "node",
            Self::Pod => "pod",
            Self::Lease => "lease",
        }
    }

    /// What an administrator writes to let it be followed; `None`: it needs no right of its own.
    pub fn switch(self) -> Option<&'static str> {
        match self {
            Self::CoordinationLease => Some("coordination-leases"),
            Self::Node => Some("nodes"),
            Self::Pod => Some("pods"),
            Self::Lease => None,
        }
    }

    /// The group and the resource that are watched for it.
    pub fn resource(self) -> (&'static str, &'static str) {
        match self {
            Self::CoordinationLease | Self::Node => ("coordination.k8s.io", "leases"),
            Self::Pod => ("", "pods"),
            Self::Lease => (lessor_api::GROUP, "leases"),
        }
    }
}

impl FromStr for SourceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|kind| kind.switch() == Some(text));
        named.ok_or_else(|| format!("{text:?} can't be followed: write coordination-leases, nodes or pods"))
    }
}

/// Something that leases follow.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// Its kind.
    pub kind: SourceKind,
    /// Where it is. That of a node is where its heartbeat is.
    pub name: NamespacedName,
}

impl Source {
    /// One of our own leases.
    pub fn lease(name: NamespacedName) -> Self {
        Self { kind: SourceKind::Lease, name }
    }
}

/// As users write it: `node/worker-1`. The namespace is that of the lease that follows it.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.label(), self.name.name)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.label(), self.name)
    }
}

/// What one lease follows, as in its spec.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Follow {
    /// The source.
    pub source: Source,
    /// The uid that the Pod must have.
    pub uid: Option<Uuid>,
    /// Whether the lease ends at once when the Pod is lost.
    pub ends_on_loss: bool,
}

impl Follow {
    /// Reads `spec.renewFrom` of a lease in `namespace`; `None`: it names nothing.
    pub fn read(namespace: &Arc<str>, from: &RenewFrom) -> Option<Self> {
        let follow = |kind, namespace: &str, name: &str| Self {
            source: Source { kind, name: NamespacedName::new(namespace, name) },
            uid: None,
            ends_on_loss: false,
        };
        if let Some(named) = &from.coordination_lease {
            return Some(follow(SourceKind::CoordinationLease, namespace, &named.name));
        }
        if let Some(named) = &from.node {
            return Some(follow(SourceKind::Node, NODE_NAMESPACE, &named.name));
        }
        if let Some(pod) = &from.pod {
            return Some(Self {
                // No lease follows one that can't be parsed: the API server refuses it.
                uid: pod.uid.as_deref().map(|uid| uid.parse().unwrap_or_default()),
                ends_on_loss: pod.on_loss == OnLoss::End,
                ..follow(SourceKind::Pod, namespace, &pod.name)
            });
        }
        from.lease.as_ref().map(|named| follow(SourceKind::Lease, namespace, &named.name))
    }
}
