//! A replica where it runs: the operator's own core and clock, its watches, and its requests under way.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use lease_engine::clock::LeaseClock;
use lessor_core::{
    clocks::Now,
    index::{
        attachments::Kind,
        sources::{SourceKind, SourceWatch},
    },
    observation::{Event, Failure, Observation},
    replica::{Replica, Ticket},
    request::{Request, RequestError, Response},
    settings::Settings,
};

use crate::{
    server::{News, Server, Stream, places},
    world::{TICK, is_write, time},
};

/// The settings of all replicas: everything is a tick or two.
fn settings(identity: &str) -> Settings {
    Settings {
        identity: identity.to_owned(),
        min_ttl: TICK,
        max_clock_skew: Duration::ZERO,
        start_grace: TICK,
        max_start_grace: TICK,
        linger: TICK,
        lease_duration: 5 * TICK,
        pending_warning: 1000 * TICK,
        status_rate: 1000.0,
        follow: vec![SourceKind::CoordinationLease],
        ..Settings::default()
    }
}

/// One run of one replica.
#[derive(Clone, Debug)]
pub struct Seat {
    /// What it calls itself, unique to this run.
    pub identity: Arc<str>,
    /// When it started.
    pub born: u32,
    replica: Box<Core>,
    clock: LeaseClock,
    /// The newest version that a watch has delivered.
    newest: u64,
    date: Option<(Timestamp, Duration)>,
    kind: Arc<Kind>,
    /// Its watches, in the order of [`Stream::ALL`].
    pub watches: [Watch; 4],
    /// The heartbeat that it is to watch.
    pub looks_out: Option<SourceWatch>,
    /// What it has asked and waits for.
    pub asked: BTreeMap<Ticket, Asked>,
    /// When the replica is to act again if nothing happens before.
    wakes: Option<Duration>,
    hash_state: u64,
}

/// [`Replica`], which holds too much to be printed.
#[derive(Clone)]
struct Core(Replica);

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("leads", &self.0.leads()).finish_non_exhaustive()
    }
}

/// A watch: what it has yet to show.
#[derive(Clone, Debug, Hash)]
pub struct Watch {
    /// In order.
    pub news: VecDeque<News>,
    /// Whether it is open.
    pub open: bool,
    /// Whether it has ever been open, so that it goes on where it was.
    pub begun: bool,
    /// Since when nothing comes through.
    pub held: Option<u32>,
}

/// A request that the replica waits for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What it asks.
    pub request: Arc<Request>,
    /// When it was sent, by the world's time.
    pub sent: u32,
    /// When it gives up, on its clock.
    pub by: Duration,
    /// What the server answered, once it has.
    pub answer: Option<Arc<Response>>,
    /// Since when it, or its answer, is stuck.
    pub held: Option<u32>,
}

impl Hash for Seat {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash_state);
    }
}

impl Seat {
    /// A replica that starts now, and has seen nothing. `server`: what it lists at once, if it can reach it.
    pub fn start(number: usize, run: u32, born: u32, server: Option<&Server>) -> Self {
        let identity = format!("r{number}_{run}");
        let watch = |stream| match server {
            Some(server) if stream != Stream::Heart => {
                Watch { news: server.list(stream).into(), open: true, begun: true, held: None }
            }
            _ => Watch { news: VecDeque::new(), open: false, begun: false, held: None },
        };
        let mut clock = LeaseClock::new(Duration::ZERO);
        for stream in OURS {
            clock.sent(opening(stream), Duration::ZERO);
        }
        let mut seat = Self {
            replica: Box::new(Core(Replica::new(settings(&identity)))),
            identity: identity.into(),
            born,
            clock,
            newest: 0,
            // The answers that open the watches have a date.
            date: server.map(|_| (time(born), Duration::ZERO)),
            kind: Arc::new(Kind::config_map()),
            watches: Stream::ALL.map(watch),
            looks_out: None,
            asked: BTreeMap::new(),
            wakes: None,
            hash_state: 0,
        };
        seat.note();
        seat
    }

    /// The term that it leads under, as it believes.
    pub fn leads(&self) -> Option<i64> {
        self.replica.0.leads()
    }

    /// When the deadline of the lease whose status a request writes comes, or came, in whole ticks.
    pub fn deadline_of(&self, request: &Request, now: u32) -> Option<u32> {
        let Request::WriteStatus { uid, .. } = request else { return None };
        let deadline = self.replica.0.leases().deadline(*uid)?.since_start();
        let (lease, mono) = (self.now(now).lease.since_start(), self.mono(now));
        let at = (mono + deadline).saturating_sub(lease);
        Some(self.born + u32::try_from(at.as_nanos() / TICK.as_nanos()).unwrap_or_default())
    }

    fn mono(&self, now: u32) -> Duration {
        TICK * now.saturating_sub(self.born)
    }

    fn now(&self, now: u32) -> Now {
        let mono = self.mono(now);
        Now {
            mono,
            lease: self.clock.now(mono),
            wall: time(now),
            server: self.date.map(|(date, at)| date + mono.saturating_sub(at)),
            since_last_response: mono.saturating_sub(self.clock.last_response()),
            disconnected: self.clock.is_paused(mono),
        }
    }

    /// Lets the replica act. Answers with the requests that it gave up.
    pub fn poll(&mut self, now: u32) -> Vec<Asked> {
        let mono = self.mono(now);
        if let Some(due) = self.wakes {
            self.clock.resumed_after_pause(due, mono);
        }
        let output = self.replica.0.poll(&self.now(now));
        if let Some(source_watches) = output.source_watches {
            // It follows one heartbeat at most.
            self.looks_out = source_watches.into_iter().next();
            self.watches[Stream::Heart as usize] =
                Watch { news: VecDeque::new(), open: false, begun: false, held: None };
        }
        let mut given_up = Vec::new();
        for ticket in output.cancelled {
            given_up.extend(self.asked.remove(&ticket));
            self.clock.withdrawn(of_request(ticket), mono);
        }
        for (ticket, request, by) in output.requests {
            if request.is_for_leases() {
                self.clock.sent(of_request(ticket), mono);
            }
            self.asked.insert(
                ticket,
                Asked { request: Arc::new(request), sent: now, by, answer: None, held: None },
            );
        }
        self.wakes = self.replica.0.wake_at(&self.now(now));
        self.note();
        given_up
    }

    /// Lets the replica act if its time to wake up has come, or if what it waits for comes too late.
    pub fn wake(&mut self, now: u32) -> Vec<Asked> {
        let mono = self.mono(now);
        let late: Vec<Ticket> =
            self.asked.iter().filter(|(_, asked)| asked.by <= mono).map(|(ticket, _)| *ticket).collect();
        let mut given_up = Vec::new();
        for ticket in late {
            given_up.extend(self.fail(ticket, now, true));
        }
        if self.wakes.is_some_and(|wakes| wakes <= mono) {
            given_up.extend(self.poll(now));
        }
        self.note();
        given_up
    }

    /// A request gets no answer. Answers with it, and with what the replica gave up for that.
    pub fn fail(&mut self, ticket: Ticket, now: u32, in_time: bool) -> Vec<Asked> {
        let Some(asked) = self.asked.remove(&ticket) else { return Vec::new() };
        let mono = self.mono(now);
        if asked.request.is_for_leases() {
            self.doubt_writes(&asked.request, mono);
            if in_time {
                self.clock.withdrawn(of_request(ticket), mono);
            } else {
                self.clock.failed(of_request(ticket));
            }
        }
        let answer = Response::Refused(RequestError::NoAnswer("none".to_owned()));
        self.replica.0.answer(ticket, answer, &self.now(now));
        let mut given_up = self.poll(now);
        given_up.push(asked);
        given_up
    }

    /// The answer to a request comes.
    pub fn answer(&mut self, ticket: Ticket, now: u32) -> Vec<Asked> {
        let Some(Asked { request, answer: Some(answer), .. }) = self.asked.remove(&ticket) else {
            return Vec::new();
        };
        let counts = request.is_for_leases();
        self.hear(now, |seat, mono| {
            seat.date = Some((time(now), mono));
            if counts {
                seat.hear_answer(ticket, &request, &answer, mono);
            }
            let answer = Arc::try_unwrap(answer).unwrap_or_else(|shared| Response::clone(&shared));
            seat.replica.0.answer(ticket, answer, &seat.now(now));
        })
    }

    /// As the operator's shell does.
    fn hear_answer(&mut self, ticket: Ticket, request: &Request, answer: &Response, mono: Duration) {
        let id = of_request(ticket);
        match answer {
            Response::Refused(RequestError::Failing(_)) if request.lease().is_some() => {
                self.clock.inconclusive(id, mono)
            }
            Response::Refused(RequestError::Failing(_)) => {
                self.doubt_writes(request, mono);
                self.clock.failed(id);
            }
            answer => {
                self.clock.answered(id, mono);
                if is_write(request) && !matches!(answer, Response::Refused(_) | Response::Gone) {
                    self.clock.write_observed(mono);
                }
            }
        }
    }

    fn doubt_writes(&mut self, request: &Request, mono: Duration) {
        if is_write(request) && request.lease().is_none() {
            self.clock.write_failed(mono);
        }
    }

    /// A watch shows all that it has to show, or that it has broken.
    pub fn look(&mut self, stream: Stream, now: u32) -> Vec<Asked> {
        let queue = &mut self.watches[stream as usize].news;
        let news = match queue.pop_front_if(|news| matches!(news, News::Broken)) {
            Some(broken) => VecDeque::from([broken]),
            None => std::mem::take(queue),
        };
        self.hear(now, |seat, mono| {
            for news in news {
                if OURS.contains(&stream) {
                    match news {
                        News::Broken => seat.clock.broke(),
                        // A watch is opened by an answer.
                        News::Resumed | News::All(_) => {
                            seat.date = Some((time(now), mono));
                            seat.clock.answered(opening(stream), mono);
                        }
                        _ => seat.clock.watch_event(mono),
                    }
                }
                let observation = seat.observation(stream, news);
                if let Some(version) = observation.version().filter(|version| *version > seat.newest) {
                    seat.newest = version;
                    seat.clock.write_observed(mono);
                }
                seat.replica.0.observe(observation, &seat.now(now));
            }
        })
    }

    /// Takes something in, and lets the replica act on it.
    fn hear(&mut self, now: u32, take_in: impl FnOnce(&mut Self, Duration)) -> Vec<Asked> {
        let mono = self.mono(now);
        let was_deaf = self.clock.is_paused(mono);
        take_in(self, mono);
        let mut given_up = self.poll(now);
        if was_deaf && !self.clock.is_paused(mono) {
            self.replica.0.reconnected(&self.now(now));
            given_up.extend(self.poll(now));
        }
        given_up
    }

    fn observation(&self, stream: Stream, news: News) -> Observation {
        let failing = || Failure::Other("the connection was cut".to_owned());
        match (stream, news) {
            (_, News::Lessor(lessor, there)) => Observation::Lessor(seen(lessor.object.clone(), there)),
            (_, News::Lease(lease, there)) => Observation::Lease(None, seen(lease.object.clone(), there)),
            (_, News::Map(map, there)) => {
                Observation::Object(Arc::clone(&self.kind), None, seen(map.object.clone(), there))
            }
            (_, News::Heart(heart, there)) => {
                Observation::Source(self.source_watch(), seen(heart.object.clone(), there))
            }
            (Stream::Heart, news) => {
                Observation::Source(self.source_watch(), whole(news, crate::server::NAMESPACE, failing))
            }
            (Stream::Lessor, news) => Observation::Lessor(whole(news, "", failing)),
            (Stream::LeaseIndex, news) => {
                Observation::Lease(None, whole(news, crate::server::NAMESPACE, failing))
            }
            (Stream::Maps, news) => Observation::Object(
                Arc::clone(&self.kind),
                None,
                whole(news, crate::server::NAMESPACE, failing),
            ),
        }
    }

    fn source_watch(&self) -> SourceWatch {
        self.looks_out.clone().unwrap_or(SourceWatch {
            kind: SourceKind::CoordinationLease,
            namespace: None,
            name: None,
        })
    }

    /// Takes note of what this replica now is.
    pub fn note(&mut self) {
        let mut state = DefaultHasher::new();
        self.replica.0.hash_state(&mut state);
        (&self.identity, self.born, &self.clock, self.newest, &self.watches, &self.looks_out, self.wakes)
            .hash(&mut state);
        self.date.map(|(date, at)| (date.as_second(), at)).hash(&mut state);
        for (ticket, asked) in &self.asked {
            (ticket, asked.sent, asked.by, asked.held).hash(&mut state);
            hash_request(&asked.request, &mut state);
            asked.answer.as_deref().map(|answer| hash_answer(answer, &mut state)).hash(&mut state);
        }
        self.hash_state = state.finish();
    }
}

/// The watches whose silence means that holders can't renew.
const OURS: [Stream; 2] = [Stream::Lessor, Stream::LeaseIndex];

/// The id by which the clock knows the request that opens a watch.
fn opening(stream: Stream) -> u64 {
    stream as u64
}

/// And any other request, which goes out later.
fn of_request(ticket: Ticket) -> u64 {
    OURS.len() as u64 + ticket
}

fn seen<T>(object: T, there: bool) -> Event<T> {
    if there { Event::Applied(Box::new(object)) } else { Event::Deleted(Box::new(object)) }
}

fn whole<T>(news: News, namespace: &str, failing: impl Fn() -> Failure) -> Event<T> {
    match news {
        News::All(names) => Event::Synced(places(&names, namespace)),
        News::Broken => Event::Failing(failing()),
        _ => Event::Resumed,
    }
}

pub(crate) fn hash_request(request: &Request, state: &mut impl Hasher) {
    request.verb().hash(state);
    request.lease().hash(state);
    match request {
        Request::WriteLessor { version, status } => (version, status).hash(state),
        Request::SetFinalizers { uid, version, finalizers, .. } => (uid, version, finalizers).hash(state),
        Request::WriteStatus { uid, version, status, .. } => (uid, version, status).hash(state),
        Request::DeleteLease { uid, .. } => uid.hash(state),
        Request::ReadObject { object } => object.hash(state),
        Request::Remove { object, removal } => {
            use lessor_core::decide::removal::Removal;
            object.hash(state);
            match removal {
                Removal::Delete { uid, version, .. } | Removal::Members { uid, version, .. } => {
                    (uid, version).hash(state);
                }
                Removal::Keys { uid, patch, .. } => (uid, patch).hash(state),
            }
        }
        Request::ReadSource { source } => source.hash(state),
        Request::ReadLessor | Request::CreateLessor | Request::ReadLease { .. } => {}
    }
}

/// What the server answered is a version of something, or nothing.
fn hash_answer(answer: &Response, state: &mut impl Hasher) {
    answer.outcome().hash(state);
    match answer {
        Response::Lessor(lessor) => lessor.metadata.resource_version.hash(state),
        Response::Lease(lease) => lease.metadata.resource_version.hash(state),
        Response::Object(meta) => meta.resource_version.hash(state),
        Response::Source(source_state) => source_state.hash(state),
        Response::Deleted | Response::Gone | Response::Refused(_) => {}
    }
}
