//! One replica against a server that the test plays by hand.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::core::ObjectMeta;
use serde_json::{Value, json};

use super::*;
use crate::{
    api::Lease,
    operator::{
        attached::{Kind, Removal},
        follow::SourceKind,
        request::Answer,
        watches::{Observation, Seen},
    },
};

mod follow;

const ME: &str = "me_1";
const UID: &str = "0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10";

/// A replica and its clocks.
pub(super) struct Play {
    replica: Replica,
    mono: Duration,
    /// Since when the server has been silent.
    heard: Duration,
    version: u64,
    /// What was asked and not answered yet.
    pub(super) asked: Vec<(Ticket, Request)>,
    notices: Vec<Notice>,
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
            version: 0,
            asked: Vec::new(),
            notices: Vec::new(),
        };
        play.observe(Observation::Object(kind, None, Seen::All(Default::default())));
        play.observe(Observation::Lease(None, Seen::All(Default::default())));
        play
    }

    /// A replica that is primary under term 1: its Lessor was the first object of this cluster.
    pub(super) fn primary() -> Self {
        let mut play = Self::new();
        play.observe(Observation::Lessor(Seen::All(Default::default())));
        play.pass(100);
        let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
        play.answer(ticket, Answer::Gone);
        let ticket = play.ask(|request| matches!(request, Request::CreateLessor));
        let lessor = play.lessor(json!({}));
        play.answer(ticket, Answer::Lessor(Box::new(lessor)));
        let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
        let lessor = play.lessor(json!({"primary": ME, "term": 1}));
        play.answer(ticket, Answer::Lessor(Box::new(lessor)));
        assert_eq!(play.replica.leads(), Some(1));
        play
    }

    /// A replica that follows another under term 1.
    pub(super) fn follower() -> Self {
        let mut play = Self::new();
        let lessor = play.lessor(json!({"primary": "other_1", "term": 1}));
        play.observe(Observation::Lessor(Seen::There(Box::new(lessor))));
        play.observe(Observation::Lessor(Seen::All([Place::new("", "default")].into())));
        assert_eq!(play.asked, []);
        play
    }

    fn now(&self) -> Now {
        let wall = Timestamp::from_second(1_800_000_000).expect("a time") + self.mono;
        Now {
            mono: self.mono,
            lease: LeaseTime::from_duration(self.mono),
            wall,
            server: Some(wall),
            silence: self.mono - self.heard,
            deaf: false,
        }
    }

    fn poll(&mut self) {
        let output = self.replica.poll(&self.now());
        self.asked.retain(|(ticket, _)| !output.cancelled.contains(ticket));
        self.asked.extend(output.requests.into_iter().map(|(ticket, request, _)| (ticket, request)));
        self.notices.extend(output.notices);
    }

    pub(super) fn observe(&mut self, observation: Observation) {
        self.heard = self.mono;
        self.replica.observe(observation, &self.now());
        self.poll();
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.heard = self.mono;
        self.asked.retain(|(asked, _)| *asked != ticket);
        self.replica.answer(ticket, answer, &self.now());
        self.poll();
    }

    /// Lets time pass, waking up when the replica wants to.
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

    /// The same, with a server that is heard whenever a replica asks for no more than that.
    fn pass_as_follower(&mut self, millis: u64) {
        let until = self.mono + Duration::from_millis(millis);
        while self.mono < until {
            self.pass(100);
            for ticket in self.probes() {
                let mut lessor = self.lessor(json!({"primary": "other_1", "term": 1}));
                lessor.metadata.resource_version = Some("1".to_owned());
                self.answer(ticket, Answer::Lessor(Box::new(lessor)));
            }
        }
    }

    fn probes(&self) -> Vec<Ticket> {
        let flights = self.replica.flights.iter();
        flights
            .filter(|(_, flight)| matches!(flight.cause, Cause::Probe))
            .map(|(ticket, _)| *ticket)
            .collect()
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

    fn lessor(&mut self, status: Value) -> crate::api::Lessor {
        self.version += 1;
        self.lessor_at(self.version, status)
    }

    fn lessor_at(&self, version: u64, status: Value) -> crate::api::Lessor {
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
        self.observe(Observation::Lease(None, Seen::There(lease)));
    }

    pub(super) fn see_map(&mut self, name: &str, annotations: Value) {
        let version = self.next_version();
        let meta: ObjectMeta = serde_json::from_value(json!({
            "namespace": "shop", "name": name, "uid": UID, "resourceVersion": version, "annotations": annotations,
        }))
        .expect("metadata");
        let kind = Arc::new(Kind::config_map());
        self.observe(Observation::Object(kind, None, Seen::There(Box::new(meta))));
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
        "observedGeneration": 1, "grantedTTLSeconds": 10, "fencingToken": 5, "term": 1, "primary": "other_1",
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

#[test]
fn the_finalizer_is_in_place_before_the_grant() {
    let mut play = Play::primary();
    play.see_lease(|lease| lease["metadata"]["finalizers"] = json!(["other/one"]));
    let ticket = play.ask(|request| {
        matches!(request, Request::SetFinalizers { finalizers, .. } if *finalizers == ["other/one", "lessor.dev/revoke"])
    });
    let lease =
        play.lease(|lease| lease["metadata"]["finalizers"] = json!(["other/one", "lessor.dev/revoke"]));
    let version = play.version;
    play.answer(ticket, Answer::Lease(lease));
    let (at, status) = play.status_written().expect("the grant");
    assert_eq!(at, version);
    assert_eq!(status["grantedTTLSeconds"], 10);
    assert_eq!(status["fencingToken"], version);
    assert_eq!(status["term"], 1);
}

/// Lets the primary grant a lease.
fn grant(play: &mut Play) {
    play.see_lease(|_| {});
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    let lease = play.lease(granted);
    play.answer(ticket, Answer::Lease(lease));
    assert_eq!(play.asked, []);
}

#[test]
fn an_end_is_committed_at_its_deadline_and_at_the_version_it_was_decided_at() {
    let mut play = Play::primary();
    grant(&mut play);
    let version = play.version;
    play.pass(9_990);
    // The primary was silent for long: it proves itself before the deadline.
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    assert!(play.status_written().is_none());
    play.pass(10);
    let (at, status) = play.status_written().expect("the end");
    assert_eq!((at, status["endTime"].is_string()), (version, true));
}

#[test]
fn a_renewal_keeps_a_lease_whose_end_was_refused() {
    let mut play = Play::primary();
    grant(&mut play);
    play.pass(9_990);
    let ticket = play.asked[0].0;
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    play.pass(10);
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    play.answer(ticket, Answer::Refused(Refusal::Conflict));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(|lease| {
        granted(lease);
        lease["spec"]["renewTime"] = json!("2027-01-15T08:00:09Z");
    });
    play.answer(ticket, Answer::Lease(lease));
    // The renewal is published, since all that was published is over; nothing ends for another ten seconds.
    assert!(play.status_written().is_none_or(|(_, status)| status["endTime"].is_null()));
    assert_eq!(play.replica.leads(), Some(1));
}

#[test]
fn no_end_is_committed_on_an_old_sign_of_life() {
    let mut play = Play::primary();
    grant(&mut play);
    play.pass(9_990);
    let ticket = play.asked[0].0;
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    play.heard -= Duration::from_secs(2);
    play.pass(10);
    play.ask(|request| matches!(request, Request::ReadLease { .. }));
}

#[test]
fn what_is_due_in_one_object_goes_with_one_patch_bound_to_its_version() {
    let mut play = Play::primary();
    play.see_map("shared", json!({"key.lessor.dev/a": "cart", "key.lessor.dev/b": "other", "lessor.dev/keys": "{\".c\":\"cart\"}"}));
    let version = play.version;
    play.see_lease(ended);
    let ticket = play.ask(|request| matches!(request, Request::Remove { removal: Removal::Keys { .. }, .. }));
    let Some((_, Request::Remove { removal: Removal::Keys { patch, .. }, .. })) = play.asked.first() else {
        panic!("no removal");
    };
    assert_eq!(patch["metadata"]["resourceVersion"], version.to_string());
    assert_eq!(patch["data"], json!({"a": null, ".c": null}));
    assert_eq!(patch["metadata"]["annotations"], json!({"key.lessor.dev/a": null, "lessor.dev/keys": null}));
    // It has changed: read it, then decide again.
    play.answer(ticket, Answer::Refused(Refusal::Conflict));
    play.ask(|request| matches!(request, Request::ReadObject { .. }));
}

#[test]
fn what_is_attached_once_the_release_was_sent_stays_until_the_release_is_refused() {
    let mut play = Play::primary();
    play.see_lease(ended);
    play.pass(2_000);
    let ticket = play.ask(|request| matches!(request, Request::SetFinalizers { .. }));
    // Perhaps it is meant for the next lease of this name: the server may have done the release already.
    play.see_map("late", json!({"lessor.dev/lease": "cart"}));
    play.ask(|request| matches!(request, Request::SetFinalizers { .. }));
    // No answer says nothing: the request may be on its way still. The lease as it was says nothing either.
    play.answer(ticket, Answer::Refused(Refusal::NoAnswer("lost".to_owned())));
    play.pass(1_000);
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    play.version -= 2;
    let lease = play.lease(ended);
    play.version += 2;
    play.answer(ticket, Answer::Lease(lease));
    let ticket = play.ask(|request| matches!(request, Request::SetFinalizers { .. }));
    // The lease has changed, so the release that was sent can't be done any more.
    play.answer(ticket, Answer::Refused(Refusal::Conflict));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(ended);
    play.answer(ticket, Answer::Lease(lease));
    play.ask(|request| matches!(request, Request::Remove { .. }));
}

#[test]
fn an_ended_lease_lingers_for_what_was_attached_just_before() {
    let mut play = Play::primary();
    grant(&mut play);
    play.see_lease(ended);
    play.pass(1_900);
    assert_eq!(play.asked, []);
    play.pass(200);
    play.ask(|request| matches!(request, Request::SetFinalizers { .. }));
}

#[test]
fn a_kind_that_cannot_be_seen_for_a_moment_holds_up_releases() {
    let mut play = Play::primary();
    let kind = Arc::new(Kind::config_map());
    let failure = Failure::Other("the connection was cut".to_owned());
    play.observe(Observation::Object(kind.clone(), None, Seen::Failing(failure)));
    play.see_lease(ended);
    play.pass(4_000);
    assert_eq!(play.asked, []);
    play.observe(Observation::Object(kind, None, Seen::Resumed));
    play.pass(4_000);
    // Idle for as long as that, it proves itself first.
    play.ask(|request| matches!(request, Request::WriteLessor { .. }));
}

#[test]
fn a_renewal_counts_from_when_it_is_seen_whatever_its_holder_calls_it() {
    let mut play = Play::follower();
    play.see_lease(|_| {});
    play.see_lease(granted);
    for named in ["2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"] {
        play.pass(3_000);
        play.see_lease(|lease| {
            granted(lease);
            lease["spec"]["renewTime"] = json!(named);
        });
        let deadline = play.replica.leases().deadline(Uuid::parse_str(UID).expect("a uid"));
        assert_eq!(deadline, Some(LeaseTime::from_duration(play.mono + Duration::from_secs(10))));
    }
}

#[test]
fn an_object_attached_to_a_living_lease_of_the_name_stays() {
    let mut play = Play::primary();
    grant(&mut play);
    play.see_map("whole", json!({"lessor.dev/lease": "cart"}));
    assert!(!play.asked.iter().any(|(_, request)| matches!(request, Request::Remove { .. })));
}

#[test]
fn a_follower_acts_only_after_a_fresh_look_at_what_is_overdue() {
    let mut play = Play::follower();
    play.see_lease(granted);
    // The TTL, what the recorded time leaves open, and the head start of the incumbent.
    play.pass_as_follower(10_000 + 3_000 + 2_400);
    assert_eq!(play.asked, []);
    play.pass_as_follower(100);
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    let mut lessor = play.lessor(json!({"primary": "other_1", "term": 1}));
    lessor.metadata.resource_version = Some("1".to_owned());
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(granted);
    play.answer(ticket, Answer::Lease(lease));
    let (_, request) = &play.asked[0];
    let Request::WriteLessor { status, .. } = request else { panic!("{request:?}") };
    assert_eq!((&status["primary"], &status["term"]), (&json!(ME), &json!(2)));
}

#[test]
fn a_follower_that_misses_the_primary_before_a_deadline_asks_until_it_takes_over() {
    let mut play = Play::follower();
    play.see_lease(granted);
    // The TTL, and what the recorded time leaves open, but for half a second in which a primary would have been seen.
    play.pass(13_000 - 600);
    assert_eq!(play.asked, []);
    play.pass(200);
    let [ticket] = *play.probes() else { panic!("{:?}", play.asked) };
    // One at a time, and once per second.
    play.pass(1_000);
    assert_eq!(play.asked.len(), 1, "{:?}", play.asked);
    let lessor = play.lessor_at(1, json!({"primary": "other_1", "term": 1}));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    play.pass(900);
    assert_eq!(play.asked, []);
    play.pass(200);
    assert_eq!(play.probes().len(), 1, "{:?}", play.asked);
}

#[test]
fn a_follower_that_hears_the_primary_before_a_deadline_and_at_it_asks_nothing() {
    let mut play = Play::follower();
    play.see_lease(granted);
    play.pass(13_000 - 800);
    let proof =
        play.lessor(json!({"primary": "other_1", "term": 1, "provedTime": "2027-01-15T08:00:12.000000Z"}));
    play.observe(Observation::Lessor(Seen::There(Box::new(proof))));
    play.pass(1_200);
    play.see_lease(ended);
    play.pass(1_000);
    assert_eq!(play.asked, []);
}

#[test]
fn a_primary_shows_itself_before_a_deadline_though_its_writer_lease_has_not_lapsed() {
    let mut play = Play::primary();
    let short = |lease: &mut Value| {
        granted(lease);
        lease["spec"]["ttlSeconds"] = json!(3);
        lease["status"]["grantedTTLSeconds"] = json!(3);
        lease["status"]["expiryTime"] = json!("2027-01-15T08:00:03.100000Z");
    };
    play.see_lease(|lease| lease["spec"]["ttlSeconds"] = json!(3));
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    let lease = play.lease(short);
    play.answer(ticket, Answer::Lease(lease));
    play.pass(1_900);
    assert_eq!(play.asked, []);
    play.pass(200);
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    // Once is enough, for followers and for the end itself.
    play.pass(850);
    assert_eq!(play.asked, []);
    play.pass(100);
    assert_eq!(play.status_written().map(|(_, status)| status["endTime"].is_string()), Some(true));
}

#[test]
fn a_lease_is_held_as_it_was_granted_whatever_this_replica_would_grant() {
    let mut play = Play::follower();
    play.see_lease(|_| {});
    // By this replica's settings it would be 10 s.
    let as_granted = |lease: &mut Value| {
        granted(lease);
        lease["status"]["grantedTTLSeconds"] = json!(20);
        lease["status"]["expiryTime"] = json!("2027-01-15T08:00:20.100000Z");
    };
    play.see_lease(as_granted);
    play.pass(10_000);
    play.see_lease(|lease| {
        as_granted(lease);
        lease["spec"]["renewTime"] = json!("2027-01-15T08:00:10Z");
    });
    play.pass(19_400);
    assert_eq!(play.asked, [], "it is not due, so there is no reason to take over");
    play.pass_as_follower(3_600);
    play.ask(|request| matches!(request, Request::ReadLessor));
}

#[test]
fn a_maximum_lifetime_counts_from_a_grant_by_clocks_that_may_differ() {
    let mut play = Play::follower();
    play.pass(8_000);
    play.see_lease(|lease| {
        granted(lease);
        lease["spec"] = json!({"ttlSeconds": 100, "maxLifetimeSeconds": 12});
        lease["status"]["grantedTTLSeconds"] = json!(100);
    });
    // 12 s after its grant, and what the recorded time and the skew of the servers' clocks leave open.
    let uid = Uuid::parse_str(UID).expect("a uid");
    let deadline = play.replica.leases().deadline(uid);
    assert_eq!(deadline, Some(LeaseTime::from_duration(Duration::from_secs(12 + 1 + 2))));
}

#[test]
fn a_grant_that_is_seen_late_is_no_reason_to_take_over() {
    let mut play = Play::follower();
    play.see_lease(|_| {});
    play.pass(4_000);
    // Granted at 08:00:00 by the API server's clock; this replica's watch is late.
    play.see_lease(|lease| {
        granted(lease);
        lease["metadata"]["managedFields"] = json!([{"manager": "lessor-grant", "operation": "Update", "subresource": "status",
            "time": "2027-01-15T08:00:00Z", "fieldsV1": {"f:status": {}}}]);
    });
    play.pass(9_000);
    assert_eq!(play.asked, []);
}

#[test]
fn a_grant_that_was_accepted_late_gets_its_time_corrected() {
    let mut play = Play::primary();
    play.see_lease(|_| {});
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    let lease = play.lease(|lease| {
        granted(lease);
        lease["metadata"]["managedFields"] = json!([{"manager": "lessor-grant", "operation": "Update", "subresource": "status",
            "time": "2027-01-15T08:00:04Z", "fieldsV1": {"f:status": {}}}]);
    });
    play.answer(ticket, Answer::Lease(lease));
    let (_, status) = play.status_written().expect("a correction");
    assert_eq!(status["grantTime"], "2027-01-15T08:00:04.000000Z");
}

#[test]
fn a_changed_ttl_is_granted_anew_and_published() {
    let mut play = Play::primary();
    grant(&mut play);
    play.see_lease(|lease| {
        granted(lease);
        lease["spec"]["ttlSeconds"] = json!(30);
    });
    // A renewal before that is published changes nothing about it.
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    play.answer(ticket, Answer::Refused(Refusal::Conflict));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(|lease| {
        granted(lease);
        lease["spec"] = json!({"ttlSeconds": 30, "renewTime": "2027-01-15T08:00:01Z"});
    });
    play.answer(ticket, Answer::Lease(lease));
    assert_eq!(play.status_written().expect("a correction").1["grantedTTLSeconds"], 30);
}

#[test]
fn a_lessor_that_was_deleted_is_made_anew_by_its_primary_under_a_new_term() {
    let mut play = Play::primary();
    let gone = play.lessor(json!({"primary": ME, "term": 1}));
    play.observe(Observation::Lessor(Seen::Gone(Box::new(gone.clone()))));
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    play.answer(ticket, Answer::Gone);
    let ticket = play.ask(|request| matches!(request, Request::CreateLessor));
    let lessor = play.lessor(json!({}));
    let term = i64::try_from(play.version).expect("a term");
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    let ticket =
        play.ask(|request| matches!(request, Request::WriteLessor { status, .. } if status["term"] == term));
    let lessor = play.lessor(json!({"primary": ME, "term": term}));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    // News of the deletion that comes late changes nothing.
    play.observe(Observation::Lessor(Seen::Gone(Box::new(gone))));
    assert_eq!((play.replica.leads(), &*play.asked), (Some(term), &[][..]));
}

#[test]
fn a_sign_of_the_incumbent_keeps_a_follower_from_claiming() {
    let mut play = Play::follower();
    play.see_lease(granted);
    play.pass_as_follower(19_000);
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    let lessor =
        play.lessor(json!({"primary": "other_1", "term": 1, "provedTime": "2027-01-15T08:00:12.000000Z"}));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    assert_eq!(play.asked, []);
}

#[test]
fn a_removal_by_the_incumbent_is_a_sign_of_it_though_it_carries_no_term() {
    let mut play = Play::follower();
    play.see_map("one", json!({"lessor.dev/lease": "cart"}));
    play.see_map("two", json!({"lessor.dev/lease": "cart"}));
    play.see_lease(ended);
    let gone = |name: &str| {
        let meta = json!({"namespace": "shop", "name": name, "uid": UID, "resourceVersion": "100"});
        let meta = serde_json::from_value(meta).expect("metadata");
        Observation::Object(Arc::new(Kind::config_map()), None, Seen::Gone(Box::new(meta)))
    };
    play.pass(4_000);
    play.observe(gone("one"));
    play.pass(4_000);
    play.observe(gone("two"));
    play.pass(4_000);
    play.see_lease(|lease| {
        ended(lease);
        lease["metadata"]["finalizers"] = json!([]);
    });
    play.pass(4_000);
    assert_eq!(play.asked, [], "nobody has been silent for a lease duration");
    play.pass(1_500);
    play.ask(|request| matches!(request, Request::ReadLessor));
}

#[test]
fn a_primary_that_sees_a_higher_term_gives_up_what_is_under_way() {
    let mut play = Play::primary();
    play.see_lease(|_| {});
    play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    let lessor = play.lessor(json!({"primary": "other_1", "term": 2}));
    play.observe(Observation::Lessor(Seen::There(Box::new(lessor))));
    assert_eq!(play.replica.leads(), None);
    assert_eq!(play.asked, []);
}

/// Lets the primary find that the lease carries a term of 9, above its own. It asks at once who is primary.
fn refused_for_its_term(play: &mut Play) -> Ticket {
    play.see_lease(|_| {});
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    play.answer(ticket, Answer::Refused(Refusal::LowerTerm));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(|lease| lease["status"] = json!({"term": 9}));
    play.answer(ticket, Answer::Lease(lease));
    assert_eq!(play.replica.leads(), None);
    play.ask(|request| matches!(request, Request::ReadLessor))
}

#[test]
fn a_primary_that_is_refused_for_its_term_claims_a_higher_one_at_once() {
    let mut play = Play::primary();
    let version = play.version;
    let ticket = refused_for_its_term(&mut play);
    let lessor = play.lessor_at(version, json!({"primary": ME, "term": 1}));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    let ticket =
        play.ask(|request| matches!(request, Request::WriteLessor { status, .. } if status["term"] == 10));
    let lessor = play.lessor(json!({"primary": ME, "term": 10}));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    assert_eq!(play.replica.leads(), Some(10));
    let (_, status) = play.status_written().expect("the grant");
    assert_eq!(status["term"], 10);
}

#[test]
fn a_primary_that_is_refused_for_its_term_follows_whoever_has_taken_over() {
    let mut play = Play::primary();
    let ticket = refused_for_its_term(&mut play);
    let lessor = play.lessor(json!({"primary": "other_1", "term": 9}));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    play.pass(4_000);
    assert_eq!(play.asked, []);
    assert_eq!(play.replica.leads(), None);
}

#[test]
fn a_hindered_release_is_no_work_to_take_over_for() {
    let mut play = Play::follower();
    play.see_map("stuck", json!({"lessor.dev/lease": "cart"}));
    play.see_lease(|lease| {
        ended(lease);
        let hindered = json!({"type": "Released", "status": "False", "reason": "Hindered",
            "message": "configmap shop/stuck: it is immutable", "lastTransitionTime": "2027-01-15T08:00:10Z"});
        lease["status"]["conditions"].as_array_mut().expect("conditions").push(hindered);
    });
    play.pass(60_000);
    assert_eq!(play.asked, []);
}

#[test]
fn an_absurd_term_stands_in_nobodys_way() {
    let mut play = Play::follower();
    play.see_lease(|lease| {
        granted(lease);
        lease["status"]["term"] = json!(i64::MAX);
    });
    play.pass(120_000);
    assert_eq!(play.asked, []);
}

#[test]
fn a_lease_of_an_absurd_term_goes_when_it_is_deleted_and_what_is_attached_to_it_stays() {
    let mut play = Play::primary();
    play.see_map("whole", json!({"lessor.dev/lease": "cart"}));
    let absurd = |lease: &mut Value| {
        granted(lease);
        lease["status"]["term"] = json!(i64::MAX);
    };
    play.see_lease(absurd);
    play.pass(60_000);
    assert_eq!(play.asked, []);
    play.see_lease(|lease| {
        absurd(lease);
        lease["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:01:00Z");
    });
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    let ticket = play
        .ask(|request| matches!(request, Request::SetFinalizers { finalizers, .. } if finalizers.is_empty()));
    let lease = play.lease(|lease| {
        absurd(lease);
        lease["metadata"]["finalizers"] = json!([]);
        lease["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:01:00Z");
    });
    play.answer(ticket, Answer::Lease(lease));
    play.pass(10_000);
    assert_eq!(play.asked, []);
    assert!(play.notices.iter().any(|notice| notice.reason == "Abandoned"), "{:?}", play.notices);
}

#[test]
fn a_dry_run_removes_nothing_and_says_what_it_would() {
    let mut play = Play::primary();
    play.replica.settings.dry_run = true;
    play.see_map("whole", json!({"lessor.dev/lease": "cart"}));
    play.see_lease(ended);
    play.pass(60_000);
    assert_eq!(play.asked, []);
    assert!(
        play.notices
            .iter()
            .any(|notice| notice.reason == "WouldRelease" && notice.note.contains("shop/whole"))
    );
}

#[test]
fn statuses_are_brought_up_to_date_in_turn_as_the_budget_allows() {
    const LEASES: usize = 60;
    let mut play = Play::primary();
    let one = |lease: &mut Value, number: usize, counted: usize| {
        granted(lease);
        lease["metadata"]["name"] = json!(format!("cart-{number}"));
        lease["metadata"]["uid"] = json!(Uuid::from_u128(number as u128).to_string());
        lease["status"]["attached"]["objects"] = json!(counted);
    };
    for number in 0..LEASES {
        play.see_lease(|lease| one(lease, number, 3));
    }
    let (begun, mut turns) = (play.mono, Vec::new());
    while turns.len() < LEASES {
        for (ticket, request) in play.asked.clone() {
            let Request::WriteStatus { uid, status, .. } = request else { panic!("asked {request:?}") };
            assert_eq!(status["attached"]["objects"], 0);
            let number = uid.as_u128() as usize;
            turns.push(number);
            let lease = play.lease(|lease| one(lease, number, 0));
            play.answer(ticket, Answer::Lease(lease));
        }
        play.pass(10);
    }
    assert!(turns.is_sorted(), "{turns:?}");
    // Twenty a second by default, and as many at once at first.
    let took = play.mono - begun;
    assert!((Duration::from_millis(1_900)..Duration::from_millis(2_200)).contains(&took), "{took:?}");
    assert_eq!(play.replica.refresh_at(&play.now()), None);
    play.pass(1_000);
    assert_eq!(play.asked, []);
}

#[test]
fn a_status_that_a_deposed_primary_did_not_bring_up_to_date_any_more_is_no_reason_to_take_over() {
    let mut play = Play::primary();
    // The server asks for patience, so its turn comes, and nothing more.
    play.replica.patient_until = play.mono + Duration::from_secs(60);
    play.see_lease(|lease| {
        granted(lease);
        lease["spec"]["ttlSeconds"] = json!(3600);
        lease["status"]["grantedTTLSeconds"] = json!(3600);
        lease["status"]["attached"]["objects"] = json!(3);
    });
    assert_eq!(play.asked, []);
    let lessor = play.lessor(json!({"primary": "other_1", "term": 2}));
    play.observe(Observation::Lessor(Seen::There(Box::new(lessor))));
    assert_eq!((play.replica.leads(), play.replica.queued()), (None, 0));
    play.replica.patient_until = play.mono;
    play.pass(60_000);
    assert_eq!(play.asked, []);
}

#[test]
fn a_stop_ends_with_the_lead_given_back() {
    let mut play = Play::primary();
    play.replica.stop(play.mono + Duration::from_secs(2));
    play.poll();
    let ticket = play.ask(
        |request| matches!(request, Request::WriteLessor { status, .. } if status["primary"].is_null() && status["term"] == 1),
    );
    assert!(!play.replica.has_stopped());
    let lessor = play.lessor(json!({"term": 1}));
    play.answer(ticket, Answer::Lessor(Box::new(lessor)));
    assert!(play.replica.has_stopped());
}

#[test]
fn a_stop_waits_for_what_is_under_way_and_begins_nothing() {
    let mut play = Play::primary();
    play.see_map("one", json!({"lessor.dev/lease": "cart"}));
    play.see_lease(ended);
    let ticket = play.ask(|request| matches!(request, Request::Remove { .. }));
    play.replica.stop(play.mono + Duration::from_secs(2));
    play.see_map("two", json!({"lessor.dev/lease": "cart"}));
    play.pass(1_000);
    play.ask(|request| matches!(request, Request::Remove { .. }));
    play.answer(ticket, Answer::Deleted);
    play.ask(|request| matches!(request, Request::WriteLessor { status, .. } if status["primary"].is_null()));
}
