//! Watches that may have missed something, leases that came or went in unusual ways, and storage that went back.

use super::*;
use crate::store_version::WentBack;

fn config_maps(event: Event<ObjectMeta>) -> Observation {
    Observation::Object(Arc::new(Kind::config_map()), None, event)
}

fn is_release(request: &Request) -> bool {
    matches!(request, Request::SetFinalizers { finalizers, .. } if finalizers.is_empty())
}

/// Answers the proof of a primary that was idle.
fn prove(play: &mut Play) {
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    let lessor = play.lessor(json!({"primary": ME, "term": 1}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
}

#[test]
fn a_release_waits_for_a_watch_that_sends_not_even_bookmarks() {
    let mut play = Play::primary();
    play.pass(60_000);
    play.observe(config_maps(Event::Bookmark(1)));
    play.pass(74_500);
    play.see_lease(ended);
    play.pass(15_000);
    assert_eq!(play.asked, []);
    // What was attached just before the end arrives late.
    play.see_map("late", json!({"lessor.dev/lease": "cart"}));
    prove(&mut play);
    play.ask(|request| matches!(request, Request::WriteStatus { .. } | Request::Remove { .. }));
}

#[test]
fn a_release_goes_on_once_a_silent_watch_sends_a_bookmark() {
    let mut play = Play::primary();
    play.pass(100_000);
    play.see_lease(ended);
    play.pass(4_000);
    assert_eq!(play.asked, []);
    play.observe(config_maps(Event::Bookmark(9)));
    prove(&mut play);
    play.ask(is_release);
}

/// A cache of the API server that is behind is so for other kinds, too.
#[test]
fn a_lease_lingers_from_when_its_watch_shows_the_end_that_a_response_has_shown_before() {
    let mut play = Play::primary();
    play.see_lease(|lease| {
        granted(lease);
        lease["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:00:05Z");
    });
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    let lease = play.lease(|lease| {
        ended(lease);
        lease["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:00:05Z");
    });
    play.answer(ticket, Response::Lease(lease.clone()));
    play.pass(4_000);
    assert_eq!(play.asked, []);
    play.observe(Observation::Lease(None, Event::Applied(lease)));
    play.pass(1_900);
    assert_eq!(play.asked, []);
    play.see_map("late", json!({"lessor.dev/lease": "cart"}));
    prove(&mut play);
    play.ask(|request| matches!(request, Request::WriteStatus { .. } | Request::Remove { .. }));
}

#[test]
fn a_release_waits_for_the_first_list_of_a_kind_that_was_just_installed() {
    let mut play = Play::primary();
    let kind = Arc::new(Kind::config_map());
    play.observe(Observation::Kind(kind.name(), Ok(kind)));
    play.see_lease(ended);
    play.pass(4_000);
    assert_eq!(play.asked, []);
    play.see_map("late", json!({"lessor.dev/lease": "cart"}));
    play.observe(config_maps(Event::Synced([NamespacedName::new("shop", "late")].into())));
    assert!(!play.asked.iter().any(|(_, request)| is_release(request)), "{:?}", play.asked);
}

// --- Storage that went back --------------------------------------------------------------------------------------

/// A primary that reads a lease since its write met a conflict, and the number of that read.
fn reading() -> (Play, Ticket) {
    let mut play = Play::primary();
    play.see_lease(|_| {});
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { .. }));
    play.answer(ticket, Response::Refused(RequestError::Conflict));
    let ticket = play.ask(|request| matches!(request, Request::ReadLease { .. }));
    (play, ticket)
}

fn lease_at(play: &mut Play, version: u64) -> Box<Lease> {
    let mut lease = play.lease(|_| {});
    lease.metadata.resource_version = Some(version.to_string());
    lease
}

#[test]
fn a_lease_read_in_an_older_version_than_was_known_shows_that_the_storage_went_back() {
    let (mut play, ticket) = reading();
    let known = play.version;
    let older = lease_at(&mut play, known - 1);
    play.answer(ticket, Response::Lease(older));
    assert_eq!(play.replica.store_went_back(), Some(WentBack { known, found: known - 1 }));
}

#[test]
fn a_read_that_the_watch_has_overtaken_shows_nothing_of_the_storage() {
    let (mut play, ticket) = reading();
    let known = play.version;
    play.see_lease(|lease| lease["spec"]["holder"] = json!("me"));
    let older = lease_at(&mut play, known);
    play.answer(ticket, Response::Lease(older));
    assert_eq!(play.replica.store_went_back(), None);
}

#[test]
fn the_lessor_read_in_an_older_version_shows_that_the_storage_went_back() {
    let mut play = Play::follower();
    play.see_lease(granted);
    let lessor = play.lessor(json!({"primary": "other_1", "term": 1}));
    play.observe(Observation::Lessor(Event::Applied(Box::new(lessor))));
    let known = play.version;
    // The challenge of the primary is bound to a version that isn't there any more.
    play.pass(12_600);
    let ticket = play.ask(|request| matches!(request, Request::WriteLessor { .. }));
    play.answer(ticket, Response::Refused(RequestError::Conflict));
    play.pass(1_000);
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    let older = play.lessor_at(known - 2, json!({"primary": "other_1", "term": 1}));
    play.answer(ticket, Response::Lessor(Box::new(older)));
    assert_eq!(play.replica.store_went_back(), Some(WentBack { known, found: known - 2 }));
}

#[test]
fn a_new_list_of_the_lessor_shows_that_the_storage_went_back_though_the_lessor_is_as_it_was() {
    let mut play = Play::follower();
    play.see_lease(granted);
    let known = play.version;
    let break_watch = |play: &mut Play| {
        let failure = Failure::Unreachable("connection refused".to_owned());
        play.observe(Observation::Lessor(Event::Failing(failure)));
        // It may have been written after the list began.
        play.see_lease(|lease| {
            granted(lease);
            lease["spec"]["renewTime"] = json!("2027-01-15T08:00:01.000000Z");
        });
    };
    break_watch(&mut play);
    play.observe(Observation::Lessor(Event::Listed(known)));
    assert_eq!(play.replica.store_went_back(), None);
    let known = play.version;
    break_watch(&mut play);
    play.observe(Observation::Lessor(Event::Listed(known - 1)));
    assert_eq!(play.replica.store_went_back(), Some(WentBack { known, found: known - 1 }));
}

// --- A status that a backup tool restored ------------------------------------------------------------------------

/// The status of a lease of another cluster, which has ended there.
fn foreign(lease: &mut Value) {
    ended(lease);
    lease["status"]["term"] = json!(1_000_000_000_000_u64);
    lease["status"]["leaseUID"] = json!("0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f11");
}

#[test]
fn a_lease_with_the_status_of_another_is_granted_anew_and_keeps_what_is_attached() {
    let mut play = Play::primary();
    play.see_map("whole", json!({"lessor.dev/lease": "cart"}));
    play.see_lease(foreign);
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { grants: true, .. }));
    let (version, status) = play.status_written().expect("a grant");
    assert_eq!(version, play.version);
    assert_eq!(status["leaseUID"], UID);
    assert_eq!((&status["endTime"], &status["term"]), (&Value::Null, &json!(1)));
    let lease = play.lease(granted);
    play.answer(ticket, Response::Lease(lease));
    play.pass(5_000);
    assert!(!play.asked.iter().any(|(_, request)| matches!(request, Request::Remove { .. })));
    assert!(!play.user_events.iter().any(|event| event.reason == "AbsurdTerm"));
}

#[test]
fn a_granted_lease_whose_status_is_replaced_by_that_of_another_is_granted_anew_for_its_full_ttl() {
    let mut play = Play::primary();
    grant(&mut play);
    play.pass(4_000);
    play.see_lease(foreign);
    let ticket = play.ask(|request| matches!(request, Request::WriteStatus { grants: true, .. }));
    let lease = play.lease(granted);
    play.answer(ticket, Response::Lease(lease));
    let deadline = play.replica.leases().deadline(Uuid::parse_str(UID).expect("a uid"));
    assert_eq!(deadline, Some(LeaseTime::from_duration(play.mono + Duration::from_secs(10))));
}

// --- Leases that slip away ---------------------------------------------------------------------------------------

#[test]
fn a_lease_that_is_deleted_without_its_finalizer_is_reported_at_once_with_what_it_leaves() {
    let mut play = Play::primary();
    grant(&mut play);
    play.see_map("whole", json!({"lessor.dev/lease": "cart"}));
    play.see_lease(|lease| {
        granted(lease);
        lease["metadata"]["finalizers"] = json!([]);
    });
    play.asked.iter().find(|(_, request)| {
        matches!(request, Request::SetFinalizers { finalizers, .. } if *finalizers == ["lessor.dev/revoke"])
    }).expect("the finalizer is added again before anything else");
    let lease = play.lease(granted);
    play.observe(Observation::Lease(None, Event::Deleted(lease)));
    let lost = play.user_events.iter().find(|event| event.reason == "Lost").expect("a warning");
    assert!(lost.warning && lost.note.contains("1 object and 0 keys"), "{}", lost.note);
    assert!(play.user_events.iter().any(|event| event.reason == "AttachmentPending"));
}
