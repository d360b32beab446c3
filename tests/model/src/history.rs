//! What has happened, as far as the promises ask for it, and whether one was broken.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lessor_api::{
    attachment::{KEY_PREFIX, LEASE_ANNOTATION},
    lease::FINALIZER,
};
use lessor_core::{
    decide::removal::Removal,
    request::{Request, Response},
};
use serde_json::Value;

use crate::server::{Server, attached_to};

/// A promise of the project, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// P1
    NeverEarly,
    /// P2
    OneOutcome,
    /// P3
    NothingUnattached,
    /// P4
    Complete,
    /// P5
    Harmless,
    /// P8
    Outage,
}

/// A time at which the API server could not be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outage {
    /// When it began.
    pub from: u32,
    /// When it was over; `None`: it isn't.
    pub to: Option<u32>,
    /// What replicas could notice of it.
    pub how: How,
    /// Which primaries' writes of the `Lessor` failed in it.
    pub met: BTreeSet<String>,
    /// Whether one of these has written the `Lessor` since, so that all others know.
    told: bool,
    /// Who took the lead since, and before that.
    unaware: BTreeSet<String>,
}

impl Outage {
    /// Begins now.
    pub fn new(from: u32, how: How) -> Self {
        Self { from, to: None, how, met: BTreeSet::new(), told: false, unaware: BTreeSet::new() }
    }
}

/// What an outage is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// Connections broke.
    Away,
    /// Connections stayed open, so that only missing responses showed the outage.
    Silent,
    /// All was as ever, but that nothing could be written.
    Full,
}

/// One lease, from its creation on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Life {
    name: &'static str,
    /// Whether it follows the heartbeat.
    follows: bool,
    /// When it was granted or renewed last, and which of the two.
    sign: Option<(u32, bool)>,
    ended: Option<u32>,
    released: bool,
}

/// Who sent a write.
#[derive(Clone, Debug)]
pub struct Sender<'a> {
    /// Its name.
    pub identity: &'a str,
    /// When it started.
    pub born: u32,
    /// Whether its watch of ConfigMaps shows what there is.
    pub sees_maps: bool,
    /// When the deadline of the lease that it writes to comes, or came, by its clock.
    pub deadline: Option<u32>,
    /// When the oldest of the other replicas that live has started.
    pub oldest_other: u32,
}

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// What holders ask for, in ticks.
    pub ttl: u32,
    lives: BTreeMap<String, Life>,
    /// When each ConfigMap was attached to what it is attached to.
    attached: BTreeMap<&'static str, u32>,
    terms: BTreeMap<i64, String>,
    /// When each replica last read the heartbeat.
    looked: BTreeMap<String, u32>,
    /// Those that hit everybody.
    pub outages: Vec<Outage>,
    /// The first promise that was broken.
    pub broken: Option<(Promise, String)>,
    /// What has happened at all, so that a run that checks nothing is recognised.
    pub seen: WatchHealth,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WatchHealth {
    /// A lease ended by time.
    pub expired: bool,
    /// A lease was revoked.
    pub revoked: bool,
    /// An object went.
    pub removed: bool,
    /// A key went, and its object stayed.
    pub key_removed: bool,
    /// There was a second primary.
    pub taken_over: bool,
    /// A write of a deposed primary was refused.
    pub deposed: bool,
    /// A write was refused for its version.
    pub conflict: bool,
    /// A renewal came too late.
    pub refused: bool,
    /// A beat renewed what follows it.
    pub beaten: bool,
}

impl History {
    /// Nothing has happened. Holders will ask for a TTL of so many ticks.
    pub fn new(ttl: u32) -> Self {
        Self { ttl, ..Self::default() }
    }

    fn violation(&mut self, promise: Promise, what: impl Into<String>) {
        if self.broken.is_none() {
            self.broken = Some((promise, what.into()));
        }
    }

    /// A user made a lease.
    pub fn created(&mut self, name: &'static str, follows: bool, server: &Server) {
        if let Some(uid) = uid_of(server, name) {
            self.lives.insert(uid, Life { name, follows, ..Life::default() });
        }
    }

    /// The heart has beaten: before a deadline, that renews what follows it.
    pub fn beaten(&mut self, now: u32) {
        for life in self.lives.values_mut().filter(|life| life.follows && life.ended.is_none()) {
            if let Some((sign, _)) = life.sign
                && now < sign + self.ttl
            {
                life.sign = Some((now, false));
                self.seen.beaten = true;
            }
        }
    }

    /// A replica has read the heartbeat.
    pub fn looked(&mut self, identity: &str, now: u32) {
        self.looked.insert(identity.to_owned(), now);
    }

    /// The holder tried to renew.
    pub fn renewed(&mut self, name: &'static str, accepted: bool, server: &Server, now: u32) {
        if !accepted {
            self.seen.refused = true;
            return;
        }
        let Some(life) = uid_of(server, name).and_then(|uid| self.lives.get_mut(&uid)) else { return };
        life.sign = life.sign.map(|_| (now, true));
        if life.ended.is_some() {
            self.violation(Promise::OneOutcome, format!("lease {name} was renewed after its end"));
        }
    }

    /// A ConfigMap was attached to something else than before.
    pub fn attached(&mut self, name: &'static str, now: u32) {
        self.attached.insert(name, now);
    }

    /// A write of a replica was answered so.
    pub fn after(
        &mut self,
        request: &Request,
        answer: &Response,
        before: &Server,
        server: &Server,
        sender: &Sender<'_>,
        now: u32,
    ) {
        if let Response::Refused(refusal) = answer {
            self.seen.conflict |= refusal.outcome() == "conflict";
            self.seen.deposed |= refusal.outcome() == "lower-term";
            return;
        }
        if matches!(answer, Response::Gone) {
            return;
        }
        match request {
            Request::WriteLessor { status, .. } => {
                for outage in self.outages.iter_mut().filter(|outage| outage.to.is_some()) {
                    outage.told |= outage.met.contains(sender.identity);
                }
                let before = before.lessor.as_ref().and_then(|lessor| lessor.object.status.as_ref()?.term);
                self.term(status, before, sender);
            }
            Request::WriteStatus { lease, uid, status, .. } => {
                let stored = before.leases.get(&*lease.name).and_then(|lease| lease.object.status.as_ref());
                self.term(status, stored.and_then(|status| status.term), sender);
                self.status(&uid.to_string(), status, sender, now);
            }
            Request::SetFinalizers { lease, uid, finalizers, .. }
                if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) =>
            {
                self.released(&lease.name, &uid.to_string(), server, sender);
            }
            Request::Remove { object, .. } => {
                let map = before.maps.get(&*object.name.name);
                let leases = map.map(|map| removed(request, &map.object)).unwrap_or_default();
                let may = |name: &&str| {
                    let lease = before.leases.get(*name);
                    lease.is_some_and(|lease| lease.object.is_ended() && lease.object.has_finalizer())
                };
                if leases.is_empty() || !leases.iter().all(may) {
                    let what = format!("{} goes, which is attached to {leases:?}", object.name.name);
                    self.violation(Promise::NothingUnattached, what);
                }
                let left = server.maps.contains_key(&*object.name.name);
                self.seen.key_removed |= left;
                self.seen.removed |= !left;
            }
            _ => {}
        }
    }

    fn term(&mut self, status: &Value, before: Option<i64>, sender: &Sender<'_>) {
        let Some(term) = status["term"].as_i64() else { return };
        if before.is_some_and(|before| term < before) {
            let what = format!("{} wrote under term {term} what carried {before:?}", sender.identity);
            self.violation(Promise::Harmless, what);
        }
        // A resignation has an empty name, and a challenge names the primary.
        if status["primary"].as_str() != Some(sender.identity) {
            return;
        }
        let outages = &mut self.outages;
        let other = self.terms.entry(term).or_insert_with(|| {
            for outage in outages.iter_mut().filter(|outage| outage.to.is_some()) {
                if outage.told {
                    outage.unaware.remove(sender.identity);
                } else {
                    outage.unaware.insert(sender.identity.to_owned());
                }
            }
            sender.identity.to_owned()
        });
        if other != sender.identity {
            let what = format!("{other} and {} both lead under term {term}", sender.identity);
            self.violation(Promise::Harmless, what);
        }
        self.seen.taken_over |= self.terms.len() > 1;
    }

    fn status(&mut self, uid: &str, status: &Value, sender: &Sender<'_>, now: u32) {
        let reason = |reason: &str| {
            status["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|condition| condition["reason"] == *reason)
        };
        let Some(life) = self.lives.get_mut(uid) else { return };
        if !status["endTime"].is_string() {
            if life.sign.is_none() && status["grantTime"].is_string() {
                life.sign = Some((now, false));
            }
            return;
        }
        if life.ended.is_some() {
            return;
        }
        life.ended = Some(now);
        let (name, follows, sign) = (life.name, life.follows, life.sign);
        self.seen.revoked |= reason("Revoked");
        if !reason("Expired") {
            return;
        }
        self.seen.expired = true;
        let Some((sign, renewal)) = sign else {
            return self.violation(Promise::NeverEarly, format!("lease {name} expired without a grant"));
        };
        let passed = now - sign;
        if passed < self.ttl {
            let promise = if renewal { Promise::OneOutcome } else { Promise::NeverEarly };
            let what = format!("lease {name} expired {passed} ticks after its grant or renewal");
            return self.violation(promise, what);
        }
        if follows && self.looked.get(sender.identity).is_none_or(|looked| *looked < sign + self.ttl) {
            let what = format!("lease {name} expired without a look at what it follows");
            return self.violation(Promise::NeverEarly, what);
        }
        let (mut reachable, mut overlooked, mut deadline) = (passed, 0, sign + self.ttl);
        for outage in &self.outages {
            let (from, to) = (outage.from.max(sign), outage.to.unwrap_or(now).min(now));
            // A replica that has started since knows of no outage before; it gives the grace of a start. Unless another
            // lives that does.
            if to <= from || outage.from <= sender.born && outage.from <= sender.oldest_other {
                continue;
            }
            let lasted = to - from;
            reachable -= lasted;
            // By its sender's clock, the deadline may have come later than by ours: a pause, or a write that fails, puts lease
            // time back to the last sign of life, or the last write.
            let over_in_time = to <= deadline.max(sender.deadline.unwrap_or_default());
            let unnoticed = match outage.how {
                How::Away => 0,
                // The tick before the deadline may not be noticed. Nor is a silence of which no replica saw more than that tick,
                // since none asked before: it was over by the deadline, then.
                How::Silent if over_in_time => lasted,
                // No replica writes before it has to: the primary by the deadline, others to take over.
                How::Full if over_in_time || outage.unaware.contains(sender.identity) => lasted,
                How::Silent | How::Full => 1,
            };
            overlooked += unnoticed;
            // Noticed, it moves the deadline; otherwise what it kept back, a renewal perhaps, was seen later by as much.
            deadline += lasted;
        }
        let enough = reachable + overlooked >= self.ttl;
        if !enough {
            let who = sender.identity;
            let what = format!(
                "{who} ended lease {name} at {now}, though since {sign} it could be renewed for {reachable}"
            );
            self.violation(Promise::Outage, what);
        }
    }

    fn released(&mut self, name: &str, uid: &str, server: &Server, sender: &Sender<'_>) {
        let Some(life) = self.lives.get_mut(uid) else { return };
        life.released = true;
        let Some(ended) = life.ended else {
            return self.violation(Promise::Complete, format!("lease {name} was released before its end"));
        };
        for (map, stored) in &server.maps {
            let attached = self.attached.get(map).copied().unwrap_or_default();
            // What was attached later, and what no watch has shown yet, may be left.
            if sender.sees_maps && attached <= ended && attached_to(&stored.object).contains(name) {
                let what = format!("{map} was left when lease {name} was released");
                return self.violation(Promise::Complete, what);
            }
        }
    }
}

fn uid_of(server: &Server, name: &str) -> Option<String> {
    server.leases.get(name)?.object.metadata.uid.clone()
}

/// The leases with which a request removes something, as the object now is.
fn removed<'a>(request: &Request, map: &'a ObjectMeta) -> Vec<&'a str> {
    let goes = |name: &str| match request {
        Request::Remove { removal: Removal::Keys { keys, .. }, .. } => {
            name.strip_prefix(KEY_PREFIX).is_some_and(|name| keys.iter().any(|key| key.as_str() == name))
        }
        _ => name == LEASE_ANNOTATION,
    };
    let annotations = map.annotations.iter().flatten();
    annotations.filter(|(name, _)| goes(name)).map(|(_, lease)| lease.as_str()).collect()
}
