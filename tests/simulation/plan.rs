//! What goes wrong in a run, and when: all of it follows from the seed.

use std::time::Duration;

use crate::random::Random;

/// How many replicas there are.
pub(crate) const REPLICAS: usize = 3;

/// Whom a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    /// The API server itself: all replicas and all other clients.
    Everybody,
    /// One replica.
    One(usize),
}

impl Whom {
    pub(crate) fn includes(self, replica: usize) -> bool {
        self == Self::Everybody || self == Self::One(replica)
    }
}

/// A fault that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Connections break, and new ones are refused.
    Refuse(Whom),
    /// Nothing is answered; connections stay.
    Hang(Whom),
    /// Requests and answers of replicas take up to seconds.
    Slow,
    /// The API server answers replicas with 429, 500, 503 and, though it has done its work, 504.
    Errors,
    /// Requests and answers of replicas get lost.
    Lossy,
    /// Watches break after what they show.
    FlakyWatches,
    /// The API server reads, and can't write: its storage is full.
    Full,
    /// Replicas have no right to look at what leases follow, other leases aside.
    Forbidden,
}

/// A fault that just happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incident {
    /// The process dies, and starts again after this time.
    Crash(usize, Duration),
    /// The process is asked to stop, and starts again after this time.
    Stop(usize, Duration),
    /// The process stands still for this time.
    Pause(usize, Duration),
    /// The wall clock is moved by this, forth or back.
    WallClock(usize, Duration, bool),
    /// Watches can't begin before the present any more.
    Compaction,
    /// Somebody deletes the `Lessor`.
    LessorDeleted,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// When holders and others stop, and all is well again.
    pub(crate) length: Duration,
    pub(crate) faults: Vec<(Duration, Duration, Fault)>,
    pub(crate) incidents: Vec<(Duration, Incident)>,
    /// Whether each answer takes about a second, from the beginning to the end of the world.
    pub(crate) sluggish: bool,
    /// How much faster than true each replica's clock goes, in millionths.
    pub(crate) ppm: [i64; REPLICAS],
    /// How far each replica's wall clock is ahead, in milliseconds.
    pub(crate) walls: [i64; REPLICAS],
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x706c_616e);
        let length = random.seconds(60, 150);
        let mut plan = Self {
            length,
            faults: Vec::new(),
            incidents: Vec::new(),
            sluggish: seed % 5 == 1,
            ppm: std::array::from_fn(|_| random.below(101) as i64 - 50),
            walls: std::array::from_fn(|_| random.below(600_000) as i64 - 300_000),
        };
        // Every fifth world is a calm one, in which what is promised without faults can be seen.
        if seed.is_multiple_of(5) {
            return plan;
        }
        // Where no replica starts anew, none may forget an outage.
        let restarts = random.percent(70);
        for _ in 0..2 + random.below(7) {
            let whom = if random.percent(40) { Whom::Everybody } else { Whom::One(random.below(REPLICAS)) };
            let fault = match random.below(8) {
                0 => Fault::Refuse(whom),
                1 => Fault::Hang(whom),
                2 => Fault::Slow,
                3 => Fault::Errors,
                4 => Fault::Lossy,
                5 => Fault::Forbidden,
                6 => Fault::Full,
                _ => Fault::FlakyWatches,
            };
            let from = random.between(Duration::ZERO, length);
            let lasts = if random.percent(50) { random.seconds(0, 5) } else { random.seconds(5, 40) };
            plan.faults.push((from, (from + lasts).min(length), fault));
        }
        for _ in 0..random.below(7) {
            let at = random.between(Duration::ZERO, length);
            let replica = random.below(REPLICAS);
            let lasts = random.seconds(0, 20);
            let incident = match random.below(6) {
                0 if restarts => Incident::Crash(replica, lasts),
                1 if restarts => Incident::Stop(replica, lasts),
                0..=2 => Incident::Pause(replica, lasts),
                3 => Incident::WallClock(replica, random.seconds(0, 7200), random.percent(50)),
                5 => Incident::LessorDeleted,
                _ => Incident::Compaction,
            };
            plan.incidents.push((at, incident));
        }
        // All of them at once: nobody knows anything any more.
        if restarts && random.percent(30) {
            let at = random.between(Duration::ZERO, length);
            let lasts = random.seconds(0, 30);
            plan.incidents.extend((0..REPLICAS).map(|replica| (at, Incident::Crash(replica, lasts))));
        }
        plan
    }

    pub(crate) fn is_calm(&self) -> bool {
        !self.sluggish && self.faults.is_empty() && self.incidents.is_empty()
    }

    /// Whether replicas start anew, and so may not know of an outage.
    pub(crate) fn has_restarts(&self) -> bool {
        self.incidents
            .iter()
            .any(|(_, incident)| matches!(incident, Incident::Crash(..) | Incident::Stop(..)))
    }

    /// The end of such a fault, if there is one now.
    pub(crate) fn until(&self, now: Duration, is_it: impl Fn(Fault) -> bool) -> Option<Duration> {
        let active =
            self.faults.iter().filter(|(from, to, fault)| *from <= now && now < *to && is_it(*fault));
        active.map(|(_, to, _)| *to).max()
    }
}
