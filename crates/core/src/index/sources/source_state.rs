//! The state of a source, as a watch or a read reports it.

use k8s_openapi::jiff::Timestamp;
use uuid::Uuid;

use crate::metadata::{NamespacedName, ResourceVersion};

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

    /// When the last heartbeat was accepted, if that is recorded.
    pub fn recorded(&self) -> Option<Timestamp> {
        match self {
            Self::Heartbeat { recorded, .. } => *recorded,
            Self::Pod { .. } => None,
        }
    }
}
