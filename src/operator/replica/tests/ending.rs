//! The end of a lease, and the removal of what is attached to it.

use super::*;

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
