//! Leases that follow something else: a heartbeat, a Pod, another lease (`spec.renewFrom`).
//!
//! What a lease follows is its *source*, and the lease its *follower*. Each beat of a source renews all its followers in
//! memory: no request, whatever their number. Here is what decides: which sources there are and who follows them
//! ([`Follows`]), what a sight of a source means ([`Sign`], [`View`]), and what has to be watched for it ([`Lookout`]).
//!
//! A source is another object than its followers, so no resourceVersion orders its beats and their ends. One rule takes the
//! place of that: a follower ends by time only after its source was read afresh, at or after its deadline. So each beat
//! that the API server accepted before the deadline counts, however late the watch of it is. What can't be read keeps its
//! followers from ending by time at all.

mod followers;
mod lookouts;
mod object;
mod sign;
mod source;
#[cfg(test)]
mod tests;
mod view;

pub use followers::{Change, Follows, LeaseState, Tally};
pub use lookouts::{Lookout, Lookouts};
pub use object::{Heartbeat, PodLife};
pub use sign::{Sighting, Sign};
pub use source::{Follow, NODE_NAMESPACE, Source, SourceKind};
pub use view::{Standing, Time, Turn, View};
