//! The status of a lease as the API server holds it, kept small, and how it is written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lessor_api::{
    lease::{Attached, LeaseStatus, condition, following, reason},
    time,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    sparse::Sparse,
    unix_millis::{from_millis, millis, text},
};

/// Milliseconds since 1970, by the clock that the field's documentation names.
type Millis = i64;

/// The state of a lease: the reason of its condition `Active`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Its TTL runs.
    Granted,
    /// Active, with a paused TTL.
    Suspended,
    /// Ended at its deadline.
    Expired,
    /// Ended before its deadline, since it was deleted.
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

/// The reason of the condition `Released` when a removal fails until the attached object changes.
pub const HINDERED: &str = "Hindered";
/// The same when the failure may be transient: the primary retries.
pub const RETRYING: &str = "Retrying";

/// The condition `Released`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Released {
    /// True: everything that was attached is gone. False: a removal fails.
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
    /// The condition `Following`: its status, its reason, and since when. Absent while unknown, and after the end.
    pub condition: Option<(bool, Box<str>, Millis)>,
}

impl Followed {
    /// Whether the source keeps the lease alive.
    pub fn is_alive(&self) -> bool {
        matches!(self.condition, Some((true, ..)))
    }

    /// Whether the source kept the lease alive when it was last observed; `None`: the status mentions no observation of it.
    pub fn was_alive(&self) -> Option<bool> {
        let unseen = |reason: &str| matches!(reason, following::NOT_ENABLED | following::UNWATCHED);
        let seen = self.condition.as_ref().filter(|(_, reason, _)| !unseen(reason));
        // The uid of a Pod is recorded once the Pod was observed.
        seen.map(|(alive, ..)| *alive).or(self.uid.map(|_| true))
    }

    /// The message of the condition `Following`.
    pub fn explain(&self) -> String {
        let source = &self.source;
        let Some((_, reason, _)) = &self.condition else { return format!("follows {source}") };
        match &**reason {
            following::SOURCE_ALIVE => format!("{source} keeps it alive"),
            following::SOURCE_MISSING => format!("{source} doesn't exist: the TTL runs"),
            following::SOURCE_TERMINATING => {
                format!("{source} still terminates a minute after its grace period")
            }
            following::SOURCE_FINISHED => format!("{source} has finished"),
            following::SOURCE_REPLACED => format!("{source} is another Pod now"),
            following::SOURCE_ENDED => format!("{source} has ended: the TTL runs"),
            following::CYCLE => format!("{source} follows this lease itself: only renewals keep it alive"),
            following::CHAIN_TOO_LONG => {
                format!("too many leases follow one another up to {source}: only renewals keep it alive")
            }
            following::NOT_ENABLED => format!(
                "{source} can't be watched: `--follow` doesn't list its kind. The lease doesn't expire until it does"
            ),
            following::UNWATCHED => format!(
                "{source} can't be watched: the operator lacks a right that `lessor rbac` prints. The lease doesn't \
                 expire until it is granted"
            ),
            _ => format!("follows {source}"),
        }
    }
}

/// A status, without what only the writer adds (its name, its term) and without text that follows from the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StatusSnapshot {
    /// The reason of `Active`, and since when its status is what it is.
    pub state: Option<(State, Millis)>,
    /// The grant; absent before it.
    pub grant: Option<Grant>,
    /// `expiryTime`.
    pub expiry: Option<Millis>,
    /// `endTime`.
    pub end: Option<Millis>,
    /// `specGeneration`: present from the grant on.
    pub spec_generation: Option<i64>,
    /// What was attached.
    pub attached: Option<Attached>,
    /// The term under which this was written.
    pub term: Option<i64>,
    more: Sparse<More>,
}

/// What few statuses have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct More {
    remaining_seconds: Option<i64>,
    expiring: Option<(bool, Millis)>,
    released: Option<(Released, Millis)>,
    follows: Option<Followed>,
}

impl StatusSnapshot {
    /// Reads a status. A missing field stays missing: it was never written, or was removed.
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
            spec_generation: status.spec_generation,
            attached: status.attached,
            term: status.term,
            more: Sparse::new(More {
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

    /// The status of this lease as a merge patch. It names each field of the operator, absent ones as `null`, so that the patch removes
    /// what an earlier status had. `other_conditions` are those of [other controllers](crate::lease_object::LeaseObject::other_conditions).
    ///
    /// The conditions carry no `observedGeneration`. A renewal moves the generation and costs no write, so it would be older than
    /// the object after each renewal, and `kubectl wait` and kstatus ignore such a condition.
    pub fn to_patch(&self, lease: Uuid, primary: &str, term: i64, other_conditions: &[Value]) -> Value {
        let mut conditions = Vec::with_capacity(4 + other_conditions.len());
        let mut push = |type_: &str, status: bool, reason: &str, message: String, since: Millis| {
            conditions.push(json!({
                "type": type_,
                "status": if status { "True" } else { "False" },
                "reason": reason,
                "message": message,
                "lastTransitionTime": Time(from_millis(since)),
            }));
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
        conditions.extend_from_slice(other_conditions);
        let micro = |millis: Millis| time::micro(from_millis(millis));
        json!({
            "conditions": conditions,
            "leaseUID": lease.to_string(),
            "specGeneration": self.spec_generation,
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

    /// Removes the conditions that apply only before the end.
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

    /// Sets what the lease follows (`uid`: the Pod that it is), and the condition `Following`; `None`: unknown, so that
    /// what was published about this source stays. The time of the condition moves only when its status does.
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

    /// Whether the condition `Released` is false: a removal fails.
    pub fn is_hindered(&self) -> bool {
        self.released().is_some_and(|(released, _)| !released.done)
    }

    /// Whether the primary retries that removal.
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
        self.spec_generation.is_some() && self.grant.is_some()
    }

    /// The state alone.
    pub fn state(&self) -> Option<State> {
        self.state.map(|(state, _)| state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted() -> StatusSnapshot {
        StatusSnapshot {
            state: Some((State::Granted, 1_000)),
            grant: Some(Grant { ttl_seconds: 30, time: 1_000, token: 7 }),
            expiry: Some(31_000),
            spec_generation: Some(1),
            attached: Some(Attached { objects: 1, keys: 2 }),
            term: Some(3),
            ..StatusSnapshot::default()
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
        let status: LeaseStatus =
            serde_json::from_value(published.to_patch(Uuid::nil(), "me", 3, &[])).expect("a status");
        assert_eq!(StatusSnapshot::read(&status), published);
        assert_eq!(status.primary.as_deref(), Some("me"));
    }

    #[test]
    fn no_condition_carries_a_generation_which_a_renewal_would_make_look_old() {
        let mut published = granted();
        published.set_expiring(true, 2_000);
        published.set_follows("pod/web-0".to_owned(), None, Some((true, following::SOURCE_ALIVE)), 2_000);
        published.set_released(Released { done: true, reason: "Done".into(), message: "".into() }, 3_000);
        let patch = published.to_patch(Uuid::nil(), "me", 3, &[]);
        let conditions = patch["conditions"].as_array().expect("a list");
        assert_eq!(conditions.len(), 4);
        assert!(conditions.iter().all(|condition| condition.get("observedGeneration").is_none()), "{patch}");
        // kubectl falls back to this one.
        assert_eq!(patch.get("observedGeneration"), None);
    }

    #[test]
    fn a_patch_names_the_fields_that_must_go() {
        let mut published = granted();
        published.expiry = None;
        let patch = published.to_patch(Uuid::nil(), "me", 3, &[]);
        assert_eq!(patch.get("expiryTime"), Some(&Value::Null));
        assert_eq!(patch.get("endTime"), Some(&Value::Null));
        published.set_follows("pod/web-0".to_owned(), Some(Uuid::nil()), None, 1_000);
        published.set_follows("pod/web-1".to_owned(), None, None, 1_000);
        assert_eq!(
            published.to_patch(Uuid::nil(), "me", 3, &[])["follows"],
            json!({"source": "pod/web-1", "uid": null})
        );
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
