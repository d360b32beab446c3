//! Lease time: monotonic time without the outages of the API server.

use std::{collections::BTreeMap, time::Duration};

use super::LeaseTime;

/// The clock of lease time, as a pure state machine. The caller reports requests, responses and watch events; the
/// clock maps monotonic time (of any clock, as a duration since its start) to [`LeaseTime`].
///
/// Holders can't renew while the server doesn't respond, so no lease may expire meanwhile. A *sign of life* is a
/// response, an event or bookmark of a watch, or the clean end of a watch. The server counts as unreachable from the
/// last sign of life to the next response, if one of these happened in between:
///
/// - A request failed, a watch broke, or the replica itself was paused. The clock is then *suspect* until a good
///   response.
/// - A request has been out for longer than [`PATIENCE`](Self::PATIENCE), no later request was answered, and there was
///   no response at all for as long: a server that hangs breaks no connection. A single request that hangs among
///   others that are answered is no evidence, and neither is a server that is slow but answers.
///
/// While the server counts as unreachable, lease time stands still at the last sign of life, and watch events are no
/// sign of life: a server whose storage hangs still sends bookmarks. At the next good response the time since the
/// last sign of life becomes *paused* time, and lease time runs on from where it stood.
///
/// A server whose storage can't write, because it is full for example, still answers reads, but holders can't renew.
/// After [`write_failed`](Self::write_failed) lease time runs on, tentatively, until
/// [`write_observed`](Self::write_observed). Then it goes back to the last write before the failure, at most by
/// [a minute](Self::DOUBT) before it. No lease may end in between, so the primary has to write before it ends one.
///
/// # Guarantees
/// Lease time never runs faster than monotonic time. It lags behind by the outages, each counted from the last sign of
/// life before it was noticed, or from the last write if the server couldn't write. An outage that shows only as
/// silence may count up to the patience less.
///
/// # Caveats
/// Lease time may step back: to the last sign of life when an outage is noticed, and when the server can write again.
/// While it [is paused](Self::is_paused), the caller must send requests; without a response it stays paused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseClock {
    /// Monotonic time that was no lease time.
    paused_total: Duration,
    last_response: Duration,
    last_answer: Duration,
    suspect: bool,
    /// Lease time at the last observed write of any client.
    written: Duration,
    /// While the server can't write: the lease time at which it goes on.
    unable_since: Option<Duration>,
    /// When requests were sent that are out, if no later one was answered.
    out: BTreeMap<u64, Duration>,
}

impl LeaseClock {
    /// How long a request may be out before it counts as silence.
    pub const PATIENCE: Duration = Duration::from_secs(1);

    /// How long before a failed write the server may have been unable to write. Longer than most holders' interval
    /// between renewals, and no longer than a watch may be silent.
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

    /// Whether lease time stands still. If so, send a request.
    pub fn is_paused(&self, mono: Duration) -> bool {
        let is_silent = Self::is_slow(self.last_answer, mono);
        self.suspect || is_silent && self.out.values().any(|sent| Self::is_slow(*sent, mono))
    }

    /// The monotonic time at which lease time reaches `time` if nothing happens; `None` while it is paused.
    pub fn when(&self, time: LeaseTime, mono: Duration) -> Option<Duration> {
        (!self.is_paused(mono)).then(|| time.since_start().saturating_add(self.paused_total))
    }

    /// The last sign of life, in monotonic time.
    pub fn last_response(&self) -> Duration {
        self.last_response
    }

    /// Monotonic time minus lease time: all paused time, and the monotonic time at which this clock started.
    pub fn paused_total(&self) -> Duration {
        self.paused_total
    }

    /// A request is sent. The caller chooses its id, greater than those of all earlier requests.
    pub fn sent(&mut self, request: u64, mono: Duration) {
        self.out.entry(request).or_insert(mono);
    }

    /// A request was answered, by a success or by an error that only a working server returns, like 404, 409 or 422.
    pub fn answered(&mut self, request: u64, mono: Duration) {
        if self.is_paused(mono) {
            self.paused_total += mono.saturating_sub(self.last_response);
        }
        self.suspect = false;
        self.last_response = self.last_response.max(mono);
        self.last_answer = self.last_answer.max(mono);
        if let Some(sent) = self.out.remove(&request) {
            // Of requests sent at the same moment, later ones have greater ids.
            self.out.retain(|id, other| (*other, *id) > (sent, request));
        }
    }

    /// A request failed: a connection error, a timeout, 5xx, or 429.
    pub fn failed(&mut self, request: u64) {
        self.out.remove(&request);
        self.suspect = true;
    }

    /// A request was answered by an error that may concern its object alone, like that of a failing webhook. It is no
    /// sign of life, and no evidence of an outage. Before a lease ends, try another write.
    pub fn inconclusive(&mut self, request: u64, mono: Duration) {
        self.suspect |= self.is_paused(mono);
        self.out.remove(&request);
    }

    /// A write failed, or may have, that succeeds whenever the server can write. Report the request as well,
    /// afterwards.
    pub fn write_failed(&mut self, mono: Duration) {
        let now = self.reads(mono);
        let since = self.written.max(now.saturating_sub(Self::DOUBT)).min(now);
        self.unable_since.get_or_insert(since);
    }

    /// A write of any client succeeded just now.
    pub fn write_observed(&mut self, mono: Duration) {
        if self.is_paused(mono) {
            return;
        }
        if let Some(since) = self.unable_since.take() {
            self.paused_total = self.paused_total.max(mono.saturating_sub(since));
        }
        self.written = self.reads(mono);
    }

    /// The caller stopped waiting for a request. That is no evidence of an outage, and no sign of life: once the request
    /// has been out for longer than the patience, the server counts as silent, unless it answered a later request.
    pub fn withdrawn(&mut self, request: u64, mono: Duration) {
        if self.out.get(&request).is_some_and(|sent| Self::is_slow(*sent, mono)) {
            self.failed(request);
        }
    }

    /// A watch delivered an event, or ended cleanly.
    pub fn watch_event(&mut self, mono: Duration) {
        if !self.is_paused(mono) {
            self.last_response = self.last_response.max(mono);
        }
    }

    /// The replica wakes up, and was to wake up at `due`. If that was long ago the replica was paused, and may have missed
    /// the signs of an outage.
    pub fn resumed_after_pause(&mut self, due: Duration, mono: Duration) {
        if !Self::is_slow(due, mono) {
            return;
        }
        // Events that arrived before this call are no sign of life for the whole pause.
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
    fn an_error_of_one_object_is_no_outage_and_no_sign_of_life() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.inconclusive(1, at(1100));
        assert_eq!((reads(&clock, 9000), clock.last_response()), (9000, at(0)));
        // But a server that answers nothing else counts as silent.
        clock.sent(2, at(9000));
        clock.inconclusive(2, at(12_000));
        assert_eq!(reads(&clock, 12_500), 0);
    }

    #[test]
    fn no_lease_time_passes_until_the_server_can_write_again_even_if_it_answers() {
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
        assert!(reads(&clock, 20_000) > 10_000, "it runs on, tentatively");
        clock.write_observed(at(20_000));
        assert_eq!(reads(&clock, 21_000), 2000);
        clock.write_observed(at(30_000));
        assert_eq!(reads(&clock, 31_000), 12_000, "once");
    }

    #[test]
    fn a_pause_by_silence_counts_as_well_if_a_write_fails() {
        let mut clock = clock();
        clock.write_observed(at(1000));
        clock.watch_event(at(3000));
        clock.sent(1, at(9000));
        clock.write_failed(at(9100));
        clock.failed(1);
        assert_eq!(reads(&clock, 9200), 3000);
        clock.answered(2, at(9500));
        assert_eq!(reads(&clock, 9500), 3000);
        clock.write_observed(at(10_000));
        assert_eq!(reads(&clock, 10_000), 1000);
    }

    #[test]
    fn a_write_outage_counts_from_a_minute_before_the_failed_write_at_most() {
        let mut clock = clock();
        clock.write_observed(at(1000));
        clock.write_failed(at(3_600_000));
        clock.write_observed(at(3_700_000));
        assert_eq!(reads(&clock, 3_700_000), 3_540_000);
    }

    #[test]
    fn a_write_observed_while_disconnected_counts_after_the_next_response() {
        let mut clock = clock();
        clock.write_observed(at(1000));
        clock.write_failed(at(2000));
        clock.broke();
        clock.write_observed(at(5000));
        assert_eq!(reads(&clock, 5000), 0, "lease time stands still");
        clock.answered(1, at(6000));
        clock.write_observed(at(6500));
        assert_eq!(reads(&clock, 6500), 500, "the broken watch counts from the last sign of life");
    }

    #[test]
    fn a_broken_watch_stops_the_clock_and_events_of_others_do_not_start_it() {
        let mut clock = clock();
        clock.watch_event(at(1000));
        clock.broke();
        clock.watch_event(at(2000));
        assert_eq!(reads(&clock, 2500), 1000);
        clock.answered(1, at(3000));
        assert_eq!(reads(&clock, 3500), 1500);
    }

    #[test]
    fn a_request_that_hangs_stops_the_clock_after_a_second_despite_watch_events() {
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
    fn a_response_to_a_later_request_excuses_one_that_hangs() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.sent(2, at(1200));
        clock.answered(2, at(1300));
        assert_eq!(reads(&clock, 8000), 8000);
        clock.answered(1, at(8000));
        assert_eq!(reads(&clock, 8000), 8000);
    }

    #[test]
    fn a_slow_server_that_answers_is_not_silent() {
        let mut clock = clock();
        // Ten requests a second, each out for three.
        for step in 0..300 {
            clock.sent(step, at(100 * step));
            if let Some(answered) = step.checked_sub(30) {
                clock.answered(answered, at(100 * step));
            }
        }
        // It was silent until the first response.
        assert_eq!(reads(&clock, 29_900), 29_900 - 3000);
        // It is silent again a second after the last response.
        assert_eq!(reads(&clock, 30_800), 30_800 - 3000);
        assert_eq!(reads(&clock, 31_000), 29_900 - 3000);
    }

    #[test]
    fn a_response_to_an_earlier_request_excuses_none() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.sent(2, at(1200));
        clock.answered(1, at(1300));
        assert_eq!(reads(&clock, 8000), 1300);
    }

    #[test]
    fn of_requests_sent_at_one_moment_a_response_excuses_only_earlier_ones() {
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
    fn a_quick_response_pauses_nothing() {
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
    fn requests_that_are_withdrawn_early_do_not_hide_that_the_server_hangs() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.withdrawn(1, at(1600));
        clock.sent(2, at(1900));
        // Answered within the patience, but the silence lasted longer.
        clock.answered(2, at(2800));
        assert_eq!(reads(&clock, 2800), 0);
    }

    #[test]
    fn a_later_response_excuses_a_request_that_was_withdrawn() {
        let mut clock = clock();
        clock.sent(1, at(1000));
        clock.withdrawn(1, at(1100));
        clock.sent(2, at(1200));
        clock.answered(2, at(1300));
        assert_eq!(reads(&clock, 8000), 8000);
    }

    #[test]
    fn a_pause_of_the_replica_counts_from_when_it_was_to_wake_up() {
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
    fn an_event_on_waking_up_does_not_hide_the_pause() {
        let mut clock = clock();
        clock.watch_event(at(9000));
        clock.resumed_after_pause(at(5000), at(9000));
        assert_eq!(reads(&clock, 9000), 5000);
        clock.answered(1, at(9100));
        // The server was silent before the pause.
        clock.sent(2, at(10_000));
        clock.watch_event(at(10_500));
        clock.resumed_after_pause(at(20_000), at(25_000));
        clock.answered(2, at(25_000));
        assert_eq!(reads(&clock, 25_000), 6400);
    }

    #[test]
    fn when_returns_the_monotonic_time_of_a_deadline() {
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
        Inconclusive(u64),
        WriteFailed,
        WriteObserved,
        Withdrawn(u64),
        Heartbeat,
        Broke,
        ResumedAfterPause(u64),
        Nothing,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..4u64).prop_map(Event::Sent),
            (0..4u64).prop_map(Event::Answered),
            (0..4u64).prop_map(Event::Failed),
            (0..4u64).prop_map(Event::Inconclusive),
            Just(Event::WriteFailed),
            Just(Event::WriteObserved),
            (0..4u64).prop_map(Event::Withdrawn),
            Just(Event::Heartbeat),
            Just(Event::Broke),
            (0..5000u64).prop_map(Event::ResumedAfterPause),
            Just(Event::Nothing),
        ]
    }

    /// A time in which the server answers, and one in which it doesn't.
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
                            Event::Inconclusive(id) => clock.inconclusive(id, at(mono)),
                            Event::WriteFailed => clock.write_failed(at(mono)),
                            Event::WriteObserved => clock.write_observed(at(mono)),
                            Event::Withdrawn(id) => clock.withdrawn(id, at(mono)),
                            Event::Heartbeat => clock.watch_event(at(mono)),
                            Event::Broke => clock.broke(),
                            Event::ResumedAfterPause(late) => clock.resumed_after_pause(at(mono.saturating_sub(late)), at(mono)),
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

        /// Sends a request every 100 ms. In an outage requests fail at once, or hang until its end.
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
            // From the last sign of life before each outage to the first response after it: up to 60 ms more on
            // either side.
            prop_assert!(lag >= down && lag <= down + 120 * outages, "{lag} ms for {down} ms of outages");
        }
    }
}
