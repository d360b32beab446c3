//! Leases that follow something else: a heartbeat, a Pod, another lease (`spec.renewFrom`).
//!
//! What a lease follows is its *source*, and the lease its *follower*. Each beat of a source renews all its followers in
//! memory: no request, whatever their number. Here is what decides: which sources there are and who follows them
//! ([`SourceIndex`]), what a sight of a source means ([`Sign`], [`View`]), and what has to be watched for it ([`SourceWatch`]).
//!
//! A source is another object than its followers, so no resourceVersion orders its beats and their ends. One rule takes the
//! place of that: a follower ends by time only after its source was read afresh, at or after its deadline. So each beat
//! that the API server accepted before the deadline counts, however late the watch of it is. What can't be read keeps its
//! followers from ending by time at all.

mod followers;
mod sign;
mod source;
mod source_watches;
#[cfg(test)]
mod tests;
mod view;

pub use followers::{Change, LeaseState, SourceIndex, Tally};
pub use sign::{Sign, SourceState};
pub use source::{Follow, NODE_NAMESPACE, Source, SourceKind};
pub use source_watches::{SourceWatch, SourceWatches};
pub use view::{Standing, Time, Turn, View};
