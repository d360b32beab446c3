//! The lessor against a naive model of it: a map that is scanned. Any sequence of operations gives the same
//! answers.

use std::{collections::BTreeMap, time::Duration};

use proptest::{collection::vec, prelude::*};

use super::{AboveMax, Backoff, Config, Error, LeaseTime, Lessor, State, Ttl};

type Id = u8;
type Item = u8;

const RETRY: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(4) };

#[derive(Clone, Debug)]
enum Op {
    Grant(Id, Ttl),
    Renew(Id),
    RenewWith(Id, Ttl),
    Reinstate(Id, Ttl),
    TakeBack(Id),
    Suspend(Id),
    Resume(Id),
    EndBy(Id, Option<u64>),
    Attach(Id, Item),
    Detach(Id, Item),
    Revoke(Id),
    BeginRevoke(Id),
    Failed(Id),
    Poll(usize),
    Promote(u64),
    Demote,
    Advance(i64),
}

fn ttl() -> impl Strategy<Value = Ttl> {
    prop_oneof![
        4 => (0..5000u64).prop_map(Ttl::from_millis),
        2 => (0..10_000_000u64).prop_map(Ttl::from_millis),
        1 => prop_oneof![Just(-1), Just(0), Just(9_000_000_000), Just(i64::MAX)].prop_map(Ttl::from_secs),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let id = || 0..12u8;
    let item = || 0..8u8;
    prop_oneof![
        6 => (id(), ttl()).prop_map(|(id, ttl)| Op::Grant(id, ttl)),
        6 => id().prop_map(Op::Renew),
        2 => (id(), ttl()).prop_map(|(id, ttl)| Op::RenewWith(id, ttl)),
        2 => (id(), ttl()).prop_map(|(id, ttl)| Op::Reinstate(id, ttl)),
        2 => id().prop_map(Op::TakeBack),
        2 => id().prop_map(Op::Suspend),
        2 => id().prop_map(Op::Resume),
        1 => (id(), prop::option::of(0..20_000u64)).prop_map(|(id, end_by)| Op::EndBy(id, end_by)),
        4 => (id(), item()).prop_map(|(id, item)| Op::Attach(id, item)),
        2 => (id(), item()).prop_map(|(id, item)| Op::Detach(id, item)),
        3 => id().prop_map(Op::Revoke),
        1 => id().prop_map(Op::BeginRevoke),
        2 => id().prop_map(Op::Failed),
        8 => (0..5usize).prop_map(Op::Poll),
        1 => prop_oneof![Just(0u64), 0..10_000u64].prop_map(Op::Promote),
        1 => Just(Op::Demote),
        6 => prop_oneof![-1000..0i64, 0..3000i64, 0..20_000_000i64].prop_map(Op::Advance),
    ]
}

#[derive(Clone, Debug)]
struct ModelLease {
    ttl: u64,
    /// Deadline, or what remains.
    deadline: u64,
    end_by: Option<u64>,
    suspended: bool,
    /// Since its end began: how often it was offered, and from when on it may be offered again, if it failed.
    ending: Option<(u32, Option<u64>)>,
}

impl ModelLease {
    fn due(&self) -> Option<u64> {
        let deadline = (!self.suspended).then_some(self.deadline);
        deadline.into_iter().chain(self.end_by).min()
    }
}

/// All times are milliseconds.
#[derive(Default)]
struct Model {
    now: u64,
    primary: bool,
    leases: BTreeMap<Id, ModelLease>,
    items: BTreeMap<Item, Id>,
}

impl Model {
    fn permitted(ttl: Ttl) -> Result<u64, Error> {
        if ttl > Ttl::MAX {
            Err(Error::TtlTooLarge { asked: ttl, max: Ttl::MAX })
        } else {
            Ok(ttl.as_millis())
        }
    }

    fn alive(&mut self, id: Id) -> Result<&mut ModelLease, Error> {
        let lease = self.leases.get_mut(&id).ok_or(Error::LeaseNotFound)?;
        if lease.ending.is_some() { Err(Error::LeaseExpired) } else { Ok(lease) }
    }

    fn extend(lease: &mut ModelLease, ttl: Option<u64>, now: u64) -> u64 {
        lease.ending = None;
        lease.deadline = match (ttl, lease.suspended) {
            (Some(ttl), true) => ttl,
            (None, true) => lease.ttl,
            (Some(ttl), false) => now + ttl,
            (None, false) => lease.deadline.max(now + lease.ttl),
        };
        lease.ttl = ttl.unwrap_or(lease.ttl);
        lease.ttl
    }

    /// What may be offered now, with the time by which its turn is told.
    fn offers(&self) -> Vec<(u64, Id)> {
        let mut offers: Vec<_> = self
            .leases
            .iter()
            .filter_map(|(id, lease)| {
                let turn = match lease.ending {
                    None => lease.due()?,
                    Some((_, again)) => again?,
                };
                (turn <= self.now).then_some((turn, *id))
            })
            .collect();
        offers.sort_unstable();
        offers
    }
}

fn lease_time(millis: u64) -> LeaseTime {
    LeaseTime::from_millis(millis)
}

/// Does one operation on both sides, and compares what they answer.
fn step(lessor: &mut Lessor<Id, Item>, model: &mut Model, op: Op) -> Result<(), TestCaseError> {
    let millis = model.now;
    let now = lease_time(millis);
    match op {
        Op::Grant(id, ttl) => {
            let expected = Model::permitted(ttl).and_then(|ttl| match model.leases.contains_key(&id) {
                true => Err(Error::LeaseExists),
                false => Ok(ttl),
            });
            if let Ok(ttl) = expected {
                let lease =
                    ModelLease { ttl, deadline: millis + ttl, end_by: None, suspended: false, ending: None };
                model.leases.insert(id, lease);
            }
            prop_assert_eq!(lessor.grant(id, ttl, now).map(|granted| granted.ttl.as_millis()), expected);
        }
        Op::Renew(id) => {
            let expected = model.alive(id).map(|lease| Model::extend(lease, None, millis));
            prop_assert_eq!(lessor.renew(id, now).map(|granted| granted.ttl.as_millis()), expected);
        }
        Op::RenewWith(id, ttl) => {
            let expected = model.alive(id).and_then(|lease| {
                let ttl = Model::permitted(ttl)?;
                Ok(Model::extend(lease, Some(ttl), millis))
            });
            prop_assert_eq!(lessor.renew_with(id, ttl, now).map(|granted| granted.ttl.as_millis()), expected);
        }
        Op::Reinstate(id, ttl) => {
            let lease = model.leases.get_mut(&id).ok_or(Error::LeaseNotFound);
            let expected = lease.and_then(|lease| {
                let ttl = Model::permitted(ttl)?;
                Ok(Model::extend(lease, Some(ttl), millis))
            });
            prop_assert_eq!(lessor.reinstate(id, ttl, now).map(|granted| granted.ttl.as_millis()), expected);
        }
        Op::TakeBack(id) => {
            let expected = model.leases.get_mut(&id).map(|lease| lease.ending = None);
            prop_assert_eq!(lessor.take_back(id), expected.ok_or(Error::LeaseNotFound));
        }
        Op::Suspend(id) => {
            let expected = model.alive(id).map(|lease| {
                if !lease.suspended {
                    lease.suspended = true;
                    lease.deadline = lease.deadline.saturating_sub(millis);
                }
                Duration::from_millis(lease.deadline)
            });
            prop_assert_eq!(lessor.suspend(id, now), expected);
        }
        Op::Resume(id) => {
            let expected = model.alive(id).map(|lease| {
                if lease.suspended {
                    lease.suspended = false;
                    lease.deadline += millis;
                }
                lease.due().map(lease_time)
            });
            prop_assert_eq!(lessor.resume(id, now).map(|granted| granted.deadline), expected);
        }
        Op::EndBy(id, after) => {
            let end_by = after.map(|after| millis + after);
            let expected = model.alive(id).map(|lease| lease.end_by = end_by);
            prop_assert_eq!(lessor.set_end_by(id, end_by.map(lease_time)), expected);
        }
        Op::Attach(id, item) => {
            let expected = model.alive(id).map(|_| ());
            let expected = expected.map(|()| model.items.insert(item, id));
            prop_assert_eq!(lessor.attach(id, item), expected);
        }
        Op::Detach(id, item) => {
            let expected = match model.leases.contains_key(&id) {
                false => Err(Error::LeaseNotFound),
                true if model.items.get(&item) == Some(&id) => Ok(model.items.remove(&item).is_some()),
                true => Ok(false),
            };
            prop_assert_eq!(lessor.detach(id, &item), expected);
        }
        Op::Revoke(id) => {
            let expected = model.leases.remove(&id).map(|_| {
                let items: Vec<_> = model.items.extract_if(.., |_, owner| *owner == id).collect();
                items.into_iter().map(|(item, _)| item).collect::<Vec<_>>()
            });
            let items = lessor.revoke(id).map(|mut items| {
                items.sort_unstable();
                items
            });
            prop_assert_eq!(items, expected.ok_or(Error::LeaseNotFound));
        }
        Op::BeginRevoke(id) => {
            let primary = model.primary;
            let expected = match model.leases.get_mut(&id) {
                _ if !primary => Err(Error::NotPrimary),
                None => Err(Error::LeaseNotFound),
                Some(lease) if lease.ending.is_some() => Ok(false),
                Some(lease) => {
                    lease.ending = Some((1, None));
                    Ok(true)
                }
            };
            prop_assert_eq!(lessor.begin_revoke(id, now), expected);
        }
        Op::Failed(id) => {
            let expected = model.leases.get_mut(&id).and_then(|lease| {
                let (tries, again) = lease.ending.as_mut()?;
                let time = millis + RETRY.pause(*tries).as_millis() as u64;
                *again = Some(time);
                Some(lease_time(time))
            });
            prop_assert_eq!(lessor.failed(id, now), expected);
        }
        Op::Poll(limit) => {
            let offers = if model.primary { model.offers() } else { Vec::new() };
            let polled = lessor.poll(now, limit);
            prop_assert_eq!(polled.len(), offers.len().min(limit));
            for (id, (turn, _)) in polled.iter().zip(&offers) {
                // Those of one millisecond may come in any order.
                prop_assert!(offers.contains(&(*turn, *id)), "{id} at {turn} instead of {offers:?}");
                if let Some(lease) = model.leases.get_mut(id) {
                    let tries = lease.ending.map_or(0, |(tries, _)| tries);
                    lease.ending = Some((tries + 1, None));
                }
            }
        }
        Op::Promote(extend) => {
            model.primary = true;
            for lease in model.leases.values_mut() {
                lease.end_by = lease.end_by.map(|end_by| end_by + extend);
                lease.deadline += if lease.suspended { 0 } else { extend };
                if let Some((_, Some(again))) = &mut lease.ending {
                    *again += extend;
                }
            }
            lessor.promote(Duration::from_millis(extend));
        }
        Op::Demote => {
            if model.primary {
                model.leases.values_mut().for_each(|lease| lease.ending = None);
            }
            model.primary = false;
            lessor.demote();
        }
        Op::Advance(by) => model.now = millis.saturating_add_signed(by),
    }
    Ok(())
}

/// Looks at everything from outside.
fn compare(lessor: &mut Lessor<Id, Item>, model: &Model) -> Result<(), TestCaseError> {
    let now = lease_time(model.now);
    prop_assert_eq!(lessor.leases().count(), model.leases.len());
    for (id, lease) in &model.leases {
        let Some(ours) = lessor.lookup(*id) else {
            return Err(TestCaseError::fail(format!("lease {id} is lost")));
        };
        prop_assert_eq!(ours.deadline, lease.due().map(lease_time), "deadline of {}", id);
        let state = match (&lease.ending, lease.suspended) {
            (Some(_), _) => State::Ending,
            (None, true) => State::Suspended,
            (None, false) => State::Active,
        };
        prop_assert_eq!(ours.state, state);
        let mut items: Vec<_> = lessor.items(*id).copied().collect();
        items.sort_unstable();
        let expected: Vec<_> =
            model.items.iter().filter(|(_, owner)| *owner == id).map(|(item, _)| *item).collect();
        prop_assert_eq!(items, expected);
    }
    for item in 0..8 {
        prop_assert_eq!(lessor.lease_of(&item), model.items.get(&item).copied());
    }
    let counts = lessor.counts();
    prop_assert_eq!(counts.leases, model.leases.len());
    prop_assert_eq!(counts.items, model.items.len());
    prop_assert_eq!(counts.ending, model.leases.values().filter(|lease| lease.ending.is_some()).count());
    prop_assert_eq!(counts.suspended, model.leases.values().filter(|lease| lease.suspended).count());
    if model.primary {
        // Whoever sleeps until the wake-up misses no end.
        match model.offers().first() {
            Some(_) => prop_assert!(lessor.next_wakeup().is_some_and(|at| at <= now)),
            None => {
                let next = model.leases.values().filter(|lease| lease.ending.is_none());
                let next = next.filter_map(ModelLease::due).min().map(lease_time);
                prop_assert!(next.is_none_or(|next| lessor.next_wakeup().is_some_and(|at| at <= next)));
            }
        }
    } else {
        prop_assert_eq!(lessor.next_wakeup(), None);
        let overdue = model.offers().first().map(|(turn, _)| lease_time(*turn));
        prop_assert_eq!(lessor.overdue(now).map(|(_, deadline)| deadline), overdue);
    }
    Ok(())
}

/// What random operations found: an end that failed, to be tried again at a time that an extension had moved before
/// others, kept the lease from being overdue in its turn after the demotion.
#[test]
fn an_end_that_failed_leaves_its_lease_overdue_in_its_turn() {
    let mut lessor: Lessor<Id> = Lessor::new(Config { retry: RETRY, ..Config::default() });
    let at = |millis: u64| lease_time(5_000_000 + millis);
    assert!(lessor.grant(1, Ttl::from_millis(0), at(0)).is_ok());
    assert!(lessor.grant(2, Ttl::from_millis(1), at(0)).is_ok());
    lessor.promote(Duration::ZERO);
    assert_eq!(lessor.poll(at(1218), 2), [1, 2]);
    assert!(lessor.failed(2, at(1218)).is_some());
    lessor.promote(Duration::from_millis(1001));
    assert!(lessor.failed(1, at(1218)).is_some());
    lessor.demote();
    assert_eq!(lessor.overdue(at(1218)), Some((1, at(1001))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations_gives_the_answers_of_the_model(ops in vec(op(), 1..150)) {
        let config = Config { retry: RETRY, above_max: AboveMax::Refuse, ..Config::default() };
        let mut lessor = Lessor::new(config);
        let mut model = Model { now: 5_000_000, ..Model::default() };
        for op in ops {
            step(&mut lessor, &mut model, op)?;
            compare(&mut lessor, &model)?;
        }
    }

    /// A sleeper that polls only when told to: every lease ends, once, not early, and at its very
    /// millisecond.
    #[test]
    fn who_sleeps_until_the_next_wakeup_ends_every_lease_in_time(
        leases in vec((0..50_000_000u64, vec(0..20_000_000u64, 0..4)), 1..50),
    ) {
        let mut lessor: Lessor<usize> = Lessor::new(Config::default());
        lessor.promote(Duration::ZERO);
        let mut deadlines = BTreeMap::new();
        for (id, (ttl, _)) in leases.iter().enumerate() {
            prop_assert!(lessor.grant(id, Ttl::from_millis(*ttl), LeaseTime::ZERO).is_ok());
            deadlines.insert(id, *ttl);
        }
        let mut renewals: Vec<_> = leases
            .iter()
            .enumerate()
            .flat_map(|(id, (_, renewals))| renewals.iter().map(move |at| (*at, id)))
            .collect();
        renewals.sort_unstable_by(|a, b| b.cmp(a));
        let mut wakeups = 0;
        while let Some(wakeup) = lessor.next_wakeup() {
            let wakeup = wakeup.as_nanos() / 1_000_000;
            if let Some((at, id)) = renewals.pop_if(|(at, _)| *at < wakeup) {
                if let Ok(granted) = lessor.renew(id, lease_time(at)) {
                    let deadline = deadlines.entry(id).and_modify(|old| *old = (*old).max(at + leases[id].0));
                    let std::collections::btree_map::Entry::Occupied(deadline) = deadline else {
                        return Err(TestCaseError::fail("renewed a lease that has ended"));
                    };
                    prop_assert_eq!(granted.deadline, Some(lease_time(*deadline.get())));
                }
                continue;
            }
            wakeups += 1;
            for id in lessor.poll(lease_time(wakeup), usize::MAX) {
                prop_assert_eq!(deadlines.remove(&id), Some(wakeup));
                prop_assert_eq!(lessor.ended(id), Ok(Vec::new()));
            }
        }
        prop_assert_eq!(deadlines.len(), 0);
        prop_assert!(wakeups <= leases.len() * 30, "{wakeups} wake-ups for {} leases", leases.len());
    }
}
