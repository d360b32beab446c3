//! What replicas compete for: the keys of the writer lease.

use uuid::Uuid;

use crate::index::attachments::ObjectId;

/// Work that replicas compete for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// The next step of a lease.
    Lease(Uuid),
    /// The removal of what is due in an object.
    Object(ObjectId),
}
