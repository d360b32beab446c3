//! The status of a lease as the API server holds it, kept small, and how it is written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    record::{from_millis, millis, text},
    seldom::Seldom,
};
use crate::api::{
    lease::{Attached, LeaseStatus, condition, following, reason},
    time,
};

/// Milliseconds since 1970, by the clock that the field's documentation names.
type Millis = i64;

/// The state of a lease: the reason of its condition `Active`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It runs.
    Granted,
    /// It is active, and its time stands still.
    Suspended,
    /// It has ended by time.
    Expired,
    /// It has ended before its time.
    Revoked,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Granted, Self::Suspended, Self::Expired, Self::Revoked];

    /// The reason as the API writes it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Granted => reason::GRANTED,
            Self::Suspended => reason::SUSPENDED,
            Self::Expired => reason::EXPIRED,
            Self::Revoked => reason::REVOKED,
        }
    }

    fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.reason() == text)
    }

    fn is_active(self) -> bool {
        matches!(self, Self::Granted | Self::Suspended)
    }
}

/// What was granted, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The TTL, in seconds.
    pub ttl_seconds: i64,
    /// When, by the API server's clock.
    pub time: Millis,
    /// The fencing token.
    pub token: i64,
}

/// The reason of the condition `Released` when only a change of what is attached helps.
pub const HINDERED: &str = "Hindered";
/// The same when it may pass by itself: the primary tries again and again.
pub const RETRYING: &str = "Retrying";

/// The condition `Released`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Released {
    /// True: everything that was attached is gone. False: something hinders that.
    pub done: bool,
    /// Why, in one word.
    pub reason: Box<str>,
    /// Why, for people.
    pub message: Box<str>,
}

/// What a lease follows, and whether that keeps it alive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Followed {
    /// The source, like `node/worker-1`.
    pub source: Box<str>,
    /// The uid of the Pod that it is.
    pub uid: Option<Uuid>,
    /// The condition `Following`: its status, its reason, and since when. Absent as long as nobody knows, and after the end.
    pub condition: Option<(bool, Box<str>, Millis)>,
}

impl Followed {
    /// Whether the source keeps the lease alive.
    pub fn is_alive(&self) -> bool {
        matches!(self.condition, Some((true, ..)))
    }

    /// Whether the source kept it alive when it was last seen; `None`: it never was, as far as this says.
    pub fn was_alive(&self) -> Option<bool> {
        let unseen = |reason: &str| matches!(reason, following::NOT_ENABLED | following::UNWATCHED);
        let seen = self.condition.as_ref().filter(|(_, reason, _)| !unseen(reason));
        // A Pod is known by its uid once it was seen.
        seen.map(|(alive, ..)| *alive).or(self.uid.map(|_| true))
    }

    /// Why not, or that it does, for people.
    pub fn explain(&self) -> String {
        let source = &self.source;
        let Some((_, reason, _)) = &self.condition else { return format!("follows {source}") };
        match &**reason {
            following::SOURCE_ALIVE => format!("{source} keeps it alive"),
            following::SOURCE_MISSING => format!("{source} isn't there: the TTL runs"),
            following::SOURCE_FINISHED => format!("{source} has finished"),
            following::SOURCE_REPLACED => format!("{source} is another Pod now"),
            following::SOURCE_ENDED => format!("{source} has ended: the TTL runs"),
            following::CYCLE => format!("{source} follows this lease itself: only renewals keep it alive"),
            following::CHAIN_TOO_LONG => {
                format!("too many leases follow one another up to {source}: only renewals keep it alive")
            }
            following::NOT_ENABLED => format!(
                "the operator isn't told to watch such a source (`--follow`): {source} can't be seen, and the lease \
                 doesn't end by time"
            ),
            following::UNWATCHED => format!(
                "the operator lacks a right that `lessor rbac` prints: {source} can't be seen, and the lease doesn't \
                 end by time"
            ),
            _ => format!("follows {source}"),
        }
    }
}

/// A status, without what only the writer adds (its name, its term) and without text that follows from the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Published {
    /// The reason of `Active`, and since when its status is what it is.
    pub state: Option<(State, Millis)>,
    /// The grant; absent before it.
    pub grant: Option<Grant>,
    /// `expiryTime`.
    pub expiry: Option<Millis>,
    /// `endTime`.
    pub end: Option<Millis>,
    /// `observedGeneration`: present from the grant on.
    pub observed_generation: Option<i64>,
    /// What was attached.
    pub attached: Option<Attached>,
    /// The term under which this was written.
    pub term: Option<i64>,
    more: Seldom<More>,
}

/// What few statuses have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct More {
    remaining_seconds: Option<i64>,
    expiring: Option<(bool, Millis)>,
    released: Option<(Released, Millis)>,
    follows: Option<Followed>,
}

impl Published {
    /// Reads a status. What is missing stays missing: it was never written, or somebody removed it.
    pub fn read(status: &LeaseStatus) -> Self {
        let condition = |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_);
        let since = |condition: &Condition| millis(condition.last_transition_time.0);
        Self {
            state: condition(condition::ACTIVE).and_then(|c| Some((State::read(&c.reason)?, since(c)))),
            grant: status.granted_ttl_seconds.and_then(|ttl_seconds| {
                Some(Grant {
                    ttl_seconds,
                    time: millis(status.grant_time.as_ref()?.0),
                    token: status.fencing_token.unwrap_or_default(),
                })
            }),
            expiry: status.expiry_time.as_ref().map(|time| millis(time.0)),
            end: status.end_time.as_ref().map(|time| millis(time.0)),
            observed_generation: status.observed_generation,
            attached: status.attached,
            term: status.term,
            more: Seldom::new(More {
                remaining_seconds: status.remaining_seconds,
                expiring: condition(condition::EXPIRING).map(|c| (c.status == "True", since(c))),
                released: condition(condition::RELEASED).map(|c| {
                    let released = Released {
                        done: c.status == "True",
                        reason: c.reason.as_str().into(),
                        message: c.message.as_str().into(),
                    };
                    (released, since(c))
                }),
                follows: status.follows.as_ref().map(|follows| Followed {
                    source: follows.source.as_str().into(),
                    uid: follows.uid.as_deref().and_then(|uid| uid.parse().ok()),
                    condition: condition(condition::FOLLOWING)
                        .map(|c| (c.status == "True", c.reason.as_str().into(), since(c))),
                }),
            }),
        }
    }

    /// The status as a merge patch: every field of ours, absent ones as `null`, so that nothing of an earlier status
    /// stays behind.
    pub fn to_patch(&self, primary: &str, term: i64) -> Value {
        let generation = self.observed_generation;
        let mut conditions = Vec::with_capacity(4);
        let mut push = |type_: &str, status: bool, reason: &str, message: String, since: Millis| {
            conditions.push(Condition {
                type_: type_.to_owned(),
                status: if status { "True" } else { "False" }.to_owned(),
                reason: reason.to_owned(),
                message,
                last_transition_time: Time(from_millis(since)),
                observed_generation: generation,
            });
        };
        if let Some((state, since)) = self.state {
            push(condition::ACTIVE, state.is_active(), state.reason(), self.explain(state), since);
        }
        if let Some((expiring, since)) = self.expiring() {
            let (reason, message) = if expiring {
                ("LittleRemains", "ends soon unless it is renewed")
            } else {
                ("Renewed", "enough time remains")
            };
            push(condition::EXPIRING, expiring, reason, message.to_owned(), since);
        }
        if let Some(followed) = self.follows()
            && let Some((alive, reason, since)) = &followed.condition
        {
            push(condition::FOLLOWING, *alive, reason, followed.explain(), *since);
        }
        if let Some((released, since)) = self.released() {
            push(condition::RELEASED, released.done, &released.reason, released.message.to_string(), *since);
        }
        let micro = |millis: Millis| time::micro(from_millis(millis));
        json!({
            "conditions": conditions,
            "observedGeneration": generation,
            "grantedTTLSeconds": self.grant.map(|grant| grant.ttl_seconds),
            "grantTime": self.grant.map(|grant| micro(grant.time)),
            "fencingToken": self.grant.map(|grant| grant.token),
            "expiryTime": self.expiry.map(micro),
            "endTime": self.end.map(micro),
            "remainingSeconds": self.remaining_seconds(),
            "attached": self.attached,
            // Of the Pod that was followed before, the uid must go.
            "follows": self.follows().map(|followed| json!({
                "source": followed.source, "uid": followed.uid.map(|uid| uid.to_string()),
            })),
            "primary": primary,
            "term": term,
        })
    }

    fn explain(&self, state: State) -> String {
        let ttl = self.grant.map(|grant| grant.ttl_seconds).unwrap_or_default();
        match state {
            State::Granted => format!("granted for {ttl} s from each renewal"),
            State::Suspended => {
                let remaining = self.remaining_seconds().unwrap_or(ttl);
                format!("suspended: {remaining} s remain once spec.suspend is false")
            }
            State::Expired => match self.end {
                Some(end) => format!("expired at {}: not renewed in time", text(end)),
                None => "expired".to_owned(),
            },
            State::Revoked => "revoked: the lease was deleted".to_owned(),
        }
    }

    /// Moves to `state`; the time of the condition moves only when its status does.
    pub fn set_state(&mut self, state: State, now: Millis) {
        let since = self
            .state
            .filter(|(old, _)| old.is_active() == state.is_active())
            .map_or(now, |(_, since)| since);
        self.state = Some((state, since));
    }

    /// `remainingSeconds`.
    pub fn remaining_seconds(&self) -> Option<i64> {
        self.more.get()?.remaining_seconds
    }

    /// Sets `remainingSeconds`.
    pub fn set_remaining_seconds(&mut self, remaining: Option<i64>) {
        self.more.change(|more| more.remaining_seconds = remaining);
    }

    /// The condition `Expiring`, and since when.
    pub fn expiring(&self) -> Option<(bool, Millis)> {
        self.more.get()?.expiring
    }

    /// Whether the condition `Expiring` is true.
    pub fn is_expiring(&self) -> bool {
        self.expiring().is_some_and(|(expiring, _)| expiring)
    }

    /// Sets the condition `Expiring`; its time moves only when its status does.
    pub fn set_expiring(&mut self, expiring: bool, now: Millis) {
        if self.expiring().is_none_or(|(old, _)| old != expiring) {
            self.more.change(|more| more.expiring = Some((expiring, now)));
        }
    }

    /// Takes the conditions away that say something of a lease that hasn't ended.
    pub fn clear_conditions(&mut self) {
        self.more.change(|more| {
            more.expiring = None;
            if let Some(follows) = &mut more.follows {
                follows.condition = None;
            }
        });
    }

    /// What the lease follows.
    pub fn follows(&self) -> Option<&Followed> {
        self.more.get()?.follows.as_ref()
    }

    /// The lease follows nothing.
    pub fn follow_nothing(&mut self) {
        self.more.change(|more| more.follows = None);
    }

    /// Sets what the lease follows (`uid`: the Pod that it is), and the condition `Following`; `None`: nobody knows, and what
    /// was known of this source stands. The time of the condition moves only when its status does.
    pub fn set_follows(
        &mut self,
        source: String,
        uid: Option<Uuid>,
        following: Option<(bool, &'static str)>,
        now: Millis,
    ) {
        let old = self.follows().filter(|old| *old.source == *source);
        let (old_uid, old_condition) = old.map(|old| (old.uid, old.condition.clone())).unwrap_or_default();
        let condition = match following {
            None => old_condition,
            Some((alive, reason)) => {
                let since = old_condition.filter(|(old, ..)| *old == alive).map_or(now, |(.., since)| since);
                Some((alive, reason.into(), since))
            }
        };
        let followed = Followed { source: source.into(), uid: uid.or(old_uid), condition };
        self.more.change(|more| more.follows = Some(followed));
    }

    /// The condition `Released`, and since when.
    pub fn released(&self) -> Option<&(Released, Millis)> {
        self.more.get()?.released.as_ref()
    }

    /// Whether the condition `Released` says that something hinders that.
    pub fn is_hindered(&self) -> bool {
        self.released().is_some_and(|(released, _)| !released.done)
    }

    /// Whether that may pass by itself.
    pub fn is_retrying(&self) -> bool {
        self.released().is_some_and(|(released, _)| !released.done && &*released.reason == RETRYING)
    }

    /// Sets the condition `Released`; its time moves only when its status does.
    pub fn set_released(&mut self, released: Released, now: Millis) {
        let since = match self.released() {
            Some((old, since)) if old.done == released.done => *since,
            _ => now,
        };
        self.more.change(|more| more.released = Some((released, since)));
    }

    /// Whether the end has been committed.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether the lease was ever granted.
    pub fn is_granted(&self) -> bool {
        self.observed_generation.is_some() && self.grant.is_some()
    }

    /// The state alone.
    pub fn state(&self) -> Option<State> {
        self.state.map(|(state, _)| state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted() -> Published {
        Published {
            state: Some((State::Granted, 1_000)),
            grant: Some(Grant { ttl_seconds: 30, time: 1_000, token: 7 }),
            expiry: Some(31_000),
            observed_generation: Some(1),
            attached: Some(Attached { objects: 1, keys: 2 }),
            term: Some(3),
            ..Published::default()
        }
    }

    #[test]
    fn a_status_reads_back_as_it_was_written() {
        let mut published = granted();
        published.set_expiring(true, 2_000);
        published.set_follows(
            "pod/web-0".to_owned(),
            Some(Uuid::nil()),
            Some((false, following::SOURCE_FINISHED)),
            2_000,
        );
        published.set_released(
            Released { done: false, reason: "Hindered".into(), message: "configmap a is immutable".into() },
            3_000,
        );
        let status: LeaseStatus = serde_json::from_value(published.to_patch("me", 3)).expect("a status");
        assert_eq!(Published::read(&status), published);
        assert_eq!(status.primary.as_deref(), Some("me"));
    }

    #[test]
    fn a_patch_names_the_fields_that_must_go() {
        let mut published = granted();
        published.expiry = None;
        let patch = published.to_patch("me", 3);
        assert_eq!(patch.get("expiryTime"), Some(&Value::Null));
        assert_eq!(patch.get("endTime"), Some(&Value::Null));
        published.set_follows("pod/web-0".to_owned(), Some(Uuid::nil()), None, 1_000);
        published.set_follows("pod/web-1".to_owned(), None, None, 1_000);
        assert_eq!(published.to_patch("me", 3)["follows"], json!({"source": "pod/web-1", "uid": null}));
    }

    #[test]
    fn the_time_of_a_condition_moves_only_with_its_status() {
        let mut published = granted();
        published.set_state(State::Suspended, 5_000);
        assert_eq!(published.state, Some((State::Suspended, 1_000)));
        published.set_state(State::Expired, 6_000);
        assert_eq!(published.state, Some((State::Expired, 6_000)));
        published.set_expiring(true, 7_000);
        published.set_expiring(true, 8_000);
        assert_eq!(published.expiring(), Some((true, 7_000)));
    }
}
