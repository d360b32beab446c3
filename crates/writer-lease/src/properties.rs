//! Properties of several writers together, under any faults. The simulation itself checks at every step
//! that no two writers run under one term, that none runs after its lease has lapsed, that no key runs twice
//! at once, that a follower waits and gives its head start, and that a machine wakes exactly when it has
//! something to do.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};

use super::{
    Action, Config, Holder, Lane, WorkResult, WriterLease,
    simulation::{Fault, LEASE, Plan, run},
};

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        millis(0..10_000).prop_map(|back| Fault::Crash { back }),
        millis(0..10_000).prop_map(|back| Fault::Stop { back }),
        millis(1..15_000).prop_map(|length| Fault::Pause { length }),
        millis(1..15_000).prop_map(|length| Fault::Disconnect { length }),
        millis(1..15_000).prop_map(|length| Fault::Outage { length }),
    ]
}

/// Faults in the first minute, work in the first two, then a minute to finish and one of rest.
const LAST_FAULT: u64 = 60_000;
const LAST_WORK: u64 = 120_000;
const CALM: Duration = Duration::from_secs(90);
const REST: Duration = Duration::from_secs(180);
const LENGTH: Duration = Duration::from_secs(240);

prop_compose! {
    fn troubled()(
        seed in any::<u64>(),
        replicas in 1..4_usize,
        latency in millis(1..400),
        lost_percent in 0..30_u64,
        faults in vec((millis(0..LAST_FAULT), 0..3_usize, fault()), 0..12),
        works in vec(millis(0..LAST_WORK), 0..40),
    ) -> Plan {
        Plan { seed, replicas, latency, lost_percent, faults, works, hopeless: vec![], length: LENGTH }
    }
}

prop_compose! {
    fn calm()(
        seed in any::<u64>(),
        replicas in 1..4_usize,
        latency in millis(1..50),
        works in vec(millis(2_000..LAST_WORK), 0..40),
        hopeless in vec(0..40_u32, 0..4),
    ) -> Plan {
        Plan {
            seed, replicas, latency, works, hopeless,
            lost_percent: 0, faults: vec![], length: LENGTH,
        }
    }
}

prop_compose! {
    /// A calm world in which one replica of three ends after a while, be it the primary or not.
    fn bereft(fault: Fault)(
        plan in calm(),
        at in millis(2_000..LAST_WORK),
        index in 0..3_usize,
    ) -> Plan {
        Plan { replicas: 3, hopeless: vec![], faults: vec![(at, index, fault)], ..plan }
    }
}

/// How late work may be that falls due when `plan`'s only fault has just happened, or later.
fn latest(plan: &Plan, allowed: Duration) -> Result<(), TestCaseError> {
    let history = run(plan);
    prop_assert!(history.term() <= 2, "{:?}", history.arbitrations);
    for (key, due) in (0..).zip(&plan.works) {
        let done = history.done.get(&key);
        prop_assert!(done.is_some_and(|at| *at <= *due + allowed), "{key} due at {due:?}: {done:?}");
    }
    Ok(())
}

/// A leader with so many slots, at the time zero.
fn leader(max_running: usize) -> WriterLease<u32> {
    let mut lease = WriterLease::new(Config { max_running, ..Config::new(LEASE) });
    lease.observe_claim(Holder::Me, 1, Duration::ZERO);
    lease.claimed(1, Duration::ZERO, Duration::ZERO);
    lease
}

/// The keys that start at the time zero.
fn runs(lease: &mut WriterLease<u32>) -> Vec<u32> {
    let actions = std::iter::from_fn(|| lease.poll(Duration::ZERO));
    actions.filter_map(|action| if let Action::Run { key, .. } = action { Some(key) } else { None }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn under_any_faults_the_work_is_done_and_then_nothing_is_written(
        mut plan in troubled(),
        deletions in vec(millis(0..LAST_FAULT), 0..4),
    ) {
        plan.faults.extend(deletions.into_iter().map(|at| (at, 0, Fault::Delete)));
        let history = run(&plan);
        for (key, due) in (0..).zip(&plan.works) {
            let done = history.done.get(&key);
            let latest = CALM.max(*due) + LEASE * 3;
            prop_assert!(done.is_some_and(|at| *at <= latest), "{key} due at {due:?}: {done:?}");
        }
        let last = history.writes.iter().chain(history.arbitrations.iter().map(|(at, ..)| at)).max();
        prop_assert!(last.is_none_or(|at| *at < REST), "written at rest, at {last:?}");
    }

    #[test]
    fn with_any_stuck_lanes_other_work_has_a_slot_and_in_the_end_all_has_run(
        slots in 1..40_usize,
        lanes in vec(0..6_u64, 0..80),
        order in any::<u64>(),
    ) {
        let mut lease = leader(slots);
        for (key, lane) in (0..).zip(&lanes) {
            lease.try_work_in(Lane::bounded(*lane), key, Duration::ZERO);
        }
        let mut running = runs(&mut lease);
        prop_assert!(running.len() < slots.max(2), "{} of {slots}", running.len());
        let in_lane = |lane: u64| running.iter().filter(|key| lanes[**key as usize] == lane).count();
        prop_assert!((0..6).all(|lane| in_lane(lane) <= slots.div_ceil(2)), "{running:?}");
        if slots > 1 {
            lease.try_work(1_000, Duration::ZERO);
            prop_assert_eq!(runs(&mut lease), [1_000]);
            running.push(1_000);
        }
        let mut ran = 0;
        while !running.is_empty() {
            let key = running.swap_remove(usize::try_from(order).unwrap_or(7) % running.len());
            lease.done(&key, WorkResult::Extend, false, Duration::ZERO, Duration::ZERO);
            ran += 1;
            running.extend(runs(&mut lease));
            prop_assert!(running.len() <= slots);
        }
        prop_assert!(lease.is_empty(), "{} left after {ran}", lease.len());
    }

    #[test]
    fn each_primary_has_a_term_of_its_own(plan in troubled()) {
        let history = run(&plan);
        for pair in history.arbitrations.windows(2) {
            let ((_, before, old), (_, after, new)) = (pair[0], pair[1]);
            let same = new == old && (after == before || after.is_none());
            prop_assert!(same || new > old && after.is_some(), "{pair:?}");
        }
    }

    #[test]
    fn each_fault_changes_the_primary_once_at_most(plan in troubled()) {
        let history = run(&plan);
        let most = 1 + plan.faults.len() as i64;
        prop_assert!(history.term() <= most, "{:?}", history.arbitrations);
    }

    #[test]
    fn without_faults_one_writer_leads_all_the_time_and_is_punctual(plan in calm()) {
        let history = run(&plan);
        prop_assert_eq!(history.term(), 1, "{:?}", history.arbitrations);
        for (key, due) in (0..).zip(&plan.works) {
            let done = history.done.get(&key);
            let hopeless = plan.hopeless.contains(&key);
            // A proof there and back, and the write there.
            let latest = *due + plan.latency * 3;
            prop_assert!(done.map_or(hopeless, |at| *at <= latest), "{key} due at {due:?}: {done:?}");
        }
    }

    #[test]
    fn after_the_death_of_the_primary_work_is_late_by_a_lease_duration_at_most(
        plan in bereft(Fault::Crash { back: LENGTH }),
    ) {
        // News of the last write; a look and a claim, there and back; the write.
        latest(&plan, LEASE + plan.latency * 6)?;
    }

    #[test]
    fn after_the_stop_of_the_primary_work_is_hardly_late(plan in bereft(Fault::Stop { back: LENGTH })) {
        // The object cleared, news of it, the jitter; a look and a claim, there and back; the write.
        latest(&plan, Duration::from_millis(80) + plan.latency * 7)?;
    }

    #[test]
    fn hopeless_work_costs_a_proof_per_third_of_a_lease_duration_at_most(plan in calm()) {
        let proofs: Vec<_> = run(&plan).arbitrations.iter().map(|(at, ..)| *at).collect();
        for window in proofs.windows(5) {
            prop_assert!(window[4] + plan.latency >= window[0] + LEASE, "{window:?}");
        }
    }
}
