//! The state machine: the role of this writer, and its next actions.

use std::time::Duration;

use super::{Action, Config, Finish, Holder, Lane, Observation, Reason, Term, WorkResult, queue::Queue};

/// Terms on objects are valid up to this far above those of the arbitration object.
const PLAUSIBLE_LEAD: Term = 1_000_000;
/// No term from here on is valid, so that there is room for the next.
const ABSURD: Term = 1 << 62;

/// The role of this writer. Times are on the clock of the caller's `now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It has yet to read the arbitration object.
    Election,
    /// This writer leads. After `until` it has to prove itself before it runs work.
    Leader {
        /// A lease duration after the last accepted write was sent.
        until: Duration,
    },
    /// Another writer leads. Until `until` this one doesn't claim the lead.
    Follower {
        /// A lease duration after the last observed write.
        until: Duration,
    },
}

/// A writer lease: leadership by competing to write. The [crate's page](crate) describes it.
///
/// `now` is the time since an arbitrary start, on a clock that never goes backwards. After any call,
/// [`poll`](Self::poll) until it returns `None`, then sleep until [`wake_at`](Self::wake_at).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WriterLease<K: Ord> {
    config: Config,
    state: State,
    queue: Queue<K>,
    /// The highest term of this writer; 0 if it never led.
    term: Term,
    /// The highest observed term.
    seen: Term,
    /// The highest term observed on the arbitration object.
    arbitrated: Term,
    /// Terms up to this one may have been claimed.
    possible: Term,
    /// When to claim the arbitration object, if it is vacant.
    vacant: Option<Duration>,
    /// By how much later than others this writer claims a vacant arbitration object.
    hesitation: Duration,
    /// When to claim the arbitration object, if the primary doesn't answer a challenge.
    unanswered: Option<Duration>,
    /// Whether a `Prove` or `Claim` is under way.
    arbitrating: bool,
    /// Whether this writer ever claimed. If it didn't, a claim under its name isn't its own.
    has_claimed: bool,
    /// Consecutive failures of arbitration, and the end of the backoff after them.
    failures: u32,
    arbitrate_at: Duration,
    /// When the last accepted write was sent.
    last_sign: Duration,
    /// When the runtime requested a sign of life.
    show: Option<Duration>,
    /// The last term that this writer resigned from; 0 if none.
    resigned: Term,
    /// Whether that is still to be cleared from the arbitration object.
    resigning: bool,
}

/// An action at some time. `poll` and `wake_at` share it, so that the runtime wakes only if there is an action.
enum Plan<K> {
    Resign(Term),
    Prove,
    Claim(Reason<K>),
    Run { until: Duration },
}

impl<K: Ord + Clone> WriterLease<K> {
    /// A writer without observations and without work.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            state: State::Election,
            queue: Queue::new(),
            term: 0,
            seen: 0,
            arbitrated: 0,
            possible: 0,
            vacant: None,
            hesitation: Duration::ZERO,
            unanswered: None,
            arbitrating: false,
            has_claimed: false,
            failures: 0,
            arbitrate_at: Duration::ZERO,
            last_sign: Duration::ZERO,
            show: None,
            resigned: 0,
            resigning: false,
        }
    }

    // --- State -----------------------------------------------------------------------------------

    /// The role of this writer.
    pub fn state(&self) -> State {
        self.state
    }

    /// The term under which this writer leads, even if its lease has lapsed; `None` if it doesn't lead.
    pub fn leading_term(&self) -> Option<Term> {
        matches!(self.state, State::Leader { .. }).then_some(self.term)
    }

    /// Whether this writer leads, and its lease hasn't lapsed.
    pub fn is_leader(&self, now: Duration) -> bool {
        matches!(self.state, State::Leader { until } if now < until)
    }

    /// When the lease lapses, or lapsed; `None` if this writer doesn't lead.
    pub fn lease_until(&self) -> Option<Duration> {
        match self.state {
            State::Leader { until } => Some(until),
            State::Election | State::Follower { .. } => None,
        }
    }

    /// When the last accepted write was sent.
    pub fn last_sign(&self) -> Duration {
        self.last_sign
    }

    /// When a write of another leader was last observed, or this writer last reconnected; zero if it doesn't follow.
    pub fn last_followed(&self) -> Duration {
        match self.state {
            State::Follower { until } => until.saturating_sub(self.config.lease_duration),
            State::Election | State::Leader { .. } => Duration::ZERO,
        }
    }

    /// The highest observed term.
    pub fn highest_term(&self) -> Term {
        self.seen
    }

    /// The term that this writer would claim.
    pub fn next_term(&self) -> Term {
        self.seen.saturating_add(1)
    }

    /// Whether a term is invalid: far above that of the arbitration object, and above what is
    /// [possible](Self::allow_terms), so that no writer can have had it. Such a term is ignored, or it would lock out all
    /// later writers.
    pub fn is_absurd(&self, term: Term) -> bool {
        let believed = self.arbitrated.saturating_add(PLAUSIBLE_LEAD).max(self.possible);
        !(0..ABSURD).contains(&term) || term > believed
    }

    /// The number of keys with work, waiting or running.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no key has work.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this key has work, waiting or running.
    pub fn contains(&self, key: &K) -> bool {
        self.queue.contains(key)
    }

    /// Whether this key is running.
    pub fn is_running(&self, key: &K) -> bool {
        self.queue.is_running(key)
    }

    /// Whether this key is running in a [spare](Lane::spare) lane.
    pub fn runs_spare(&self, key: &K) -> bool {
        self.queue.runs_spare(key)
    }

    /// The number of running keys.
    pub fn running(&self) -> usize {
        self.queue.running()
    }

    // --- Work ------------------------------------------------------------------------------------

    /// Queues the work of `key`, which falls due at `due`, in the future or in the past. A leader runs it then. A
    /// follower holds it back, and claims the lead if it is still queued after its head start.
    ///
    /// Queuing it again with the same `due` changes nothing. Another `due` replaces it. If it is running, it runs again
    /// afterwards.
    pub fn try_work(&mut self, key: K, due: Duration) {
        self.queue.push(None, key, due, None, self.config.retry_limit);
    }

    /// Like [`try_work`](Self::try_work), in a lane: for work that may get stuck together with others of its lane, and
    /// must not hold up the rest. Queuing it again in another lane replaces it.
    pub fn try_work_in(&mut self, lane: Lane, key: K, due: Duration) {
        self.queue.push(Some(lane), key, due, None, self.config.retry_limit);
    }

    /// The same, for work that isn't run before `ready`, since it failed before. It counts as due nevertheless.
    pub fn try_work_later(&mut self, lane: Lane, key: K, due: Duration, ready: Duration) {
        self.queue.push(Some(lane), key, due, Some(ready), self.config.retry_limit);
    }

    /// Runs no work of [spare](Lane::spare) lanes before this time.
    pub fn spare_from(&mut self, from: Duration) {
        self.queue.spare_from(from);
    }

    /// Drops the work of `key`, and returns whether there was any. If it is running, it isn't retried.
    pub fn remove(&mut self, key: &K) -> bool {
        self.queue.remove(key)
    }

    /// Ends the backoff of `key`, for when its obstacle may be gone. Its attempts still count, so the next backoff is
    /// longer.
    pub fn hasten(&mut self, key: &K) {
        self.queue.hasten(key);
    }

    /// Limits the retries of the queued work of `key`. It is dropped afterwards. Followers should drop it for the same
    /// reason, or they find it overdue and claim the lead for it, one after the other.
    pub fn limit_retries(&mut self, key: &K, retries: u32) {
        self.queue.limit_retries(key, retries);
    }

    /// Another writer has done the work of `key`. Drops the work, and starts a follower's wait again.
    pub fn extend(&mut self, key: &K, now: Duration) {
        self.queue.remove(key);
        self.follow_on(now);
    }

    /// Requests a sign of life. A leader proves itself, even if its lease hasn't lapsed, unless another write sent from now
    /// on is accepted first.
    pub fn show(&mut self, now: Duration) {
        self.show.get_or_insert(now);
    }

    /// From now on this writer claims a vacant arbitration object by so much later than others: for a writer that
    /// knows less than others may.
    pub fn hesitate(&mut self, by: Duration) {
        self.hesitation = by;
    }

    /// The head start of an incumbent: how long others leave work to it before they claim the lead.
    pub fn head_start(&self) -> Duration {
        self.config.head_start()
    }

    // --- Observations ----------------------------------------------------------------------------

    /// A follower claims the lead at this time unless it observes a write of the primary before, which was challenged to
    /// write something. `None`: there is no challenge, or it was answered.
    pub fn await_answer(&mut self, until: Option<Duration>) {
        self.unanswered = until;
    }

    /// Terms up to this one are possible, however far they are above the last observation of the arbitration object. For
    /// arbitration objects whose first term comes from a clock that all writers share, such as their own version: a term
    /// that this clock has reached is possible.
    pub fn allow_terms(&mut self, until: Term) {
        self.possible = self.possible.max(until);
    }

    /// A write under `term` was observed just now, on any object except the arbitration object. It starts a follower's wait
    /// again, and demotes a leader of a lower term. Writes of this writer, and old ones, are recognized by their terms and
    /// ignored.
    pub fn observe(&mut self, term: Term, now: Duration) -> Observation {
        if self.is_absurd(term) {
            return Observation::Absurd;
        }
        if term < self.seen || term == self.term {
            return Observation::Ignored;
        }
        if term > self.seen {
            self.seen = term;
            self.vacant = None;
        }
        self.follow(now)
    }

    /// An object carries `term`, from an unknown time. It demotes a leader of a lower term, like
    /// [`observe`](Self::observe), but is no sign of life.
    pub fn learn_term(&mut self, term: Term, now: Duration) -> Observation {
        if self.is_absurd(term) {
            return Observation::Absurd;
        }
        if term <= self.seen {
            return Observation::Ignored;
        }
        self.seen = term;
        if self.leading_term().is_some() { self.follow(now) } else { Observation::Ignored }
    }

    /// The arbitration object names `holder` under `term`. Call it once per observed version, from a watch or from an
    /// arbitration.
    pub fn observe_claim(&mut self, holder: Holder, term: Term, now: Duration) -> Observation {
        if !(0..ABSURD).contains(&term) {
            return Observation::Absurd;
        }
        let leads = self.leading_term().is_some();
        let late = term < self.seen;
        self.arbitrated = self.arbitrated.max(term);
        self.seen = self.seen.max(term);
        if leads && term < self.term {
            return Observation::Ignored;
        }
        match holder {
            Holder::Other => {
                self.vacant = None;
                if late { Observation::Ignored } else { self.follow(now) }
            }
            Holder::Me if term <= self.term => Observation::Ignored,
            Holder::Me if self.has_claimed && !late => {
                self.lead(term, now);
                Observation::Adopted
            }
            Holder::Me | Holder::Nobody => {
                let delay = self.config.vacancy_delay(now);
                let at = match self.state {
                    // Another client cleared it: put this name back before others put theirs.
                    State::Leader { .. } if term == self.term => now,
                    State::Leader { .. } => {
                        self.follow(now);
                        now.saturating_add(delay)
                    }
                    // This writer resigned, so others go first.
                    State::Follower { until } if term == self.resigned && term > 0 => {
                        until.max(now).saturating_add(delay)
                    }
                    State::Follower { .. } | State::Election => now.saturating_add(delay),
                };
                self.vacant = Some(at);
                Observation::Vacant
            }
        }
    }

    /// The runtime was disconnected until now, for so long: a watch broke, or the server hung. The primary could do nothing
    /// meanwhile, or this follower didn't observe it, so its wait, and the head start of the incumbent, last longer by that.
    /// Failed work may succeed now, so all backoffs end. After another failure, the next one of arbitration is longer all the
    /// same: a server that can't write answers the read before each claim.
    pub fn reconnected(&mut self, lost: Duration, now: Duration) {
        let from = now.saturating_sub(lost);
        let head_start = self.config.head_start();
        let claim = self.queue.first_check(head_start).map(|(at, _)| at);
        if let State::Follower { until } = &mut self.state {
            let at = (*until).max(claim.unwrap_or_default()).max(from);
            *until = at.saturating_add(lost);
        }
        self.unanswered = self.unanswered.map(|at| at.max(from).saturating_add(lost));
        self.queue.hasten_all();
        self.arbitrate_at = Duration::ZERO;
    }

    // --- Results ---------------------------------------------------------------------------------

    /// The run of `key` is over. `sent_at` is a time before its last accepted request was sent.
    ///
    /// A run of an earlier term doesn't extend the lease.
    pub fn done(
        &mut self,
        key: &K,
        result: WorkResult,
        retry: bool,
        sent_at: Duration,
        now: Duration,
    ) -> Finish {
        let Self { queue, config, .. } = self;
        let backoff = |attempt| now.saturating_add(config.delay(attempt, now));
        let Some((term, finish)) = queue.finish(key, retry, now, backoff) else { return Finish::Unknown };
        match result {
            WorkResult::None => {}
            WorkResult::Extend => self.wrote(term, sent_at),
            WorkResult::Release if self.leading_term() == Some(term) => self.resign(now),
            WorkResult::Release => {}
        }
        finish
    }

    /// A write under `term`, sent at `sent_at` or later, was accepted. For writes outside of runs, and for runs that write
    /// more than once. [`done`](Self::done) with `Extend` includes it.
    pub fn wrote(&mut self, term: Term, sent_at: Duration) {
        if self.leading_term() == Some(term) {
            self.hold(sent_at);
        }
    }

    /// The arbitration object still names this writer under `term`, by a compare-and-swap sent at `sent_at`
    /// or later.
    pub fn proved(&mut self, term: Term, sent_at: Duration) {
        self.end_arbitration();
        self.wrote(term, sent_at);
    }

    /// The arbitration object names this writer under `term`, by a compare-and-swap sent at `sent_at` or later. From now on
    /// runs of earlier terms are stale.
    pub fn claimed(&mut self, term: Term, sent_at: Duration, now: Duration) {
        self.end_arbitration();
        self.arbitrated = self.arbitrated.max(term);
        if term < self.seen {
            self.term = self.term.max(term);
            if term < self.arbitrated {
                // Another writer claimed a later term before this result arrived.
                self.follow(now);
            } else {
                // Objects carry a higher term, and would refuse this one.
                self.vacant = Some(now);
            }
            return;
        }
        if self.leading_term() != Some(term) {
            self.lead(term, sent_at.min(now));
        }
        self.hold(sent_at);
    }

    /// The arbitration object names another writer. After a conflict, read it before calling this: the conflict may be
    /// with an earlier write of this writer, and then prove or claim again.
    pub fn lost(&mut self, now: Duration) {
        self.end_arbitration();
        self.vacant = None;
        self.follow(now);
    }

    /// A fresh read showed no reason to claim, and nothing was written. Also remove or extend the work that is no longer
    /// due.
    pub fn abstained(&mut self, now: Duration) {
        self.end_arbitration();
        self.arbitrate_at = now.saturating_add(self.config.lease_duration / 8);
    }

    /// The work of `key`, for which a claim was to be made, can't be checked, for a reason of its own. Work of other lanes
    /// is checked before it, at once; that of its lane after a pause, which grows with each failure.
    pub fn unchecked(&mut self, key: &K, now: Duration) {
        self.end_arbitration();
        self.queue.postpone_checks(key, now);
    }

    /// The work of `key`, for which a claim was to be made, was read.
    pub fn checked(&mut self, key: &K) {
        self.queue.checked(key);
    }

    /// How often the lane of this key [couldn't be checked](Self::unchecked), one time after the other.
    pub fn failed_checks(&self, key: &K) -> u32 {
        self.queue.failed_checks(key)
    }

    /// Whether work of any lane [can't be checked](Self::unchecked).
    pub fn has_unchecked(&self) -> bool {
        self.queue.has_unchecked()
    }

    /// The primary was challenged to prove itself until `until`, and nothing was claimed.
    pub fn challenged(&mut self, until: Duration) {
        self.end_arbitration();
        if let State::Follower { until: wait } = &mut self.state {
            *wait = (*wait).max(until);
        }
    }

    /// The compare-and-swap failed, or its outcome is unknown. It is repeated after a backoff.
    pub fn arbitration_failed(&mut self, now: Duration) {
        let failures = self.failures.saturating_add(1);
        self.end_arbitration();
        self.failures = failures;
        // A longer delay would let an incumbent with a bad connection count as dead between two attempts.
        let delay = self.config.delay(failures, now).min(self.third());
        self.arbitrate_at = now.saturating_add(delay);
    }

    // --- Giving up -------------------------------------------------------------------------------

    /// Goes back to the election. If work is queued, the arbitration object is read, and claimed if it is vacant or names
    /// this writer.
    pub fn expire(&mut self) {
        self.state = State::Election;
        self.failures = 0;
        self.arbitrate_at = Duration::ZERO;
    }

    /// Gives up the lead, and clears the arbitration object, so that another writer takes over at once. This writer doesn't
    /// claim it for a head start. Does nothing if this writer doesn't lead.
    pub fn resign(&mut self, now: Duration) {
        let Some(term) = self.leading_term() else { return };
        self.resigned = term;
        self.resigning = true;
        self.vacant = None;
        self.state = State::Follower { until: now.saturating_add(self.config.head_start()) };
    }

    // --- Actions ---------------------------------------------------------------------------------

    /// The next action that is due.
    pub fn poll(&mut self, now: Duration) -> Option<Action<K>> {
        let plan = self.plans(now).into_iter().flatten().find(|(at, _)| *at <= now)?.1;
        match plan {
            Plan::Resign(term) => {
                self.resigning = false;
                Some(Action::Resign { term })
            }
            Plan::Prove => {
                self.arbitrating = true;
                Some(Action::Prove { term: self.term })
            }
            Plan::Claim(reason) => {
                self.arbitrating = true;
                self.has_claimed = true;
                Some(Action::Claim { term: self.next_term(), reason })
            }
            Plan::Run { until } => {
                let (key, attempt) = self.queue.start(self.term, self.config.max_running, now)?;
                Some(Action::Run { key, attempt, term: self.term, until })
            }
        }
    }

    /// When [`poll`](Self::poll) returns an action if nothing happens before; `None`: never.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        self.plans(now).into_iter().flatten().map(|(at, _)| at).min()
    }

    /// All actions that may be next, with their times, the most urgent first.
    fn plans(&self, now: Duration) -> [Option<(Duration, Plan<K>)>; 3] {
        let resign = self.resigning.then_some((Duration::ZERO, Plan::Resign(self.resigned)));
        let arbitrate = self.arbitration().map(|(at, plan)| (at.max(self.arbitrate_at), plan));
        [resign, arbitrate, self.run(now)]
    }

    fn arbitration(&self) -> Option<(Duration, Plan<K>)> {
        if self.arbitrating {
            return None;
        }
        if let Some(at) = self.vacant {
            let leads = self.leading_term().is_some();
            let hesitation = if leads { Duration::ZERO } else { self.hesitation };
            return Some((at.saturating_add(hesitation), Plan::Claim(Reason::Empty)));
        }
        match self.state {
            State::Election => self.queue.first_ready().map(|ready| (ready, Plan::Claim(Reason::Empty))),
            State::Leader { until } => {
                let lapsed = self.queue.first_ready().map(|ready| ready.max(self.usable(until)));
                let stuck = self
                    .queue
                    .first_due()
                    .map(|(due, _)| due.max(self.last_sign).saturating_add(self.third()));
                lapsed.into_iter().chain(stuck).chain(self.show).min().map(|at| (at, Plan::Prove))
            }
            State::Follower { until } => {
                let overdue = self.queue.first_check(self.config.head_start());
                let overdue =
                    overdue.map(|(at, key)| (until.max(at), Plan::Claim(Reason::Overdue(key.clone()))));
                let unanswered = self.unanswered.map(|at| (until.max(at), Plan::Claim(Reason::Unanswered)));
                overdue.into_iter().chain(unanswered).min_by_key(|(at, _)| *at)
            }
        }
    }

    fn run(&self, now: Duration) -> Option<(Duration, Plan<K>)> {
        let State::Leader { until } = self.state else { return None };
        let ready = self.queue.first_startable(self.config.max_running, now)?;
        let may = ready.max(now) < self.usable(until);
        may.then_some((ready, Plan::Run { until }))
    }

    /// The interval of a leader's signs of life while work is pending: well within a follower's head start.
    fn third(&self) -> Duration {
        self.config.lease_duration / 3
    }

    /// Until when work may start under a lease that lapses at `until`. Later work would be cut off.
    fn usable(&self, until: Duration) -> Duration {
        until.saturating_sub(self.config.lease_duration / 8)
    }

    // --- Transitions -----------------------------------------------------------------------------

    fn lead(&mut self, term: Term, until: Duration) {
        self.unanswered = None;
        self.term = term;
        self.seen = self.seen.max(term);
        self.vacant = None;
        self.state = State::Leader { until };
    }

    /// Extends a leader's lease, never shortens it.
    fn hold(&mut self, sent_at: Duration) {
        if let State::Leader { until } = &mut self.state {
            *until = (*until).max(sent_at.saturating_add(self.config.lease_duration));
            self.last_sign = self.last_sign.max(sent_at);
            self.show = self.show.filter(|since| *since > sent_at);
        }
    }

    /// Another writer leads: starts or extends the wait.
    fn follow(&mut self, now: Duration) -> Observation {
        let led = self.leading_term().is_some();
        if !matches!(self.state, State::Follower { .. }) {
            self.state = State::Follower { until: now };
        }
        self.follow_on(now);
        if led { Observation::Demoted } else { Observation::Followed }
    }

    /// Extends the wait of a follower.
    fn follow_on(&mut self, now: Duration) {
        if let State::Follower { until } = &mut self.state {
            *until = (*until).max(now.saturating_add(self.config.lease_duration));
        }
    }

    fn end_arbitration(&mut self) {
        self.arbitrating = false;
        self.failures = 0;
        self.arbitrate_at = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests;
