//! Being primary or not: looks, takeovers, terms, and leaving in order.

use lease_engine::clock::LeaseClock;

use super::*;

/// The lease is granted while a follower looks on: it knows when.
fn see_grant(play: &mut Play) {
    play.see_lease(|_| {});
    play.see_lease(granted);
}

/// The status of the `Lessor` in which another replica proved itself at this time.
fn proved(time: &str) -> Value {
    json!({"primary": "other_1", "term": 1, "provedTime": format!("2027-01-15T{time}Z")})
}

#[test]
fn a_follower_takes_over_only_after_a_read_of_the_overdue_lease() {
    let mut play = Play::follower();
    see_grant(&mut play);
    // The TTL, and the head start of the incumbent.
    play.pass_as_follower(10_000 + 2_400);
    assert_eq!(play.asked, []);
    play.pass_as_follower(100);
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    let lessor = play.lessor_at(play.lessor.0, play.lessor.1.clone());
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(granted);
    play.answer(ticket, Response::Lease(lease));
    assert_eq!(play.claim(), Some(2));
}

#[test]
fn a_follower_that_misses_the_primary_before_a_deadline_challenges_it_and_asks_until_it_takes_over() {
    let mut play = Play::follower();
    see_grant(&mut play);
    // But for half a second in which a primary would have been seen.
    play.pass(10_000 - 600);
    assert_eq!(play.asked, []);
    play.pass(200);
    let [ticket] = *play.probes() else { panic!("{:?}", play.asked) };
    play.ask(|request| match request {
        Request::WriteLessor { status, .. } => status["challengedBy"] == ME && status["primary"] == "other_1",
        _ => false,
    });
    // One at a time, and once per second.
    play.pass(900);
    assert_eq!(play.asked.len(), 1, "{:?}", play.asked);
    let lessor =
        json!({"primary": "other_1", "term": 1, "challengedBy": ME, "challengeTime": "2027-01-15T08:00:10Z"});
    let lessor = play.lessor(lessor);
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    play.pass(900);
    assert_eq!(play.asked, []);
    play.pass(200);
    assert_eq!(play.probes().len(), 1, "{:?}", play.asked);
    play.ask(|request| matches!(request, Request::ReadLessor));
}

#[test]
fn a_replica_that_was_started_in_an_outage_does_not_depose_the_primary_that_knows_better() {
    let mut play = Play::follower();
    play.see_lease(granted);
    // What is recorded of the lease is over. The primary has extended it, as nothing could be renewed.
    play.pass_as_follower(13_500);
    play.see_lessor(proved("08:00:13.500000"));
    assert_eq!(play.replica.leases().iter().filter(|(_, entry)| entry.recovered).count(), 1);
    // From its answer after the deadline on, it counts a whole TTL.
    play.pass_as_follower(2_000);
    play.see_lessor(proved("08:00:15.500000"));
    play.pass_as_follower(9_000);
    assert_eq!(play.asked, []);
    assert_eq!(play.replica.leases().iter().filter(|(_, entry)| entry.recovered).count(), 0);
    assert_eq!(play.claim(), None);
}

#[test]
fn a_primary_that_says_that_a_lease_is_overdue_is_left_in_peace_while_it_lives() {
    let mut play = Play::follower();
    see_grant(&mut play);
    play.pass_as_follower(11_000);
    for second in 0..60 {
        let mut status = proved(&format!("08:01:{second:02}.000000"));
        status["overdue"] = json!(1);
        play.see_lessor(status);
        play.pass_as_follower(1_500);
        assert_eq!(play.asked, []);
    }
    // It dies. That takes a lease duration, and not a whole TTL.
    play.pass_as_follower(5_000);
    play.confirm_overdue(granted);
    assert_eq!(play.claim(), Some(2));
}

#[test]
fn a_primary_answers_a_challenge_once() {
    let mut play = Play::primary();
    grant(&mut play);
    let challenged = |time: &str| {
        let mut status = json!({"primary": ME, "term": 1, "challengedBy": "other_1"});
        status["challengeTime"] = json!(format!("2027-01-15T{time}Z"));
        status
    };
    play.see_lessor(challenged("08:00:01.000000"));
    let ticket = play.ask(|request| match request {
        Request::WriteLessor { status, .. } => {
            status["challengedBy"].is_null()
                && status["provedTime"].is_string()
                && status["overdue"].is_null()
        }
        _ => false,
    });
    let lessor = play.lessor(json!({"primary": ME, "term": 1, "provedTime": "2027-01-15T08:00:01.000000Z"}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    play.pass(1_000);
    assert_eq!(play.asked, []);
    // A primary that can't end a lease says so.
    play.pass(8_000);
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    let lessor = play.lessor(json!({"primary": ME, "term": 1, "provedTime": "2027-01-15T08:00:09.000000Z"}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    play.pass(1_000);
    assert!(play.status_written().is_some_and(|(_, status)| status["endTime"].is_string()));
    play.see_lessor(challenged("08:00:10.000000"));
    let overdue = play.asked.iter().find_map(|(_, request)| match request {
        Request::WriteLessor { status, .. } => Some(status["overdue"].clone()),
        _ => None,
    });
    assert_eq!(overdue, Some(json!(1)));
}

#[test]
fn a_challenge_that_the_primary_does_not_answer_calls_another_replica_that_knows_more() {
    let challenge = json!({"primary": "other_1", "term": 1, "challengedBy": "third_1",
        "challengeTime": "2027-01-15T08:00:01.000000Z"});
    let mut knows = Play::follower();
    see_grant(&mut knows);
    let mut started = Play::follower();
    started.see_lease(granted);
    for play in [&mut knows, &mut started] {
        play.pass(5_000);
        play.see_lessor(challenge.clone());
        play.pass(3_000);
    }
    assert_eq!(started.asked, [], "it has to leave it to others");
    knows.confirm_overdue(granted);
    assert_eq!(knows.claim(), Some(2));
    // An answer would have kept it from that.
    let mut answered = Play::follower();
    see_grant(&mut answered);
    answered.pass(5_000);
    answered.see_lessor(challenge);
    answered.see_lessor(proved("08:00:05.000000"));
    answered.pass(4_000);
    assert_eq!(answered.asked, []);
}

#[test]
fn what_a_user_may_have_done_is_no_answer_to_a_challenge() {
    let mut play = Play::follower();
    see_grant(&mut play);
    // The primary is dead, and is challenged half a second before the deadline.
    play.pass_as_follower(9_700);
    play.see_lease(|lease| {
        ended(lease);
        lease["metadata"]["name"] = json!("old");
        lease["metadata"]["uid"] = json!("0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f11");
    });
    play.see_map("map", json!({"lessor.dev/lease": "old"}));
    play.pass_as_follower(2_000);
    // Its removal was due. A user detaches it.
    play.see_map("map", json!({}));
    play.pass_as_follower(1_000);
    play.confirm_overdue(granted);
    assert_eq!(play.claim(), Some(2));
}

#[test]
fn a_replica_in_its_start_grace_leaves_a_vacant_lessor_to_others_for_a_head_start() {
    let mut started = Play::follower();
    started.see_lease(granted);
    started.see_lessor(json!({"term": 1}));
    started.pass(2_400);
    assert_eq!(started.asked, []);
    started.pass(200);
    started.ask(|request| matches!(request, Request::ReadLessor));
    // One that knows the lease takes over at once.
    let mut knows = Play::follower();
    see_grant(&mut knows);
    knows.see_lessor(json!({"term": 1}));
    knows.pass(100);
    knows.ask(|request| matches!(request, Request::ReadLessor));
}

#[test]
fn a_long_grace_period_of_a_start_ends_when_the_primary_lives() {
    let long = |lease: &mut Value| {
        granted(lease);
        lease["spec"]["ttlSeconds"] = json!(600);
        lease["status"]["grantedTTLSeconds"] = json!(600);
        lease["status"]["grantTime"] = json!("2027-01-15T07:50:00.000000Z");
    };
    let remaining = |play: &Play| {
        let (uid, _) = play.replica.leases().iter().next().expect("a lease");
        play.replica.leases().granted_time(*uid, &play.now()).expect("its time").remaining.as_secs()
    };
    let mut play = Play::follower();
    play.see_lease(long);
    assert_eq!(remaining(&play), 200);
    play.see_lessor(json!({"primary": "third_1", "term": 2}));
    assert_eq!(remaining(&play), 200, "another replica that has just started knows no more");
    let mut play = Play::follower();
    play.see_lease(long);
    play.see_lessor(proved("08:00:01.000000"));
    assert_eq!(remaining(&play), 10);
}

#[test]
fn a_changed_cap_moves_by_the_difference_whatever_wall_clocks_show() {
    let mut play = Play::follower();
    let capped = |cap: i64| {
        move |lease: &mut Value| {
            granted(lease);
            lease["spec"] = json!({"ttlSeconds": 1000, "maxLifetimeSeconds": cap});
            lease["status"]["grantedTTLSeconds"] = json!(1000);
        }
    };
    play.see_lease(|lease| lease["spec"] = json!({"ttlSeconds": 1000, "maxLifetimeSeconds": 100}));
    play.see_lease(capped(100));
    // An outage, of which wall clocks know nothing.
    play.mono += Duration::from_secs(300);
    play.hold(Duration::from_secs(300));
    play.see_lease(capped(200));
    let (uid, _) = play.replica.leases().iter().next().expect("a lease");
    let time = play.replica.leases().granted_time(*uid, &play.now()).expect("its time");
    assert_eq!(time.remaining, Duration::from_secs(200));
}

/// Each answer takes from 1.05 to 2 s, and nothing else arrives. Lease time is measured as in the operator.
#[test]
fn a_follower_takes_over_in_a_quiet_cluster_whose_every_answer_takes_longer_than_a_second() {
    let mut play = Play::follower();
    see_grant(&mut play);
    let mut clock = LeaseClock::new(Duration::ZERO);
    let mut answers: Vec<(Duration, Ticket)> = Vec::new();
    let mut was_paused = false;
    let mut claimed = false;
    while play.mono < Duration::from_secs(120) && !claimed {
        play.mono += Duration::from_millis(50);
        let mono = play.mono;
        for (ticket, _) in &play.asked {
            if answers.iter().all(|(_, answered)| answered != ticket) {
                clock.sent(*ticket, mono);
                answers.push((mono + Duration::from_millis(1_050 + *ticket * 370 % 950), *ticket));
            }
        }
        for (_, ticket) in answers.extract_if(.., |(at, _)| *at <= mono).collect::<Vec<_>>() {
            clock.answered(ticket, mono);
            let request =
                play.asked.iter().find(|(asked, _)| *asked == ticket).map(|(_, asked)| asked.clone());
            claimed |= play.claim().is_some();
            let answer = match request {
                Some(Request::ReadLease { .. }) => Response::Lease(play.lease(granted)),
                Some(Request::WriteLessor { status, .. }) => Response::Lessor(Box::new(play.lessor(status))),
                _ => Response::Lessor(Box::new(play.lessor_at(play.lessor.0, play.lessor.1.clone()))),
            };
            play.heard = clock.last_response();
            play.held = clock.paused_total();
            play.answer_of_another_kind(ticket, answer);
        }
        play.heard = clock.last_response();
        play.held = mono.saturating_sub(clock.now(mono).since_start());
        play.disconnected = clock.is_paused(mono);
        if was_paused && !play.disconnected {
            play.replica.reconnected(&play.now());
        }
        was_paused = play.disconnected;
        if play.replica.wake_at(&play.now()).is_some_and(|at| at <= mono) {
            play.poll();
        }
    }
    assert!(claimed, "no takeover in two minutes");
}

/// How many requests a replica sends in half a minute to a server that answers within 10 ms, and can't write. Lease time is
/// measured as in the operator.
fn requests_to_a_full_store(mut play: Play, has_lessor: bool) -> usize {
    let mut clock = LeaseClock::new(play.mono);
    let mut sent = 0;
    let mut was_paused = false;
    let until = play.mono + Duration::from_secs(30);
    while play.mono < until {
        play.mono += Duration::from_millis(10);
        for (ticket, request) in play.asked.clone() {
            sent += 1;
            clock.sent(ticket, play.mono - Duration::from_millis(10));
            let answer = match request {
                Request::ReadLease { .. } => Response::Lease(play.lease(granted)),
                Request::ReadLessor if has_lessor => {
                    Response::Lessor(Box::new(play.lessor_at(play.lessor.0, play.lessor.1.clone())))
                }
                Request::ReadLessor => Response::Gone,
                _ => Response::Refused(RequestError::Failing("the storage is full".to_owned())),
            };
            if matches!(answer, Response::Refused(_)) {
                clock.write_failed(play.mono);
                clock.failed(ticket);
            } else {
                clock.answered(ticket, play.mono);
            }
            play.heard = clock.last_response();
            play.held = play.mono.saturating_sub(clock.now(play.mono).since_start());
            play.disconnected = clock.is_paused(play.mono);
            play.answer_of_another_kind(ticket, answer);
            if was_paused && !play.disconnected {
                play.replica.reconnected(&play.now());
            }
            was_paused = play.disconnected;
        }
        play.held = play.mono.saturating_sub(clock.now(play.mono).since_start());
        if play.replica.wake_at(&play.now()).is_some_and(|at| at <= play.mono) {
            play.poll();
        }
    }
    sent
}

#[test]
fn a_store_that_is_full_is_asked_for_the_lead_with_pauses_though_it_answers_reads() {
    // The primary is dead, and can't be challenged.
    let mut overdue = Play::follower();
    see_grant(&mut overdue);
    // There is no primary yet, and no Lessor.
    let mut missing = Play::new();
    missing.observe(Observation::Lessor(Event::Synced(Default::default())));
    // There is a Lessor, and it is vacant.
    let mut vacant = Play::follower();
    vacant.see_lessor(json!({"term": 1}));
    for (case, play, has_lessor) in
        [("overdue", overdue, true), ("missing", missing, false), ("vacant", vacant, true)]
    {
        let sent = requests_to_a_full_store(play, has_lessor);
        assert!((10..=150).contains(&sent), "{case}: {sent} requests in 30 s");
    }
}

#[test]
fn after_an_outage_a_request_that_is_never_answered_lets_no_probe_follow_another_without_pause() {
    let mut play = Play::follower();
    see_grant(&mut play);
    play.mono += Duration::from_secs(6);
    play.hold(Duration::from_secs(6));
    play.poll();
    let [lost] = *play.probes() else { panic!("{:?}", play.asked) };
    let mut probes = 0;
    for _ in 0..20 {
        play.pass(100);
        for ticket in play.probes() {
            if ticket != lost {
                probes += 1;
                let lessor = play.lessor_at(play.lessor.0, play.lessor.1.clone());
                play.answer(ticket, Response::Lessor(Box::new(lessor)));
            }
        }
    }
    assert!((1..=4).contains(&probes), "{probes} probes in two seconds");
}

#[test]
fn a_follower_that_observes_the_primary_before_and_at_a_deadline_sends_no_probe() {
    let mut play = Play::follower();
    play.see_lease(granted);
    play.pass(13_000 - 800);
    let proof =
        play.lessor(json!({"primary": "other_1", "term": 1, "provedTime": "2027-01-15T08:00:12.000000Z"}));
    play.observe(Observation::Lessor(Event::Applied(Box::new(proof))));
    play.pass(1_200);
    play.see_lease(ended);
    play.pass(1_000);
    assert_eq!(play.asked, []);
}

#[test]
fn a_primary_proves_itself_before_a_deadline_although_its_writer_lease_has_not_lapsed() {
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
    play.answer(ticket, Response::Lease(lease));
    play.pass(1_900);
    assert_eq!(play.asked, []);
    play.pass(200);
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    // Once is enough, for followers and for the end itself.
    play.pass(850);
    assert_eq!(play.asked, []);
    play.pass(100);
    assert_eq!(play.status_written().map(|(_, status)| status["endTime"].is_string()), Some(true));
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
fn a_lessor_that_was_deleted_is_made_anew_by_its_primary_under_a_new_term() {
    let mut play = Play::primary();
    let gone = play.lessor(json!({"primary": ME, "term": 1}));
    play.observe(Observation::Lessor(Event::Deleted(Box::new(gone.clone()))));
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    play.answer(ticket, Response::Gone);
    let ticket = play.ask(|request| matches!(request, Request::CreateLessor));
    let lessor = play.lessor(json!({}));
    let term = i64::try_from(play.version).expect("a term");
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    let ticket =
        play.ask(|request| matches!(request, Request::WriteLessor { status, .. } if status["term"] == term));
    let lessor = play.lessor(json!({"primary": ME, "term": term}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    // News of the deletion that comes late changes nothing.
    play.observe(Observation::Lessor(Event::Deleted(Box::new(gone))));
    assert_eq!((play.replica.leads(), &*play.asked), (Some(term), &[][..]));
}

#[test]
fn what_came_due_while_the_kind_of_the_lessor_was_gone_is_done_when_it_is_back() {
    let mut play = Play::primary();
    grant(&mut play);
    play.pass(9_990);
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    play.answer(ticket, Response::Refused(RequestError::NoSuchKind));
    play.pass(10);
    assert_eq!(play.asked, []);
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.observe(Observation::Lessor(Event::Applied(Box::new(lessor))));
    assert_eq!(play.replica.leads(), Some(1));
    assert_eq!(play.status_written().map(|(_, status)| status["endTime"].is_string()), Some(true));
}

#[test]
fn a_sign_of_the_incumbent_keeps_a_follower_from_claiming() {
    let mut play = Play::follower();
    play.see_lease(granted);
    play.pass_as_follower(19_000);
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    let lessor =
        play.lessor(json!({"primary": "other_1", "term": 1, "provedTime": "2027-01-15T08:00:12.000000Z"}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
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
        Observation::Object(Arc::new(Kind::config_map()), None, Event::Deleted(Box::new(meta)))
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
    assert_eq!(play.asked, [], "the primary has been silent for less than a lease duration");
    play.pass(1_500);
    play.ask(|request| matches!(request, Request::ReadLessor));
}

#[test]
fn a_primary_that_sees_a_higher_term_gives_up_what_is_under_way() {
    let mut play = Play::primary();
    play.see_lease(|_| {});
    play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    let lessor = play.lessor(json!({"primary": "other_1", "term": 2}));
    play.observe(Observation::Lessor(Event::Applied(Box::new(lessor))));
    assert_eq!(play.replica.leads(), None);
    assert_eq!(play.asked, []);
}

#[test]
fn a_removal_that_a_demotion_cut_off_is_work_to_take_over_for() {
    let mut play = Play::primary();
    play.see_map("one", json!({"lessor.dev/lease": "cart"}));
    play.see_lease(ended);
    play.ask(|request| matches!(request, Request::Remove { .. }));
    let lessor = play.lessor(json!({"primary": "other_1", "term": 2}));
    play.observe(Observation::Lessor(Event::Applied(Box::new(lessor))));
    assert_eq!((play.replica.leads(), &*play.asked), (None, &[][..]));
    // The next primary does nothing.
    play.pass(10_000);
    play.ask(|request| matches!(request, Request::ReadLessor));
}

/// Lets the primary find that the lease carries a term of 9, above its own. It asks at once who is primary.
fn refused_for_its_term(play: &mut Play) -> Ticket {
    play.see_lease(|_| {});
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    play.answer(ticket, Response::Refused(RequestError::LowerTerm));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(|lease| lease["status"] = json!({"term": 9}));
    play.answer(ticket, Response::Lease(lease));
    assert_eq!(play.replica.leads(), None);
    play.ask(|request| matches!(request, Request::ReadLessor))
}

#[test]
fn a_primary_that_is_refused_for_its_term_claims_a_higher_one_at_once() {
    let mut play = Play::primary();
    let version = play.version;
    let ticket = refused_for_its_term(&mut play);
    let lessor = play.lessor_at(version, json!({"primary": ME, "term": 1}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    let ticket =
        play.ask(|request| matches!(request, Request::WriteLessor { status, .. } if status["term"] == 10));
    let lessor = play.lessor(json!({"primary": ME, "term": 10}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    assert_eq!(play.replica.leads(), Some(10));
    let (_, status) = play.status_written().expect("the grant");
    assert_eq!(status["term"], 10);
}

#[test]
fn a_primary_that_is_refused_for_its_term_follows_the_replica_that_has_taken_over() {
    let mut play = Play::primary();
    let ticket = refused_for_its_term(&mut play);
    let lessor = play.lessor(json!({"primary": "other_1", "term": 9}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
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

/// Lets a follower see a lease that has ended, whose release is not done for this reason.
fn see_hindered(play: &mut Play, reason: &str) {
    play.see_lease(|lease| {
        ended(lease);
        let hindered = json!({"type": "Released", "status": "False", "reason": reason,
            "message": "configmap shop/stuck: no answer", "lastTransitionTime": "2027-01-15T08:00:10Z"});
        lease["status"]["conditions"].as_array_mut().expect("conditions").push(hindered);
    });
}

#[test]
fn a_hindrance_that_may_pass_is_taken_up_when_its_primary_shows_no_life() {
    let mut play = Play::follower();
    play.see_map("stuck", json!({"lessor.dev/lease": "cart"}));
    see_hindered(&mut play, "Retrying");
    for minute in 1..4 {
        play.pass(100_000);
        assert_eq!(play.asked, []);
        play.see_lessor(proved(&format!("08:0{minute}:00.000000")));
    }
    play.pass(119_000);
    assert_eq!(play.asked, []);
    play.pass(6_000);
    play.ask(|request| matches!(request, Request::ReadLessor));
}

#[test]
fn an_object_that_changes_after_its_hindrance_is_taken_up_unless_a_primary_lives() {
    for lives in [false, true] {
        let mut play = Play::follower();
        see_hindered(&mut play, "Hindered");
        play.see_map("stuck", json!({"lessor.dev/lease": "cart"}));
        play.pass(1_000);
        if lives {
            play.see_lessor(proved("08:00:01.000000"));
        }
        play.pass(300_000);
        assert_eq!(play.asked.is_empty(), lives, "{:?}", play.asked);
    }
}

#[test]
fn a_primary_whose_removal_keeps_failing_writes_well_within_the_patience_of_followers() {
    let mut play = Play::primary();
    play.see_map("stuck", json!({"lessor.dev/lease": "cart"}));
    see_hindered(&mut play, "Retrying");
    play.pass(0);
    let mut shown = Vec::new();
    let mut conditions = json!([]);
    let begin = play.mono;
    while play.mono < begin + Duration::from_secs(300) {
        play.pass(100);
        for (ticket, request) in play.asked.clone() {
            let answer = match request {
                Request::Remove { .. } => Response::Refused(RequestError::Forbidden("no".to_owned())),
                Request::WriteStatus { status, .. } => Response::Lease(play.lease(|lease| {
                    ended(lease);
                    lease["status"]["conditions"] = status["conditions"].clone();
                })),
                Request::WriteLessor { status, .. } => {
                    match status.get("conditions") {
                        Some(written) => conditions = written.clone(),
                        None => shown.push(play.mono),
                    }
                    let status = json!({"primary": ME, "term": 1, "conditions": conditions});
                    Response::Lessor(Box::new(play.lessor(status)))
                }
                request => panic!("{request:?}"),
            };
            play.answer(ticket, answer);
        }
    }
    let longest = shown.windows(2).map(|pair| pair[1] - pair[0]).max().expect("signs");
    assert!(longest < Duration::from_secs(100), "{shown:?}");
    assert!(shown.len() <= 10, "{shown:?}");
}

#[test]
fn an_object_that_can_not_be_read_does_not_block_a_takeover_for_another_lease() {
    let mut play = Play::follower();
    for name in ["one", "two"] {
        play.see_map(name, json!({"lessor.dev/lease": "cart"}));
    }
    play.see_lease(ended);
    play.pass(100);
    play.see_lease(|lease| {
        lease["metadata"]["name"] = json!("other");
        lease["metadata"]["uid"] = json!("0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f11");
    });
    let look = |play: &mut Play| {
        play.pass(6_000);
        let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
        let lessor = play.lessor_at(1, json!({"primary": "other_1", "term": 1}));
        play.answer(ticket, Response::Lessor(Box::new(lessor)));
    };
    look(&mut play);
    let ticket = play.ask(|request| matches!(request, Request::ReadObject { .. }));
    play.answer(ticket, Response::Refused(RequestError::NoAnswer(String::new())));
    look(&mut play);
    play.ask(|request| matches!(request, Request::ReadLease { .. }));
}

#[test]
fn a_primary_that_gives_up_a_changed_object_again_shows_that_it_lives() {
    let mut play = Play::primary();
    play.see_map("stuck", json!({"lessor.dev/lease": "cart"}));
    see_hindered(&mut play, "Hindered");
    let ticket = play.ask(|request| matches!(request, Request::Remove { .. }));
    play.answer(ticket, Response::Refused(RequestError::Unremovable("no".to_owned())));
    let shows = |(_, request): &(Ticket, Request)| matches!(request, Request::WriteLessor { .. });
    assert!(play.asked.iter().any(shows), "{:?}", play.asked);
}

#[test]
fn a_lease_with_an_absurd_term_blocks_no_other() {
    let mut play = Play::follower();
    play.see_lease(|lease| {
        granted(lease);
        lease["status"]["term"] = json!(i64::MAX);
    });
    play.pass(120_000);
    assert_eq!(play.asked, []);
}

#[test]
fn a_status_that_a_deposed_primary_did_not_bring_up_to_date_any_more_is_no_reason_to_take_over() {
    let mut play = Play::primary();
    // The server asks for patience, so its turn comes, and nothing more.
    play.replica.requests.throttle(play.mono + Duration::from_secs(60));
    play.see_lease(|lease| {
        granted(lease);
        lease["spec"]["ttlSeconds"] = json!(3600);
        lease["status"]["grantedTTLSeconds"] = json!(3600);
        lease["status"]["attached"]["objects"] = json!(3);
    });
    assert_eq!(play.asked, []);
    let lessor = play.lessor(json!({"primary": "other_1", "term": 2}));
    play.observe(Observation::Lessor(Event::Applied(Box::new(lessor))));
    assert_eq!((play.replica.leads(), play.replica.queued()), (None, 0));
    play.replica.requests.throttle(play.mono);
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
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
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
    play.answer(ticket, Response::Deleted);
    play.ask(|request| matches!(request, Request::WriteLessor { status, .. } if status["primary"].is_null()));
}

#[test]
fn a_follower_takes_over_what_the_primary_says_remains_of_a_suspended_lease() {
    let mut play = Play::follower();
    let suspended = |lease: &mut Value, left: u64| {
        granted(lease);
        lease["spec"]["suspend"] = json!(true);
        lease["status"]["expiryTime"] = json!(null);
        lease["status"]["remainingSeconds"] = json!(left);
        lease["status"]["conditions"][0]["reason"] = json!("Suspended");
        lease["status"]["conditions"][0]["message"] =
            json!(format!("suspended: {left} s remain once spec.suspend is false"));
    };
    // Restored, with three seconds more than the primary knows of, which the API server's record leaves open.
    play.see_lease(granted);
    play.see_lease(|lease| suspended(lease, 10));
    play.pass_as_follower(60_000);
    assert_eq!(play.asked, []);
}

#[test]
fn a_new_primary_removes_nothing_for_a_lease_before_it_has_written_to_it() {
    let mut play = Play::follower();
    play.see_lease(ended);
    play.see_map("attached", json!({"lessor.dev/lease": "cart"}));
    play.pass_as_follower(8_000);
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    let mut lessor = play.lessor(json!({"primary": "other_1", "term": 1}));
    lessor.metadata.resource_version = Some("1".to_owned());
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    let ticket = play.ask(|request| matches!(request, Request::ReadObject { .. }));
    let meta: ObjectMeta = serde_json::from_value(json!({
        "namespace": "shop", "name": "attached", "uid": UID, "resourceVersion": play.next_version(),
        "annotations": {"lessor.dev/lease": "cart"},
    }))
    .expect("metadata");
    play.answer(ticket, Response::Object(Box::new(meta)));
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    let lessor = play.lessor(json!({"primary": ME, "term": 2}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    assert_eq!(play.replica.leads(), Some(2));
    // Once that is done, no release that is still under way can be.
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { version: 2, .. }));
    let mut other = play.clone();
    // It is as it was.
    let lease = play.lease(|lease| {
        ended(lease);
        lease["status"]["term"] = json!(2);
    });
    play.answer(ticket, Response::Lease(lease));
    play.ask(|request| matches!(request, Request::Remove { .. }));
    // It was released.
    other.answer(ticket, Response::Refused(RequestError::Conflict));
    let ticket = other.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = other.lease(|lease| {
        lease["metadata"]["uid"] = json!("0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f11");
        granted(lease);
    });
    other.answer(ticket, Response::Lease(lease));
    assert!(
        !other.asked.iter().any(|(_, request)| matches!(request, Request::Remove { .. })),
        "{:#?}",
        other.asked
    );
}

#[test]
fn a_follower_has_nothing_to_take_over_for_what_a_new_list_does_not_show() {
    let mut play = Play::follower();
    play.see_lease(ended);
    play.see_map("attached", json!({"lessor.dev/lease": "cart"}));
    play.observe(Observation::Object(Arc::new(Kind::config_map()), None, Event::Synced(Default::default())));
    let lease = play.lease(ended);
    play.observe(Observation::Lease(None, Event::Deleted(lease)));
    play.pass_as_follower(60_000);
    assert_eq!(play.asked, []);
}
