//! Lease time: monotonic time that stands still while the replica is deaf.

use std::{collections::BTreeMap, time::Duration};

use super::LeaseTime;

/// The clock of lease time, as a pure state machine: it's told what was sent, answered and heard, and when,
/// and maps monotonic time (any clock's, as a duration since its start) to [`LeaseTime`].
///
/// Holders of leases can't renew while the server doesn't answer, so no lease may run out meanwhile. The
/// server counts as unreachable from the last *sign of life* (an answer, an event or bookmark of a watch, the
/// clean end of a watch) to the next answer, if in between
/// - a request failed or a watch broke, or the replica itself was paused: the clock is *suspect*, and nothing but a good answer
///   clears it; or
/// - a request has been out for longer than the patience (a second), no request sent later has been answered,
///   and none at all for as long: a hung server breaks no connection. A single request that hangs among others
///   that are answered proves nothing, and a server that takes longer for each, but answers one after the
///   other, is not silent.
///
/// While one of these holds, the clock reads the time of the last sign of life, and what a watch brings is no
/// sign of life: a server whose storage hangs still sends bookmarks. On the next good answer, the time since
/// the last sign of life is *held*: lease time goes on from where it stood.
///
/// A server whose storage can't write (it is full, say) still answers and lists, but nobody can renew. So it is remembered
/// that [it could not write](Self::write_failed), and lease time runs on, for want of a better one, until something is
/// [seen to be written](Self::write_observed). Then it goes back to where it was at the last write before the failure, at most [a
/// minute](Self::DOUBT) before it. No lease may end in between: whoever ends leases makes sure by a write.
///
/// # Guarantees
/// Lease time never runs faster than monotonic time, and lags behind it by the outages, each counted from the
/// last sign of life before it was noticed, or from the last write where nothing could be written. Of an outage that shows as silence, at most the patience is not
/// held.
///
/// # Caveats
/// It may step back: when an outage is noticed, to the last sign of life, and when the server can write again. While it [stands
/// still](Self::is_paused), somebody must ask the server something, or it stands still for ever: at rest
/// nobody would.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseClock {
    /// How much monotonic time was no lease time.
    paused_total: Duration,
    last_response: Duration,
    last_answer: Duration,
    suspect: bool,
    /// Lease time at the last write that was seen, whoever's it was.
    written: Duration,
    /// The server can't write, as far as is known: where lease time goes on once it can, and what was held when that was found.
    unable_since: Option<(Duration, Duration)>,
    /// How much was held since the server was found to be unable to write, until it could again.
    paused_unwritable: Duration,
    /// When the requests were sent that nothing later excuses.
    out: BTreeMap<u64, Duration>,
}

impl LeaseClock {
    /// A request that takes longer than this is taken for silence.
    pub const PATIENCE: Duration = Duration::from_secs(1);

    /// How long before it was noticed the server may have been unable to write. Longer than most holders let pass between
    /// two renewals, and no longer than a silent watch makes an outage.
    pub const DOUBT: Duration = Duration::from_secs(60);

    /// A clock that reads zero at `mono` and runs.
    pub fn new(mono: Duration) -> Self {
        Self {
            paused_total: mono,
            last_response: mono,
            last_answer: mono,
            suspect: false,
            written: Duration::ZERO,
            unable_since: None,
            paused_unwritable: Duration::ZERO,
            out: BTreeMap::new(),
        }
    }

    /// Lease time at this monotonic time. O(requests that are out).
    pub fn now(&self, mono: Duration) -> LeaseTime {
        LeaseTime::from_duration(self.reads(mono))
    }

    fn reads(&self, mono: Duration) -> Duration {
        let at = if self.is_paused(mono) { self.last_response.min(mono) } else { mono };
        at.saturating_sub(self.paused_total)
    }

    /// Whether lease time stands still: ask the server something, then.
    pub fn is_paused(&self, mono: Duration) -> bool {
        let is_silent = Self::is_slow(self.last_answer, mono);
        self.suspect || is_silent && self.out.values().any(|sent| Self::is_slow(*sent, mono))
    }

    /// The monotonic time at which the clock will read `time` if nothing happens; `None` while it stands
    /// still.
    pub fn when(&self, time: LeaseTime, mono: Duration) -> Option<Duration> {
        (!self.is_paused(mono)).then(|| time.since_start().saturating_add(self.paused_total))
    }

    /// When the server last gave a sign of life, in monotonic time.
    pub fn last_response(&self) -> Duration {
        self.last_response
    }

    /// How much monotonic time has been held so far, from the start of the clock's own zero.
    pub fn paused_total(&self) -> Duration {
        self.paused_total
    }

    /// A request goes out. Its id is the caller's choice, and greater than those of all that went out before.
    pub fn sent(&mut self, request: u64, mono: Duration) {
        self.out.entry(request).or_insert(mono);
    }

    /// A request was answered, and well: whatever the answer says, the server was able to give it (so are
    /// 404, 409 or 422).
    pub fn answered(&mut self, request: u64, mono: Duration) {
        if self.is_paused(mono) {
            self.paused_total += mono.saturating_sub(self.last_response);
        }
        self.suspect = false;
        self.last_response = self.last_response.max(mono);
        self.last_answer = self.last_answer.max(mono);
        if let Some(sent) = self.out.remove(&request) {
            // Of those that went out at the same moment, the later have the greater ids.
            self.out.retain(|id, other| (*other, *id) > (sent, request));
        }
    }

    /// A request got no answer, or one that says that the server can't answer: an error of the connection, a
    /// timeout, 5xx, 429.
    pub fn failed(&mut self, request: u64) {
        self.out.remove(&request);
        self.suspect = true;
    }

    /// A request was answered by an error that may be a matter of its object alone, as that of a webhook that fails: no sign of
    /// life, and no reason to doubt where there is none already. Before anything ends, try another write.
    pub fn inconclusive(&mut self, request: u64, mono: Duration) {
        self.suspect |= self.is_paused(mono);
        self.out.remove(&request);
    }

    /// The server failed to do a write that it can do whenever it can write at all, or may have. Tell of the request too,
    /// after this.
    pub fn write_failed(&mut self, mono: Duration) {
        let now = self.reads(mono);
        let since = self.written.max(now.saturating_sub(Self::DOUBT)).min(now);
        self.unable_since.get_or_insert((since, self.paused_total));
    }

    /// The server has written something just now, for whomever.
    pub fn write_observed(&mut self, mono: Duration) {
        if self.is_paused(mono) {
            return;
        }
        self.paused_unwritable = self.paused_unwritable(mono);
        if let Some((since, _)) = self.unable_since.take() {
            self.paused_total = self.paused_total.max(mono.saturating_sub(since));
        }
        self.written = self.reads(mono);
    }

    /// How much was held so far since the server could not write, all times together: what is in doubt as if it could from now
    /// on.
    pub fn paused_unwritable(&self, mono: Duration) -> Duration {
        self.paused_unwritable + self.tentative_pause(mono)
    }

    /// How much of that is in doubt: zero, unless the server can't write at present, as far as is known.
    pub fn tentative_pause(&self, mono: Duration) -> Duration {
        let tentative_pause = self.unable_since.map(|(since, paused_total)| {
            let no_lease_time = mono.saturating_sub(self.reads(mono).min(since));
            no_lease_time.saturating_sub(paused_total)
        });
        tentative_pause.unwrap_or_default()
    }

    /// So much more of the time was no lease time, since the server could not write: another found that out.
    pub fn hold(&mut self, paused_unwritable: Duration) {
        self.paused_total += paused_unwritable;
        self.written = self.written.saturating_sub(paused_unwritable);
        // Beside what this replica has found out so far.
        if let Some((since, paused_total)) = &mut self.unable_since {
            *since = since.saturating_sub(paused_unwritable);
            *paused_total += paused_unwritable;
        }
    }

    /// Nobody waits for this request any more. That says nothing of the server, but doesn't excuse it either: from
    /// when the request has been out for too long, the server counts as silent, as if somebody still waited,
    /// unless it has answered a later request.
    pub fn withdrawn(&mut self, request: u64, mono: Duration) {
        if self.out.get(&request).is_some_and(|sent| Self::is_slow(*sent, mono)) {
            self.failed(request);
        }
    }

    /// A watch brought something, or ended cleanly.
    pub fn watch_event(&mut self, mono: Duration) {
        if !self.is_paused(mono) {
            self.last_response = self.last_response.max(mono);
        }
    }

    /// Whoever asks and listens wakes up, and should have at `due`. If that is long ago it was paused, and knows nothing of the time
    /// since: whatever would have shown an outage may have come and gone.
    pub fn resumed_after_pause(&mut self, due: Duration, mono: Duration) {
        if !Self::is_slow(due, mono) {
            return;
        }
        // What was heard before anybody could look is no sign of life of the whole pause.
        self.last_response = if self.is_paused(mono) { self.last_response.min(due) } else { due };
        self.suspect = true;
    }

    /// A watch broke.
    pub fn broke(&mut self) {
        self.suspect = true;
    }

    fn is_slow(sent: Duration, mono: Duration) -> bool {
        mono.saturating_sub(sent) > Self::PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn reads(clock: &LeaseClock, mono: u64) -> u64 {
        clock.now(at(mono)).as_nanos() / 1_000_000
    }

    fn clock() -> LeaseClock {
        LeaseClock::new(at(0))
    }

    #[test]
    fn at_rest_lease_time_is_monotonic_time() {
        let clock = LeaseClock::new(at(500));
        assert_eq!(reads(&clock, 500), 0);
        assert_eq!(reads(&clock, 60_500), 60_000);
    }

    #[test]
    fn a_failed_request_stops_the_clock_at_the_last_sign_of_life_until_the_next_answer() {
        let mut clock = clock();
        clock.watch_event(at(1000));
        clock.sent(1, at(1500));
        clock.failed(1);
        assert_eq!(reads(&clock, 9000), 1000);
        clock.sent(2, at(9000));
        clock.answered(2, at(9100));
        assert_eq!(reads(&clock, 9100), 1000);
        assert_eq!(reads(&clock, 9600), 1500);
    }

    #[test]
    fn an_error_of_one_object_is_no_reason_to_doubt_and_no_sign_of_life() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.inconclusive(1, at(1100));
        assert_eq!((reads(&clock, 9000), clock.last_response()), (9000, at(0)));
        // Whoever says nothing else for so long may be unable to.
        clock.sent(2, at(9000));
        clock.inconclusive(2, at(12_000));
        assert_eq!(reads(&clock, 12_500), 0);
    }

    #[test]
    fn what_passes_until_the_server_can_write_again_is_no_lease_time_whatever_it_answers() {
        let mut clock = clock();
        clock.watch_event(at(1000));
        clock.write_observed(at(1000));
        clock.sent(1, at(5000));
        clock.write_failed(at(5100));
        clock.failed(1);
        for request in 2..10 {
            let mono = at(4000 + 1000 * request);
            clock.sent(request, mono);
            clock.answered(request, mono);
            clock.write_failed(mono);
        }
        assert!(reads(&clock, 20_000) > 10_000, "it runs on");
        clock.write_observed(at(20_000));
        assert_eq!(reads(&clock, 21_000), 2000);
        clock.write_observed(at(30_000));
        assert_eq!(reads(&clock, 31_000), 12_000, "once");
    }

    #[test]
    fn what_another_found_out_is_held_beside_what_is_in_doubt() {
        let mut clock = clock();
        clock.write_observed(at(11_000));
        clock.write_failed(at(15_000));
        assert_eq!(clock.paused_unwritable(at(18_000)), at(7000), "as if it could be written from now on");
        clock.hold(at(3000));
        assert_eq!((reads(&clock, 18_000), clock.paused_unwritable(at(18_000))), (15_000, at(7000)));
        clock.write_observed(at(19_000));
        assert_eq!((reads(&clock, 19_000), clock.paused_unwritable(at(19_000))), (8000, at(8000)));
        assert_eq!(clock.tentative_pause(at(19_000)), at(0));
        // The last write was before that, too.
        clock.hold(at(2000));
        clock.write_failed(at(20_000));
        clock.write_observed(at(21_000));
        assert_eq!(reads(&clock, 21_000), 6000);
    }

    #[test]
    fn what_is_held_as_silence_counts_too_where_a_write_fails() {
        let mut clock = clock();
        clock.write_observed(at(1000));
        clock.watch_event(at(3000));
        clock.sent(1, at(9000));
        clock.write_failed(at(9100));
        clock.failed(1);
        assert_eq!((reads(&clock, 9200), clock.paused_unwritable(at(9200))), (3000, at(8200)));
        clock.answered(2, at(9500));
        assert_eq!((reads(&clock, 9500), clock.paused_unwritable(at(9500))), (3000, at(8500)));
        clock.write_observed(at(10_000));
        assert_eq!((reads(&clock, 10_000), clock.paused_unwritable(at(11_000))), (1000, at(9000)));
    }

    #[test]
    fn how_long_the_server_could_not_write_before_it_was_tried_is_doubted_for_a_minute_at_most() {
        let mut clock = clock();
        clock.write_observed(at(1000));
        clock.write_failed(at(3_600_000));
        clock.write_observed(at(3_700_000));
        assert_eq!(reads(&clock, 3_700_000), 3_540_000);
    }

    #[test]
    fn what_a_deaf_replica_is_shown_to_be_written_counts_when_it_hears_again() {
        let mut clock = clock();
        clock.write_observed(at(1000));
        clock.write_failed(at(2000));
        clock.broke();
        clock.write_observed(at(5000));
        assert_eq!(reads(&clock, 5000), 0, "it stands still");
        clock.answered(1, at(6000));
        clock.write_observed(at(6500));
        assert_eq!(reads(&clock, 6500), 500, "what broke counts from the last sign of life, before that");
    }

    #[test]
    fn a_broken_watch_stops_the_clock_and_what_other_watches_bring_does_not_start_it() {
        let mut clock = clock();
        clock.watch_event(at(1000));
        clock.broke();
        clock.watch_event(at(2000));
        assert_eq!(reads(&clock, 2500), 1000);
        clock.answered(1, at(3000));
        assert_eq!(reads(&clock, 3500), 1500);
    }

    #[test]
    fn a_request_that_hangs_stops_the_clock_after_a_second_whatever_a_watch_brings() {
        let mut clock = clock();
        clock.sent(1, at(5000));
        clock.watch_event(at(5500));
        assert_eq!(reads(&clock, 6000), 6000);
        clock.watch_event(at(6200));
        assert_eq!(reads(&clock, 6200), 5500);
        clock.answered(1, at(9500));
        assert_eq!(reads(&clock, 10_000), 6000);
    }

    #[test]
    fn an_answer_to_a_later_request_excuses_one_that_hangs() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.sent(2, at(1200));
        clock.answered(2, at(1300));
        assert_eq!(reads(&clock, 8000), 8000);
        clock.answered(1, at(8000));
        assert_eq!(reads(&clock, 8000), 8000);
    }

    #[test]
    fn a_server_that_takes_its_time_for_each_request_but_answers_is_not_silent() {
        let mut clock = clock();
        // Ten requests a second, each out for three.
        for step in 0..300 {
            clock.sent(step, at(100 * step));
            if let Some(answered) = step.checked_sub(30) {
                clock.answered(answered, at(100 * step));
            }
        }
        // Until the first answer it was.
        assert_eq!(reads(&clock, 29_900), 29_900 - 3000);
        // And it is again a second after the last.
        assert_eq!(reads(&clock, 30_800), 30_800 - 3000);
        assert_eq!(reads(&clock, 31_000), 29_900 - 3000);
    }

    #[test]
    fn an_answer_to_an_earlier_request_excuses_nothing() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.sent(2, at(1200));
        clock.answered(1, at(1300));
        assert_eq!(reads(&clock, 8000), 1300);
    }

    #[test]
    fn of_requests_sent_at_one_moment_only_those_before_the_answered_one_are_excused() {
        let mut clock = clock();
        for request in 1..=3 {
            clock.sent(request, at(1000));
        }
        clock.answered(2, at(1100));
        assert_eq!(reads(&clock, 2000), 2000);
        assert_eq!(reads(&clock, 5000), 1100);
        clock.answered(3, at(5000));
        assert_eq!(reads(&clock, 5000), 1100);
        assert_eq!(reads(&clock, 9000), 5100);
    }

    #[test]
    fn a_quick_answer_costs_nothing() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.answered(1, at(2000));
        assert_eq!(reads(&clock, 3000), 3000);
    }

    #[test]
    fn withdrawing_a_request_that_hangs_does_not_make_the_clock_jump() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.withdrawn(1, at(1500));
        assert_eq!(reads(&clock, 1500), 1500);
        clock.sent(2, at(2000));
        clock.withdrawn(2, at(8000));
        assert_eq!(reads(&clock, 8000), 0);
        assert!(clock.is_paused(at(8000)));
    }

    #[test]
    fn requests_that_are_given_up_soon_do_not_hide_that_the_server_hangs() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.withdrawn(1, at(1600));
        clock.sent(2, at(1900));
        // Answered within the patience, but the silence has lasted longer.
        clock.answered(2, at(2800));
        assert_eq!(reads(&clock, 2800), 0);
    }

    #[test]
    fn a_later_answer_excuses_a_request_that_was_withdrawn() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.withdrawn(1, at(1100));
        clock.sent(2, at(1200));
        clock.answered(2, at(1300));
        assert_eq!(reads(&clock, 8000), 8000);
    }

    #[test]
    fn a_pause_is_no_lease_time_from_when_it_was_to_wake_up() {
        let mut clock = clock();
        clock.watch_event(at(1000));
        clock.resumed_after_pause(at(3000), at(3900));
        assert_eq!(reads(&clock, 4000), 4000);
        clock.resumed_after_pause(at(5000), at(9000));
        assert_eq!(reads(&clock, 9000), 5000);
        clock.answered(1, at(9100));
        assert_eq!(reads(&clock, 9200), 5100);
    }

    #[test]
    fn what_is_heard_on_waking_up_does_not_hide_the_pause() {
        let mut clock = clock();
        clock.watch_event(at(9000));
        clock.resumed_after_pause(at(5000), at(9000));
        assert_eq!(reads(&clock, 9000), 5000);
        clock.answered(1, at(9100));
        // It was silent before that already.
        clock.sent(2, at(10_000));
        clock.watch_event(at(10_500));
        clock.resumed_after_pause(at(20_000), at(25_000));
        clock.answered(2, at(25_000));
        assert_eq!(reads(&clock, 25_000), 6400);
    }

    #[test]
    fn it_tells_when_a_deadline_will_have_come() {
        let mut clock = clock();
        clock.broke();
        assert_eq!(clock.when(LeaseTime::from_millis(5000), at(100)), None);
        clock.answered(1, at(3000));
        assert_eq!(clock.when(LeaseTime::from_millis(5000), at(3000)), Some(at(8000)));
        assert_eq!(reads(&clock, 8000), 5000);
    }

    #[derive(Clone, Debug)]
    enum Event {
        Sent(u64),
        Answered(u64),
        Failed(u64),
        Spoiled(u64),
        CouldNotWrite,
        Wrote,
        Withdrawn(u64),
        Heard,
        Broke,
        Woke(u64),
        Nothing,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..4u64).prop_map(Event::Sent),
            (0..4u64).prop_map(Event::Answered),
            (0..4u64).prop_map(Event::Failed),
            (0..4u64).prop_map(Event::Spoiled),
            Just(Event::CouldNotWrite),
            Just(Event::Wrote),
            (0..4u64).prop_map(Event::Withdrawn),
            Just(Event::Heard),
            Just(Event::Broke),
            (0..5000u64).prop_map(Event::Woke),
            Just(Event::Nothing),
        ]
    }

    /// The API server as it may be: for a while it answers, for a while it's silent.
    #[derive(Clone, Debug)]
    struct Phase {
        up: u64,
        down: u64,
        hangs: bool,
    }

    fn phases() -> impl Strategy<Value = Vec<Phase>> {
        let phase =
            (1..200u64, 1..200u64, any::<bool>()).prop_map(|(up, down, hangs)| Phase { up, down, hangs });
        prop::collection::vec(phase, 1..8)
    }

    proptest! {
        #[test]
        fn lease_time_never_runs_faster_than_monotonic_time(
            events in prop::collection::vec((0..3000u64, event()), 1..60),
        ) {
            let mut clock = clock();
            let (mut mono, mut read) = (0, 0);
            for (pause, event) in events {
                for step in [pause, 0] {
                    if step == 0 {
                        match event {
                            Event::Sent(id) => clock.sent(id, at(mono)),
                            Event::Answered(id) => clock.answered(id, at(mono)),
                            Event::Failed(id) => clock.failed(id),
                            Event::Spoiled(id) => clock.inconclusive(id, at(mono)),
                            Event::CouldNotWrite => clock.write_failed(at(mono)),
                            Event::Wrote => clock.write_observed(at(mono)),
                            Event::Withdrawn(id) => clock.withdrawn(id, at(mono)),
                            Event::Heard => clock.watch_event(at(mono)),
                            Event::Broke => clock.broke(),
                            Event::Woke(late) => clock.resumed_after_pause(at(mono.saturating_sub(late)), at(mono)),
                            Event::Nothing => {}
                        }
                    }
                    mono += step;
                    let reading = reads(&clock, mono);
                    prop_assert!(reading <= read + step, "{reading} after {read} and {step} ms");
                    read = reading;
                }
            }
        }

        /// A request every 100 ms. In an outage requests fail at once, or hang and are answered at its end.
        #[test]
        fn lease_time_is_monotonic_time_less_the_outages(phases in phases()) {
            let mut clock = clock();
            let (mut mono, mut request, mut down) = (0, 0, 0);
            for phase in &phases {
                for _ in 0..phase.up {
                    request += 1;
                    clock.sent(request, at(mono));
                    clock.answered(request, at(mono + 10));
                    clock.watch_event(at(mono + 50));
                    mono += 100;
                }
                let first = request + 1;
                for _ in 0..phase.down {
                    request += 1;
                    clock.sent(request, at(mono));
                    if !phase.hangs {
                        clock.failed(request);
                    }
                    mono += 100;
                }
                if phase.hangs {
                    (first..=request).for_each(|hung| clock.answered(hung, at(mono)));
                }
                let noticed = !phase.hangs || phase.down * 100 > 1000;
                if noticed {
                    down += phase.down * 100;
                }
            }
            request += 1;
            clock.sent(request, at(mono));
            clock.answered(request, at(mono));
            let lag = mono - reads(&clock, mono);
            let outages = phases.len() as u64;
            // From the last sign of life before each outage to the first answer after it: up to 60 ms more on
            // either side.
            prop_assert!(lag >= down && lag <= down + 120 * outages, "{lag} ms for {down} ms of outages");
        }
    }
}
