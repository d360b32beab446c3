//! The state machine: who leads, as far as this writer can know, and what it may do about it.

use std::time::Duration;

use super::{Action, Config, Finish, Holder, Lane, Observation, Reason, Term, WorkResult, queue::Queue};

/// Terms on objects are believed up to this far above those of the arbitration object.
const PLAUSIBLE_LEAD: Term = 1_000_000;
/// No term from here on is believed anywhere: there must be room for the next.
const ABSURD: Term = 1 << 62;

/// Who leads, as far as this writer knows. Times are on the clock of the caller's `now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It doesn't know, and has yet to look.
    Election,
    /// This writer does. After `until` it must prove so before it runs anything.
    Leader {
        /// A lease duration after the last accepted write was sent.
        until: Duration,
    },
    /// Another does. Until `until` nothing may be claimed from it.
    Follower {
        /// A lease duration after the last write that was seen.
        until: Duration,
    },
}

/// A writer lease: leadership by competing to write. See the [module](super) for the whole.
///
/// Every method that takes `now` wants the time since an arbitrary start on a clock that never goes
/// backwards. After any call, [`poll`](Self::poll) until it answers `None`, then sleep until
/// [`wake_at`](Self::wake_at).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WriterLease<K: Ord> {
    config: Config,
    state: State,
    queue: Queue<K>,
    /// The highest term that this writer has held; 0 if none.
    term: Term,
    /// The highest term seen anywhere.
    seen: Term,
    /// The highest term seen on the arbitration object.
    arbitrated: Term,
    /// Terms up to this one may have been claimed, for all that the shell knows.
    possible: Term,
    /// When to claim the arbitration object, since it names nobody.
    vacant: Option<Duration>,
    /// Whether an answer to `Prove` or `Claim` is awaited.
    asked: bool,
    /// Whether this writer ever asked to `Claim`: if it didn't, a claim in its name isn't its own.
    has_claimed: bool,
    /// Failures of arbitration in a row, and the end of the backoff after them.
    failures: u32,
    arbitrate_at: Duration,
    /// When the last write that others can see was sent.
    last_sign: Duration,
    /// Since when others are to see that this writer lives.
    show: Option<Duration>,
    /// The last term that this writer gave up by itself; 0 if none.
    resigned: Term,
    /// Whether that is still to be cleared from the arbitration object.
    resigning: bool,
}

/// What is to be done at some time. `poll` and `wake_at` share it, so that a shell never wakes for nothing.
enum Plan<K> {
    Resign(Term),
    Prove,
    Claim(Reason<K>),
    Run { until: Duration },
}

impl<K: Ord + Clone> WriterLease<K> {
    /// A writer that knows nothing yet and has no work.
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
            asked: false,
            has_claimed: false,
            failures: 0,
            arbitrate_at: Duration::ZERO,
            last_sign: Duration::ZERO,
            show: None,
            resigned: 0,
            resigning: false,
        }
    }

    // --- What it knows ---------------------------------------------------------------------------

    /// Who leads.
    pub fn state(&self) -> State {
        self.state
    }

    /// The term that this writer leads under, whether or not its lease has lapsed; `None` if it doesn't lead.
    pub fn leading_term(&self) -> Option<Term> {
        matches!(self.state, State::Leader { .. }).then_some(self.term)
    }

    /// Whether this writer leads and its lease hasn't lapsed.
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

    /// When the last write that others can see was sent, as far as is known.
    pub fn last_sign(&self) -> Duration {
        self.last_sign
    }

    /// When another that leads was last seen alive, or this writer was last deaf; zero if this writer follows nobody.
    pub fn last_followed(&self) -> Duration {
        match self.state {
            State::Follower { until } => until.saturating_sub(self.config.lease_duration),
            State::Election | State::Leader { .. } => Duration::ZERO,
        }
    }

    /// The highest term seen anywhere.
    pub fn highest_term(&self) -> Term {
        self.seen
    }

    /// The term that this writer would claim.
    pub fn next_term(&self) -> Term {
        self.seen.saturating_add(1)
    }

    /// Whether an object can't really have been written under this term: the arbitration object is so far
    /// behind it, and it is so far above what is [possible](Self::allow_terms), that somebody must have made it
    /// up. Such a term is never adopted, or it would lock out every writer to come.
    pub fn is_absurd(&self, term: Term) -> bool {
        let believed = self.arbitrated.saturating_add(PLAUSIBLE_LEAD).max(self.possible);
        !(0..ABSURD).contains(&term) || term > believed
    }

    /// How many keys have work, waiting or running.
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

    /// Whether this key runs now.
    pub fn is_running(&self, key: &K) -> bool {
        self.queue.is_running(key)
    }

    /// How many keys run now.
    pub fn running(&self) -> usize {
        self.queue.running()
    }

    // --- Work ------------------------------------------------------------------------------------

    /// Queues the work of `key`, which falls due at `due` (a time that may lie ahead or behind). The leader
    /// runs it then. A follower keeps it, and claims the lead if it's still here when its head start is over.
    ///
    /// Trying it again with the same `due` changes nothing, with another replaces it; while it runs, it's
    /// queued to run again.
    pub fn try_work(&mut self, key: K, due: Duration) {
        self.queue.push(None, key, due, self.config.retry_limit);
    }

    /// As [`try_work`](Self::try_work), in a lane: for work that may get stuck together with others of its lane, and must not
    /// hold up the rest meanwhile. Trying it again in another lane replaces it.
    pub fn try_work_in(&mut self, lane: Lane, key: K, due: Duration) {
        self.queue.push(Some(lane), key, due, self.config.retry_limit);
    }

    /// Forgets the work of `key`. If it runs, it isn't retried. Answers whether there was any.
    pub fn remove(&mut self, key: &K) -> bool {
        self.queue.remove(key)
    }

    /// Ends the backoff of `key`, since what hindered it may be over. Its attempts still count, so that the
    /// next backoff is longer.
    pub fn hasten(&mut self, key: &K) {
        self.queue.hasten(key);
    }

    /// Lets the queued work of `key` be retried this often, then dropped. Followers that have it queued should
    /// drop it for the same reason, or they will find it overdue and claim the lead for it, each in turn.
    pub fn limit_retries(&mut self, key: &K, retries: u32) {
        self.queue.limit_retries(key, retries);
    }

    /// Another has done the work of `key`: forgets it, and a follower's wait starts anew.
    pub fn extend(&mut self, key: &K, now: Duration) {
        self.queue.remove(key);
        self.follow_on(now);
    }

    /// Others are to see that this writer lives, whether or not its lease has lapsed: a leader proves itself, unless
    /// another write that is sent from now on is accepted first.
    pub fn show(&mut self, now: Duration) {
        self.show.get_or_insert(now);
    }

    // --- What others do --------------------------------------------------------------------------

    /// Terms up to this one may have been claimed, however far the arbitration object as it was last seen is
    /// behind them. For shells whose arbitration object begins with the reading of a clock that all writers
    /// share, such as its own version: what that clock is known to show is possible.
    pub fn allow_terms(&mut self, until: Term) {
        self.possible = self.possible.max(until);
    }

    /// Another's write under `term` was seen just now, on any object but the arbitration object. A follower's
    /// wait starts anew; a leader of a lower term is demoted. Own writes and late news are told by their
    /// terms and ignored.
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

    /// Some object carries `term`, written who knows when. Demotes a leader of a lower term, as
    /// [`observe`](Self::observe) does, but is no sign that anybody lives.
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

    /// The arbitration object names `holder` under `term`: to be called once per version of it that is seen,
    /// whether by watching or on the way of an arbitration.
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
                    // Somebody cleared it under us: put our name back before others put theirs.
                    State::Leader { .. } if term == self.term => now,
                    State::Leader { .. } => {
                        self.follow(now);
                        now.saturating_add(delay)
                    }
                    // We gave it up ourselves: let others go first.
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

    /// The shell was deaf until now (a watch broke, the server hung) and hears again. A follower can't know
    /// what the primary did meanwhile: its wait starts anew. Whatever failed may succeed now: all backoffs
    /// end.
    pub fn deaf_until(&mut self, now: Duration) {
        self.follow_on(now);
        self.queue.hasten_all();
        self.failures = 0;
        self.arbitrate_at = Duration::ZERO;
    }

    // --- Answers ---------------------------------------------------------------------------------

    /// The run of `key` is over. `sent_at` is a time before its (last accepted) request was sent.
    ///
    /// A run that was started under another term than today's says nothing about the lease.
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
        let Some((term, finish)) = queue.finish(key, retry, backoff) else { return Finish::Unknown };
        match result {
            WorkResult::None => {}
            WorkResult::Extend => self.wrote(term, sent_at),
            WorkResult::Release if self.leading_term() == Some(term) => self.resign(now),
            WorkResult::Release => {}
        }
        finish
    }

    /// A write under `term`, sent at `sent_at` or later, was accepted. For writes outside of runs, and for
    /// long runs that write more than once; [`done`](Self::done) with `Extend` includes it.
    pub fn wrote(&mut self, term: Term, sent_at: Duration) {
        if self.leading_term() == Some(term) {
            self.hold(sent_at);
        }
    }

    /// The arbitration object still names this writer under `term`, by a compare-and-swap sent at `sent_at`
    /// or later.
    pub fn proved(&mut self, term: Term, sent_at: Duration) {
        self.answered();
        self.wrote(term, sent_at);
    }

    /// The arbitration object names this writer under `term`, by a compare-and-swap sent at `sent_at` or
    /// later. Runs of earlier terms are stale from here on.
    pub fn claimed(&mut self, term: Term, sent_at: Duration, now: Duration) {
        self.answered();
        self.arbitrated = self.arbitrated.max(term);
        if term < self.seen {
            self.term = self.term.max(term);
            if term < self.arbitrated {
                // Somebody was faster to claim the next than this answer to arrive.
                self.follow(now);
            } else {
                // Objects carry a higher term than the one that was claimed and would refuse it.
                self.vacant = Some(now);
            }
            return;
        }
        if self.leading_term() != Some(term) {
            self.lead(term, sent_at.min(now));
        }
        self.hold(sent_at);
    }

    /// Another holds the arbitration object. If that was told by a conflict, make sure that it wasn't with an
    /// own earlier write: then look again, and prove or claim anew.
    pub fn lost(&mut self, now: Duration) {
        self.answered();
        self.vacant = None;
        self.follow(now);
    }

    /// The shell looked, and saw no reason to claim: nothing was written. Remove or extend the work that is
    /// no longer due.
    pub fn abstained(&mut self, now: Duration) {
        self.answered();
        self.arbitrate_at = now.saturating_add(self.config.lease_duration / 8);
    }

    /// It is unknown whether the compare-and-swap succeeded, or it wasn't possible: asks again after a
    /// backoff, and changes nothing else.
    pub fn arbitration_failed(&mut self, now: Duration) {
        let failures = self.failures.saturating_add(1);
        self.answered();
        self.failures = failures;
        // No longer than that, or an incumbent with a bad connection would be taken for dead between two
        // attempts.
        let delay = self.config.delay(failures, now).min(self.third());
        self.arbitrate_at = now.saturating_add(delay);
    }

    // --- Giving up -------------------------------------------------------------------------------

    /// Forgets who leads: with work queued, the arbitration object is looked at and claimed anew if it names
    /// nobody or this writer.
    pub fn expire(&mut self) {
        self.state = State::Election;
        self.failures = 0;
        self.arbitrate_at = Duration::ZERO;
    }

    /// Gives up the lead, and asks to clear the arbitration object, so that others may take over at once.
    /// This writer doesn't claim for a head start. Does nothing for one that doesn't lead.
    pub fn resign(&mut self, now: Duration) {
        let Some(term) = self.leading_term() else { return };
        self.resigned = term;
        self.resigning = true;
        self.vacant = None;
        self.state = State::Follower { until: now.saturating_add(self.config.head_start()) };
    }

    // --- What to do ------------------------------------------------------------------------------

    /// The next thing to do, if any is to be done now.
    pub fn poll(&mut self, now: Duration) -> Option<Action<K>> {
        let plan = self.plans(now).into_iter().flatten().find(|(at, _)| *at <= now)?.1;
        match plan {
            Plan::Resign(term) => {
                self.resigning = false;
                Some(Action::Resign { term })
            }
            Plan::Prove => {
                self.asked = true;
                Some(Action::Prove { term: self.term })
            }
            Plan::Claim(reason) => {
                self.asked = true;
                self.has_claimed = true;
                Some(Action::Claim { term: self.next_term(), reason })
            }
            Plan::Run { until } => {
                let (key, attempt) = self.queue.start(self.term, self.config.max_running)?;
                Some(Action::Run { key, attempt, term: self.term, until })
            }
        }
    }

    /// When [`poll`](Self::poll) will have something to do if nothing happens before; `None`: never.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        self.plans(now).into_iter().flatten().map(|(at, _)| at).min()
    }

    /// Everything that may be next, with its time, the most urgent first.
    fn plans(&self, now: Duration) -> [Option<(Duration, Plan<K>)>; 3] {
        let resign = self.resigning.then_some((Duration::ZERO, Plan::Resign(self.resigned)));
        let arbitrate = self.arbitration().map(|(at, plan)| (at.max(self.arbitrate_at), plan));
        [resign, arbitrate, self.run(now)]
    }

    fn arbitration(&self) -> Option<(Duration, Plan<K>)> {
        if self.asked {
            return None;
        }
        if let Some(at) = self.vacant {
            return Some((at, Plan::Claim(Reason::Empty)));
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
            State::Follower { until } => self.queue.first_due().map(|(due, key)| {
                let at = until.max(due.saturating_add(self.config.head_start()));
                (at, Plan::Claim(Reason::Overdue(key.clone())))
            }),
        }
    }

    fn run(&self, now: Duration) -> Option<(Duration, Plan<K>)> {
        let State::Leader { until } = self.state else { return None };
        let ready = self.queue.first_startable(self.config.max_running)?;
        let may = ready.max(now) < self.usable(until);
        may.then_some((ready, Plan::Run { until }))
    }

    /// How often a leader shows that it lives while work is pending: well within a follower's head start.
    fn third(&self) -> Duration {
        self.config.lease_duration / 3
    }

    /// Until when a lease that lapses at `until` may start work: what is about to lapse would only be cut
    /// off.
    fn usable(&self, until: Duration) -> Duration {
        until.saturating_sub(self.config.lease_duration / 8)
    }

    // --- Transitions -----------------------------------------------------------------------------

    fn lead(&mut self, term: Term, until: Duration) {
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

    /// Another leads: starts or prolongs the wait.
    fn follow(&mut self, now: Duration) -> Observation {
        let led = self.leading_term().is_some();
        if !matches!(self.state, State::Follower { .. }) {
            self.state = State::Follower { until: now };
        }
        self.follow_on(now);
        if led { Observation::Demoted } else { Observation::Followed }
    }

    /// Prolongs the wait of a follower.
    fn follow_on(&mut self, now: Duration) {
        if let State::Follower { until } = &mut self.state {
            *until = (*until).max(now.saturating_add(self.config.lease_duration));
        }
    }

    fn answered(&mut self) {
        self.asked = false;
        self.failures = 0;
        self.arbitrate_at = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests;
