//! Faults at random, the same for the same seed and the same order of requests.

use std::{fmt, time::Duration};

use http::StatusCode;

use super::{Matching, Seen};

/// What shall happen to requests, and how often.
///
/// ```
/// # use std::time::Duration;
/// # use lessor_cluster::proxy::Faults;
/// let slow = Faults::new(1).latency(Duration::from_secs(2)).drop(0.02).answer(429, 0.02);
/// let no_status = Faults::new(2).only(|request| request.is("PATCH", "/leases/one/status")).answer(500, 1.0);
/// ```
pub struct Faults {
    rng: fastrand::Rng,
    matching: Matching,
    delay: Duration,
    answer_delay: Duration,
    latency: Duration,
    /// Fates and their shares; the rest is forwarded.
    fates: Vec<(Kind, f64)>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Drop,
    Cut,
    /// With the seconds of `Retry-After` for 429.
    Answer(StatusCode, u32),
}

impl Faults {
    /// None yet.
    pub fn new(seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self {
            rng,
            matching: Box::new(|_| true),
            delay: Duration::ZERO,
            answer_delay: Duration::ZERO,
            latency: Duration::ZERO,
            fates: Vec::new(),
        }
    }

    /// A bad day: latency up to 2 s; of 100 requests, 2 are lost, 3 have their connection cut, and 429, 500, 503 and
    /// 409 are the answers to 2 each.
    pub fn bad_day(seed: u64) -> Self {
        let faults = Self::new(seed).latency(Duration::from_secs(2)).drop(0.02).cut(0.03);
        [429, 500, 503, 409].into_iter().fold(faults, |faults, status| faults.answer(status, 0.02))
    }

    /// Only for the requests that `matching` means.
    pub fn only(mut self, matching: impl Fn(&Seen) -> bool + Send + Sync + 'static) -> Self {
        self.matching = Box::new(matching);
        self
    }

    /// Each request waits for so long before the API server gets it.
    pub fn delay(mut self, each: Duration) -> Self {
        self.delay = each;
        self
    }

    /// Each answer waits for so long on its way back.
    pub fn delay_answer(mut self, each: Duration) -> Self {
        self.answer_delay = each;
        self
    }

    /// Each request takes up to `max` longer, in part before the API server gets it, in part after.
    pub fn latency(mut self, max: Duration) -> Self {
        self.latency = max;
        self
    }

    /// This share (0 … 1) of requests gets no answer: half of them never arrive, of the others the answer is lost.
    /// The connection is closed a minute later.
    pub fn drop(self, share: f64) -> Self {
        self.with(Kind::Drop, share)
    }

    /// For this share (0 … 1) the connection is closed, half of the time before the request has arrived, else instead
    /// of the answer. A watch begins, and is cut within 10 s.
    pub fn cut(self, share: f64) -> Self {
        self.with(Kind::Cut, share)
    }

    /// This share (0 … 1) never arrives, and is answered with this HTTP status (429 with `Retry-After: 1`). A number
    /// that is no status counts as 500.
    pub fn answer(self, status: u16, share: f64) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.with(Kind::Answer(status, 1), share)
    }

    /// This share (0 … 1) never arrives, and is answered with 429 and these seconds of `Retry-After`.
    pub fn busy(self, seconds: u32, share: f64) -> Self {
        self.with(Kind::Answer(StatusCode::TOO_MANY_REQUESTS, seconds), share)
    }

    fn with(mut self, kind: Kind, share: f64) -> Self {
        self.fates.push((kind, share));
        self
    }

    pub(super) fn means(&self, seen: &Seen) -> bool {
        (self.matching)(seen)
    }

    /// The fate of the next request. The same number of draws for each, so that one doesn't change those after it.
    pub(super) fn next(&mut self, seen: &Seen) -> Fate {
        let latency = self.latency.mul_f64(self.rng.f64());
        let before = latency.mul_f64(self.rng.f64());
        let after = latency - before;
        let (mut draw, arrives, life) = (self.rng.f64(), self.rng.bool(), self.rng.f64());
        let kind = self.fates.iter().find_map(|&(kind, share)| {
            draw -= share;
            (draw < 0.0).then_some(kind)
        });
        let end = match kind {
            None => End::Answered,
            Some(Kind::Answer(status, retry_after)) => End::Refused { status, retry_after },
            Some(Kind::Drop) => End::Dropped { arrives },
            Some(Kind::Cut) if seen.is_watch() => End::CutLater(Duration::from_secs(10).mul_f64(life)),
            Some(Kind::Cut) => End::Cut { arrives },
        };
        Fate { before: self.delay + before, after: self.answer_delay + after, end }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("delay", &self.delay)
            .field("answer_delay", &self.answer_delay)
            .field("latency", &self.latency)
            .field("fates", &self.fates)
            .finish_non_exhaustive()
    }
}

/// What happens to one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fate {
    /// Latency on the way there.
    pub(super) before: Duration,
    /// Latency on the way back.
    pub(super) after: Duration,
    pub(super) end: End,
}

impl Default for Fate {
    fn default() -> Self {
        Self { before: Duration::ZERO, after: Duration::ZERO, end: End::Answered }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    /// By the API server.
    Answered,
    /// By the proxy.
    Refused { status: StatusCode, retry_after: u32 },
    /// Never answered.
    Dropped { arrives: bool },
    /// The connection is closed.
    Cut { arrives: bool },
    /// The connection is closed while the answer is streamed.
    CutLater(Duration),
}

/// How many requests came to a proxy, and what was done to them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// All.
    pub requests: usize,
    /// Those that were never answered.
    pub dropped: usize,
    /// Those whose connection was cut.
    pub cut: usize,
    /// Those that the proxy answered with an error.
    pub refused: usize,
}

impl Counts {
    pub(super) fn add(&mut self, end: End) {
        self.requests += 1;
        match end {
            End::Answered => {}
            End::Refused { .. } => self.refused += 1,
            End::Dropped { .. } => self.dropped += 1,
            End::Cut { .. } | End::CutLater(_) => self.cut += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        Seen {
            method: http::Method::GET,
            path: String::new(),
            query: String::new(),
            user_agent: String::new(),
            token: String::new(),
            body: Default::default(),
        }
    }

    #[test]
    fn a_request_and_its_answer_wait_for_as_long_as_their_delays() {
        let (there, back) = (Duration::from_millis(300), Duration::from_millis(1200));
        let fate = Faults::new(1).delay(there).delay_answer(back).next(&seen());
        assert_eq!((fate.before, fate.after), (there, back));
    }

    fn ends(seed: u64) -> (Counts, String) {
        let seen = seen();
        let (mut faults, mut counts, mut all) = (Faults::bad_day(seed), Counts::default(), String::new());
        for _ in 0..10_000 {
            let fate = faults.next(&seen);
            assert!(fate.before + fate.after <= Duration::from_secs(2));
            counts.add(fate.end);
            all += &format!("{fate:?}\n");
        }
        (counts, all)
    }

    #[test]
    fn each_fault_gets_its_share() {
        let (counts, _) = ends(7);
        assert!((150..250).contains(&counts.dropped), "2 %: {counts:?}");
        assert!((240..360).contains(&counts.cut), "3 %: {counts:?}");
        assert!((700..900).contains(&counts.refused), "8 %: {counts:?}");
    }

    #[test]
    fn a_seed_decides_everything() {
        assert_eq!(ends(7), ends(7));
        assert_ne!(ends(7), ends(8));
    }
}
