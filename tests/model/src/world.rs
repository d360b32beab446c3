//! The world: what may happen next, and what comes of it.
//!
//! Left alone, everything happens at once and in one order: [`Action::Proceed`]. A run departs from that a limited number of
//! times: by a [fault](Fault), of which a [budget](Budget) allows so many, or because a user [changes](Edit) something.
//! Departures may come at any step, and what is stuck comes through at any later one, so to explore the world is to try
//! every run with so many departures.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use lessor_core::{
    replica::Ticket,
    request::{Request, RequestError, Response},
};

use crate::{
    history::{History, How, Outage, Sender},
    seat::{Asked, Seat, hash_request},
    server::{News, Rules, Server, Stream},
};

/// How much time passes at once.
pub const TICK: Duration = Duration::from_secs(1);
/// What holders ask for in most scenarios, in ticks.
pub const TTL: u32 = 3;
/// For how many ticks something may be stuck, cut off, away or paused: longer than a writer lease.
const PATIENCE: u32 = 6;

/// A time of the world as clocks show it.
pub fn time(now: u32) -> Timestamp {
    Timestamp::constant(1_769_860_800, 0) + SignedDuration::from_secs(now.into())
}

/// How many departures are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Things that break.
    pub faults: u8,
    /// Things that users change.
    pub edits: u8,
    /// When a run is over, in ticks.
    pub ends: u32,
}

/// A request or a watch of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A request or its answer, whichever is under way.
    Request(Ticket),
    /// What a watch has to show.
    Watch(Stream),
}

/// Something breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// This is stuck.
    Hold(usize, What),
    /// This request is done, and the answer is stuck.
    HoldAnswer(usize, Ticket),
    /// This request is refused, or lost, and the sender knows at once.
    Refuse(usize, Ticket),
    /// This watch begins anew: what changed meanwhile is compacted away.
    Relist(usize, Stream),
    /// This replica dies. What it has sent may arrive yet.
    Crash(usize),
    /// This replica stands still.
    Pause(usize),
    /// This replica can't reach the API server.
    Isolate(usize),
    /// No client can reach the API server.
    Outage,
    /// The same, and this replica dies and starts anew meanwhile.
    OutageRestart(usize),
    /// The API server does nothing; connections stay.
    Hang,
    /// The API server answers and lists, and can't write, for anybody.
    Full,
}

/// A user changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edit {
    /// A holder renews its lease.
    Renew(&'static str),
    /// A user deletes a lease.
    Revoke(&'static str),
    /// A user labels a lease.
    Touch(&'static str),
    /// A lease is made (anew).
    Create(&'static str),
    /// The ConfigMap is attached to this lease, and to nothing else.
    Attach(&'static str),
    /// The ConfigMap is attached to nothing.
    Detach,
    /// The data of the ConfigMap change.
    Change,
    /// The ConfigMap is deleted and made anew, attached to this lease.
    Replace(&'static str),
    /// A user deletes our `Lessor`.
    DropLessor,
    /// The heart beats; if it isn't there it is made.
    Beat,
    /// A user deletes the heartbeat.
    DropHeart,
}

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// What is next if nothing departs from it.
    Proceed,
    /// Something breaks.
    Fault(Fault),
    /// A user changes something.
    Edit(Edit),
    /// What was stuck comes through.
    Release(usize, What),
    /// A request arrives whose sender doesn't wait for it any more.
    Arrive(usize),
    /// The API server can be reached again.
    Clear,
    /// A replica that died starts anew.
    Restart(usize),
    /// A replica that stood still goes on.
    Resume(usize),
}

/// A replica's place.
#[derive(Clone, Debug, Hash)]
enum NamespacedName {
    Up(Arc<Seat>),
    /// It stands still since then.
    Paused(Arc<Seat>, u32),
    /// No process runs since then.
    Down(u32),
}

/// Who can't reach the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Weather {
    /// This one, or everybody.
    whom: Option<usize>,
    how: How,
    since: u32,
}

/// A request under way whose sender waits no more.
#[derive(Clone, Debug)]
struct Late {
    identity: Arc<str>,
    born: u32,
    request: Arc<Request>,
    sent: u32,
    since: u32,
}

impl Hash for Late {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.identity, self.sent, self.since).hash(state);
        hash_request(&self.request, state);
    }
}

/// The state of everything.
#[allow(clippy::derived_hash_with_manual_eq, reason = "replicas can't be compared but by their digests")]
#[derive(Clone, Debug, Hash)]
pub struct World {
    now: u32,
    server: Server,
    places: Vec<NamespacedName>,
    runs: u32,
    late: Vec<Late>,
    weather: Option<Weather>,
    budget: Budget,
    /// What has happened.
    pub history: Arc<History>,
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        stateright_fingerprint(self) == stateright_fingerprint(other)
    }
}

fn stateright_fingerprint(world: &World) -> u64 {
    let mut state = std::hash::DefaultHasher::new();
    world.hash(&mut state);
    state.finish()
}

/// The leases that there are in the beginning.
pub const LEASES: [&str; 2] = ["a", "b"];
/// The ConfigMap.
const MAP: &str = "x";

/// How the ConfigMap is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As a whole, to lease `a`.
    Whole,
    /// A key to `a`, another to `b`.
    Keys,
    /// As a whole, to lease `a`, which follows a heartbeat.
    Followed,
}

impl Form {
    fn annotations(self, lease: &str) -> BTreeMap<String, String> {
        let pair = |name: &str, lease: &str| (name.to_owned(), lease.to_owned());
        match self {
            Self::Whole | Self::Followed => [pair("lessor.dev/lease", lease)].into(),
            Self::Keys => [pair("key.lessor.dev/one", lease), pair("key.lessor.dev/two", "b")].into(),
        }
    }
}

impl World {
    /// So many replicas start at the same time, and find two leases that were just made, and a ConfigMap.
    ///
    /// Holders ask for a TTL of so many ticks.
    pub fn new(replicas: usize, form: Form, ttl: u32, rules: Rules, budget: Budget) -> Self {
        let mut server = Server::new(rules);
        let mut history = History::new(ttl);
        for name in LEASES {
            let follows = form == Form::Followed && name == "a";
            server.create_lease(name, ttl.into(), follows, time(0));
            history.created(name, follows, &server);
        }
        if form == Form::Followed {
            server.beat(time(0));
        }
        server.create_map(MAP, form.annotations("a"));
        history.attached(MAP, 0);
        let seat = |number| NamespacedName::Up(Arc::new(Seat::start(number, 1, 0, Some(&server))));
        Self {
            now: 0,
            places: (0..replicas).map(seat).collect(),
            server,
            runs: 1,
            late: Vec::new(),
            weather: None,
            budget,
            history: Arc::new(history),
        }
    }

    /// Lets it proceed by itself up to this time.
    pub fn until(mut self, now: u32) -> Self {
        while self.now < now {
            self.proceed();
        }
        self
    }

    /// Everybody dies at once, and starts anew.
    pub fn restarted(mut self) -> Self {
        for place in 0..self.places.len() {
            self.restart(place);
        }
        self
    }

    /// With this budget.
    pub fn with(mut self, budget: Budget) -> Self {
        self.budget = Budget { ends: self.now + budget.ends, ..budget };
        self
    }

    /// Whether the run is over.
    pub fn is_over(&self) -> bool {
        self.now >= self.budget.ends
    }

    fn seat(&self, number: usize) -> Option<&Seat> {
        match self.places.get(number)? {
            NamespacedName::Up(seat) | NamespacedName::Paused(seat, _) => Some(seat),
            NamespacedName::Down(_) => None,
        }
    }

    fn seat_mut(&mut self, number: usize) -> Option<&mut Seat> {
        match self.places.get_mut(number)? {
            NamespacedName::Up(seat) | NamespacedName::Paused(seat, _) => Some(Arc::make_mut(seat)),
            NamespacedName::Down(_) => None,
        }
    }

    fn up(&self, number: usize) -> Option<&Seat> {
        match self.places.get(number)? {
            NamespacedName::Up(seat) => Some(seat),
            NamespacedName::Paused(..) | NamespacedName::Down(_) => None,
        }
    }

    /// Whether this replica's requests are refused, and whether they get no response at all.
    fn reach(&self, number: usize) -> (bool, bool) {
        let hit = self.weather.filter(|weather| weather.whom.is_none_or(|whom| whom == number));
        let is = |how| hit.is_some_and(|weather| weather.how == how);
        (is(How::Away), is(How::Silent))
    }

    // --- What may happen ---------------------------------------------------------------------------------------

    /// Everything that may happen now.
    pub fn actions(&self, form: Form, actions: &mut Vec<Action>) {
        if self.is_over() || self.history.broken.is_some() {
            return;
        }
        actions.push(Action::Proceed);
        for number in 0..self.places.len() {
            match &self.places[number] {
                NamespacedName::Down(_) => actions.push(Action::Restart(number)),
                NamespacedName::Paused(..) => actions.push(Action::Resume(number)),
                NamespacedName::Up(seat) => {
                    let asked = seat.asked.iter().filter(|(_, asked)| asked.held.is_some());
                    actions.extend(asked.map(|(ticket, _)| Action::Release(number, What::Request(*ticket))));
                    let held = Stream::ALL
                        .into_iter()
                        .filter(|stream| seat.watches[*stream as usize].held.is_some());
                    actions.extend(held.map(|stream| Action::Release(number, What::Watch(stream))));
                }
            }
        }
        actions.extend((0..self.late.len()).map(Action::Arrive));
        actions.extend(self.weather.map(|_| Action::Clear));
        if self.budget.faults > 0 {
            self.faults(actions);
        }
        if self.budget.edits > 0 {
            self.edits(form, actions);
        }
    }

    fn faults(&self, actions: &mut Vec<Action>) {
        for number in 0..self.places.len() {
            let Some(seat) = self.up(number) else { continue };
            for (ticket, asked) in seat.asked.iter().filter(|(_, asked)| asked.held.is_none()) {
                actions.push(Action::Fault(Fault::Hold(number, What::Request(*ticket))));
                if asked.answer.is_none() && self.reach(number) == (false, false) {
                    actions.push(Action::Fault(Fault::HoldAnswer(number, *ticket)));
                    actions.push(Action::Fault(Fault::Refuse(number, *ticket)));
                }
            }
            for stream in Stream::ALL {
                let watch = &seat.watches[stream as usize];
                if !watch.news.is_empty() && watch.held.is_none() {
                    actions.push(Action::Fault(Fault::Hold(number, What::Watch(stream))));
                    // A list is an answer: it takes a server that can be reached.
                    if watch.open && self.reach(number) == (false, false) {
                        actions.push(Action::Fault(Fault::Relist(number, stream)));
                    }
                }
            }
            // A replica without work may as well die later, when it has some.
            let busy = !seat.asked.is_empty() || seat.watches.iter().any(|watch| !watch.news.is_empty());
            if busy || self.is_settled() {
                actions.push(Action::Fault(Fault::Crash(number)));
                actions.push(Action::Fault(Fault::Pause(number)));
                if self.weather.is_none() {
                    actions.push(Action::Fault(Fault::Isolate(number)));
                }
            }
        }
        if self.weather.is_none() {
            actions.push(Action::Fault(Fault::Outage));
            let up = (0..self.places.len()).filter(|number| self.up(*number).is_some());
            actions.extend(up.map(|number| Action::Fault(Fault::OutageRestart(number))));
            actions.push(Action::Fault(Fault::Hang));
            actions.push(Action::Fault(Fault::Full));
        }
    }

    fn edits(&self, form: Form, actions: &mut Vec<Action>) {
        if self.weather.is_some_and(|weather| weather.whom.is_none()) {
            return;
        }
        if form == Form::Followed {
            // Whatever else may change is tried without it.
            actions.push(Action::Edit(Edit::Beat));
            actions.extend(self.server.heart.as_ref().map(|_| Action::Edit(Edit::DropHeart)));
            actions.extend(self.server.leases.get("a").map(|_| Action::Edit(Edit::Renew("a"))));
            return;
        }
        for name in LEASES {
            match self.server.leases.get(name) {
                None => actions.push(Action::Edit(Edit::Create(name))),
                Some(lease) => {
                    actions.push(Action::Edit(Edit::Renew(name)));
                    if lease.object.metadata.deletion_timestamp.is_none() {
                        actions.push(Action::Edit(Edit::Revoke(name)));
                    }
                    if name == "a" {
                        actions.push(Action::Edit(Edit::Touch(name)));
                    }
                }
            }
        }
        if self.server.maps.contains_key(MAP) {
            actions.push(Action::Edit(Edit::Attach("b")));
            actions.push(Action::Edit(Edit::Detach));
            actions.push(Action::Edit(Edit::Change));
        }
        actions.push(Action::Edit(Edit::Replace("a")));
        if form == Form::Whole {
            actions.push(Action::Edit(Edit::Replace("b")));
        }
        if self.server.lessor.is_some() {
            actions.push(Action::Edit(Edit::DropLessor));
        }
    }

    // --- What comes of it --------------------------------------------------------------------------------------

    /// Lets this happen.
    pub fn happen(&mut self, action: Action, form: Form) {
        match action {
            Action::Proceed => self.proceed(),
            Action::Fault(fault) => {
                self.budget.faults -= 1;
                self.fault(fault);
            }
            Action::Edit(edit) => {
                self.budget.edits -= 1;
                self.edit(edit, form);
            }
            Action::Release(number, what) => self.release(number, what),
            Action::Arrive(which) => {
                let late = self.late.remove(which);
                let sender = Sender {
                    identity: &late.identity,
                    born: late.born,
                    sees_maps: false,
                    deadline: None,
                    oldest_other: u32::MAX,
                };
                self.serve(&late.request, &sender);
            }
            Action::Clear => self.clear(),
            Action::Restart(number) => self.restart(number),
            Action::Resume(number) => self.resume(number),
        }
    }

    /// What is next if nothing departs from it: requests are served and answered, watches show what there is, and when there
    /// is nothing of that, time passes.
    pub fn proceed(&mut self) {
        for number in 0..self.places.len() {
            let (refused, silent) = self.reach(number);
            let Some(seat) = self.seat(number) else { continue };
            let paused = matches!(self.places[number], NamespacedName::Paused(..));
            let next = seat
                .asked
                .iter()
                .find(|(_, asked)| asked.held.is_none() && !silent && (asked.answer.is_none() || !paused));
            if let Some((ticket, asked)) = next.map(|(ticket, asked)| (*ticket, asked.answer.is_some())) {
                return match (refused, asked) {
                    (true, _) if paused => continue,
                    (true, _) => self.refuse(number, ticket),
                    (false, true) => self.deliver(number, ticket),
                    (false, false) => {
                        self.arrive(number, ticket);
                        if !paused {
                            self.deliver(number, ticket);
                        }
                    }
                };
            }
            if paused {
                continue;
            }
            for stream in Stream::ALL {
                let Some(seat) = self.seat(number) else { continue };
                let (watch, seat_looks_out) = (&seat.watches[stream as usize], seat.looks_out.is_some());
                if watch.held.is_some() {
                    continue;
                }
                // A watch that has broken shows that, and no more before it is open again.
                if matches!(watch.news.front(), Some(News::Broken)) {
                    return self.look(number, stream);
                }
                let wanted = stream != Stream::Heart || seat_looks_out;
                if wanted && !watch.open && !refused && (watch.begun || !silent) {
                    self.reopen(number, stream);
                    return self.look(number, stream);
                }
                if watch.open && !silent && !watch.news.is_empty() {
                    return self.look(number, stream);
                }
            }
        }
        self.tick();
    }

    /// Whether time is what passes next.
    fn is_settled(&self) -> bool {
        (0..self.places.len()).all(|number| {
            self.up(number).is_none_or(|seat| {
                seat.asked.values().all(|asked| asked.held.is_some())
                    && seat.watches.iter().all(|watch| watch.held.is_some() || watch.news.is_empty())
            })
        })
    }

    fn tick(&mut self) {
        self.now += 1;
        let over = |since: u32| self.now >= since + PATIENCE;
        let (clears, now) = (self.weather.is_some_and(|weather| over(weather.since)), self.now);
        self.late.retain(|late| now < late.since + PATIENCE);
        if clears {
            self.clear();
        }
        for number in 0..self.places.len() {
            match &self.places[number] {
                NamespacedName::Down(since) if now >= since + PATIENCE => self.restart(number),
                NamespacedName::Paused(_, since) if now >= since + PATIENCE => self.resume(number),
                NamespacedName::Down(_) | NamespacedName::Paused(..) => {}
                NamespacedName::Up(_) => {
                    if let Some(seat) = self.seat_mut(number) {
                        for watch in &mut seat.watches {
                            watch.held = watch.held.filter(|since| now < since + PATIENCE);
                        }
                    }
                    self.give(number, |seat| seat.wake(now));
                }
            }
        }
    }

    /// Lets a replica do something, and keeps what it gave up but has sent.
    fn give(&mut self, number: usize, act: impl FnOnce(&mut Seat) -> Vec<Asked>) {
        let now = self.now;
        let Some(seat) = self.seat_mut(number) else { return };
        let given_up = act(seat);
        let (identity, born) = (Arc::clone(&seat.identity), seat.born);
        for asked in given_up {
            // Only what was stuck on its way can arrive yet, or what its sender has just sent.
            if asked.answer.is_none() && is_write(&asked.request) {
                let (identity, request, sent) = (Arc::clone(&identity), asked.request, asked.sent);
                self.late.push(Late { identity, born, request, sent, since: now });
            }
        }
    }

    fn look(&mut self, number: usize, stream: Stream) {
        let now = self.now;
        self.give(number, |seat| seat.look(stream, now));
    }

    fn reopen(&mut self, number: usize, stream: Stream) {
        let list = self.server.list(stream);
        if let Some(seat) = self.seat_mut(number) {
            let watch = &mut seat.watches[stream as usize];
            watch.open = true;
            if std::mem::replace(&mut watch.begun, true) {
                watch.news.push_front(News::Resumed);
            } else {
                watch.news = list.into();
            }
        }
    }

    fn deliver(&mut self, number: usize, ticket: Ticket) {
        let now = self.now;
        self.give(number, |seat| seat.answer(ticket, now));
    }

    /// Nothing of a request that is refused can arrive yet.
    fn refuse(&mut self, number: usize, ticket: Ticket) {
        let now = self.now;
        self.give(number, |seat| {
            let mut given_up = seat.fail(ticket, now, false);
            given_up.pop();
            given_up
        });
    }

    /// A request arrives, and its answer is on its way.
    fn arrive(&mut self, number: usize, ticket: Ticket) {
        let Some(seat) = self.seat(number) else { return };
        let Some(asked) = seat.asked.get(&ticket) else { return };
        let request = Arc::clone(&asked.request);
        let maps = &seat.watches[Stream::Maps as usize];
        let sees_maps = maps.open && maps.held.is_none() && maps.news.is_empty();
        let identity = Arc::clone(&seat.identity);
        let deadline = seat.deadline_of(&request, self.now);
        let others =
            (0..self.places.len()).filter(|other| *other != number && self.reach(*other) == (false, false));
        let oldest_other = others.filter_map(|other| Some(self.up(other)?.born)).min().unwrap_or(u32::MAX);
        let sender = Sender { identity: &identity, born: seat.born, sees_maps, deadline, oldest_other };
        let answer = Arc::new(self.serve(&request, &sender));
        if let Some(seat) = self.seat_mut(number) {
            if let Some(asked) = seat.asked.get_mut(&ticket) {
                asked.answer = Some(answer);
            }
            seat.note();
        }
    }

    fn serve(&mut self, request: &Request, sender: &Sender<'_>) -> Response {
        if is_write(request) && self.weather.is_some_and(|weather| weather.how == How::Full) {
            let primary = self.server.lessor.as_ref().and_then(|lessor| lessor.object.status.as_ref());
            if request.lease().is_none()
                && primary.and_then(|status| status.primary.as_deref()) == Some(sender.identity)
                && let Some(outage) = Arc::make_mut(&mut self.history).outages.last_mut()
            {
                outage.met.insert(sender.identity.to_owned());
            }
            return Response::Refused(RequestError::Failing("the storage is full".to_owned()));
        }
        let before = is_write(request).then(|| self.server.clone());
        let done = self.server.handle(request, time(self.now));
        if let Request::ReadSource { .. } = request {
            Arc::make_mut(&mut self.history).looked(sender.identity, self.now);
        }
        if let Some(before) = before {
            let history = Arc::make_mut(&mut self.history);
            history.after(request, &done.answer, &before, &self.server, sender, self.now);
        }
        self.spread(done.news);
        done.answer
    }

    /// Everybody who watches will see this.
    fn spread(&mut self, news: impl IntoIterator<Item = News>) {
        for news in news {
            let stream = match &news {
                News::Lessor(..) => Stream::Lessor,
                News::Lease(..) => Stream::LeaseIndex,
                News::Heart(..) => Stream::Heart,
                News::Map(..) | News::All(_) | News::Resumed | News::Broken => Stream::Maps,
            };
            for number in 0..self.places.len() {
                if let Some(seat) = self.seat_mut(number).filter(|seat| seat.watches[stream as usize].begun) {
                    seat.watches[stream as usize].news.push_back(news.clone());
                    seat.note();
                }
            }
        }
    }

    fn fault(&mut self, fault: Fault) {
        let now = self.now;
        match fault {
            Fault::Hold(number, what) => self.hold(number, what, Some(now)),
            Fault::HoldAnswer(number, ticket) => {
                self.arrive(number, ticket);
                self.hold(number, What::Request(ticket), Some(now));
            }
            Fault::Refuse(number, ticket) => self.refuse(number, ticket),
            Fault::Relist(number, stream) => {
                let news = self.server.list(stream);
                if let Some(seat) = self.seat_mut(number) {
                    seat.watches[stream as usize].news = news.into();
                }
                self.look(number, stream);
            }
            Fault::Crash(number) => self.kill(number),
            Fault::Pause(number) => {
                if let NamespacedName::Up(seat) = &self.places[number] {
                    self.places[number] = NamespacedName::Paused(Arc::clone(seat), now);
                }
            }
            Fault::Isolate(number) => self.cut(Some(number), How::Away),
            Fault::Outage => self.cut(None, How::Away),
            Fault::OutageRestart(number) => {
                self.cut(None, How::Away);
                self.kill(number);
                self.restart(number);
            }
            Fault::Hang => self.cut(None, How::Silent),
            Fault::Full => self.cut(None, How::Full),
        }
    }

    fn hold(&mut self, number: usize, what: What, since: Option<u32>) {
        let Some(seat) = self.seat_mut(number) else { return };
        match what {
            What::Request(ticket) => {
                if let Some(asked) = seat.asked.get_mut(&ticket) {
                    asked.held = since;
                }
            }
            What::Watch(stream) => seat.watches[stream as usize].held = since,
        }
        seat.note();
    }

    /// What was stuck comes through, at once.
    fn release(&mut self, number: usize, what: What) {
        self.hold(number, what, None);
        let unreachable = self.reach(number) != (false, false);
        match what {
            _ if unreachable => {}
            What::Request(ticket) => {
                self.arrive_unless_answered(number, ticket);
                self.deliver(number, ticket);
            }
            What::Watch(stream) => {
                if self.seat(number).is_some_and(|seat| seat.watches[stream as usize].open) {
                    self.look(number, stream);
                }
            }
        }
    }

    fn arrive_unless_answered(&mut self, number: usize, ticket: Ticket) {
        let asked = self.seat(number).and_then(|seat| seat.asked.get(&ticket));
        if asked.is_some_and(|asked| asked.answer.is_none()) {
            self.arrive(number, ticket);
        }
    }

    fn kill(&mut self, number: usize) {
        let now = self.now;
        self.give(number, |seat| std::mem::take(&mut seat.asked).into_values().collect());
        self.places[number] = NamespacedName::Down(now);
    }

    fn restart(&mut self, number: usize) {
        self.runs += 1;
        let reachable = self.reach(number) == (false, false);
        let seat = Seat::start(number, self.runs, self.now, reachable.then_some(&self.server));
        self.places[number] = NamespacedName::Up(Arc::new(seat));
    }

    fn resume(&mut self, number: usize) {
        let now = self.now;
        if let NamespacedName::Paused(seat, _) = &self.places[number] {
            self.places[number] = NamespacedName::Up(Arc::clone(seat));
            // What broke meanwhile is there to be seen at once; any answer to what it asks now comes later.
            for stream in Stream::ALL {
                let seat = self.seat(number).map(|seat| &seat.watches[stream as usize]);
                if seat.is_some_and(|watch| {
                    watch.held.is_none() && matches!(watch.news.front(), Some(News::Broken))
                }) {
                    self.look(number, stream);
                }
            }
            self.give(number, |seat| seat.wake(now));
        }
    }

    fn cut(&mut self, whom: Option<usize>, how: How) {
        self.weather = Some(Weather { whom, how, since: self.now });
        if whom.is_none() {
            Arc::make_mut(&mut self.history).outages.push(Outage::new(self.now, how));
        }
        if how != How::Away {
            return;
        }
        for number in 0..self.places.len() {
            if whom.is_none_or(|whom| whom == number)
                && let Some(seat) = self.seat_mut(number)
            {
                for watch in seat.watches.iter_mut().filter(|watch| watch.begun) {
                    watch.open = false;
                    watch.news.push_front(News::Broken);
                }
                seat.note();
            }
        }
    }

    fn clear(&mut self) {
        if self.weather.take().is_some_and(|weather| weather.whom.is_none()) {
            let now = self.now;
            let history = Arc::make_mut(&mut self.history);
            if let Some(outage) = history.outages.last_mut() {
                outage.to = Some(now);
            }
        }
    }

    fn edit(&mut self, edit: Edit, form: Form) {
        let (now, at) = (self.now, time(self.now));
        let history = Arc::make_mut(&mut self.history);
        let news: Vec<News> = match edit {
            Edit::Renew(name) => {
                let news = self.server.renew(name, at);
                history.renewed(name, news.is_some(), &self.server, now);
                news.into_iter().collect()
            }
            Edit::Revoke(name) => self.server.revoke(name, at).into_iter().collect(),
            Edit::Touch(name) => self.server.enqueue_lease(name).into_iter().collect(),
            Edit::Create(name) => {
                let news = self.server.create_lease(name, history.ttl.into(), false, at);
                history.created(name, false, &self.server);
                news.into_iter().collect()
            }
            Edit::Attach(lease) => {
                history.attached(MAP, now);
                self.server.edit_map(MAP, Some(form.annotations(lease))).into_iter().collect()
            }
            Edit::Detach => {
                history.attached(MAP, now);
                self.server.edit_map(MAP, Some(BTreeMap::new())).into_iter().collect()
            }
            Edit::Change => self.server.edit_map(MAP, None).into_iter().collect(),
            Edit::Replace(lease) => {
                history.attached(MAP, now);
                self.server.create_map(MAP, form.annotations(lease))
            }
            Edit::DropLessor => self.server.drop_lessor().into_iter().collect(),
            Edit::Beat => {
                history.beaten(now);
                vec![self.server.beat(at)]
            }
            Edit::DropHeart => self.server.drop_heart().into_iter().collect(),
        };
        self.spread(news);
    }

    // --- The end -----------------------------------------------------------------------------------------------

    /// Whether, when nothing breaks any more, everything that should end does so within so many ticks, and one replica
    /// leads.
    pub fn comes_to_rest(&self, ticks: u32) -> Result<(), String> {
        let mut world = self.clone();
        world.late.clear();
        world.clear();
        for number in 0..world.places.len() {
            match &world.places[number] {
                NamespacedName::Down(_) => world.restart(number),
                NamespacedName::Paused(..) => world.resume(number),
                NamespacedName::Up(seat) => {
                    let held: Vec<Ticket> = seat.asked.keys().copied().collect();
                    for ticket in held {
                        world.hold(number, What::Request(ticket), None);
                    }
                    for stream in Stream::ALL {
                        world.hold(number, What::Watch(stream), None);
                    }
                }
            }
        }
        let end = world.now + ticks;
        let mut steps = 0;
        while world.now < end && !world.is_empty() {
            world.proceed();
            steps += 1;
            if steps > 5000 {
                return Err("there is always something to do".to_owned());
            }
            if let Some((promise, what)) = &world.history.broken {
                return Err(format!("{promise:?}: {what}"));
            }
        }
        if world.is_empty() { Ok(()) } else { Err(world.what_is_left()) }
    }

    fn is_empty(&self) -> bool {
        self.server.leases.is_empty() && self.is_settled()
    }

    fn what_is_left(&self) -> String {
        let leases: Vec<_> = self.server.leases.values().map(|lease| &lease.object).collect();
        let leads: Vec<_> = (0..self.places.len()).map(|number| self.seat(number).map(Seat::leads)).collect();
        format!("left: {}, leads: {leads:?}", serde_json::to_string(&leases).unwrap_or_default())
    }
}

/// Whether a request is to change something.
pub fn is_write(request: &Request) -> bool {
    !request.verb().starts_with("read-")
}
