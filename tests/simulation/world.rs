//! The world: one queue of events, three replicas, the API server, and everybody else.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use lessor_checker::{Checker, Promise, Report, Violation};
use lessor_core::{attachable::Attachable, index::sources::SourceKind, settings::Settings};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::{
    clients::{self, Holder, NAMESPACE, TEAM, Visit},
    followers::{Follower, Moment, Source},
    plan::{Fault, Incident, PERSISTENCE, Plan, REPLICAS, Shape, Webhook, Whom, withstands},
    process::Process,
    random::Random,
    server::{self, ApiServer, Call, Change, Kind, Target},
    wire::{Outgoing, Piece, Reply},
};

/// How far replicas may run ahead of each other: no answer comes faster than what was sent this much earlier.
const STEP: Duration = Duration::from_millis(100);
/// How long the world goes on after the last fault, for everything that should end to end.
const SETTLING: Duration = Duration::from_secs(130);
/// How long nothing may be sent at the end of that.
const QUIET: Duration = Duration::from_secs(20);
/// The first of them never fails.
const HOLDERS: usize = 6;
/// How many there are in the second namespace.
const TEAM_HOLDERS: usize = 2;
/// How many leases are stuck in a stuck namespace: more than there may be requests at once.
const STUCK: usize = 40;
/// How many leases a quiet world has.
const FEW: usize = 3;
/// How long requests that bring nothing may go on as they like, before a bound counts for all of them together.
const GROWING: Duration = Duration::from_secs(40);
/// That bound, in requests a second.
const BOUND: f64 = 2.0;
/// How late a lease may end beside stuck ones, in a world in which nothing else goes wrong.
const BESIDE_STUCK: Duration = Duration::from_millis(1250);
/// How much later after the death of the primary.
const LEASE_DURATION: Duration = Duration::from_secs(5);
/// In this time no replica sends more than so many requests, whatever happens.
const SPELL: Duration = Duration::from_secs(10);
const MOST_IN_A_SPELL: usize = 1000;
/// What the first two of them follow never fails.
const FOLLOWERS: usize = 4;

/// What came of a run.
pub(crate) struct Outcome {
    pub(crate) report: Report,
    /// What must not happen and isn't the checker's to see.
    pub(crate) problems: Vec<String>,
    /// Of all that the API server did, in order.
    pub(crate) fingerprint: u64,
    pub(crate) requests: usize,
    pub(crate) length: Duration,
    pub(crate) plan: Plan,
}

pub(crate) struct World {
    plan: Plan,
    random: Random,
    now: Duration,
    queue: BinaryHeap<Reverse<Timed>>,
    queued: u64,
    server: ApiServer,
    replicas: [Slot; REPLICAS],
    watches: BTreeMap<u64, Watch>,
    opened: u64,
    /// Requests that will never be answered, and whose connections stay.
    limbo: Vec<oneshot::Sender<Reply>>,
    holders: Vec<Holder>,
    followers: Vec<Follower>,
    sources: Vec<Source>,
    /// Outages that the primary of their beginning has met, and up to when it can't be overruled.
    outages: Vec<(Duration, Duration, Duration)>,
    /// When replicas may end, and are started again, since the store has gone back.
    may_end_until: Duration,
    /// What replicas sent in this spell, and in the second namespace at rest.
    sent: (u128, usize),
    sent_for_stuck: usize,
    problems: Vec<String>,
    fingerprint: DefaultHasher,
    requests: usize,
    print: bool,
    /// How much of the server's log is printed.
    printed: usize,
}

#[derive(Default)]
struct Slot {
    process: Option<Process>,
    paused: bool,
    starts: usize,
}

struct Watch {
    replica: usize,
    kind: Kind,
    /// Empty: all.
    namespace: String,
    /// `None`: all.
    name: Option<String>,
    metadata_only: bool,
    /// It shows no version up to this.
    from: u64,
    /// Up to which change it has shown all.
    shown: usize,
    /// Nothing is shown before what was shown before.
    last: Duration,
    pieces: mpsc::UnboundedSender<Piece>,
}

impl Watch {
    fn shows(&self, change: &Change) -> bool {
        change.kind == self.kind
            && change.version > self.from
            && (self.namespace.is_empty() || change.namespace == self.namespace)
            && self.name.as_ref().is_none_or(|name| change.name == *name)
    }
}

struct Timed {
    at: Duration,
    number: u64,
    event: Event,
}

enum Event {
    Arrives { replica: usize, user: String, request: Outgoing },
    Answered { replica: usize, to: oneshot::Sender<Reply>, reply: Reply },
    Shown { watch: u64, to: usize },
    Bookmarked { watch: u64 },
    Broken { watch: u64 },
    Closed { watch: u64 },
    Begins(Fault),
    Happens(Incident),
    Starts(usize),
    Resumes(usize),
    Holds(usize),
    Follows(usize),
    Beats(usize),
    Edits,
    LetsGo,
    GrantsMany(&'static str, usize),
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Timed {}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl World {
    /// The world of this seed. With `print`, everything that the API server does is printed.
    pub(crate) fn new(seed: u64, print: bool) -> Self {
        let plan = Plan::of(seed);
        // The pauses between tries have a jitter that comes from here.
        fastrand::seed(seed);
        let mut random = Random::new(seed);
        let quiet = plan.shape == Shape::Quiet;
        let (held, in_team, following) = if quiet { (0, 0, 0) } else { (HOLDERS, TEAM_HOLDERS, FOLLOWERS) };
        let followers = Follower::all(HOLDERS, following, &mut random);
        let sources = if quiet { Vec::new() } else { Source::all(&followers, &mut random) };
        let holders = (0..held).map(|number| Holder::new(number, number == 0));
        let mut world = Self {
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            queued: 0,
            server: ApiServer::new(plan.dropped),
            replicas: Default::default(),
            watches: BTreeMap::new(),
            opened: 0,
            limbo: Vec::new(),
            holders: holders.chain((0..in_team).map(Holder::of_team)).collect(),
            followers,
            sources,
            random,
            outages: Vec::new(),
            may_end_until: Duration::ZERO,
            sent: (0, 0),
            sent_for_stuck: 0,
            problems: Vec::new(),
            fingerprint: DefaultHasher::new(),
            requests: 0,
            print,
            printed: 0,
            plan,
        };
        for replica in 0..REPLICAS {
            let at = world.random.seconds(0, 3);
            world.at(at, Event::Starts(replica));
        }
        for holder in 0..world.holders.len() {
            let at = world.random.seconds(0, 10);
            world.at(at, Event::Holds(holder));
        }
        for follower in 0..world.followers.len() {
            let at = world.random.seconds(0, 10);
            world.at(at, Event::Follows(follower));
        }
        for source in 0..world.sources.len() {
            let at = world.random.seconds(0, 3);
            world.at(at, Event::Beats(source));
        }
        match world.plan.shape {
            Shape::Calm | Shape::Rough => {}
            Shape::Stuck => world.at(Duration::from_secs(4), Event::GrantsMany(TEAM, STUCK)),
            Shape::Quiet => world.at(Duration::from_secs(4), Event::GrantsMany(NAMESPACE, FEW)),
        }
        if !quiet {
            world.at(Duration::from_secs(1), Event::Edits);
            world.at(Duration::from_secs(1), Event::LetsGo);
        }
        for (from, _, fault) in world.plan.faults.clone() {
            world.at(from, Event::Begins(fault));
        }
        for (at, incident) in world.plan.incidents.clone() {
            world.at(at, Event::Happens(incident));
        }
        world
    }

    /// Lets it all happen.
    pub(crate) fn run(mut self) -> Outcome {
        let end = self.plan.length + SETTLING;
        while self.now < end && self.problems.is_empty() {
            let mut until = (self.now + STEP).min(end);
            for replica in 0..REPLICAS {
                until = until.min(self.next_event());
                self.live(replica, until);
            }
            let until = until.min(self.next_event());
            match self.queue.pop() {
                Some(Reverse(next)) if next.at <= until => {
                    self.now = self.now.max(next.at);
                    self.happen(next.event);
                    self.print_others();
                }
                later => {
                    self.queue.extend(later);
                    self.now = until;
                }
            }
        }
        self.look_at_what_is_left();
        let report = self.check();
        Outcome {
            report,
            problems: self.problems,
            fingerprint: self.fingerprint.finish(),
            requests: self.requests,
            length: self.now,
            plan: self.plan,
        }
    }

    fn check(&mut self) -> Report {
        let mut checker = Checker::new("lessor-");
        for (from, to, known_until) in &self.outages {
            checker = match *known_until {
                Duration::MAX => checker.outage(time(*from), time(*to)),
                until => checker.outage_known_until(time(*from), time(*to), time(until)),
            };
        }
        let mut report = checker.check(&self.server.log);
        if self.plan.has_restore() {
            // A version that was given twice says nothing about what was meant by it.
            report.violations.clear();
        }
        if self.plan.is_namespace_lost() {
            let of_team = format!(" {TEAM}/");
            let may_be =
                |found: &Violation| found.promise == Promise::Complete && found.object.contains(&of_team);
            report.violations.retain(|found| !may_be(found));
        }
        if self.plan.is_calm() && report.figures.late(1.0) > Duration::from_millis(250) {
            self.problems.push(format!("late without a fault: {}", report.figures));
        }
        if self.plan.shape == Shape::Stuck {
            let late = report.figures.late_in(NAMESPACE);
            let dies = if self.plan.incidents.is_empty() { Duration::ZERO } else { LEASE_DURATION };
            if late > BESIDE_STUCK + dies {
                self.problems.push(format!("late beside stuck leases of another namespace: {late:?}"));
            }
            let (sent, seconds) = (self.sent_for_stuck, (PERSISTENCE - GROWING).as_secs_f64());
            if sent as f64 > BOUND * seconds {
                self.problems.push(format!("sent {sent} requests in {seconds} s where nothing succeeds"));
            }
        }
        report
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse(Timed { at: at.max(self.now), number: self.queued, event }));
    }

    fn next_event(&self) -> Duration {
        self.queue.peek().map_or(Duration::MAX, |Reverse(next)| next.at)
    }

    /// Lets a replica live until `until`, or until something comes of what it sends.
    fn live(&mut self, replica: usize, until: Duration) {
        loop {
            let slot = &mut self.replicas[replica];
            let Some(process) = slot.process.as_mut().filter(|_| !slot.paused) else { return };
            if process.lived() >= until.min(self.queue.peek().map_or(Duration::MAX, |Reverse(next)| next.at))
            {
                return;
            }
            process.live_until(until);
            let mut sent = Vec::new();
            while let Some(outgoing) = process.take_sent() {
                sent.push(outgoing);
            }
            let user = process.identity.clone();
            if let Some(result) = process.ended() {
                slot.process = None;
                match result {
                    Ok(()) => self.note(&format!("{user} has stopped")),
                    Err(error) if self.now < self.may_end_until => {
                        self.note(&format!("{user} has ended: {error}"));
                        self.at(self.now + Duration::from_secs(1), Event::Starts(replica));
                    }
                    Err(error) => self.problems.push(format!("{user} has ended: {error}")),
                }
            }
            if sent.is_empty() {
                return;
            }
            for (at, request) in sent {
                let latency = self.latency();
                self.at(at + latency, Event::Arrives { replica, user: user.clone(), request });
            }
        }
    }

    fn latency(&mut self) -> Duration {
        let slow = self.plan.until(self.now, |fault| fault == Fault::Slow).is_some();
        let (least, most) = match slow && self.random.percent(50) {
            true => (500, 1_500_000),
            _ if self.plan.shape == Shape::Quiet => (525_000, 1_000_000),
            false if self.plan.sluggish => (300_000, 700_000),
            false => (500, 15_000),
        };
        self.random.between(Duration::from_micros(least), Duration::from_micros(most))
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrives { replica, user, request } => self.arrive(replica, user, request),
            Event::Answered { replica, to, reply } => {
                if self.is_refusing(replica) {
                    return;
                }
                match self.hangs_until(replica) {
                    Some(until) => self.at(until, Event::Answered { replica, to, reply }),
                    // The sender may wait no more.
                    None => drop(to.send(reply)),
                }
            }
            Event::Shown { watch, to } => self.show(watch, to),
            Event::Bookmarked { watch } => {
                let version = self.server.version();
                let everybody = |fault| fault == Fault::Hang(Whom::Everybody);
                let Some(open) = self.watches.get(&watch) else { return };
                // A server whose storage hangs still sends them.
                if self.hangs_until(open.replica).is_none() || self.plan.until(self.now, everybody).is_some()
                {
                    let current = self.server.changes.len() == open.shown;
                    if current {
                        let mark = bookmark(open.kind, open.metadata_only, version, false);
                        let _ = open.pieces.send(Ok(server::line("BOOKMARK", &mark, false)));
                    }
                }
                self.at(self.now + Duration::from_secs(60), Event::Bookmarked { watch });
            }
            Event::Broken { watch } => {
                if let Some(watch) = self.watches.remove(&watch) {
                    let _ = watch.pieces.send(Err("the connection was cut".into()));
                }
            }
            Event::Closed { watch } => drop(self.watches.remove(&watch)),
            Event::Begins(fault) => {
                self.note(&format!("begins: {fault:?}"));
                if fault == Fault::Refuse(Whom::Everybody) {
                    self.note_outage();
                }
                let is_hit = |watch: &Watch| match fault {
                    Fault::Refuse(whom) => whom.includes(watch.replica),
                    Fault::ForbiddenNamespace => watch.namespace == TEAM,
                    _ => false,
                };
                let hit = self.watches.iter().filter(|(_, watch)| is_hit(watch)).map(|(id, _)| *id);
                for watch in hit.collect::<Vec<_>>() {
                    self.happen(Event::Broken { watch });
                }
            }
            Event::Happens(incident) => self.incident(incident),
            Event::Starts(replica) => self.start(replica),
            Event::Resumes(replica) => {
                let slot = &mut self.replicas[replica];
                if std::mem::take(&mut slot.paused)
                    && let Some(process) = &mut slot.process
                {
                    process.wake_at(self.now);
                }
            }
            Event::Holds(number) => {
                self.visit(event, |world, over| {
                    let (now, time) = (world.now, time(world.now));
                    world.holders[number].visit(&mut world.server, &mut world.random, now, time, over)
                });
            }
            Event::Follows(number) => {
                self.visit(event, |world, over| {
                    let (followers, mut moment) = world.moment(over);
                    let mortal: Vec<usize> = (1..HOLDERS).chain(HOLDERS + 2..HOLDERS + FOLLOWERS).collect();
                    followers.0[number].visit(&mut moment, &mortal)
                });
            }
            Event::Beats(number) => {
                self.visit(event, |world, over| {
                    let (sources, mut moment) = world.moment(over);
                    Visit::after(sources.1[number].visit(&mut moment))
                });
            }
            Event::Edits => {
                if self.now < self.plan.rest {
                    if self.outage().is_none() {
                        let team = self.random.percent(25);
                        let (namespace, leases) =
                            if team { (TEAM, TEAM_HOLDERS) } else { (NAMESPACE, HOLDERS + FOLLOWERS) };
                        let Self { server, random, now, .. } = self;
                        clients::edit(server, random, time(*now), namespace, leases);
                        self.spread();
                    }
                    let again =
                        self.now + self.random.between(Duration::from_millis(50), Duration::from_secs(2));
                    self.at(again, Event::Edits);
                }
            }
            Event::LetsGo => self.visit(event, |world, _| {
                let Self { server, random, now, .. } = world;
                clients::let_go(server, random, time(*now));
                Visit::after(random.seconds(1, 4))
            }),
            Event::GrantsMany(namespace, count) => {
                let Self { server, random, now, .. } = self;
                clients::grant_many(server, random, time(*now), namespace, count);
                self.spread();
            }
        }
    }

    // --- Requests ----------------------------------------------------------------------------------------------

    fn arrive(&mut self, replica: usize, user: String, request: Outgoing) {
        if self.is_refusing(replica) {
            return;
        }
        if let Some(until) = self.hangs_until(replica) {
            if self.random.percent(30) {
                self.limbo.push(request.reply);
            } else {
                let at = until + self.latency();
                self.at(at, Event::Arrives { replica, user, request });
            }
            return;
        }
        let is = |fault| self.plan.until(self.now, |other| other == fault).is_some();
        let (lossy, failing, full) = (is(Fault::Lossy), is(Fault::Errors), is(Fault::Full));
        let (forbidden, late) = (is(Fault::Forbidden), is(Fault::LateResponses));
        let forbidden_namespace = is(Fault::ForbiddenNamespace);
        if lossy && self.random.percent(20) {
            self.lose(request.reply);
            return;
        }
        let uri = request.uri.clone();
        let (path, query) = uri.split_once('?').unwrap_or((&uri, ""));
        let Some(target) = Target::of_path(path) else {
            self.problems.push(format!("{user} asks for {uri}, which this server doesn't have"));
            return;
        };
        let writes = request.method != "GET";
        // Not noted: the name of an Event has the time of the machine's clock in it, so no two runs agree on it.
        let event = target.kind == Kind::Event;
        if !event {
            self.heed_rate(&user, &target);
        }
        if failing && self.random.percent(40) {
            let (code, reason) = *self.random.pick(&[
                (429, "TooManyRequests"),
                (500, "InternalError"),
                (503, "ServiceUnavailable"),
            ]);
            let (_, mut body) = server::status(code, reason, &target, "try again");
            if code == 429 {
                body["details"]["retryAfterSeconds"] = json!(1);
            }
            if !event {
                self.note(&format!("{user}: {} {path}: {code}", request.method));
            }
            return self.answer(replica, request.reply, code, &body);
        }
        let webhook = self.plan.webhook(self.now, target.kind, &target.namespace).filter(|_| writes);
        if let Some(webhook) = webhook {
            self.note(&format!("{user}: {} {path}: {webhook:?}", request.method));
            return self.meet(webhook, replica, &target, request.reply);
        }
        if full && writes {
            let (code, body) = server::status(500, "InternalError", &target, "the storage is full");
            return self.answer(replica, request.reply, code, &body);
        }
        if forbidden_namespace && target.namespace == TEAM || forbidden && target.kind.is_source() {
            let (code, body) = server::status(403, "Forbidden", &target, "you may not look at it");
            return self.answer(replica, request.reply, code, &body);
        }
        let other_machine = self.random.percent(50);
        self.server.choose_machine(other_machine);
        self.server.read_manager(query);
        if query.contains("watch=true") {
            return self.open(replica, &target, query, request);
        }
        let verb = match request.method.as_str() {
            "GET" => "get",
            "POST" => "create",
            "PATCH" => "patch",
            _ => "delete",
        };
        let body: Option<Value> = serde_json::from_slice(&request.body).ok();
        let call = Call { user, verb, target, body };
        let (code, mut answer) = self.server.handle(&call, time(self.now));
        let line = format!(
            "{}: {verb} {path} {}: {code} {}",
            call.user,
            call.body.as_ref().map(Value::to_string).unwrap_or_default(),
            answer["message"].as_str().unwrap_or_default()
        );
        if !event {
            self.requests += 1;
            self.note(&line);
            self.heed_quiet(&call, &line);
        }
        self.spread();
        if request.metadata_only && answer["kind"] != "Status" {
            answer = server::metadata_of(&answer);
        }
        if lossy && self.random.percent(20) {
            self.lose(request.reply);
        } else if failing && self.random.percent(10) {
            let (code, body) = server::status(504, "Timeout", &call.target, "it took too long");
            self.answer(replica, request.reply, code, &body);
        } else if late && writes {
            let by = self.random.between(Duration::from_millis(20), Duration::from_millis(800));
            self.answer_after(by, replica, request.reply, code, &answer);
        } else {
            self.answer(replica, request.reply, code, &answer);
        }
    }

    /// What comes of a write that a webhook is for.
    fn meet(&mut self, webhook: Webhook, replica: usize, target: &Target, reply: oneshot::Sender<Reply>) {
        let (code, reason, message) = match webhook {
            Webhook::Hangs => return self.limbo.push(reply),
            Webhook::Refuses => {
                (403, "Forbidden", "admission webhook \"keep.example.com\" denied the request: it stays")
            }
            Webhook::Conflicts => (409, "Conflict", "the object has been modified"),
            Webhook::Throttles => (
                429,
                "TooManyRequests",
                "admission webhook \"quota.example.com\" denied the request: come back later",
            ),
        };
        let (_, mut body) = server::status(code, reason, target, message);
        if webhook == Webhook::Throttles {
            body["details"]["retryAfterSeconds"] = json!(600);
        }
        self.answer(replica, reply, code, &body);
    }

    /// A replica sends little in any case, and still less where nothing succeeds.
    fn heed_rate(&mut self, user: &str, target: &Target) {
        let spell = self.now.as_nanos() / SPELL.as_nanos();
        if self.sent.0 != spell {
            self.sent = (spell, 0);
        }
        let full = self.plan.until(self.now, |fault| fault == Fault::Full).is_some();
        let has_lessor = self.server.get(Kind::Lessor, "", "default").is_some();
        if !full || has_lessor || withstands("full-store-without-lessor") {
            self.sent.1 += 1;
        }
        if self.sent.1 > MOST_IN_A_SPELL {
            let what = format!("{user} asks too often for {target:?}");
            self.problems.push(what);
        }
        let persists = self.plan.rest + GROWING..self.plan.length;
        if self.plan.shape == Shape::Stuck && target.namespace == TEAM && persists.contains(&self.now) {
            self.sent_for_stuck += 1;
        }
    }

    /// What comes of a request or an answer that is lost: the connection breaks, or nothing happens at all.
    fn lose(&mut self, reply: oneshot::Sender<Reply>) {
        if self.random.percent(50) {
            self.limbo.push(reply);
        }
    }

    fn answer(&mut self, replica: usize, to: oneshot::Sender<Reply>, code: u16, body: &Value) {
        self.answer_after(Duration::ZERO, replica, to, code, body);
    }

    fn answer_after(
        &mut self,
        after: Duration,
        replica: usize,
        to: oneshot::Sender<Reply>,
        code: u16,
        body: &Value,
    ) {
        let date = server::http_date(self.server.clock(time(self.now)));
        let reply = Reply::Whole { code, date, body: body.to_string().into_bytes() };
        let at = self.now + after + self.latency();
        self.at(at, Event::Answered { replica, to, reply });
    }

    /// At rest nothing is sent: all that is left at the end is one holder that renews.
    fn heed_quiet(&mut self, call: &Call, line: &str) {
        // What is left costs a refresh of what is published now and then, the proof of a primary that was idle before it, and
        // another look where the refresh met a renewal.
        let refresh =
            call.target.subresource == "status" && matches!(&*call.target.name, "lease-0" | "default");
        let refresh = refresh || call.verb == "get" && call.target.name == "lease-0";
        // Where an answer may take more than a second, a replica that waits for one probes the server.
        let slow = self.plan.sluggish || self.plan.shape == Shape::Quiet;
        let probe = slow && call.verb == "get" && call.target.name == "default";
        if self.now > self.plan.length + SETTLING - QUIET && !refresh && !probe {
            self.problems.push(format!("sent though there is nothing to do: {line}"));
        }
    }

    // --- Watches -----------------------------------------------------------------------------------------------

    fn open(&mut self, replica: usize, target: &Target, query: &str, request: Outgoing) {
        let parameter = |name: &str| {
            query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
        };
        let from: u64 = parameter("resourceVersion").and_then(|from| from.parse().ok()).unwrap_or_default();
        // The only selectors that are used are a name, and all but one name: of other Lessors there are none here.
        let name = parameter("fieldSelector")
            .map(|fields| fields.replace("%3D", "=").trim_start_matches("metadata.name=").to_owned());
        let (pieces, receiver) = mpsc::unbounded_channel();
        let mut shown = self.server.changes.len();
        let mut after = 0;
        if parameter("sendInitialEvents").is_some() {
            for object in self.server.list(target.kind, &target.namespace, name.as_deref()) {
                let _ = pieces.send(Ok(server::line("ADDED", &object, request.metadata_only)));
            }
            let mark = bookmark(target.kind, request.metadata_only, self.server.version(), true);
            let _ = pieces.send(Ok(server::line("BOOKMARK", &mark, false)));
        } else if from < self.server.compacted {
            let (_, gone) = server::status(410, "Expired", target, "too old resource version");
            let _ = pieces.send(Ok(server::line("ERROR", &gone, false)));
        } else {
            shown = self.server.changes.partition_point(|change| change.version <= from);
            after = from;
        }
        self.opened += 1;
        let id = self.opened;
        let date = server::http_date(self.server.clock(time(self.now)));
        let at = self.now + self.latency();
        self.at(
            at,
            Event::Answered { replica, to: request.reply, reply: Reply::Stream { date, pieces: receiver } },
        );
        let watch = Watch {
            replica,
            kind: target.kind,
            namespace: target.namespace.clone(),
            name,
            metadata_only: request.metadata_only,
            from: after,
            shown,
            last: at,
            pieces,
        };
        self.watches.insert(id, watch);
        let to = self.server.changes.len();
        self.at(at, Event::Shown { watch: id, to });
        self.at(self.now + Duration::from_secs(60), Event::Bookmarked { watch: id });
        let lasts = parameter("timeoutSeconds").and_then(|lasts| lasts.parse().ok()).unwrap_or(290);
        self.at(self.now + Duration::from_secs(lasts), Event::Closed { watch: id });
    }

    /// Lets all watches show what is new.
    fn spread(&mut self) {
        let to = self.server.changes.len();
        let watches: Vec<u64> = self.watches.keys().copied().collect();
        for id in watches {
            let latency = self.latency();
            let Some(watch) = self.watches.get_mut(&id) else { continue };
            let new = self.server.changes.get(watch.shown..).unwrap_or_default();
            if !new.iter().any(|change| watch.shows(change)) {
                watch.shown = to;
            } else {
                watch.last = watch.last.max(self.now + latency);
                let at = watch.last;
                self.at(at, Event::Shown { watch: id, to });
            }
        }
    }

    fn show(&mut self, id: u64, to: usize) {
        let Some(replica) = self.watches.get(&id).map(|watch| watch.replica) else { return };
        if let Some(until) = self.hangs_until(replica) {
            return self.at(until, Event::Shown { watch: id, to });
        }
        let flaky = self.plan.until(self.now, |fault| fault == Fault::FlakyWatches).is_some();
        let Some(watch) = self.watches.get_mut(&id) else { return };
        for change in self.server.changes.get(watch.shown..to).unwrap_or_default() {
            if watch.shows(change) && watch.pieces.send(Ok(change.line(watch.metadata_only))).is_err() {
                self.watches.remove(&id);
                return;
            }
        }
        watch.shown = watch.shown.max(to);
        if flaky && self.random.percent(10) {
            self.happen(Event::Broken { watch: id });
        }
    }

    // --- Faults ------------------------------------------------------------------------------------------------

    fn is_refusing(&self, replica: usize) -> bool {
        let is_it = |fault| matches!(fault, Fault::Refuse(whom) if whom.includes(replica));
        self.plan.until(self.now, is_it).is_some()
    }

    fn hangs_until(&self, replica: usize) -> Option<Duration> {
        self.plan.until(self.now, |fault| matches!(fault, Fault::Hang(whom) if whom.includes(replica)))
    }

    /// When the API server can be reached again, and write, if it can't now.
    fn outage(&self) -> Option<Duration> {
        self.plan.until(self.now, |fault| {
            matches!(fault, Fault::Refuse(Whom::Everybody) | Fault::Hang(Whom::Everybody) | Fault::Full)
        })
    }

    fn incident(&mut self, incident: Incident) {
        self.note(&format!("happens: {incident:?}"));
        match incident {
            Incident::Crash(replica, away) => {
                self.kill(replica);
                self.at(self.now + away, Event::Starts(replica));
            }
            Incident::Stop(replica, away) => {
                if let Some(process) = &mut self.replicas[replica].process {
                    process.stop();
                }
                // A process that hasn't stopped by then is killed, as by a kubelet.
                self.at(self.now + Duration::from_secs(10) + away, Event::Starts(replica));
            }
            Incident::Pause(replica, away) => {
                self.replicas[replica].paused = true;
                self.at(self.now + away, Event::Resumes(replica));
            }
            Incident::WallClock(replica, by, back) => {
                if let Some(process) = &self.replicas[replica].process {
                    process.step_wall_clock(by, back);
                }
            }
            Incident::Compaction => self.server.compact(),
            Incident::ManagedFieldsReset => {
                self.server.reset_managers(time(self.now));
                self.spread();
            }
            Incident::BackedUp => self.server.back_up(),
            Incident::Restored => {
                self.server.restore();
                self.holders.iter_mut().for_each(Holder::forget);
                self.followers.iter_mut().for_each(Follower::forget);
                let watches: Vec<u64> = self.watches.keys().copied().collect();
                for watch in watches {
                    self.happen(Event::Broken { watch });
                }
                // They notice once they reach it.
                self.may_end_until = self.plan.length + Duration::from_secs(30);
            }
            Incident::PrimaryDies => {
                if let Some(replica) = self.primary() {
                    self.kill(replica);
                }
            }
            // If it can be reached.
            Incident::LessorDeleted if self.outage().is_some() => {}
            Incident::LessorDeleted => {
                let target = Target::object(Kind::Lessor, "", "default");
                let call = Call { user: "other".to_owned(), verb: "delete", target, body: Some(json!({})) };
                self.server.handle(&call, time(self.now));
                self.spread();
            }
        }
    }

    /// The replica that is primary, as the `Lessor` has it.
    fn primary(&self) -> Option<usize> {
        let lessor = self.server.get(Kind::Lessor, "", "default")?;
        let primary = lessor.pointer("/status/primary")?.as_str()?;
        let is_it = |slot: &Slot| slot.process.as_ref().is_some_and(|process| process.identity == primary);
        self.replicas.iter().position(is_it)
    }

    /// An outage begins: its time is no lease time where no replica starts anew, and as long as the primary lives.
    fn note_outage(&mut self) {
        let is_it = |fault| fault == Fault::Refuse(Whom::Everybody);
        let Some(to) = self.plan.until(self.now, is_it) else { return };
        if !self.plan.has_restarts() {
            self.outages.push((self.now, to, Duration::MAX));
        } else if withstands("outages-with-restarts")
            && let Some(primary) = self.primary()
        {
            self.outages.push((self.now, to, self.plan.can_lead_until(primary, self.now)));
        }
    }

    fn kill(&mut self, replica: usize) {
        self.replicas[replica].process = None;
        self.watches.retain(|_, watch| watch.replica != replica);
    }

    fn start(&mut self, replica: usize) {
        self.kill(replica);
        let slot = &mut self.replicas[replica];
        slot.starts += 1;
        slot.paused = false;
        let secrets = Attachable {
            resource: "secrets".to_owned(),
            group: String::new(),
            version: None,
            pointers: false,
            force: false,
        };
        let namespaces: &[&str] = if self.plan.scoped { &[NAMESPACE, TEAM] } else { &[] };
        let settings = Settings {
            namespaces: namespaces.iter().map(|&namespace| namespace.to_owned()).collect(),
            attachable: vec![Attachable::config_maps(), secrets],
            identity: format!("lessor-{replica}_{}", slot.starts),
            follow: SourceKind::ALL.to_vec(),
            ..Settings::default()
        };
        let (ppm, wall) = (self.plan.ppm[replica], self.plan.walls[replica]);
        slot.process = Some(Process::start(settings, self.now, time(Duration::ZERO), ppm, wall));
    }

    // --- Everybody else ----------------------------------------------------------------------------------------

    /// Does something on behalf of a user, again and again until the API server can be reached.
    fn visit(&mut self, event: Event, visit: impl FnOnce(&mut Self, bool) -> Visit) {
        if let Some(until) = self.outage() {
            let again = self.now + Duration::from_millis(300);
            // No client is notified when the storage has room again.
            let full = self.plan.until(self.now, |fault| fault == Fault::Full).is_some();
            return self.at(if full { again } else { again.min(until + Duration::from_millis(1)) }, event);
        }
        let visit = visit(self, self.now >= self.plan.rest);
        self.problems.extend(visit.problem);
        self.spread();
        self.at(self.now + visit.again, event);
    }

    fn moment(&mut self, over: bool) -> ((&mut [Follower], &mut [Source]), Moment<'_>) {
        let Self { server, random, now, followers, sources, .. } = self;
        let moment = Moment { server, random, now: *now, time: time(*now), over };
        ((followers, sources), moment)
    }

    fn look_at_what_is_left(&mut self) {
        if !self.problems.is_empty() {
            return;
        }
        for lease in self.server.objects(Kind::Lease) {
            let released = lease["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
            let retained = lease["spec"]["afterExpiry"] == "Retain" && lease["status"]["endTime"].is_string();
            let kept = self.holders.iter().any(|holder| holder.keeps(lease))
                || self.followers.iter().any(|follower| follower.keeps(lease));
            if !(kept || retained && released) {
                self.problems.push(format!("a lease should have ended and gone: {lease}"));
            }
        }
        if self.plan.shape == Shape::Quiet || self.plan.has_restore() {
            return;
        }
        for faithful in [0, HOLDERS, HOLDERS + 1].map(clients::lease_name) {
            if self.server.get(Kind::Lease, NAMESPACE, &faithful).is_none() {
                self.problems.push(format!("{faithful} is gone, though what keeps it alive never failed"));
            }
        }
    }

    /// What everybody else has written since, as the log has it: it is no part of the fingerprint.
    fn print_others(&mut self) {
        let from = std::mem::replace(&mut self.printed, self.server.log.len());
        for request in self.server.log.iter().skip(from).filter(|_| self.print) {
            if !request.user.starts_with("lessor-") {
                println!("{:>12.6} {request}", self.now.as_secs_f64());
            }
        }
    }

    fn note(&mut self, line: &str) {
        (self.now, line).hash(&mut self.fingerprint);
        if self.print {
            println!("{:>12.6} {line}", self.now.as_secs_f64());
        }
    }
}

/// A time of the world as the API server's clock shows it.
fn time(at: Duration) -> Timestamp {
    const BEGIN: Timestamp = Timestamp::constant(1_769_860_800, 0);
    BEGIN + SignedDuration::try_from(at).unwrap_or_default()
}

fn bookmark(kind: Kind, metadata_only: bool, version: u64, initial: bool) -> Value {
    let mut mark = match metadata_only {
        true => json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}),
        false => kind.type_meta(),
    };
    mark["metadata"] = json!({"resourceVersion": version.to_string()});
    if initial {
        mark["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    mark
}
