//! One replica against a server that the test plays by hand.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube_core::ObjectMeta;
use lease_engine::LeaseTime;
use lessor_api::Lease;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::{
    decide::removal::Removal,
    index::sources::{SourceKind, SourceWatch},
    kind::Kind,
    metadata::NamespacedName,
    observation::{Event, Failure, Observation},
    request::{Request, RequestError, Response},
    user_event::UserEvent,
};

mod ending;
mod follow;
mod granting;
mod isolation;
mod leading;
mod overlap;
mod recovery;

const ME: &str = "me_1";
const UID: &str = "0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10";

/// A replica and its clocks.
#[derive(Clone)]
pub(super) struct Play {
    replica: Replica,
    mono: Duration,
    /// Since when the server has been silent.
    heard: Duration,
    /// How much of the time was no lease time.
    held: Duration,
    /// Whether lease time is paused.
    disconnected: bool,
    version: u64,
    /// The version and status of the `Lessor`.
    lessor: (u64, Value),
    /// What was asked and not answered yet.
    pub(super) asked: Vec<(Ticket, Request)>,
    user_events: Vec<UserEvent>,
    /// Whether whole lists were asked for.
    relisted: bool,
}

impl Play {
    fn new() -> Self {
        let settings =
            Settings { identity: ME.to_owned(), min_ttl: Duration::from_secs(1), ..Settings::default() };
        let kind = Arc::new(Kind::config_map());
        let mut play = Self {
            replica: Replica::new(settings),
            mono: Duration::ZERO,
            heard: Duration::ZERO,
            held: Duration::ZERO,
            disconnected: false,
            version: 0,
            lessor: (0, Value::Null),
            asked: Vec::new(),
            user_events: Vec::new(),
            relisted: false,
        };
        play.observe(Observation::Object(kind, None, Event::Synced(Default::default())));
        play.observe(Observation::Lease(None, Event::Synced(Default::default())));
        play
    }

    /// A replica that is primary under term 1: its Lessor was the first object of this cluster.
    pub(super) fn primary() -> Self {
        let mut play = Self::new();
        play.observe(Observation::Lessor(Event::Synced(Default::default())));
        play.pass(100);
        let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
        play.answer(ticket, Response::Gone);
        let ticket = play.ask(|request| matches!(request, Request::CreateLessor));
        let lessor = play.lessor(json!({}));
        play.answer(ticket, Response::Lessor(Box::new(lessor)));
        let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
        let lessor = play.lessor(json!({"primary": ME, "term": 1}));
        play.answer(ticket, Response::Lessor(Box::new(lessor)));
        assert_eq!(play.replica.leads(), Some(1));
        play
    }

    /// A replica that follows another under term 1.
    pub(super) fn follower() -> Self {
        let mut play = Self::new();
        let lessor = play.lessor(json!({"primary": "other_1", "term": 1}));
        play.observe(Observation::Lessor(Event::Applied(Box::new(lessor))));
        play.observe(Observation::Lessor(Event::Synced([NamespacedName::new("", "default")].into())));
        assert_eq!(play.asked, []);
        play
    }

    fn now(&self) -> Now {
        let wall = Timestamp::from_second(1_800_000_000).expect("a time") + self.mono;
        Now {
            mono: self.mono,
            lease: LeaseTime::from_duration(self.mono.saturating_sub(self.held)),
            wall,
            server: Some(wall),
            since_last_response: self.mono - self.heard,
            disconnected: self.disconnected,
        }
    }

    /// Lease time was paused for so long.
    pub(super) fn hold(&mut self, paused: Duration) {
        self.held += paused;
    }

    fn poll(&mut self) {
        let output = self.replica.poll(&self.now());
        self.relisted |= output.relist;
        self.asked.retain(|(ticket, _)| !output.cancelled.contains(ticket));
        self.asked.extend(output.requests.into_iter().map(|(ticket, request, _)| (ticket, request)));
        self.user_events.extend(output.user_events);
    }

    pub(super) fn observe(&mut self, observation: Observation) {
        self.heard = self.mono;
        self.replica.observe(observation, &self.now());
        self.poll();
    }

    fn answer(&mut self, ticket: Ticket, answer: Response) {
        self.heard = self.mono;
        self.answer_of_another_kind(ticket, answer);
    }

    /// The same, where that is no sign of life of the server of leases.
    fn answer_of_another_kind(&mut self, ticket: Ticket, answer: Response) {
        self.asked.retain(|(asked, _)| *asked != ticket);
        self.replica.answer(ticket, answer, &self.now());
        self.poll();
    }

    /// Lets time pass, waking up when the replica asks for it.
    pub(super) fn pass(&mut self, millis: u64) {
        let until = self.mono + Duration::from_millis(millis);
        let mut wakes = 0;
        while let Some(at) = self.replica.wake_at(&self.now()).filter(|at| *at <= until) {
            wakes += 1;
            assert!(wakes < 100, "wakes up for nothing, at {at:?}");
            self.mono = self.mono.max(at);
            self.poll();
        }
        self.mono = until;
        self.poll();
    }

    /// The same, with a server that responds to all that a follower asks until it claims the lead.
    fn pass_as_follower(&mut self, millis: u64) {
        let until = self.mono + Duration::from_millis(millis);
        while self.mono < until {
            self.pass(100);
            self.answer_probes();
        }
    }

    /// Accepts challenges, and answers reads of the `Lessor` that probe the server.
    fn answer_probes(&mut self) {
        for ticket in self.probes() {
            let request =
                self.asked.iter().find(|(asked, _)| *asked == ticket).map(|(_, request)| request.clone());
            let lessor = match request {
                Some(Request::WriteLessor { status, .. }) => self.lessor(status),
                _ => self.lessor_at(self.lessor.0, self.lessor.1.clone()),
            };
            self.answer(ticket, Response::Lessor(Box::new(lessor)));
        }
    }

    /// The watch shows this status of the `Lessor`.
    fn see_lessor(&mut self, status: Value) {
        let lessor = self.lessor(status);
        self.observe(Observation::Lessor(Event::Applied(Box::new(lessor))));
    }

    /// Answers the reads before a claim of the lead: of the `Lessor`, and of the overdue lease, which is like this.
    fn confirm_overdue(&mut self, change: impl FnOnce(&mut Value)) {
        let ticket = self.ask(|request| matches!(request, Request::ReadLessor));
        let lessor = self.lessor_at(self.lessor.0, self.lessor.1.clone());
        self.answer(ticket, Response::Lessor(Box::new(lessor)));
        if let [(ticket, Request::ReadLease { .. })] = self.asked[..] {
            let lease = self.lease(change);
            self.answer(ticket, Response::Lease(lease));
        }
    }

    /// The claim that is asked now: its term.
    #[track_caller]
    fn claim(&self) -> Option<i64> {
        self.asked.iter().find_map(|(_, request)| match request {
            Request::WriteLessor { status, .. } if status["primary"] == ME => status["term"].as_i64(),
            _ => None,
        })
    }

    fn probes(&self) -> Vec<Ticket> {
        self.replica.requests.probes()
    }

    /// The one request that is asked now, which must be such a one.
    #[track_caller]
    fn ask(&self, is: impl Fn(&Request) -> bool) -> Ticket {
        match self.asked.as_slice() {
            [(ticket, request)] if is(request) => *ticket,
            asked => panic!("asked {asked:#?}"),
        }
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn lessor(&mut self, status: Value) -> lessor_api::Lessor {
        self.version += 1;
        self.lessor = (self.version, status.clone());
        self.lessor_at(self.version, status)
    }

    fn lessor_at(&self, version: u64, status: Value) -> lessor_api::Lessor {
        serde_json::from_value(json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lessor",
            "metadata": {"name": "default", "uid": UID, "resourceVersion": version.to_string()}, "status": status,
        }))
        .expect("a lessor")
    }

    /// The lease as it would be after `change`, in a new version.
    fn lease(&mut self, change: impl FnOnce(&mut Value)) -> Box<Lease> {
        let version = self.next_version();
        let mut lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {
                "namespace": "shop", "name": "cart", "uid": UID, "generation": 1, "resourceVersion": version,
                "finalizers": ["lessor.dev/revoke"],
            },
            "spec": {"ttlSeconds": 10},
        });
        change(&mut lease);
        Box::new(serde_json::from_value(lease).expect("a lease"))
    }

    pub(super) fn see_lease(&mut self, change: impl FnOnce(&mut Value)) {
        let lease = self.lease(change);
        self.observe(Observation::Lease(None, Event::Applied(lease)));
    }

    /// The metadata of a ConfigMap, in a new version.
    fn meta(&mut self, name: &str, annotations: Value) -> ObjectMeta {
        let version = self.next_version();
        serde_json::from_value(json!({
            "namespace": "shop", "name": name, "uid": UID, "resourceVersion": version, "annotations": annotations,
        }))
        .expect("metadata")
    }

    pub(super) fn see_map(&mut self, name: &str, annotations: Value) {
        let meta = self.meta(name, annotations);
        let kind = Arc::new(Kind::config_map());
        self.observe(Observation::Object(kind, None, Event::Applied(Box::new(meta))));
    }

    fn status_written(&self) -> Option<(u64, &Value)> {
        self.asked.iter().find_map(|(_, request)| match request {
            Request::WriteStatus { version, status, .. } => Some((*version, status)),
            _ => None,
        })
    }
}

fn granted(lease: &mut Value) {
    lease["status"] = json!({
        "specGeneration": 1, "grantedTTLSeconds": 10, "fencingToken": 5, "term": 1, "primary": "other_1",
        "grantTime": "2027-01-15T08:00:00.000000Z", "expiryTime": "2027-01-15T08:00:10.100000Z",
        "attached": {"objects": 0, "keys": 0},
        "conditions": [{"type": "Active", "status": "True", "reason": "Granted", "message": "",
            "lastTransitionTime": "2027-01-15T08:00:00Z"}],
    });
}

fn ended(lease: &mut Value) {
    granted(lease);
    lease["status"]["endTime"] = json!("2027-01-15T08:00:10.000000Z");
    lease["status"]["conditions"][0]["reason"] = json!("Expired");
}

#[test]
fn nothing_is_asked_before_everything_was_seen_once() {
    let mut play = Play::new();
    play.see_lease(|lease| lease["metadata"]["finalizers"] = json!([]));
    play.pass(60_000);
    assert_eq!(play.asked, []);
    assert!(!play.replica.is_ready() && play.replica.missing().len() == 1);
}

#[test]
fn a_server_that_hangs_is_noticed_before_everything_was_seen_once() {
    let mut play = Play::new();
    play.see_lease(granted);
    play.pass(60_000);
    play.ask(|request| matches!(request, Request::ReadLessor));
}

/// Lets the primary grant a lease.
fn grant(play: &mut Play) {
    play.see_lease(|_| {});
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    let lease = play.lease(granted);
    play.answer(ticket, Response::Lease(lease));
    assert_eq!(play.asked, []);
}
