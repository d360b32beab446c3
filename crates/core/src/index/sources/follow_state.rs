//! The state of a follower's source as it counts for the follower, and how a change of it moves the follower's deadline.

use lessor_api::lease::following;

/// The state of a source as it counts for one follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FollowState {
    /// The source has been neither watched nor read yet.
    Unknown,
    /// The source is alive. Either its heartbeats renew the lease, or the TTL is paused while it is alive.
    Alive {
        /// Whether the TTL is paused.
        paused: bool,
    },
    /// The source is lost; the reason for the condition `Following`.
    Lost(&'static str),
    /// The source doesn't count for this lease; the reason.
    Refused(&'static str),
    /// The source can be neither watched nor read; the reason.
    Unseen(&'static str),
}

impl FollowState {
    /// The condition `Following`: its status and its reason. `None`: unknown.
    pub fn condition(self) -> Option<(bool, &'static str)> {
        match self {
            Self::Unknown => None,
            Self::Alive { .. } => Some((true, following::SOURCE_ALIVE)),
            Self::Lost(reason) | Self::Refused(reason) | Self::Unseen(reason) => Some((false, reason)),
        }
    }

    /// How the change from `before` to this state moves the deadline of the follower.
    pub(super) fn transition(self, before: &Previous) -> Transition {
        let change = match (before.state, self) {
            (_, Self::Alive { paused: true }) => TtlChange::Renew,
            (Self::Alive { paused: true }, Self::Alive { paused: false }) => TtlChange::Renew,
            (_, Self::Alive { paused: false }) => TtlChange::CountFromHeartbeat,
            (Self::Lost(_), Self::Lost(_)) => TtlChange::None,
            // A renewal since then counts.
            (_, Self::Lost(_)) if before.ends_on_loss && before.was_lost => TtlChange::None,
            (_, Self::Lost(reason)) => match before.origin {
                // If it was named by its uid, then it was there before.
                Some(Origin::Fresh) if before.ends_on_loss && before.named => TtlChange::End,
                // Perhaps it was lost after the grant.
                Some(Origin::Fresh)
                    if !before.ends_on_loss && (before.named || reason == following::SOURCE_FINISHED) =>
                {
                    TtlChange::Renew
                }
                // It never was there.
                Some(Origin::Fresh | Origin::Restored { was_alive: Some(false) }) => TtlChange::None,
                // This one may never have been there either.
                Some(Origin::Restored { was_alive: None }) if before.ends_on_loss && !before.named => {
                    TtlChange::None
                }
                _ if before.ends_on_loss => TtlChange::End,
                // When it was lost is unknown.
                Some(Origin::Restored { .. }) => TtlChange::Renew,
                None if matches!(before.state, Self::Unseen(_)) => TtlChange::Renew,
                // Its heartbeats count, or the whole TTL is left.
                None => TtlChange::None,
            },
            _ => TtlChange::None,
        };
        Transition { change, ttl_state: self.ttl_state() }
    }

    fn ttl_state(self) -> TtlState {
        match self {
            Self::Alive { paused: true } => TtlState::Full,
            Self::Unseen(_) => TtlState::Paused,
            _ => TtlState::Running,
        }
    }
}

/// Whether the TTL of a follower runs, as its source decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TtlState {
    /// It runs.
    #[default]
    Running,
    /// Paused at the whole TTL: the source is alive.
    Full,
    /// Paused at what is left: the source can be neither watched nor read.
    Paused,
}

/// How a change of the source moves the deadline of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtlChange {
    /// Nothing.
    None,
    /// The TTL begins anew.
    Renew,
    /// The TTL counts from the last heartbeat of the source, unless it counts from a later time already.
    CountFromHeartbeat,
    /// The follower ends now.
    End,
}

/// What a change of the source means for a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// How its deadline moves.
    pub change: TtlChange,
    /// Whether its TTL runs from now on.
    pub ttl_state: TtlState,
}

/// Where a follower comes from, as long as nothing is known of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// It was granted, or told to follow this source, while this replica ran.
    Fresh,
    /// It was granted before this replica ran. Its status says whether its source was alive; `None`: the status mentions no
    /// observation of this source, which may never have existed.
    Restored { was_alive: Option<bool> },
}

/// The follower before the change.
pub(super) struct Previous {
    pub(super) state: FollowState,
    /// Where the lease comes from, if nothing was known of its source until now.
    pub(super) origin: Option<Origin>,
    /// Whether the source was seen lost since it was last seen alive.
    pub(super) was_lost: bool,
    /// Whether the loss of the source ends the lease.
    pub(super) ends_on_loss: bool,
    /// Whether the lease names its Pod by a uid.
    pub(super) named: bool,
}
