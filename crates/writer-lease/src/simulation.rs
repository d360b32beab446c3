//! A world of writers around a server, with clocks that disagree and everything that may go wrong, on
//! simulated time. It is the runtime of each machine, and checks invariants at every step.

use std::{collections::BTreeMap, time::Duration};

use super::{Action, Config, Holder, Lane, Observation, Reason, Term, WorkResult, WriterLease};

pub(super) const LEASE: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Objects that carry the terms of their writers; work `key` is to be written to object `key % OBJECTS`.
const OBJECTS: u32 = 4;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Dies, and comes back under another name.
    Crash { back: Duration },
    /// Gives up the lead in order, and comes back under another name.
    Stop { back: Duration },
    /// Does nothing at all for so long, then goes on as if nothing had happened (SIGSTOP).
    Pause { length: Duration },
    /// Its watch delivers nothing for so long, but its requests succeed.
    Disconnect { length: Duration },
    /// The server answers no request for so long.
    Outage { length: Duration },
    /// The arbitration object is deleted. A writer that starts afterwards may claim an earlier term if no object carries
    /// it, so from then on this isn't checked.
    Delete,
}

/// What a world is made of.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) replicas: usize,
    /// The longest that a message takes.
    pub(super) latency: Duration,
    /// How many of a hundred responses get lost on the way back.
    pub(super) lost_percent: u64,
    pub(super) faults: Vec<(Duration, usize, Fault)>,
    /// When each piece of work falls due.
    pub(super) works: Vec<Duration>,
    /// Which of them can't ever be done.
    pub(super) hopeless: Vec<u32>,
    pub(super) length: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct History {
    /// When each piece of work was done, by key.
    pub(super) done: BTreeMap<u32, Duration>,
    /// When the arbitration object was written, and whom and which term it named after it.
    pub(super) arbitrations: Vec<(Duration, Option<u64>, Term)>,
    /// When anything else was written.
    pub(super) writes: Vec<Duration>,
}

impl History {
    /// The last term: how often a writer became primary.
    pub(super) fn term(&self) -> Term {
        self.arbitrations.last().map_or(0, |(_, _, term)| *term)
    }
}

#[derive(Clone, Copy, Debug)]
struct Record {
    holder: Option<u64>,
    term: Term,
    version: u64,
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Work {
        key: u32,
        term: Term,
    },
    /// The fresh look before a claim.
    Look {
        reason: Option<u32>,
        term: Term,
    },
    Claim {
        version: u64,
        term: Term,
    },
    Prove {
        term: Term,
    },
    Resign {
        term: Term,
    },
}

#[derive(Clone, Copy, Debug)]
enum Response {
    Accepted,
    /// The object carries a higher term.
    Fenced(Term),
    /// It can't be done, now or ever.
    Failed,
    /// Another writer did it.
    Obsolete,
    /// To be claimed, if the version is still this.
    Free {
        version: u64,
        term: Term,
    },
    Lost(Record),
    Timeout,
}

#[derive(Clone, Copy, Debug)]
enum News {
    Wrote { key: u32, term: Term },
    Arbitrated(Record),
}

enum Event {
    Wake,
    Response { request: u64, response: Response },
    News(News),
    Reconnected { lost: Duration },
}

enum Occurrence {
    To(usize, u64, Event),
    Arrives { from: usize, name: u64, request: u64, what: Request },
    Due(u32),
    Fault(usize, Fault),
    Start(usize),
}

struct Replica {
    /// Unique to each start.
    name: u64,
    lease: WriterLease<u32>,
    /// Its clock shows this much more than the world's.
    ahead: Duration,
    paused_until: Duration,
    disconnected_until: Duration,
    /// Nothing is delivered before what was sent earlier.
    delivered: Duration,
    /// When it will be polled next if nothing happens.
    wakes: Option<Duration>,
    pending: BTreeMap<u64, (Request, Duration)>,
    /// For the checks, on its own clock: when its last accepted write of each term was sent,
    /// and when it last followed of another's.
    accepted: BTreeMap<Term, Duration>,
    followed: Option<Duration>,
    highest: Term,
    /// The version of the arbitration object that it has followed of.
    version: u64,
}

/// Every third key is in no lane, the others in one of two.
fn try_work(lease: &mut WriterLease<u32>, key: u32, due: Duration) {
    match key % 3 {
        0 => lease.try_work(key, due),
        lane => lease.try_work_in(Lane::bounded(u64::from(lane)), key, due),
    }
}

pub(super) struct World {
    plan: Plan,
    now: Duration,
    draws: u64,
    sequence: u64,
    names: u64,
    queue: BTreeMap<(Duration, u64), Occurrence>,
    replicas: Vec<Option<Replica>>,
    object: Record,
    terms: BTreeMap<u32, Term>,
    outage_until: Duration,
    deleted: bool,
    /// Who ran under which term.
    ran: BTreeMap<Term, u64>,
    history: History,
}

/// Lets the world of this plan run to its end.
pub(super) fn run(plan: &Plan) -> History {
    let mut world = World {
        plan: plan.clone(),
        now: Duration::ZERO,
        draws: plan.seed,
        sequence: 0,
        names: 0,
        queue: BTreeMap::new(),
        replicas: (0..plan.replicas).map(|_| None).collect(),
        object: Record { holder: None, term: 0, version: 0 },
        terms: BTreeMap::new(),
        outage_until: Duration::ZERO,
        deleted: false,
        ran: BTreeMap::new(),
        history: History::default(),
    };
    for index in 0..plan.replicas {
        world.at(Duration::from_millis(index as u64), Occurrence::Start(index));
    }
    for (key, due) in (0..).zip(&plan.works) {
        world.at(*due, Occurrence::Due(key));
    }
    for (at, index, fault) in &plan.faults {
        world.at(*at, Occurrence::Fault(index % plan.replicas, *fault));
    }
    while let Some(((at, _), occurrence)) = world.queue.pop_first() {
        if at > plan.length {
            break;
        }
        world.now = at;
        world.happen(occurrence);
    }
    world.history
}

impl World {
    fn draw(&mut self, below: u64) -> u64 {
        self.draws =
            self.draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.draws >> 33) % below.max(1)
    }

    fn latency(&mut self) -> Duration {
        let longest = self.plan.latency.as_micros() as u64;
        Duration::from_micros(1 + self.draw(longest))
    }

    fn at(&mut self, at: Duration, occurrence: Occurrence) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), occurrence);
    }

    fn replica(&mut self, index: usize, name: u64) -> Option<&mut Replica> {
        self.replicas[index].as_mut().filter(|replica| replica.name == name)
    }

    fn happen(&mut self, occurrence: Occurrence) {
        match occurrence {
            Occurrence::Start(index) => self.start(index),
            Occurrence::Fault(index, fault) => self.fault(index, fault),
            Occurrence::Due(key) => {
                for index in 0..self.replicas.len() {
                    if let Some(replica) = &mut self.replicas[index] {
                        try_work(&mut replica.lease, key, self.now + replica.ahead);
                        self.wake(index);
                    }
                }
            }
            Occurrence::Arrives { from, name, request, what } => {
                if self.now < self.outage_until {
                    return;
                }
                let response = self.serve(name, what);
                if self.draw(100) < self.plan.lost_percent {
                    return;
                }
                let at = self.now + self.latency();
                self.at(at, Occurrence::To(from, name, Event::Response { request, response }));
            }
            Occurrence::To(index, name, event) => {
                let (now, outage) = (self.now, self.outage_until);
                let Some(replica) = self.replica(index, name) else { return };
                let news = matches!(event, Event::News(_));
                let deferred = if now < replica.paused_until {
                    replica.paused_until
                } else if news && now < replica.disconnected_until.max(outage) {
                    replica.disconnected_until.max(outage)
                } else {
                    self.deliver(index, event);
                    self.wake(index);
                    return;
                };
                self.at(deferred, Occurrence::To(index, name, event));
            }
        }
    }

    // --- Replicas --------------------------------------------------------------------------------

    fn start(&mut self, index: usize) {
        self.names += 1;
        let name = self.names;
        let ahead = Duration::from_secs(self.draw(1000));
        let mut lease = WriterLease::new(Config { seed: name ^ self.plan.seed, ..Config::new(LEASE) });
        let now = self.now + ahead;
        lease.observe_claim(self.holder_for(name, self.object), self.object.term, now);
        for term in self.terms.values() {
            lease.learn_term(*term, now);
        }
        for (key, due) in (0..).zip(&self.plan.works) {
            if *due <= self.now && !self.history.done.contains_key(&key) {
                try_work(&mut lease, key, *due + ahead);
            }
        }
        self.replicas[index] = Some(Replica {
            name,
            lease,
            ahead,
            paused_until: Duration::ZERO,
            disconnected_until: Duration::ZERO,
            delivered: self.now,
            wakes: None,
            pending: BTreeMap::new(),
            accepted: BTreeMap::new(),
            followed: None,
            highest: self.object.term,
            version: self.object.version,
        });
        self.wake(index);
    }

    fn holder_for(&self, name: u64, object: Record) -> Holder {
        match object.holder {
            None => Holder::Nobody,
            Some(holder) if holder == name => Holder::Me,
            Some(_) => Holder::Other,
        }
    }

    fn fault(&mut self, index: usize, fault: Fault) {
        match fault {
            Fault::Crash { back } => {
                if self.replicas[index].take().is_some() {
                    self.at(self.now + back, Occurrence::Start(index));
                }
            }
            Fault::Stop { back } => {
                let Some(mut replica) = self.replicas[index].take() else { return };
                let local = self.now + replica.ahead;
                replica.lease.resign(local);
                if let Some(Action::Resign { term }) = replica.lease.poll(local) {
                    let at = self.now + self.latency();
                    let (name, what) = (replica.name, Request::Resign { term });
                    self.at(at, Occurrence::Arrives { from: index, name, request: 0, what });
                }
                self.at(self.now + back, Occurrence::Start(index));
            }
            Fault::Pause { length } => {
                if let Some(replica) = &mut self.replicas[index] {
                    replica.paused_until = self.now + length;
                }
            }
            Fault::Disconnect { length } => {
                let until = self.now + length;
                if let Some(replica) = &mut self.replicas[index] {
                    replica.disconnected_until = replica.disconnected_until.max(until);
                    let name = replica.name;
                    let reconnected = Event::Reconnected { lost: length };
                    self.at(until, Occurrence::To(index, name, reconnected));
                }
            }
            Fault::Delete => {
                self.deleted = true;
                self.object = Record { holder: None, term: 0, version: self.object.version + 1 };
                self.spread(News::Arbitrated(self.object));
            }
            Fault::Outage { length } => {
                let until = self.now + length;
                self.outage_until = self.outage_until.max(until);
                for index in 0..self.replicas.len() {
                    if let Some(replica) = &self.replicas[index] {
                        let name = replica.name;
                        let reconnected = Event::Reconnected { lost: length };
                        self.at(until, Occurrence::To(index, name, reconnected));
                    }
                }
            }
        }
    }

    /// Polls a replica, and schedules its next poll.
    fn wake(&mut self, index: usize) {
        let world = self.now;
        let Some(replica) = &self.replicas[index] else { return };
        if world < replica.paused_until {
            let at = replica.paused_until;
            return self.wake_at(index, at);
        }
        let (name, local) = (replica.name, world + replica.ahead);
        let wakes = replica.lease.wake_at(local).is_some_and(|at| at <= local);
        let mut acted = false;
        while let Some(action) = self.replica(index, name).and_then(|replica| replica.lease.poll(local)) {
            acted = true;
            self.act(index, action, local);
        }
        assert_eq!(wakes, acted, "wakes exactly when there is something to do");
        let Some(replica) = self.replica(index, name) else { return };
        if let Some(at) = replica.lease.wake_at(local) {
            assert!(at > local, "nothing is left undone");
            let at = at - replica.ahead;
            self.wake_at(index, at);
        }
    }

    fn wake_at(&mut self, index: usize, at: Duration) {
        let Some(replica) = &mut self.replicas[index] else { return };
        if replica.wakes.is_none_or(|wakes| at < wakes) {
            replica.wakes = Some(at);
            let name = replica.name;
            self.at(at, Occurrence::To(index, name, Event::Wake));
        }
    }

    fn act(&mut self, index: usize, action: Action<u32>, local: Duration) {
        let Some(replica) = &mut self.replicas[index] else { return };
        let (what, patience) = match action {
            Action::Run { key, term, until, .. } => {
                let ran = *self.ran.entry(term).or_insert(replica.name);
                assert!(ran == replica.name || self.deleted, "two ran under term {term}");
                let lapses = replica.accepted.get(&term).map(|sent| *sent + LEASE);
                assert!(lapses.is_some_and(|at| local < at), "ran after its lease had lapsed");
                assert_eq!(lapses, Some(until), "the request would be cut off at another time");
                let twice = replica
                    .pending
                    .values()
                    .any(|(request, _)| matches!(request, Request::Work { key: other, .. } if *other == key));
                assert!(!twice, "key {key} ran twice at once");
                (Request::Work { key, term }, (until - local).min(REQUEST_TIMEOUT))
            }
            Action::Prove { term } => (Request::Prove { term }, REQUEST_TIMEOUT),
            Action::Resign { term } => (Request::Resign { term }, REQUEST_TIMEOUT),
            Action::Claim { term, reason: Reason::Empty } => {
                (Request::Look { reason: None, term }, REQUEST_TIMEOUT)
            }
            Action::Claim { reason: Reason::Unanswered, .. } => panic!("claimed without a challenge"),
            Action::Claim { term, reason: Reason::Overdue(key) } => {
                let due = self.plan.works[key as usize] + replica.ahead;
                assert!(local >= due + LEASE / 2, "no head start on work {key}");
                let followed = replica.followed.unwrap_or_default();
                assert!(
                    replica.followed.is_none() || local >= followed + LEASE,
                    "claimed {:?} after a write",
                    local - followed
                );
                (Request::Look { reason: Some(key), term }, REQUEST_TIMEOUT)
            }
        };
        self.send(index, what, patience);
    }

    fn send(&mut self, from: usize, what: Request, patience: Duration) {
        self.sequence += 1;
        let (request, now, takes) = (self.sequence, self.now, self.latency());
        let Some(replica) = &mut self.replicas[from] else { return };
        replica.pending.insert(request, (what, now + replica.ahead));
        let name = replica.name;
        self.at(now + takes, Occurrence::Arrives { from, name, request, what });
        let timeout = Event::Response { request, response: Response::Timeout };
        self.at(now + patience, Occurrence::To(from, name, timeout));
    }

    fn deliver(&mut self, index: usize, event: Event) {
        let now = self.now;
        let Some(replica) = &mut self.replicas[index] else { return };
        let local = now + replica.ahead;
        match event {
            Event::Wake => replica.wakes = replica.wakes.filter(|at| *at > now),
            Event::Reconnected { lost } => replica.lease.reconnected(lost, local),
            Event::News(News::Wrote { key, term }) => {
                if term >= replica.highest && !replica.accepted.contains_key(&term) {
                    replica.followed = Some(local);
                    replica.highest = term;
                }
                match replica.lease.observe(term, local) {
                    Observation::Followed | Observation::Demoted => replica.lease.extend(&key, local),
                    _ => {
                        replica.lease.remove(&key);
                    }
                }
            }
            Event::News(News::Arbitrated(object)) => {
                replica.version = replica.version.max(object.version);
                let name = replica.name;
                if object.term >= replica.highest && object.holder.is_some_and(|holder| holder != name) {
                    replica.followed = Some(local);
                }
                replica.highest = replica.highest.max(object.term);
                let holder = self.holder_for(name, object);
                let Some(replica) = &mut self.replicas[index] else { return };
                replica.lease.observe_claim(holder, object.term, local);
            }
            Event::Response { request, response } => {
                if let Some((what, sent_at)) = replica.pending.remove(&request) {
                    self.responseed(index, what, sent_at, response, local);
                }
            }
        }
    }

    fn responseed(
        &mut self,
        index: usize,
        what: Request,
        sent_at: Duration,
        response: Response,
        local: Duration,
    ) {
        let Some(replica) = &mut self.replicas[index] else { return };
        let lease = &mut replica.lease;
        let mut accepted = |term| {
            let sent = replica.accepted.entry(term).or_default();
            *sent = sent_at.max(*sent);
        };
        match (what, response) {
            (Request::Work { key, term }, Response::Accepted) => {
                if lease.leading_term() == Some(term) {
                    accepted(term);
                }
                lease.done(&key, WorkResult::Extend, false, sent_at, local);
            }
            (Request::Work { key, .. }, Response::Obsolete) => {
                lease.done(&key, WorkResult::None, false, sent_at, local);
            }
            (Request::Work { key, .. }, Response::Fenced(term)) => {
                lease.done(&key, WorkResult::None, true, sent_at, local);
                lease.learn_term(term, local);
            }
            (Request::Work { key, .. }, _) => {
                lease.done(&key, WorkResult::None, true, sent_at, local);
            }
            (Request::Prove { term }, Response::Accepted) => {
                accepted(term);
                lease.proved(term, sent_at);
            }
            (Request::Claim { term, .. }, Response::Accepted) => {
                accepted(term);
                replica.highest = replica.highest.max(term);
                lease.claimed(term, sent_at, local);
            }
            (Request::Look { .. }, Response::Free { version, term }) => {
                self.send(index, Request::Claim { version, term }, REQUEST_TIMEOUT);
            }
            (Request::Look { .. }, Response::Obsolete) => lease.abstained(local),
            (
                Request::Prove { .. } | Request::Look { .. } | Request::Claim { .. },
                Response::Lost(object),
            ) => {
                lease.lost(local);
                replica.highest = replica.highest.max(object.term);
                let holder = match object.holder {
                    None => Holder::Nobody,
                    Some(_) => Holder::Other,
                };
                lease.observe_claim(holder, object.term, local);
            }
            (Request::Resign { .. }, _) => {}
            (Request::Prove { .. } | Request::Look { .. } | Request::Claim { .. }, _) => {
                lease.arbitration_failed(local);
            }
        }
    }

    // --- The server ------------------------------------------------------------------------------

    fn serve(&mut self, name: u64, what: Request) -> Response {
        let object = self.object;
        let mine = object.holder == Some(name);
        match what {
            Request::Work { key, term } => self.work(key, term),
            Request::Look { reason, term } => {
                let replica = self.replicas.iter().flatten().find(|replica| replica.name == name);
                let unseen = replica.is_none_or(|replica| replica.version < object.version);
                let taken = object.holder.is_some() && !mine;
                match reason {
                    _ if taken && (reason.is_none() || unseen || object.term >= term) => {
                        Response::Lost(object)
                    }
                    Some(key) if self.history.done.contains_key(&key) => Response::Obsolete,
                    _ => Response::Free { version: object.version, term: term.max(object.term + 1) },
                }
            }
            Request::Claim { version, term } => {
                if object.version != version {
                    return if mine && object.term == term {
                        Response::Accepted
                    } else {
                        Response::Lost(object)
                    };
                }
                self.arbitrate(Some(name), term)
            }
            Request::Prove { term } if mine && object.term == term => self.arbitrate(Some(name), term),
            Request::Prove { .. } => Response::Lost(object),
            Request::Resign { term } if mine && object.term == term => self.arbitrate(None, term),
            Request::Resign { .. } => Response::Lost(object),
        }
    }

    fn work(&mut self, key: u32, term: Term) -> Response {
        if self.plan.hopeless.contains(&key) {
            return Response::Failed;
        }
        if self.history.done.contains_key(&key) {
            return Response::Obsolete;
        }
        let carried = self.terms.entry(key % OBJECTS).or_default();
        if term < *carried {
            return Response::Fenced(*carried);
        }
        *carried = term;
        self.history.done.insert(key, self.now);
        self.history.writes.push(self.now);
        self.spread(News::Wrote { key, term });
        Response::Accepted
    }

    fn arbitrate(&mut self, holder: Option<u64>, term: Term) -> Response {
        self.object = Record { holder, term, version: self.object.version + 1 };
        self.history.arbitrations.push((self.now, holder, term));
        self.spread(News::Arbitrated(self.object));
        Response::Accepted
    }

    /// Sends it to all replicas, in order.
    fn spread(&mut self, news: News) {
        for index in 0..self.replicas.len() {
            let takes = self.latency();
            let now = self.now;
            let Some(replica) = &mut self.replicas[index] else { continue };
            let at = replica.delivered.max(now + takes);
            replica.delivered = at;
            let name = replica.name;
            self.at(at, Occurrence::To(index, name, Event::News(news)));
        }
    }
}
