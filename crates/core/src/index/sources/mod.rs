//! Leases that follow something else: a heartbeat, a Pod, another lease (`spec.renewFrom`).
//!
//! What a lease follows is its *source*, and the lease its *follower*. Each heartbeat of a source renews all its followers in
//! memory: no request, whatever their number. Here is what decides: which sources there are and who follows them
//! ([`SourceIndex`]), what the state of a source means for a follower ([`SourceStatus`], [`FollowState`]), and which watches that needs ([`SourceWatch`]).
//!
//! A source is another object than its followers, so no resourceVersion orders its heartbeats and their ends. One rule takes the
//! place of that: a follower ends by time only after its source was read afresh, at or after its deadline. So each heartbeat
//! that the API server accepted before the deadline counts, however late the watch of it is. What can't be read keeps its
//! followers from ending by time at all.

mod follow_state;
mod followers;
mod source;
mod source_state;
mod source_watches;
#[cfg(test)]
mod tests;

pub use follow_state::{FollowState, Transition, TtlChange, TtlState};
pub use followers::{Change, FollowerCount, LeaseState, SourceIndex};
pub use source::{Follow, NODE_NAMESPACE, Source, SourceKind};
pub use source_state::{SourceState, SourceStatus, TERMINATION_LIMIT};
pub use source_watches::{SourceWatch, SourceWatches};
