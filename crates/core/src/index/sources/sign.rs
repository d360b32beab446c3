//! What is seen of a source.

use k8s_openapi::jiff::Timestamp;
use uuid::Uuid;

use crate::metadata::{NamespacedName, ResourceVersion};

/// A source, as some version of its object shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceState {
    /// Where it is.
    pub place: NamespacedName,
    /// The version that shows it so.
    pub version: ResourceVersion,
    /// What it shows.
    pub sign: Sign,
}

/// What a source shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sign {
    /// A Lease of coordination.k8s.io.
    Heartbeat {
        /// Its uid.
        uid: Uuid,
        /// `spec.renewTime`, as it stands there: each change of it is a beat.
        renew_time: Option<Box<str>>,
        /// When its last beat was accepted, as the API server recorded it, in whole seconds.
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

impl Sign {
    /// Whether this, seen after `before`, shows a beat. A heartbeat made anew is one.
    pub fn beats_after(&self, before: Option<&Self>) -> bool {
        let Self::Heartbeat { uid, renew_time: Some(time), .. } = self else { return false };
        match before {
            Some(Self::Heartbeat { uid: old, renew_time: Some(old_time), .. }) => {
                old != uid || old_time != time
            }
            _ => true,
        }
    }

    /// When the last beat was accepted, if that is recorded.
    pub fn recorded(&self) -> Option<Timestamp> {
        match self {
            Self::Heartbeat { recorded, .. } => *recorded,
            Self::Pod { .. } => None,
        }
    }
}
