//! The state of a source, as a watch or a read reports it.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::metadata::{NamespacedName, ResourceVersion};

/// How long after its grace period a Pod that still terminates counts as alive. A kubelet that lives needs seconds to confirm
/// the end of a Pod; on a dead node there is none, and the Pod terminates for ever.
pub const TERMINATION_LIMIT: SignedDuration = SignedDuration::from_secs(60);

/// A source, as some version of its object shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceState {
    /// Its namespace and name.
    pub name: NamespacedName,
    /// The version that was observed.
    pub version: ResourceVersion,
    /// What that version shows.
    pub status: SourceStatus,
}

/// What a source shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SourceStatus {
    /// A Lease of coordination.k8s.io.
    Heartbeat {
        /// Its uid.
        uid: Uuid,
        /// `spec.renewTime`, as it stands there: each change of it is a heartbeat.
        renew_time: Option<Box<str>>,
        /// When its last heartbeat was accepted, as the API server recorded it, in whole seconds.
        recorded: Option<Timestamp>,
    },
    /// A Pod.
    Pod {
        /// Its uid.
        uid: Uuid,
        /// Whether it has finished: it has succeeded or failed.
        finished: bool,
        /// If it is being deleted, when its grace period ends: its `deletionTimestamp`.
        grace_ends: Option<Timestamp>,
    },
}

impl SourceStatus {
    /// Whether this state, observed after `before`, shows a heartbeat. A re-created heartbeat object shows one.
    pub fn shows_heartbeat_after(&self, before: Option<&Self>) -> bool {
        let Self::Heartbeat { uid, renew_time: Some(time), .. } = self else { return false };
        match before {
            Some(Self::Heartbeat { uid: old, renew_time: Some(old_time), .. }) => {
                old != uid || old_time != time
            }
            _ => true,
        }
    }

    /// From when on it counts as lost though it still terminates, by the API server's clock.
    pub(super) fn overdue_at(&self) -> Option<Timestamp> {
        match self {
            Self::Pod { finished: false, grace_ends, .. } => {
                grace_ends.and_then(|at| at.checked_add(TERMINATION_LIMIT).ok())
            }
            _ => None,
        }
    }

    /// When the last heartbeat was accepted, if that is recorded.
    pub fn recorded(&self) -> Option<Timestamp> {
        match self {
            Self::Heartbeat { recorded, .. } => *recorded,
            Self::Pod { .. } => None,
        }
    }
}
