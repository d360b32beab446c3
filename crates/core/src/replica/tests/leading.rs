//! Being primary or not: looks, takeovers, terms, and leaving in order.

use super::*;

#[test]
fn a_follower_takes_over_only_after_a_read_of_the_overdue_lease() {
    let mut play = Play::follower();
    play.see_lease(granted);
    // The TTL, what the recorded time leaves open, and the head start of the incumbent.
    play.pass_as_follower(10_000 + 3_000 + 2_400);
    assert_eq!(play.asked, []);
    play.pass_as_follower(100);
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    let mut lessor = play.lessor(json!({"primary": "other_1", "term": 1}));
    lessor.metadata.resource_version = Some("1".to_owned());
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(granted);
    play.answer(ticket, Response::Lease(lease));
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
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    play.pass(900);
    assert_eq!(play.asked, []);
    play.pass(200);
    assert_eq!(play.probes().len(), 1, "{:?}", play.asked);
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
fn a_primary_publishes_once_how_long_nothing_could_be_written() {
    // A definition of before doesn't know the field, and the server drops it.
    for kept in [json!(5000), Value::Null] {
        let mut play = Play::primary();
        grant(&mut play);
        play.hold(Duration::from_secs(5));
        play.pass(100);
        let ticket = play.ask(|request| match request {
            Request::WriteLessor { status, .. } => status["pausedMilliseconds"] == 5000,
            _ => false,
        });
        let lessor = play.lessor(json!({"primary": ME, "term": 1, "pausedMilliseconds": kept}));
        play.answer(ticket, Response::Lessor(Box::new(lessor)));
        play.pass(1_000);
        assert_eq!(play.asked, []);
    }
}

#[test]
fn a_follower_holds_what_its_primary_has_held_and_takes_over_when_that_has_passed() {
    let mut play = Play::follower();
    play.see_lease(granted);
    // It has missed the sign of the primary at the deadline, and gets it now.
    play.pass_as_follower(14_500);
    let proof = play.lessor(json!({"primary": "other_1", "term": 1, "pausedMilliseconds": 8000}));
    play.observe(Observation::Lessor(Event::Applied(Box::new(proof.clone()))));
    play.pass_as_follower(5_000);
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    play.answer(ticket, Response::Lessor(Box::new(proof)));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(granted);
    play.answer(ticket, Response::Lease(lease));
    assert_eq!(play.asked, [], "it is not overdue any more");
    play.pass_as_follower(5_000);
    play.ask(|request| matches!(request, Request::ReadLessor));
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
    for _ in 0..3 {
        play.pass(100_000);
        assert_eq!(play.asked, []);
        let proof = play.lessor(json!({"primary": "other_1", "term": 1}));
        play.observe(Observation::Lessor(Event::Applied(Box::new(proof))));
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
            let proof = play.lessor(json!({"primary": "other_1", "term": 1}));
            play.observe(Observation::Lessor(Event::Applied(Box::new(proof))));
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
