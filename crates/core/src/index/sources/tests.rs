//! Sources and followers, without a replica around them.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use lease_engine::LeaseTime;
use lessor_api::{RenewFrom, lease::following};
use uuid::Uuid;

use super::*;
use crate::{
    listed_keys::ListedKeys,
    metadata::{NamespacedName, ResourceVersion},
};

const SLACK: Duration = Duration::from_secs(3);

fn uid(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn at(seconds: u64) -> LeaseTime {
    LeaseTime::from_duration(Duration::from_secs(seconds))
}

fn server(seconds: i64) -> Option<Timestamp> {
    Timestamp::from_second(1_800_000_000 + seconds).ok()
}

fn follow(from: serde_json::Value) -> Follow {
    let from: RenewFrom = serde_json::from_value(from).expect("a source");
    Follow::read(&"shop".into(), &from).expect("something to follow")
}

fn heartbeat(version: ResourceVersion, renew_time: &str, recorded: i64) -> Option<SourceState> {
    let status = SourceStatus::Heartbeat {
        uid: uid(7),
        renew_time: Some(renew_time.into()),
        recorded: server(recorded),
    };
    Some(SourceState { name: NamespacedName::new(NODE_NAMESPACE, "worker"), version, status })
}

fn pod(version: ResourceVersion, of: u128, finished: bool) -> Option<SourceState> {
    let status = SourceStatus::Pod { uid: uid(of), finished, grace_ends: None };
    Some(SourceState { name: NamespacedName::new("shop", "web"), version, status })
}

fn all() -> SourceIndex {
    SourceIndex::new(SourceKind::ALL, true)
}

fn no_lease(_: &NamespacedName) -> LeaseState {
    LeaseState::Missing
}

/// A lease called `name` follows `from`.
fn link(follows: &mut SourceIndex, n: u128, name: &str, from: serde_json::Value) -> Source {
    let follow = follow(from);
    assert!(follows.link(uid(n), &NamespacedName::new("shop", name), Some(&follow), None, None).source);
    follow.source
}

fn see(follows: &mut SourceIndex, source: &Source, source_state: Option<SourceState>) -> Option<Duration> {
    follows.observe(source, source_state, at(100), server(100), SLACK).1
}

fn settle(follows: &mut SourceIndex, n: u128) -> Option<(TtlChange, TtlState)> {
    follows.settle(uid(n), no_lease).map(|transition| (transition.change, transition.ttl_state))
}

#[test]
fn a_source_is_read_from_the_spec_and_lies_where_its_kind_does() {
    let shown = |from| format!("{:?}", follow(from).source);
    assert_eq!(shown(serde_json::json!({"node": {"name": "worker"}})), "node/kube-node-lease/worker");
    assert_eq!(shown(serde_json::json!({"coordinationLease": {"name": "a"}})), "coordination/shop/a");
    assert_eq!(shown(serde_json::json!({"pod": {"name": "web"}})), "pod/shop/web");
    assert_eq!(shown(serde_json::json!({"lease": {"name": "b"}})), "lease/shop/b");
    assert_eq!(Follow::read(&"shop".into(), &RenewFrom::default()), None);
}

#[test]
fn a_changed_renew_time_is_a_beat_and_nothing_else_is() {
    let mut follows = all();
    let node = link(&mut follows, 1, "a", serde_json::json!({"node": {"name": "worker"}}));
    see(&mut follows, &node, heartbeat(1, "noon", 100));
    assert_eq!(see(&mut follows, &node, heartbeat(2, "noon", 100)), None, "its labels, perhaps");
    assert_eq!(see(&mut follows, &node, heartbeat(3, "later", 90)), Some(Duration::ZERO), "just now");
    assert_eq!(see(&mut follows, &node, heartbeat(2, "noon", 100)), None, "old news");
    see(&mut follows, &node, None);
    assert_eq!(see(&mut follows, &node, heartbeat(4, "later", 90)), Some(Duration::ZERO), "made anew");
}

#[test]
fn a_beat_that_is_seen_first_counts_from_when_the_server_recorded_it() {
    let mut follows = all();
    let node = link(&mut follows, 1, "a", serde_json::json!({"node": {"name": "worker"}}));
    assert_eq!(see(&mut follows, &node, heartbeat(1, "noon", 60)), Some(Duration::from_secs(40) - SLACK));
    assert_eq!(settle(&mut follows, 1), Some((TtlChange::CountFromHeartbeat, TtlState::Running)));
    assert_eq!(follows.since_heartbeat(&node, at(110)), Some(Duration::from_secs(50) - SLACK));
    let mut follows = all();
    let node = link(&mut follows, 1, "a", serde_json::json!({"node": {"name": "worker"}}));
    assert_eq!(
        follows.observe(&node, heartbeat(1, "noon", 60), at(100), None, SLACK).1,
        Some(Duration::ZERO)
    );
}

#[test]
fn no_time_passes_while_a_pod_lives_and_the_ttl_runs_once_it_is_gone() {
    let mut follows = all();
    let source = link(&mut follows, 1, "a", serde_json::json!({"pod": {"name": "web"}}));
    assert_eq!(settle(&mut follows, 1), None, "nothing is known yet");
    see(&mut follows, &source, pod(1, 7, false));
    assert_eq!(settle(&mut follows, 1), Some((TtlChange::Renew, TtlState::Full)));
    assert_eq!(follows.pod_uid_of(uid(1)), Some(uid(7)));
    assert!(follows.observe_deleted(&source, 2));
    assert_eq!(settle(&mut follows, 1), Some((TtlChange::None, TtlState::Running)));
    assert_eq!(follows.state_of(uid(1)), Some(FollowState::Lost(following::SOURCE_MISSING)));
}

#[test]
fn a_lease_that_its_lost_pod_has_cut_short_is_whole_again_without_it_though_the_pod_can_not_be_seen_any_more()
{
    for unseen in [None, Some(following::UNWATCHED)] {
        let mut follows = all();
        let from = serde_json::json!({"pod": {"name": "web", "onLoss": "End"}});
        let source = link(&mut follows, 1, "a", from);
        see(&mut follows, &source, pod(1, 7, false));
        settle(&mut follows, 1);
        assert!(follows.observe_deleted(&source, 2));
        assert_eq!(settle(&mut follows, 1), Some((TtlChange::End, TtlState::Running)));
        follows.set_unseen(&source, unseen);
        settle(&mut follows, 1);
        assert!(follows.unlink(uid(1)).cut, "{unseen:?}");
    }
}

#[test]
fn a_pod_that_has_finished_or_is_another_one_is_lost() {
    for (source_state, reason) in
        [(pod(2, 7, true), following::SOURCE_FINISHED), (pod(2, 8, false), following::SOURCE_REPLACED)]
    {
        let mut follows = all();
        let from = serde_json::json!({"pod": {"name": "web", "onLoss": "End"}});
        let source = link(&mut follows, 1, "a", from);
        see(&mut follows, &source, pod(1, 7, false));
        settle(&mut follows, 1);
        see(&mut follows, &source, source_state);
        assert_eq!(settle(&mut follows, 1), Some((TtlChange::End, TtlState::Running)));
        assert_eq!(follows.state_of(uid(1)), Some(FollowState::Lost(reason)));
    }
}

#[test]
fn a_pod_that_is_first_seen_when_it_is_lost_may_have_lived_until_then() {
    let named = serde_json::json!({"pod": {"name": "web", "uid": uid(7).to_string()}});
    for (from, source_state) in [
        (serde_json::json!({"pod": {"name": "web"}}), pod(2, 7, true)),
        (named.clone(), pod(2, 8, false)),
        (named, None),
    ] {
        let mut follows = all();
        let source = link(&mut follows, 1, "a", from);
        see(&mut follows, &source, source_state);
        assert_eq!(settle(&mut follows, 1), Some((TtlChange::Renew, TtlState::Running)));
    }
}

/// A lease whose Pod was seen, and then was lost: that has ended its time.
fn ended_by_loss() -> (SourceIndex, Source) {
    let mut follows = all();
    let source = link(&mut follows, 1, "a", serde_json::json!({"pod": {"name": "web", "onLoss": "End"}}));
    see(&mut follows, &source, pod(1, 7, false));
    settle(&mut follows, 1);
    follows.observe_deleted(&source, 2);
    assert_eq!(settle(&mut follows, 1), Some((TtlChange::End, TtlState::Running)));
    (follows, source)
}

#[test]
fn a_loss_that_was_seen_before_something_could_not_be_seen_ends_nothing_again() {
    let (mut follows, source) = ended_by_loss();
    follows.set_unseen(&source, Some(following::UNWATCHED));
    assert_eq!(settle(&mut follows, 1), Some((TtlChange::None, TtlState::Paused)));
    // Its holder may have renewed it since.
    follows.set_unseen(&source, None);
    assert_eq!(settle(&mut follows, 1), Some((TtlChange::None, TtlState::Running)));
}

#[test]
fn a_lease_that_is_told_to_run_out_after_all_is_no_longer_cut_short() {
    let (mut follows, _) = ended_by_loss();
    let runs_out = follow(serde_json::json!({"pod": {"name": "web"}}));
    let change = follows.link(uid(1), &NamespacedName::new("shop", "a"), Some(&runs_out), None, None);
    assert_eq!(change, Change { source: false, cut: true });
}

#[test]
fn the_pod_of_a_restored_lease_is_the_one_that_its_status_names() {
    let mut follows = all();
    let follow = follow(serde_json::json!({"pod": {"name": "web"}}));
    follows.link(uid(1), &NamespacedName::new("shop", "a"), Some(&follow), Some(uid(7)), Some(Some(true)));
    see(&mut follows, &follow.source, pod(9, 8, false));
    // It is unknown since when it is lost, so the whole TTL runs from now.
    assert_eq!(settle(&mut follows, 1), Some((TtlChange::Renew, TtlState::Running)));
    assert_eq!(follows.state_of(uid(1)), Some(FollowState::Lost(following::SOURCE_REPLACED)));
}

#[test]
fn a_pod_that_no_status_mentions_may_never_have_existed() {
    for (from, time) in [
        (serde_json::json!({"pod": {"name": "web", "onLoss": "End"}}), TtlChange::None),
        (serde_json::json!({"pod": {"name": "web", "onLoss": "RunOut"}}), TtlChange::Renew),
        (
            serde_json::json!({"pod": {"name": "web", "onLoss": "End", "uid": uid(7).to_string()}}),
            TtlChange::End,
        ),
    ] {
        let mut follows = all();
        let follow = follow(from);
        follows.link(uid(1), &NamespacedName::new("shop", "a"), Some(&follow), None, Some(None));
        see(&mut follows, &follow.source, None);
        assert_eq!(settle(&mut follows, 1), Some((time, TtlState::Running)));
    }
}

#[test]
fn a_source_that_never_was_there_moves_no_deadline() {
    let mut follows = all();
    let source = link(&mut follows, 1, "a", serde_json::json!({"pod": {"name": "web", "onLoss": "End"}}));
    see(&mut follows, &source, None);
    assert_eq!(settle(&mut follows, 1), Some((TtlChange::None, TtlState::Running)));
    see(&mut follows, &source, pod(1, 7, false));
    assert_eq!(settle(&mut follows, 1), Some((TtlChange::Renew, TtlState::Full)), "it came late");
}

#[test]
fn what_cannot_be_seen_keeps_its_followers_from_ending() {
    let mut follows = SourceIndex::new([SourceKind::Pod], true);
    link(&mut follows, 1, "a", serde_json::json!({"node": {"name": "worker"}}));
    assert_eq!(settle(&mut follows, 1), Some((TtlChange::None, TtlState::Paused)));
    assert_eq!(follows.state_of(uid(1)), Some(FollowState::Unseen(following::NOT_ENABLED)));
    let source = link(&mut follows, 2, "b", serde_json::json!({"pod": {"name": "web"}}));
    assert!(follows.set_unseen(&source, Some(following::UNWATCHED)));
    assert_eq!(settle(&mut follows, 2), Some((TtlChange::None, TtlState::Paused)));
    see(&mut follows, &source, None);
    follows.set_unseen(&source, None);
    assert_eq!(
        settle(&mut follows, 2),
        Some((TtlChange::None, TtlState::Running)),
        "it wasn't there at the grant"
    );
}

#[test]
fn a_heartbeat_that_went_unseen_may_have_beaten_until_now() {
    let mut follows = all();
    let node = link(&mut follows, 1, "a", serde_json::json!({"node": {"name": "worker"}}));
    see(&mut follows, &node, heartbeat(1, "noon", 100));
    settle(&mut follows, 1);
    follows.set_unseen(&node, Some(following::UNWATCHED));
    settle(&mut follows, 1);
    follows.observe_deleted(&node, 2);
    follows.set_unseen(&node, None);
    assert_eq!(settle(&mut follows, 1), Some((TtlChange::Renew, TtlState::Running)));
}

#[test]
fn leases_in_a_circle_follow_nothing_and_those_outside_follow_them() {
    let mut follows = all();
    let follow_lease = |name: &str| serde_json::json!({"lease": {"name": name}});
    link(&mut follows, 1, "a", follow_lease("b"));
    link(&mut follows, 2, "b", follow_lease("c"));
    link(&mut follows, 3, "c", follow_lease("a"));
    link(&mut follows, 4, "outside", follow_lease("a"));
    link(&mut follows, 5, "itself", follow_lease("itself"));
    let runs = |_: &NamespacedName| LeaseState::Runs;
    for n in [1, 2, 3, 5] {
        follows.settle(uid(n), runs);
        assert_eq!(follows.state_of(uid(n)), Some(FollowState::Refused(following::CYCLE)), "{n}");
    }
    follows.settle(uid(4), runs);
    assert_eq!(follows.state_of(uid(4)), Some(FollowState::Alive { paused: false }));
    // The circle opens.
    follows.unlink(uid(2));
    let mut affected = follows.affected(uid(2), &NamespacedName::new("shop", "b"));
    affected.sort_unstable();
    assert_eq!(affected, [uid(1), uid(2), uid(3), uid(4)]);
    for n in [1, 3] {
        assert_eq!(
            follows.settle(uid(n), runs).map(|transition| transition.change),
            Some(TtlChange::CountFromHeartbeat),
            "{n}"
        );
    }
}

#[test]
fn a_chain_is_no_longer_than_sixteen() {
    let mut follows = all();
    for n in 0..20_u128 {
        link(
            &mut follows,
            n,
            &format!("a{n}"),
            serde_json::json!({"lease": {"name": format!("a{}", n + 1)}}),
        );
    }
    let mut view = |n| {
        follows.settle(uid(n), |_| LeaseState::Runs);
        follows.state_of(uid(n)).expect("a follower")
    };
    assert_eq!(view(19), FollowState::Alive { paused: false });
    assert_eq!(view(5), FollowState::Alive { paused: false });
    assert_eq!(view(3), FollowState::Refused(following::CHAIN_TOO_LONG));
}

#[test]
fn a_lease_whose_time_stands_still_lets_that_of_its_followers_stand_still() {
    let mut follows = all();
    link(&mut follows, 1, "a", serde_json::json!({"lease": {"name": "b"}}));
    let transition = |follows: &mut SourceIndex, state| {
        follows.settle(uid(1), |_| state).map(|transition| (transition.change, transition.ttl_state))
    };
    assert_eq!(transition(&mut follows, LeaseState::Unknown), None);
    assert_eq!(
        transition(&mut follows, LeaseState::Runs),
        Some((TtlChange::CountFromHeartbeat, TtlState::Running))
    );
    assert_eq!(transition(&mut follows, LeaseState::StandsStill), Some((TtlChange::Renew, TtlState::Full)));
    assert_eq!(transition(&mut follows, LeaseState::Runs), Some((TtlChange::Renew, TtlState::Running)));
    assert_eq!(transition(&mut follows, LeaseState::Ended), Some((TtlChange::None, TtlState::Running)));
}

#[test]
fn before_an_end_every_source_up_the_chain_is_read_after_the_deadline() {
    let mut follows = all();
    let at = Duration::from_secs;
    let node = link(&mut follows, 1, "a", serde_json::json!({"node": {"name": "worker"}}));
    let lease = link(&mut follows, 2, "b", serde_json::json!({"lease": {"name": "a"}}));
    let unread = |follows: &SourceIndex, fresh| follows.unread_for(uid(2), at(50), at(fresh), at(54));
    follows.read_answered(&lease, at(49), at(50));
    assert_eq!(unread(&follows, 49), Some(lease.clone()), "it was asked before the deadline");
    follows.read_answered(&lease, at(50), at(51));
    assert_eq!(unread(&follows, 50), Some(node.clone()));
    follows.read_answered(&node, at(51), at(52));
    assert_eq!(unread(&follows, 51), None);
    assert_eq!(unread(&follows, 52), Some(lease.clone()), "that is old by now");
    follows.read_sent(&lease, at(52), at(60));
    assert_eq!(unread(&follows, 52), Some(lease.clone()), "and was when it was asked for again");
    follows.read_sent(&lease, at(51), at(60));
    assert_eq!(unread(&follows, 52), None, "it will do until it is read again");
    follows.read_failed(&lease);
    assert_eq!(unread(&follows, 52), Some(lease.clone()));
    follows.read_sent(&lease, at(51), at(54));
    assert_eq!(unread(&follows, 52), Some(lease), "but no longer than that may take");
}

#[test]
fn what_is_watched_grows_with_what_is_followed_and_goes_with_it() {
    let mut follows = all();
    assert_eq!(follows.replan(), None, "no lease follows anything");
    let mut last = Vec::new();
    for n in 0..9_u128 {
        link(&mut follows, n, &format!("a{n}"), serde_json::json!({"pod": {"name": format!("p{n}")}}));
        if let Some(source_watches) = follows.replan() {
            last = source_watches.iter().map(ToString::to_string).collect();
        }
        if n == 7 {
            assert_eq!(last.len(), 8, "{last:?}");
        }
    }
    assert_eq!(last, ["pod/shop/*"]);
    for n in 0..8 {
        follows.unlink(uid(n));
    }
    assert_eq!(follows.replan(), None, "it stays as wide as long as a lease follows one");
    follows.unlink(uid(8));
    assert!(follows.replan().is_some_and(|source_watches| source_watches.is_empty()));
}

#[test]
fn many_namespaces_are_watched_at_once_where_that_is_allowed() {
    for (everywhere, expected) in [(true, 1), (false, 9)] {
        let mut follows = SourceIndex::new(SourceKind::ALL, everywhere);
        for n in 0..9_u128 {
            let source = Source { kind: SourceKind::Pod, name: NamespacedName::new(format!("n{n}"), "web") };
            let follow = Follow { source, uid: None, ends_on_loss: false };
            follows.link(uid(n), &NamespacedName::new(format!("n{n}"), "a"), Some(&follow), None, None);
        }
        assert_eq!(follows.replan().map(|source_watches| source_watches.len()), Some(expected));
    }
}

#[test]
fn a_source_that_its_lookout_has_shown_before_is_read() {
    let mut follows = all();
    for n in 0..9_u128 {
        link(&mut follows, n, &format!("a{n}"), serde_json::json!({"pod": {"name": format!("p{n}")}}));
    }
    let source_watch =
        follows.replan().and_then(|source_watches| source_watches.first().cloned()).expect("a watch");
    let there: ListedKeys = (0..9).map(|n| NamespacedName::new("shop", format!("p{n}"))).collect();
    for n in 0..9_u128 {
        let source = Source { kind: SourceKind::Pod, name: NamespacedName::new("shop", format!("p{n}")) };
        see(&mut follows, &source, pod(1, n, false));
    }
    assert_eq!(follows.synced(&source_watch, &there), []);
    assert_eq!(follows.take_unread(), []);
    let late = link(&mut follows, 10, "late", serde_json::json!({"pod": {"name": "p10"}}));
    assert_eq!(follows.replan(), None);
    assert_eq!(follows.take_unread(), [late]);
    // What a watch doesn't show isn't there.
    assert_eq!(follows.synced(&source_watch, &ListedKeys::default()).len(), 10);
}
