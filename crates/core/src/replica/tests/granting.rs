//! From the first version of a lease to its grant, and what is published of it.

use super::*;

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
    play.answer(ticket, Response::Lease(lease));
    let (at, status) = play.status_written().expect("the grant");
    assert_eq!(at, version);
    assert_eq!(status["grantedTTLSeconds"], 10);
    assert_eq!(status["fencingToken"], version);
    assert_eq!(status["term"], 1);
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
fn a_grant_that_was_accepted_late_gets_its_time_corrected() {
    let mut play = Play::primary();
    play.see_lease(|_| {});
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    let lease = play.lease(|lease| {
        granted(lease);
        lease["metadata"]["managedFields"] = json!([{"manager": "lessor-grant", "operation": "Update", "subresource": "status",
            "time": "2027-01-15T08:00:04Z", "fieldsV1": {"f:status": {}}}]);
    });
    play.answer(ticket, Response::Lease(lease));
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
    play.answer(ticket, Response::Refused(RequestError::Conflict));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    let lease = play.lease(|lease| {
        granted(lease);
        lease["spec"] = json!({"ttlSeconds": 30, "renewTime": "2027-01-15T08:00:01Z"});
    });
    play.answer(ticket, Response::Lease(lease));
    assert_eq!(play.status_written().expect("a correction").1["grantedTTLSeconds"], 30);
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
            play.answer(ticket, Response::Lease(lease));
        }
        play.pass(10);
    }
    assert!(turns.is_sorted(), "{turns:?}");
    // Twenty a second by default, and as many at once at first.
    let took = play.mono - begun;
    assert!((Duration::from_millis(1_900)..Duration::from_millis(2_200)).contains(&took), "{took:?}");
    assert_eq!(play.replica.schedule.refresh_at(play.mono), None);
    play.pass(1_000);
    assert_eq!(play.asked, []);
}
