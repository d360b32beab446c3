//! What goes wrong in a run, and when: all of it follows from the seed.

use std::time::Duration;

use crate::{
    clients::{NAMESPACE, TEAM},
    random::Random,
    server::Kind,
};

/// How many replicas there are.
pub(crate) const REPLICAS: usize = 3;

/// How long nothing succeeds in a stuck namespace after everything else has come to rest.
pub(crate) const PERSISTENCE: Duration = Duration::from_secs(80);

/// How long watches break again and again at most.
const FLAKY: Duration = Duration::from_secs(20);

/// What a world may have beside the faults that have always been there, and whether the operator withstands it. What it doesn't
/// yet is off, and becomes true together with the change after which it does. `FAULTS=NAME,NAME` turns on more for one run.
const WITHSTOOD: [(&str, bool); 10] = [
    // Writes in one namespace meet a webhook that hangs, refuses, or asks for patience. Leases elsewhere end in time, and no
    // more than two requests a second go where nothing succeeds.
    ("stuck-namespace", true),
    // Writes meet a webhook that answers 429 and asks for ten minutes, beside other faults.
    ("throttling-webhook", true),
    // One of several namespaces may not be read for a while, perhaps while a replica starts.
    ("forbidden-namespace", false),
    // Outages count in worlds in which replicas start anew, while a primary lives that has met them.
    ("outages-with-restarts", true),
    // The primary dies in a quiet cluster in which each response takes more than a second.
    ("slow-responses-at-rest", true),
    // A client resets the managedFields of all leases, so that renewals aren't recorded any more.
    ("reset-managed-fields", true),
    // The API server has an older CRD, and drops a field of the status.
    ("dropped-status-fields", false),
    // The store is restored from a backup: versions go back.
    ("restored-store", true),
    // The store is full before there is a Lessor: replicas ask for it with pauses that grow.
    ("full-store-without-lessor", true),
    // Watches show that an object is gone before the response to its deletion arrives.
    ("late-responses", true),
];

pub(crate) fn withstands(fault: &str) -> bool {
    let on = std::env::var("FAULTS").is_ok_and(|on| on.split(',').any(|name| name == fault));
    on || WITHSTOOD.contains(&(fault, true))
}

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
    /// Replicas have no right to anything in the second namespace.
    ForbiddenNamespace,
    /// Writes of replicas meet a webhook.
    Webhook(Webhook, Scope),
    /// Responses to replicas' writes take longer than what watches show.
    LateResponses,
}

/// What a webhook does with each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Webhook {
    /// It doesn't answer.
    Hangs,
    /// 403, though no right is missing.
    Refuses,
    /// 409, though the object hasn't changed.
    Conflicts,
    /// 429, and asks for ten minutes.
    Throttles,
}

/// The objects that a webhook is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    namespace: Option<&'static str>,
    kind: Option<Kind>,
}

impl Scope {
    pub(crate) fn includes(self, kind: Kind, namespace: &str) -> bool {
        kind.is_attachable_or_lease()
            && self.namespace.is_none_or(|only| only == namespace)
            && self.kind.is_none_or(|only| only == kind)
    }
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
    /// A user deletes the `Lessor`.
    LessorDeleted,
    /// A client resets the `managedFields` of all leases.
    ManagedFieldsReset,
    /// The store is copied.
    BackedUp,
    /// The store is replaced by its copy.
    Restored,
    /// The primary dies for good.
    PrimaryDies,
}

/// What kind of world it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Nothing goes wrong, so that what is promised without faults can be seen.
    Calm,
    /// Whatever goes wrong by chance.
    Rough,
    /// In one namespace nothing succeeds for a long time, and nothing else goes wrong but perhaps the death of the primary.
    Stuck,
    /// Few leases, slow responses, and the primary dies for good.
    Quiet,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    /// When all is well again.
    pub(crate) length: Duration,
    /// When holders and others stop.
    pub(crate) rest: Duration,
    /// Whether replicas watch each namespace by itself.
    pub(crate) scoped: bool,
    /// A field of the status that the API server drops.
    pub(crate) dropped: Option<&'static str>,
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
        let shape = match seed % 10 {
            0 | 5 => Shape::Calm,
            2 if withstands("stuck-namespace") => Shape::Stuck,
            7 if withstands("slow-responses-at-rest") => Shape::Quiet,
            _ => Shape::Rough,
        };
        let length = random.seconds(60, 150);
        let mut plan = Self {
            shape,
            length,
            rest: length,
            scoped: random.percent(40),
            dropped: None,
            faults: Vec::new(),
            incidents: Vec::new(),
            sluggish: seed % 5 == 1,
            ppm: std::array::from_fn(|_| random.below(101) as i64 - 50),
            walls: std::array::from_fn(|_| random.below(600_000) as i64 - 300_000),
        };
        match shape {
            Shape::Calm => {}
            Shape::Rough => plan.let_all_go_wrong(&mut random),
            Shape::Stuck => plan.let_a_namespace_be_stuck(&mut random),
            // Long after the replicas have started, and before the first lease is due.
            Shape::Quiet => plan.incidents.push((random.seconds(8, 14), Incident::PrimaryDies)),
        }
        plan
    }

    fn let_a_namespace_be_stuck(&mut self, random: &mut Random) {
        self.length = random.seconds(150, 170);
        self.rest = self.length - PERSISTENCE;
        if random.percent(25) && withstands("forbidden-namespace") {
            self.scoped = true;
            self.faults.push((random.seconds(12, 16), self.length, Fault::ForbiddenNamespace));
            let restart = Incident::Crash(random.below(REPLICAS), Duration::from_secs(1));
            self.incidents.push((random.seconds(20, 25), restart));
            self.incidents.push((random.seconds(40, 60), Incident::PrimaryDies));
            return;
        }
        let kind = *random.pick(&[Some(Kind::Lease), Some(Kind::ConfigMap), None]);
        let webhook = webhook(random);
        let scope = Scope { namespace: Some(TEAM), kind };
        self.faults.push((random.seconds(0, 15), self.length, Fault::Webhook(webhook, scope)));
        if random.percent(50) {
            self.incidents.push((random.seconds(25, 60), Incident::PrimaryDies));
        }
    }

    fn let_all_go_wrong(&mut self, random: &mut Random) {
        let length = self.length;
        if random.percent(10) && withstands("dropped-status-fields") {
            self.dropped = Some(*random.pick(&["attached", "follows", "remainingSeconds", "fencingToken"]));
        }
        // Where no replica starts anew, none may forget an outage.
        let restarts = random.percent(70);
        for _ in 0..2 + random.below(7) {
            let whom = if random.percent(40) { Whom::Everybody } else { Whom::One(random.below(REPLICAS)) };
            let fault = match random.below(10) {
                0 => Fault::Refuse(whom),
                1 => Fault::Hang(whom),
                2 => Fault::Slow,
                3 => Fault::Errors,
                4 => Fault::Lossy,
                5 => Fault::Forbidden,
                6 => Fault::Full,
                7 => match (webhook(random), scope(random)) {
                    (Webhook::Throttles, _) if !withstands("throttling-webhook") => Fault::FlakyWatches,
                    (webhook, scope) => Fault::Webhook(webhook, scope),
                },
                8 if withstands("late-responses") => Fault::LateResponses,
                _ => Fault::FlakyWatches,
            };
            let from = random.between(Duration::ZERO, length);
            let lasts = if random.percent(50) { random.seconds(0, 5) } else { random.seconds(5, 40) };
            // A kind whose watch fails again and again for 30 s holds up no release any more, so that attachments may be left.
            let lasts = if fault == Fault::FlakyWatches { lasts.min(FLAKY) } else { lasts };
            let to = (from + lasts).min(length);
            self.faults.push((from, to, fault));
            let is_outage = matches!(fault, Fault::Refuse(_) | Fault::Hang(_) | Fault::Full);
            if restarts && is_outage && whom == Whom::Everybody && random.percent(30) {
                let at = random.between(from, to);
                self.incidents.push((at, Incident::Crash(random.below(REPLICAS), random.seconds(0, 20))));
            }
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
            self.incidents.push((at, incident));
        }
        // All of them at once: no replica knows anything any more.
        if restarts && random.percent(30) {
            let at = random.between(Duration::ZERO, length);
            let lasts = random.seconds(0, 30);
            self.incidents.extend((0..REPLICAS).map(|replica| (at, Incident::Crash(replica, lasts))));
            if random.percent(30) && withstands("reset-managed-fields") {
                let before = at.saturating_sub(random.seconds(0, 15));
                self.incidents.push((before, Incident::ManagedFieldsReset));
            }
        }
        // A kind that can't be watched for 30 s holds up no release any more, so that attachments may be left.
        if random.percent(10) && withstands("forbidden-namespace") {
            let from = random.between(Duration::ZERO, length);
            let to = (from + random.seconds(3, 25)).min(length);
            self.faults.push((from, to, Fault::ForbiddenNamespace));
        }
        // A long outage, which a replica that starts meanwhile hasn't met.
        if restarts && random.percent(15) {
            let from = random.between(Duration::from_secs(10), length);
            let to = (from + random.seconds(10, 40)).min(length);
            self.faults.push((from, to, Fault::Refuse(Whom::Everybody)));
            let (at, away) = (random.between(from, to), random.seconds(0, 10));
            self.incidents.push((at, Incident::Crash(random.below(REPLICAS), away)));
        }
        if random.percent(5) && withstands("restored-store") {
            let back_up = random.between(Duration::ZERO, length / 2);
            let restore = random.between(back_up, length);
            self.incidents.extend([(back_up, Incident::BackedUp), (restore, Incident::Restored)]);
            self.faults.push((restore, restore + random.seconds(2, 6), Fault::Refuse(Whom::Everybody)));
        }
    }

    pub(crate) fn is_calm(&self) -> bool {
        !self.sluggish && self.shape == Shape::Calm
    }

    /// Whether the second namespace can't be watched for so long that releases wait no longer for its objects.
    pub(crate) fn is_namespace_lost(&self) -> bool {
        self.shape == Shape::Stuck
            && self.faults.iter().any(|(.., fault)| *fault == Fault::ForbiddenNamespace)
    }

    /// Whether the store goes back to an earlier state.
    pub(crate) fn has_restore(&self) -> bool {
        self.incidents.iter().any(|(_, incident)| matches!(incident, Incident::Restored))
    }

    /// Whether replicas start anew, and so may not know of an outage.
    pub(crate) fn has_restarts(&self) -> bool {
        self.incidents
            .iter()
            .any(|(_, incident)| matches!(incident, Incident::Crash(..) | Incident::Stop(..)))
    }

    /// The webhook that a write of this kind and namespace meets.
    pub(crate) fn webhook(&self, now: Duration, kind: Kind, namespace: &str) -> Option<Webhook> {
        self.faults.iter().find_map(|(from, to, fault)| match fault {
            Fault::Webhook(webhook, scope)
                if (*from..*to).contains(&now) && scope.includes(kind, namespace) =>
            {
                Some(*webhook)
            }
            _ => None,
        })
    }

    /// Up to when this replica lives and can be reached, so that none with less knowledge may overrule it.
    pub(crate) fn can_lead_until(&self, replica: usize, since: Duration) -> Duration {
        let interrupts = |incident: &Incident| match incident {
            Incident::Crash(whom, _) | Incident::Stop(whom, _) | Incident::Pause(whom, _) => *whom == replica,
            incident => matches!(incident, Incident::LessorDeleted),
        };
        let hinders = |fault: Fault| match fault {
            Fault::Refuse(whom) => whom == Whom::One(replica),
            Fault::Hang(whom) => whom.includes(replica),
            fault => matches!(fault, Fault::Slow | Fault::Errors | Fault::Lossy | Fault::Full),
        };
        let incidents = self.incidents.iter().filter(|(at, incident)| *at >= since && interrupts(incident));
        let faults = self.faults.iter().filter(|(_, to, fault)| *to > since && hinders(*fault));
        let first = incidents.map(|(at, _)| *at).chain(faults.map(|(from, ..)| *from)).min();
        first.unwrap_or(Duration::MAX)
    }

    /// The end of such a fault, if there is one now.
    pub(crate) fn until(&self, now: Duration, is_it: impl Fn(Fault) -> bool) -> Option<Duration> {
        let active =
            self.faults.iter().filter(|(from, to, fault)| *from <= now && now < *to && is_it(*fault));
        active.map(|(_, to, _)| *to).max()
    }
}

fn webhook(random: &mut Random) -> Webhook {
    *random.pick(&[Webhook::Hangs, Webhook::Refuses, Webhook::Conflicts, Webhook::Throttles])
}

/// A namespace, a kind, or a kind in a namespace.
fn scope(random: &mut Random) -> Scope {
    let kind = *random.pick(&[Kind::Lease, Kind::ConfigMap, Kind::Secret]);
    let namespace = *random.pick(&[NAMESPACE, TEAM]);
    match random.below(3) {
        0 => Scope { namespace: Some(namespace), kind: None },
        1 => Scope { namespace: None, kind: Some(kind) },
        _ => Scope { namespace: Some(namespace), kind: Some(kind) },
    }
}
