//! How it stands between a lease and what it follows, and what a change of that does to the time of the lease.

use crate::api::lease::following;

/// How it stands between a lease and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// Nothing has been seen of the source yet.
    Unknown,
    /// The source lives. Either its beats renew the lease, or no time passes as long as it lives.
    Alive {
        /// Whether no time passes.
        still: bool,
    },
    /// The source is lost; the reason for the condition `Following`.
    Lost(&'static str),
    /// The source doesn't count for this lease; the reason.
    Refused(&'static str),
    /// The source can't be seen; the reason.
    Unseen(&'static str),
}

impl View {
    /// The condition `Following`: its status and its reason. `None`: nobody knows.
    pub fn condition(self) -> Option<(bool, &'static str)> {
        match self {
            Self::Unknown => None,
            Self::Alive { .. } => Some((true, following::SOURCE_ALIVE)),
            Self::Lost(reason) | Self::Refused(reason) | Self::Unseen(reason) => Some((false, reason)),
        }
    }

    /// What it does to the time of a lease that it stands so now.
    pub(super) fn turn(self, past: &Past) -> Turn {
        let time = match (past.view, self) {
            (_, Self::Alive { still: true }) => Time::Renew,
            (Self::Alive { still: true }, Self::Alive { still: false }) => Time::Renew,
            (_, Self::Alive { still: false }) => Time::CatchUp,
            (Self::Lost(_), Self::Lost(_)) => Time::Keep,
            // A renewal since then counts.
            (_, Self::Lost(_)) if past.ends_on_loss && past.was_lost => Time::Keep,
            (_, Self::Lost(reason)) => match past.origin {
                // If it was named by its uid, then it was there before.
                Some(Origin::Fresh) if past.ends_on_loss && past.named => Time::End,
                // Perhaps it was lost after the grant.
                Some(Origin::Fresh)
                    if !past.ends_on_loss && (past.named || reason == following::SOURCE_FINISHED) =>
                {
                    Time::Renew
                }
                // It never was there.
                Some(Origin::Fresh | Origin::Restored { was_alive: Some(false) }) => Time::Keep,
                // Perhaps neither was this one.
                Some(Origin::Restored { was_alive: None }) if past.ends_on_loss && !past.named => Time::Keep,
                _ if past.ends_on_loss => Time::End,
                // Since when it is lost nobody knows.
                Some(Origin::Restored { .. }) => Time::Renew,
                None if matches!(past.view, Self::Unseen(_)) => Time::Renew,
                // Its beats count, or the whole TTL is left.
                None => Time::Keep,
            },
            _ => Time::Keep,
        };
        Turn { time, standing: self.standing() }
    }

    fn standing(self) -> Standing {
        match self {
            Self::Alive { still: true } => Standing::Kept,
            Self::Unseen(_) => Standing::Held,
            _ => Standing::Running,
        }
    }
}

/// Whether the time of a lease runs, as far as what it follows is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It runs.
    #[default]
    Running,
    /// It stands still with the whole TTL left: the source lives.
    Kept,
    /// It stands still with what is left: the source can't be seen.
    Held,
}

/// What a change does to the time of a lease, before it runs or stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Nothing.
    Keep,
    /// The TTL begins anew.
    Renew,
    /// The TTL counts from the last beat of the source, if that's later than from where it counts.
    CatchUp,
    /// It is over.
    End,
}

/// How it stands between a lease and its source from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// What becomes of its time.
    pub time: Time,
    /// Whether it runs then.
    pub standing: Standing,
}

/// Where a follower comes from, as long as nothing is known of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// It was granted, or told to follow this source, while this replica ran.
    Fresh,
    /// It was granted before this replica ran, and its status says whether its source was alive; `None`: it says nothing of
    /// this source, which perhaps never was there.
    Restored { was_alive: Option<bool> },
}

/// How it stood before.
pub(super) struct Past {
    pub(super) view: View,
    /// Where the lease comes from, if nothing was known of its source until now.
    pub(super) origin: Option<Origin>,
    /// Whether the source was seen lost since it was last seen alive.
    pub(super) was_lost: bool,
    /// Whether the loss of the source ends the lease.
    pub(super) ends_on_loss: bool,
    /// Whether the lease names its Pod by a uid.
    pub(super) named: bool,
}
