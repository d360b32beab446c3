//! The end of a lease, and the removal of what is attached to it.

use super::*;

/// Lets the time of a lease of 10 s pass that was granted just now, up to the request that commits its end.
fn end(play: &mut Play) -> Ticket {
    play.pass(9_990);
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    play.pass(10);
    play.ask(|request| matches!(request, Request::WriteStatus { .. }))
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
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
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
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    play.pass(10);
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    play.answer(ticket, Response::Refused(RequestError::Conflict));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(|lease| {
        granted(lease);
        lease["spec"]["renewTime"] = json!("2027-01-15T08:00:09Z");
    });
    play.answer(ticket, Response::Lease(lease));
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
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    play.heard -= Duration::from_secs(2);
    play.pass(10);
    play.ask(|request| matches!(request, Request::ReadLease { .. }));
}

#[test]
fn removals_that_hang_keep_slots_for_leases_and_for_what_has_not_hung_before() {
    let mut play = Play::primary();
    for index in 0..80 {
        play.see_map(&format!("hangs-{index}"), json!({"lessor.dev/lease": "cart"}));
    }
    play.see_lease(ended);
    assert_eq!(play.asked.len(), play.replica.settings.concurrency / 2);
    let other = |lease: &mut Value| {
        lease["metadata"]["name"] = json!("other");
        lease["metadata"]["uid"] = json!("0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f11");
    };
    play.see_lease(other);
    assert!(play.status_written().is_some(), "no grant");
    // All of them have hung once, and hang again.
    while let Some((ticket, _)) =
        play.asked.iter().find(|(_, request)| matches!(request, Request::Remove { .. }))
    {
        play.answer(*ticket, Response::Refused(RequestError::NoAnswer(String::new())));
    }
    play.asked.clear();
    play.pass(700);
    assert!(
        play.asked.iter().all(|(_, request)| matches!(request, Request::ReadObject { .. })),
        "{:?}",
        play.asked
    );
    play.asked.clear();
    play.see_map("well", json!({"lessor.dev/lease": "cart"}));
    play.ask(|request| matches!(request, Request::Remove { object, .. } if *object.name.name == *"well"));
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
    play.answer(ticket, Response::Refused(RequestError::Conflict));
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
    // Without a response nothing is known: the request may still be on its way. The old version of the lease shows nothing either.
    play.answer(ticket, Response::Refused(RequestError::NoAnswer("lost".to_owned())));
    play.pass(1_000);
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    play.version -= 2;
    let lease = play.lease(ended);
    play.version += 2;
    play.answer(ticket, Response::Lease(lease));
    let ticket = play.ask(|request| matches!(request, Request::SetFinalizers { .. }));
    // The lease has changed, so the release that was sent can't be done any more.
    play.answer(ticket, Response::Refused(RequestError::Conflict));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(ended);
    play.answer(ticket, Response::Lease(lease));
    play.ask(|request| matches!(request, Request::Remove { .. }));
}

#[test]
fn a_lease_that_went_while_all_were_listed_takes_nothing_of_the_next_of_its_name() {
    let mut play = Play::primary();
    let late = play.lease(ended);
    play.see_lease(ended);
    play.pass(2_000);
    let ticket = play.ask(|request| matches!(request, Request::SetFinalizers { .. }));
    play.answer(ticket, Response::Gone);
    // The list was begun before that, and what happened since comes after it.
    play.observe(Observation::Lease(None, Event::Synced([NamespacedName::new("shop", "cart")].into())));
    play.observe(Observation::Lease(None, Event::Applied(late)));
    play.see_map("next", json!({"lessor.dev/lease": "cart"}));
    assert_eq!((play.replica.leases().len(), &*play.asked), (0, &[][..]));
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
    play.observe(Observation::Object(kind.clone(), None, Event::Failing(failure)));
    play.see_lease(ended);
    play.pass(4_000);
    assert_eq!(play.asked, []);
    play.observe(Observation::Object(kind, None, Event::Resumed));
    play.pass(4_000);
    // Idle for as long as that, it proves itself first.
    play.ask(|request| matches!(request, Request::WriteLessor { .. }));
}

/// What was attached just before the end is shown only when the watch is open again.
#[test]
fn an_ended_lease_is_not_released_before_a_watch_that_has_just_ended_is_open_again() {
    let mut play = Play::primary();
    let kind = Arc::new(Kind::config_map());
    play.observe(Observation::Object(kind.clone(), None, Event::Interrupted));
    play.see_lease(ended);
    play.pass(4_000);
    assert_eq!(play.asked, []);
    play.observe(Observation::Object(kind, None, Event::Resumed));
    play.see_map("late", json!({"lessor.dev/lease": "cart"}));
    play.ask(|request| matches!(request, Request::Remove { .. }));
}

#[test]
fn a_release_goes_on_as_soon_as_a_watch_that_had_ended_has_caught_up() {
    let mut play = Play::primary();
    let kind = Arc::new(Kind::config_map());
    play.see_lease(ended);
    play.pass(1_900);
    play.observe(Observation::Object(kind.clone(), None, Event::Interrupted));
    play.pass(200);
    assert_eq!(play.asked, []);
    play.observe(Observation::Object(kind, None, Event::Resumed));
    assert_eq!(play.asked, []);
    play.pass(200);
    play.ask(|request| matches!(request, Request::SetFinalizers { .. }));
}

#[test]
fn a_follower_whose_watch_has_just_ended_takes_over_for_no_release() {
    let mut play = Play::follower();
    let kind = Arc::new(Kind::config_map());
    play.see_lease(ended);
    play.pass(1_000);
    play.observe(Observation::Object(kind, None, Event::Interrupted));
    play.pass(20_000);
    assert_eq!((play.replica.queued(), &*play.asked), (0, &[][..]));
    play.pass(20_000);
    play.ask(|request| matches!(request, Request::ReadLessor));
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
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    let ticket = play
        .ask(|request| matches!(request, Request::SetFinalizers { finalizers, .. } if finalizers.is_empty()));
    let lease = play.lease(|lease| {
        absurd(lease);
        lease["metadata"]["finalizers"] = json!([]);
        lease["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:01:00Z");
    });
    play.answer(ticket, Response::Lease(lease));
    play.pass(10_000);
    assert_eq!(play.asked, []);
    assert!(play.user_events.iter().any(|notice| notice.reason == "Abandoned"), "{:?}", play.user_events);
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
        play.user_events
            .iter()
            .any(|notice| notice.reason == "WouldRelease" && notice.note.contains("shop/whole"))
    );
}

#[test]
fn a_lease_that_was_due_by_its_cap_has_what_was_left_of_its_ttl_when_the_cap_is_lifted() {
    let mut play = Play::primary();
    let capped = |lease: &mut Value, lifetime: u64| {
        granted(lease);
        lease["spec"]["maxLifetimeSeconds"] = json!(lifetime);
        lease["metadata"]["generation"] = json!(lifetime);
        lease["status"]["specGeneration"] = json!(lifetime);
        let expiry =
            if lifetime < 10 { "2027-01-15T08:00:03.100000Z" } else { "2027-01-15T08:00:10.100000Z" };
        lease["status"]["expiryTime"] = json!(expiry);
    };
    let is_end = |request: &Request| matches!(request, Request::WriteStatus { status, .. } if status["endTime"].is_string());
    play.see_lease(|_| {});
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    let lease = play.lease(|lease| capped(lease, 3));
    play.answer(ticket, Response::Lease(lease));
    play.pass(2_900);
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    play.pass(300);
    let ticket = play.asked.iter().find(|(_, request)| is_end(request)).expect("an end").0;
    let lease = play.lease(|lease| capped(lease, 3600));
    play.observe(Observation::Lease(None, Event::Applied(lease.clone())));
    play.answer(ticket, Response::Refused(RequestError::Conflict));
    let is_read = |request: &Request| matches!(request, Request::ReadLease { .. });
    let ticket = play.asked.iter().find(|(_, request)| is_read(request)).expect("a look").0;
    play.answer(ticket, Response::Lease(lease));
    let uid = UID.parse().expect("a uid");
    assert_eq!(play.replica.leases().deadline(uid), Some(LeaseTime::from_millis(10_100)));
    play.pass(6_500);
    assert!(!play.asked.iter().any(|(_, request)| is_end(request)), "{:#?}", play.asked);
}

#[test]
fn a_lease_ends_though_connections_on_which_nothing_is_said_are_cut_again_and_again() {
    let mut play = Play::primary();
    grant(&mut play);
    for second in 1..60 {
        play.pass(1_000);
        if second % 8 == 0 {
            // What happened since the last response, this replica missed.
            play.held += play.mono - play.heard;
            play.heard = play.mono;
        }
        for (ticket, request) in play.asked.clone() {
            match request {
                Request::WriteStatus { status, .. } if status["endTime"].is_string() => {
                    assert!((15..25).contains(&second), "after {second} s");
                    return;
                }
                _ => {
                    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
                    play.answer(ticket, Response::Lessor(Box::new(lessor)));
                }
            }
        }
    }
    panic!("it doesn't end");
}

#[test]
fn a_replica_without_leases_asks_for_no_sign_of_life_after_an_outage() {
    let mut play = Play::primary();
    play.pass(8_000);
    play.held = Duration::from_secs(8);
    play.pass(120_000);
    assert_eq!(play.asked, []);
}

#[test]
fn a_primary_whose_write_fails_proves_itself_before_anything_ends() {
    let failing = || Response::Refused(RequestError::Failing("the storage is full".to_owned()));
    let mut play = Play::primary();
    grant(&mut play);
    // It shows itself a second before the deadline, or would.
    let until = play.mono + Duration::from_secs(20);
    while play.asked.is_empty() && play.mono < until {
        play.pass(10);
    }
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    play.answer(ticket, failing());
    let mut proofs = 0;
    for _ in 0..20 {
        play.pass(500);
        for (ticket, request) in play.asked.clone() {
            assert!(matches!(request, Request::WriteLessor { .. }), "{request:?}");
            proofs += 1;
            play.answer(ticket, failing());
        }
    }
    assert!(proofs > 2, "{proofs} proofs");
    let ticket = loop {
        play.pass(100);
        if let [(ticket, _)] = *play.asked.as_slice() {
            break ticket;
        }
    };
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    play.ask(|request| matches!(request, Request::WriteStatus { .. }));
}

#[test]
fn nothing_ends_before_a_write_was_accepted_that_was_sent_shortly_before_its_deadline() {
    let mut play = Play::primary();
    grant(&mut play);
    // Its writer lease is good beyond the deadline.
    play.pass(7_000);
    play.see_map("attached", json!({"lessor.dev/lease": "cart"}));
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    let lease = play.lease(|lease| {
        granted(lease);
        lease["status"]["attached"] = json!({"objects": 1, "keys": 0});
    });
    play.answer(ticket, Response::Lease(lease));
    play.pass(2_990);
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    // Others are answered meanwhile.
    for _ in 0..15 {
        play.pass(100);
        play.see_map("other", json!({}));
    }
    play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    play.ask(|request| matches!(request, Request::WriteStatus { .. }));
}

#[test]
fn what_was_queued_for_a_kind_that_is_not_served_any_more_is_dropped() {
    let mut play = Play::follower();
    play.see_map("x", json!({"lessor.dev/lease": "cart"}));
    play.see_lease(ended);
    assert_eq!(play.replica.queued(), 1, "the removal");
    let kind = Kind::config_map().name();
    play.observe(Observation::Kind(kind, Err(Failure::NoSuchKind)));
    play.pass(100);
    assert_eq!(play.replica.queued(), 0);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it measures how long the machine takes")]
fn the_removal_of_many_objects_of_one_lease_takes_linear_time() {
    const OBJECTS: usize = 20_000;
    let mut play = Play::primary();
    for index in 0..OBJECTS {
        play.see_map(&format!("map-{index}"), json!({"lessor.dev/lease": "cart"}));
    }
    // This takes a fraction of a second. A look at all objects for each removal takes half a minute.
    let start = std::time::Instant::now();
    play.see_lease(ended);
    let mut removed = 0;
    while let Some((ticket, _)) =
        play.asked.iter().find(|(_, request)| matches!(request, Request::Remove { .. }))
    {
        play.answer(*ticket, Response::Deleted);
        removed += 1;
    }
    assert_eq!(removed, OBJECTS);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_primary_that_can_not_end_a_lease_reports_it_as_overdue() {
    let mut play = Play::primary();
    grant(&mut play);
    let ticket = end(&mut play);
    play.mono += Duration::from_millis(700);
    play.answer(ticket, Response::Refused(RequestError::Forbidden("no".to_owned())));
    let now = play.now();
    assert_eq!(play.replica.overdue(&now), Duration::from_millis(700));
}

#[test]
fn the_largest_expiry_rate_and_times_are_as_good_as_none() {
    let mut play = Play::primary();
    let settings = Settings {
        expiry_rate: std::num::NonZeroU32::MAX,
        linger: Duration::MAX,
        start_grace: Duration::MAX,
        max_clock_skew: Duration::MAX,
        pending_warning: Duration::MAX,
        ..play.replica.settings.clone()
    };
    play.replica.index.leases = LeaseIndex::new(&settings);
    play.replica.index.leases.promote(LeaseTime::from_duration(Duration::ZERO));
    play.replica.settings = settings;
    grant(&mut play);
    let ticket = end(&mut play);
    let lease = play.lease(ended);
    play.answer(ticket, Response::Lease(lease));
    play.see_map("pending", json!({"lessor.dev/lease": "other"}));
    play.pass(60_000);
    assert_eq!(play.asked, [], "it lingers for ever");
}

#[test]
fn an_object_that_was_gone_before_the_response_to_its_deletion_does_not_come_back() {
    let mut play = Play::primary();
    play.see_map("x", json!({"lessor.dev/lease": "cart"}));
    play.see_lease(ended);
    let ticket = play.ask(|request| matches!(request, Request::Remove { .. }));
    let mut meta = play.meta("x", json!({"lessor.dev/lease": "cart"}));
    meta.deletion_timestamp = serde_json::from_value(json!("2027-01-15T08:00:10Z")).expect("a time");
    let kind = Arc::new(Kind::config_map());
    play.observe(Observation::Object(kind, None, Event::Deleted(Box::new(meta.clone()))));
    play.answer(ticket, Response::Object(Box::new(meta)));
    play.pass(2_000);
    play.ask(|request| matches!(request, Request::SetFinalizers { .. }));
}

#[test]
fn a_conflict_though_the_object_has_not_changed_is_retried_with_growing_pauses() {
    let mut play = Play::primary();
    play.see_map("x", json!({"lessor.dev/lease": "cart"}));
    let version = play.version;
    play.see_lease(ended);
    let mut removals = 0;
    for _ in 0..600 {
        for (ticket, request) in play.asked.clone() {
            match request {
                Request::Remove { .. } => {
                    removals += 1;
                    play.answer(ticket, Response::Refused(RequestError::Conflict));
                }
                Request::ReadObject { .. } => {
                    let mut meta = play.meta("x", json!({"lessor.dev/lease": "cart"}));
                    meta.resource_version = Some(version.to_string());
                    play.answer(ticket, Response::Object(Box::new(meta)));
                }
                _ => play.answer(ticket, Response::Refused(RequestError::Failing(String::new()))),
            }
        }
        play.pass(100);
    }
    assert!((5..15).contains(&removals), "{removals} removals in a minute");
    assert!(play.user_events.iter().any(|event| event.note.contains("admission webhook")));
}

#[test]
fn a_conflict_though_the_lease_has_not_changed_is_retried_with_growing_pauses() {
    let mut play = Play::primary();
    play.see_lease(|_| {});
    let mut writes = 0;
    for _ in 0..600 {
        for (ticket, request) in play.asked.clone() {
            match request {
                Request::WriteStatus { version, .. } => {
                    writes += 1;
                    play.version = version - 1;
                    play.answer(ticket, Response::Refused(RequestError::Conflict));
                }
                Request::ReadLease { .. } => {
                    let lease = play.lease(|_| {});
                    play.answer(ticket, Response::Lease(lease));
                }
                _ => play.answer(ticket, Response::Refused(RequestError::Failing(String::new()))),
            }
        }
        play.pass(100);
    }
    assert!((5..30).contains(&writes), "{writes} writes in a minute");
    assert!(play.user_events.iter().any(|event| event.note.contains("admission webhook")));
}
