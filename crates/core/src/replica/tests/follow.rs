//! Leases that follow something.

use k8s_openapi::jiff::SignedDuration;

use super::*;
use crate::index::sources::{FollowState, NODE_NAMESPACE, SourceState, SourceStatus};

impl Play {
    /// A primary that may watch all kinds of sources, with a lease of 10 s that follows `from`, granted.
    fn following(from: Value) -> Self {
        Self::with_spec(&spec(&from))
    }

    /// The same, with a lease of this spec.
    fn with_spec(spec: &Value) -> Self {
        let mut play = Self::primary();
        play.replica.index.sources = SourceIndex::new(SourceKind::ALL, true);
        play.see_lease(|lease| lease["spec"] = spec.clone());
        assert_eq!(play.settle(spec), 1, "the grant");
        play
    }

    fn heartbeat(&mut self, renew_time: &str) -> SourceState {
        let version = self.next_version().parse().expect("a version");
        let status =
            SourceStatus::Heartbeat { uid: Uuid::nil(), renew_time: Some(renew_time.into()), recorded: None };
        SourceState { name: NamespacedName::new(NODE_NAMESPACE, "worker"), version, status }
    }

    fn pod(&mut self, finished: bool) -> SourceState {
        let version = self.next_version().parse().expect("a version");
        let status = SourceStatus::Pod { uid: UID.parse().expect("a uid"), finished, grace_ends: None };
        SourceState { name: NamespacedName::new("shop", "web"), version, status }
    }

    /// A Pod that was deleted, with so many seconds of its grace period left.
    fn terminating_pod(&mut self, grace: i64) -> SourceState {
        let mut pod = self.pod(false);
        if let SourceStatus::Pod { grace_ends, .. } = &mut pod.status {
            *grace_ends = Some(self.now().wall + SignedDuration::from_secs(grace));
        }
        pod
    }

    fn see(&mut self, kind: SourceKind, source_state: SourceState) {
        let source_watch = SourceWatch { kind, namespace: None, name: None };
        self.observe(Observation::Source(source_watch, Event::Applied(Box::new(source_state))));
    }

    fn beat(&mut self, renew_time: &str) {
        let heartbeat = self.heartbeat(renew_time);
        self.see(SourceKind::Node, heartbeat);
    }

    /// Does what is asked until a request of this kind is, which stays unanswered.
    fn until(&mut self, is: impl Fn(&Request) -> bool) -> Ticket {
        for _ in 0..10 {
            if let Some((ticket, _)) = self.asked.iter().find(|(_, request)| is(request)) {
                return *ticket;
            }
            for (ticket, request) in self.asked.clone() {
                match request {
                    Request::WriteLessor { .. } | Request::ReadLessor => {
                        let lessor = self.lessor(json!({"primary": ME, "term": 1}));
                        self.answer(ticket, Response::Lessor(Box::new(lessor)));
                    }
                    _ => self.answer(ticket, Response::Refused(RequestError::Conflict)),
                }
            }
            self.pass(10);
        }
        panic!("asked {:#?}", self.asked)
    }

    /// Answers writes of status as the server would, and counts them.
    fn settle(&mut self, spec: &Value) -> usize {
        let mut writes = 0;
        loop {
            let write = self.asked.iter().find_map(|(ticket, request)| match request {
                Request::WriteStatus { status, .. } => Some((*ticket, status.clone())),
                _ => None,
            });
            let Some((ticket, status)) = write else { return writes };
            let lease = self.lease(|lease| {
                lease["spec"] = spec.clone();
                lease["status"] = status;
            });
            self.answer(ticket, Response::Lease(lease));
            writes += 1;
        }
    }
}

fn node() -> Value {
    json!({"node": {"name": "worker"}})
}

fn spec(from: &Value) -> Value {
    json!({"ttlSeconds": 10, "renewFrom": from})
}

fn is_end(request: &Request) -> bool {
    matches!(request, Request::WriteStatus { status, .. } if status["endTime"].is_string())
}

fn reads_source(request: &Request) -> bool {
    matches!(request, Request::ReadSource { .. })
}

#[test]
fn beats_keep_a_lease_alive_without_a_request() {
    let mut play = Play::following(node());
    play.beat("0");
    assert_eq!(play.settle(&spec(&node())), 1, "the condition");
    for n in 1..10 {
        play.pass(9_000);
        play.asked
            .retain(|(_, request)| !matches!(request, Request::WriteLessor { .. } | Request::ReadLessor));
        assert_eq!(play.asked, []);
        play.beat(&n.to_string());
        assert_eq!(play.asked, []);
    }
}

#[test]
fn while_its_source_lives_no_expiry_is_published() {
    let mut play = Play::following(node());
    play.beat("0");
    let (_, status) = play.status_written().expect("the condition");
    assert_eq!(status["expiryTime"], Value::Null);
    assert_eq!(status["follows"], json!({"source": "node/worker", "uid": null}));
    let following =
        status["conditions"].as_array().expect("conditions").iter().find(|c| c["type"] == "Following");
    assert_eq!(following.expect("a condition")["reason"], "SourceAlive");
}

#[test]
fn a_lease_ends_only_after_its_source_was_read_at_its_deadline() {
    let mut play = Play::following(node());
    play.beat("0");
    play.settle(&spec(&node()));
    play.pass(10_000);
    let ticket = play.until(reads_source);
    assert!(!play.asked.iter().any(|(_, request)| is_end(request)));
    // The watch was late: it had beaten.
    let heartbeat = play.heartbeat("1");
    play.answer(ticket, Response::Source(Box::new(heartbeat.clone())));
    play.pass(9_000);
    assert!(!play.asked.iter().any(|(_, request)| is_end(request) || reads_source(request)));
    play.pass(1_500);
    let ticket = play.until(reads_source);
    play.answer(ticket, Response::Source(Box::new(heartbeat)));
    play.until(is_end);
}

/// What it follows is read one after the other, and all of it takes longer than what was read first is new.
#[test]
fn a_lease_ends_though_a_chain_of_sources_is_read_slowly() {
    const ANSWER: u64 = 300;
    let from = |name: &str| json!({"lease": {"name": name}});
    let mut play = Play::following(from("b"));
    let chain = [("b", from("c")), ("c", from("d")), ("d", from("e")), ("e", node())].map(|(name, from)| {
        let lease = play.lease(|lease| {
            granted(lease);
            lease["metadata"]["name"] = json!(name);
            lease["metadata"]["uid"] = json!(format!("{name:0>8}-95a5-4bb1-8f0b-5b2a6e1f6f10"));
            lease["spec"] = json!({"ttlSeconds": 60, "renewFrom": from});
            lease["status"]["grantedTTLSeconds"] = json!(60);
            lease["status"]["expiryTime"] = json!("2027-01-15T08:01:00.100000Z");
        });
        play.observe(Observation::Lease(None, Event::Applied(lease.clone())));
        (name, lease)
    });
    let heartbeat = play.heartbeat("0");
    play.see(SourceKind::Node, heartbeat.clone());
    let begun = play.mono;
    while play.mono < begun + Duration::from_secs(14) {
        let asked = play.asked.clone();
        play.pass(ANSWER);
        for (ticket, request) in asked {
            let is_of_cart = request.lease().is_some_and(|lease| &*lease.name == "cart");
            match request {
                Request::WriteStatus { status, .. } if is_of_cart && status["endTime"].is_string() => return,
                Request::WriteStatus { status, .. } if is_of_cart => {
                    let lease = play.lease(|lease| {
                        lease["spec"] = spec(&from("b"));
                        lease["status"] = status;
                    });
                    play.answer(ticket, Response::Lease(lease));
                }
                Request::ReadLease { lease } => {
                    let (_, known) =
                        chain.iter().find(|(name, _)| **name == *lease.name).expect("one of the chain");
                    play.answer(ticket, Response::Lease(known.clone()));
                }
                Request::ReadSource { .. } => {
                    play.answer_of_another_kind(ticket, Response::Source(Box::new(heartbeat.clone())));
                }
                Request::WriteLessor { .. } | Request::ReadLessor => {
                    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
                    play.answer(ticket, Response::Lessor(Box::new(lessor)));
                }
                // The reports on the others may wait.
                _ => {}
            }
        }
    }
    panic!("it doesn't end: asked {:#?}", play.asked);
}

#[test]
fn what_was_read_before_an_outage_was_noticed_counts_for_no_end_after_it() {
    let mut play = Play::following(node());
    play.beat("0");
    let status = play.status_written().expect("the condition").1.clone();
    play.settle(&spec(&node()));
    let heartbeat = play.heartbeat("0");
    play.pass(10_000);
    let ticket = play.until(reads_source);
    play.answer(ticket, Response::Source(Box::new(heartbeat.clone())));
    let ticket = play.until(is_end);
    // The server was silent for a while, and lease time stood still.
    play.held = Duration::from_millis(300);
    let lease = play.lease(|lease| {
        lease["spec"] = spec(&node());
        lease["status"] = status;
    });
    play.answer(ticket, Response::Refused(RequestError::Conflict));
    let ticket = play.until(|request| matches!(request, Request::ReadLease { .. }));
    play.answer(ticket, Response::Lease(lease));
    play.pass(300);
    assert!(!play.asked.iter().any(|(_, request)| is_end(request)), "{:#?}", play.asked);
    let ticket = play.until(reads_source);
    play.answer(ticket, Response::Source(Box::new(heartbeat)));
    play.until(is_end);
}

#[test]
fn what_was_asked_before_the_deadline_counts_for_no_end_however_late_the_answer_comes() {
    let mut play = Play::following(node());
    let heartbeat = play.heartbeat("0");
    let place = heartbeat.name.clone();
    let source_watch = SourceWatch {
        kind: SourceKind::Node,
        namespace: Some(place.namespace.clone()),
        name: Some(place.name.clone()),
    };
    // It is there, and was reported before a lease followed it, so it has to be read.
    play.observe(Observation::Source(source_watch, Event::Synced([place].into())));
    let late = play.until(reads_source);
    play.asked.retain(|(ticket, _)| *ticket != late);
    play.pass(10_100);
    let ticket = play.until(reads_source);
    play.answer(ticket, Response::Refused(RequestError::Failing("busy".to_owned())));
    play.answer(late, Response::Gone);
    assert!(!play.asked.iter().any(|(_, request)| is_end(request)), "{:#?}", play.asked);
    let ticket = play.until(reads_source);
    play.answer(ticket, Response::Gone);
    play.until(is_end);
}

#[test]
fn a_source_is_read_right_after_the_api_server_stops_throttling() {
    let mut play = Play::following(node());
    let place = play.heartbeat("0").name;
    let source_watch = SourceWatch {
        kind: SourceKind::Node,
        namespace: Some(place.namespace.clone()),
        name: Some(place.name.clone()),
    };
    play.replica.requests.throttle(play.mono + Duration::from_secs(3));
    play.observe(Observation::Source(source_watch, Event::Synced([place].into())));
    assert_eq!(play.asked, []);
    assert_eq!(play.replica.wake_at(&play.now()), Some(play.replica.requests.throttled_until()));
    play.pass(3_000);
    play.ask(reads_source);
}

#[test]
fn a_lease_does_not_end_as_long_as_its_source_may_not_be_read() {
    let mut play = Play::following(node());
    play.pass(10_000);
    let ticket = play.until(reads_source);
    play.answer(ticket, Response::Refused(RequestError::Forbidden("no".to_owned())));
    assert_eq!(play.settle(&spec(&node())), 1, "the condition");
    assert!(play.user_events.iter().any(|notice| notice.reason == "NotFollowing"));
    play.pass(14_000);
    assert!(!play.asked.iter().any(|(_, request)| is_end(request)));
    // It tries again, by and by.
    play.pass(2_000);
    let ticket = play.until(reads_source);
    play.answer(ticket, Response::Gone);
    // It never was there, as far as anybody knows: nothing is left of the TTL. Now it is due, and not before it was asked for.
    let ticket = play.until(reads_source);
    play.answer(ticket, Response::Gone);
    play.until(is_end);
}

#[test]
fn a_pod_is_pinned_at_once_and_no_time_passes_while_it_lives() {
    let from = json!({"pod": {"name": "web"}});
    let mut play = Play::following(from.clone());
    let pod = play.pod(false);
    play.see(SourceKind::Pod, pod);
    let (_, status) = play.status_written().expect("the pin");
    assert_eq!(status["follows"], json!({"source": "pod/web", "uid": UID}));
    play.settle(&spec(&from));
    play.pass(60_000);
    assert!(!play.asked.iter().any(|(_, request)| is_end(request) || reads_source(request)));
    let pod = play.pod(true);
    play.see(SourceKind::Pod, pod);
    play.settle(&spec(&from));
    play.pass(9_900);
    assert!(!play.asked.iter().any(|(_, request)| is_end(request) || reads_source(request)));
    play.pass(200);
    let ticket = play.until(reads_source);
    let pod = play.pod(true);
    play.answer(ticket, Response::Source(Box::new(pod)));
    play.until(is_end);
}

/// A lease that is to end with its Pod, which was there and is gone.
fn pod_lost() -> Play {
    let from = json!({"pod": {"name": "web", "onLoss": "End"}});
    let mut play = Play::following(from.clone());
    let pod = play.pod(false);
    play.see(SourceKind::Pod, pod.clone());
    play.settle(&spec(&from));
    let source_watch = SourceWatch { kind: SourceKind::Pod, namespace: None, name: None };
    play.observe(Observation::Source(source_watch, Event::Deleted(Box::new(pod))));
    play
}

#[test]
fn a_lease_that_ends_on_loss_ends_at_once_after_one_more_read() {
    let mut play = pod_lost();
    let ticket = play.until(reads_source);
    play.answer(ticket, Response::Gone);
    play.until(is_end);
}

/// A primary that started after the grant of a lease with `onLoss: End`. The status has these `follows`, and the Pod is absent.
fn restored(follows: Value) -> Play {
    let mut play = Play::primary();
    play.replica.index.sources = SourceIndex::new(SourceKind::ALL, true);
    play.see_lease(|lease| {
        granted(lease);
        lease["spec"] = spec(&json!({"pod": {"name": "web", "onLoss": "End"}}));
        lease["status"]["follows"] = follows;
    });
    let source_watch = SourceWatch { kind: SourceKind::Pod, namespace: None, name: None };
    play.observe(Observation::Source(source_watch, Event::Synced(Default::default())));
    play
}

#[test]
fn a_restart_ends_no_lease_for_a_pod_that_may_never_have_existed() {
    // The status names another source, or no Pod was observed yet.
    for follows in [json!({"source": "node/worker"}), json!({"source": "pod/web", "uid": null})] {
        let mut play = restored(follows);
        play.pass(8_000);
        assert!(!play.asked.iter().any(|(_, request)| is_end(request) || reads_source(request)));
    }
    let mut play = restored(json!({"source": "pod/web", "uid": UID}));
    let ticket = play.until(reads_source);
    play.answer(ticket, Response::Gone);
    play.until(is_end);
}

#[test]
fn the_end_records_a_lost_pod_that_was_not_published_before() {
    let from = json!({"pod": {"name": "web", "onLoss": "End"}});
    let mut play = Play::following(from);
    let pod = play.pod(false);
    play.see(SourceKind::Pod, pod.clone());
    // The status write that names the Pod is in flight, and is refused.
    let source_watch = SourceWatch { kind: SourceKind::Pod, namespace: None, name: None };
    play.observe(Observation::Source(source_watch, Event::Deleted(Box::new(pod))));
    let ticket = play.until(|request| matches!(request, Request::WriteStatus { .. }));
    play.answer(ticket, Response::Refused(RequestError::Throttled(None)));
    play.pass(1_100);
    let ticket = play.until(reads_source);
    play.answer(ticket, Response::Gone);
    let ticket = play.until(is_end);
    let end = play.asked.iter().find(|(asked, _)| *asked == ticket);
    let Some((_, Request::WriteStatus { status, .. })) = end else { panic!("no end") };
    assert_eq!(status["follows"], json!({"source": "pod/web", "uid": UID}));
}

#[test]
fn a_lease_that_follows_itself_lives_by_renewals_of_its_own() {
    let from = json!({"lease": {"name": "cart"}});
    let mut play = Play::following(from.clone());
    play.pass(8_000);
    play.see_lease(|lease| {
        granted(lease);
        lease["spec"] = spec(&from);
        lease["spec"]["renewTime"] = json!("2027-01-15T08:00:08.000000Z");
    });
    play.pass(9_000);
    assert!(!play.asked.iter().any(|(_, request)| is_end(request)));
    play.pass(1_500);
    play.until(is_end);
}

#[test]
fn a_lease_that_has_the_name_of_another_follows_nothing_for_it() {
    const NEXT: &str = "7c2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10";
    const OTHER: &str = "8d2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10";
    let mut play = Play::follower();
    play.see_lease(|lease| {
        granted(lease);
        lease["spec"] = spec(&json!({"lease": {"name": "other"}}));
    });
    play.see_lease(|lease| {
        granted(lease);
        lease["metadata"]["name"] = json!("other");
        lease["metadata"]["uid"] = json!(OTHER);
        lease["spec"] = spec(&json!({"lease": {"name": "cart"}}));
    });
    let [first, other] = [UID, OTHER].map(|uid| uid.parse().expect("a uid"));
    assert!(matches!(play.replica.follows().state_of(other), Some(FollowState::Refused(_))), "a circle");
    // The end of the first was not observed.
    play.see_lease(|lease| {
        granted(lease);
        lease["metadata"]["uid"] = json!(NEXT);
    });
    assert_eq!(play.replica.follows().state_of(first), None);
    assert_eq!(play.replica.follows().state_of(other), Some(FollowState::Alive { paused: false }));
}

#[test]
fn what_the_loss_of_a_pod_did_is_undone_for_a_lease_that_follows_it_no_more() {
    let mut play = pod_lost();
    play.see_lease(|lease| {
        granted(lease);
        lease["spec"]["ttlSeconds"] = json!(10);
    });
    play.pass(9_000);
    assert!(!play.asked.iter().any(|(_, request)| is_end(request)));
}

#[test]
fn a_maximum_lifetime_asks_no_source() {
    let spec = json!({"ttlSeconds": 10, "maxLifetimeSeconds": 20, "renewFrom": {"pod": {"name": "web"}}});
    let mut play = Play::with_spec(&spec);
    let pod = play.pod(false);
    play.see(SourceKind::Pod, pod);
    play.settle(&spec);
    play.pass(19_900);
    assert!(!play.asked.iter().any(|(_, request)| is_end(request)));
    play.pass(200);
    play.until(is_end);
}

#[test]
fn a_replica_whose_own_watch_is_late_does_not_take_over() {
    let mut play = Play::follower();
    play.replica.index.sources = SourceIndex::new(SourceKind::ALL, true);
    let follows = |lease: &mut Value| {
        granted(lease);
        lease["spec"] = spec(&node());
        lease["status"]["follows"] = json!({"source": "node/worker"});
    };
    play.see_lease(follows);
    play.beat("0");
    play.pass_as_follower(17_000);
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    let mut lessor = play.lessor(json!({"primary": "other_1", "term": 1}));
    lessor.metadata.resource_version = Some("1".to_owned());
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(follows);
    play.answer(ticket, Response::Lease(lease));
    let ticket = play.ask(reads_source);
    let heartbeat = play.heartbeat("1");
    play.answer(ticket, Response::Source(Box::new(heartbeat)));
    assert_eq!(play.asked, [], "it is not overdue");
}

/// The answers of a lease that follows a Pod which terminates: the reasons of its condition, and when it ended.
fn follows_to_the_end(on_loss: &str) -> (Vec<String>, u64) {
    let from = json!({"pod": {"name": "web", "onLoss": on_loss}});
    let mut play = Play::following(from.clone());
    let pod = play.pod(false);
    play.see(SourceKind::Pod, pod);
    play.settle(&spec(&from));
    let pod = play.terminating_pod(30);
    let begin = play.mono;
    play.see(SourceKind::Pod, pod.clone());
    let mut reasons = Vec::new();
    for _ in 0..300 {
        let reads: Vec<Ticket> = play
            .asked
            .iter()
            .filter(|(_, request)| reads_source(request))
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in reads {
            play.answer(ticket, Response::Source(Box::new(pod.clone())));
        }
        if play.asked.iter().any(|(_, request)| is_end(request)) {
            return (reasons, (play.mono - begin).as_secs());
        }
        let proofs: Vec<Ticket> = play
            .asked
            .iter()
            .filter(|(_, request)| matches!(request, Request::WriteLessor { .. } | Request::ReadLessor))
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in proofs {
            let lessor = play.lessor(json!({"primary": ME, "term": 1}));
            play.answer(ticket, Response::Lessor(Box::new(lessor)));
        }
        if let Some((_, status)) = play.status_written() {
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let reason = conditions.iter().find(|c| c["type"] == "Following").map(|c| c["reason"].clone());
            reasons.extend(reason.and_then(|reason| Some(reason.as_str()?.to_owned())));
            play.settle(&spec(&from));
        }
        play.pass(500);
    }
    panic!("it never ends: {reasons:?}")
}

#[test]
fn a_pod_that_terminates_for_ever_keeps_a_lease_alive_until_a_minute_after_its_grace_period() {
    let (reasons, seconds) = follows_to_the_end("RunOut");
    assert_eq!(reasons, ["SourceTerminating"]);
    assert!((100..=101).contains(&seconds), "30 s, a minute, and the TTL of 10 s: {seconds}");
    let (_, seconds) = follows_to_the_end("End");
    assert!((90..=91).contains(&seconds), "30 s and a minute: {seconds}");
}

#[test]
fn a_change_of_a_pod_that_terminates_for_too_long_does_not_revive_it() {
    let from = json!({"pod": {"name": "web"}});
    let mut play = Play::following(from.clone());
    let pod = play.pod(false);
    play.see(SourceKind::Pod, pod);
    let pod = play.terminating_pod(0);
    play.see(SourceKind::Pod, pod);
    play.pass(59_000);
    let uid = UID.parse().expect("a uid");
    let state = |play: &Play| play.replica.index.sources.state_of(uid);
    assert_eq!(state(&play), Some(FollowState::Alive { paused: true }));
    play.pass(2_000);
    assert_eq!(state(&play), Some(FollowState::Lost("SourceTerminating")));
    let pod = play.terminating_pod(-61);
    play.see(SourceKind::Pod, pod);
    assert_eq!(state(&play), Some(FollowState::Lost("SourceTerminating")));
    // Another of its name is another Pod.
    let mut pod = play.pod(false);
    if let SourceStatus::Pod { uid, .. } = &mut pod.status {
        *uid = Uuid::nil();
    }
    play.see(SourceKind::Pod, pod);
    assert_eq!(state(&play), Some(FollowState::Lost("SourceReplaced")));
}

#[test]
fn an_outage_that_this_replica_has_met_uses_up_no_time_since_a_heartbeat_that_it_first_observes_afterwards() {
    let mut play = Play::follower();
    play.replica.index.sources = SourceIndex::new(SourceKind::ALL, true);
    play.mono += Duration::from_secs(60);
    play.hold(Duration::from_secs(25));
    play.see_lease(|lease| {
        granted(lease);
        lease["spec"] = spec(&node());
        lease["status"]["grantTime"] = json!("2027-01-15T07:00:00.000000Z");
    });
    let mut heartbeat = play.heartbeat("0");
    if let SourceStatus::Heartbeat { recorded, .. } = &mut heartbeat.status {
        *recorded = Some(play.now().wall - SignedDuration::from_secs(33));
    }
    play.see(SourceKind::Node, heartbeat);
    let (uid, _) = play.replica.leases().iter().next().expect("a lease");
    let time = play.replica.leases().granted_time(*uid, &play.now()).expect("its time");
    // Eight seconds, of which three are in doubt.
    assert_eq!(time.remaining, Duration::from_secs(10 - 8 + 3));
}

#[test]
fn at_a_cold_start_the_time_of_a_whole_chain_counts_from_the_renewal_at_its_end_in_whatever_order_it_is_listed()
 {
    let chain =
        [("a", json!({"lease": {"name": "b"}})), ("b", json!({"lease": {"name": "c"}})), ("c", json!(null))];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut play = Play::follower();
        play.replica = Replica::new(Settings::default());
        play.replica.index.sources = SourceIndex::new(SourceKind::ALL, true);
        for number in order {
            let (name, from) = &chain[number];
            play.see_lease(|lease| {
                granted(lease);
                lease["metadata"]["name"] = json!(name);
                lease["metadata"]["uid"] = json!(Uuid::from_u128(number as u128 + 1).to_string());
                lease["spec"] = json!({"ttlSeconds": 30, "renewFrom": from});
                lease["status"]["grantedTTLSeconds"] = json!(30);
                let second = if from.is_null() { "07:59:58" } else { "07:50:00" };
                lease["status"]["grantTime"] = json!(format!("2027-01-15T{second}.000000Z"));
            });
        }
        for (name, _) in &chain {
            let (uid, _) = play.replica.leases().at(&NamespacedName::new("shop", *name)).expect("a lease");
            let time = play.replica.leases().granted_time(uid, &play.now()).expect("its time");
            assert!(time.remaining >= Duration::from_secs(28), "{name}, {order:?}: {:?}", time.remaining);
        }
    }
}
