//! Leases that follow something, and what they follow: heartbeats that stop, are late, deleted and made anew, and Pods that
//! finish, go, or are replaced.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    clients::{NAMESPACE, Visit, lease_name, renew_time, ttl},
    random::Random,
    server::{ApiServer, Call, Kind, Target},
};

/// Where the heartbeats of nodes are.
const NODES: &str = "kube-node-lease";
/// What never fails, and what does.
const FAITHFUL: [&str; 3] = ["heart-0", "node-0", "pod-0"];
const PODS: [&str; 2] = ["pod-1", "pod-2"];
/// How often a heart beats that always does; its followers live three times as long.
const BEAT: Duration = Duration::from_secs(5);

/// What an actor of the world knows when it comes to act.
pub(crate) struct Moment<'a> {
    pub(crate) server: &'a mut ApiServer,
    pub(crate) random: &'a mut Random,
    pub(crate) now: Duration,
    pub(crate) time: Timestamp,
    /// Only the faithful go on.
    pub(crate) over: bool,
}

impl Moment<'_> {
    fn ask(&mut self, user: &str, verb: &'static str, target: Target, body: Value) -> u16 {
        let call = Call { user: user.to_owned(), verb, target, body: Some(body) };
        self.server.handle(&call, self.time).0
    }
}

/// What leases follow.
#[derive(Debug)]
pub(crate) enum Source {
    Heart(Heart),
    Pod(Pod),
}

impl Source {
    /// Those that these leases keep alive for ever, and some more that fail: a heartbeat of either kind, and Pods.
    pub(crate) fn all(followers: &[Follower], random: &mut Random) -> Vec<Self> {
        let heart = |name: &'static str, period| {
            let namespace = if name.starts_with("node") { NODES } else { NAMESPACE };
            Self::Heart(Heart { namespace, name, period, beats: 0, stops_at: Duration::ZERO })
        };
        let is_needed = |name: &&'static str| followers.iter().any(|follower| follower.relies_on(name));
        let faithful = FAITHFUL.into_iter().filter(is_needed).map(|name| match name {
            "pod-0" => Self::Pod(Pod { name }),
            _ => heart(name, BEAT),
        });
        let mut sources: Vec<Self> = faithful.collect();
        let &name = random.pick(&["heart-1", "node-1"]);
        sources.push(heart(name, random.seconds(3, 6)));
        sources.extend(PODS.into_iter().take(1 + random.below(2)).map(|name| Self::Pod(Pod { name })));
        sources
    }

    /// Does what is next, and answers when it comes again.
    pub(crate) fn visit(&mut self, moment: &mut Moment<'_>) -> Duration {
        match self {
            Self::Heart(heart) => heart.visit(moment),
            Self::Pod(pod) => pod.visit(moment),
        }
    }
}

/// The holder of a Lease of coordination.k8s.io.
#[derive(Debug)]
pub(crate) struct Heart {
    namespace: &'static str,
    name: &'static str,
    period: Duration,
    beats: u64,
    stops_at: Duration,
}

impl Heart {
    fn visit(&mut self, moment: &mut Moment<'_>) -> Duration {
        let faithful = FAITHFUL.contains(&self.name);
        if moment.server.get(Kind::Heartbeat, self.namespace, self.name).is_none() {
            if !faithful && (moment.over || moment.random.percent(50)) {
                return moment.random.seconds(1, 10);
            }
            self.stops_at = moment.now + moment.random.seconds(10, 80);
            return self.create(moment);
        }
        let rests = !faithful && (moment.over || moment.now >= self.stops_at);
        match moment.random.below(100) {
            _ if faithful => self.beat(moment),
            0..30 if rests => self.ask(moment, "delete", json!({})),
            30..45 if rests && !moment.over => self.stops_at = moment.now + moment.random.seconds(10, 40),
            _ if rests => {}
            0..3 => {
                self.ask(moment, "delete", json!({}));
                return self.create(moment);
            }
            3..6 => {
                self.ask(moment, "patch", json!({"metadata": {"labels": {"seen": self.beats.to_string()}}}))
            }
            6..16 => {
                self.beat(moment);
                return moment.random.between(self.period, self.period * 5);
            }
            _ => self.beat(moment),
        }
        self.period
    }

    fn create(&mut self, moment: &mut Moment<'_>) -> Duration {
        self.beats += 1;
        let target = Target::object(Kind::Heartbeat, self.namespace, "");
        let body = json!({"metadata": {"name": self.name}, "spec": {"renewTime": renew_time(self.beats)}});
        moment.ask("heart", "create", target, body);
        self.period
    }

    fn beat(&mut self, moment: &mut Moment<'_>) {
        self.beats += 1;
        self.ask(moment, "patch", json!({"spec": {"renewTime": renew_time(self.beats)}}));
    }

    fn ask(&self, moment: &mut Moment<'_>, verb: &'static str, body: Value) {
        moment.ask("heart", verb, Target::object(Kind::Heartbeat, self.namespace, self.name), body);
    }
}

/// The kubelet of a Pod.
#[derive(Debug)]
pub(crate) struct Pod {
    name: &'static str,
}

impl Pod {
    fn visit(&mut self, moment: &mut Moment<'_>) -> Duration {
        let faithful = FAITHFUL.contains(&self.name);
        let again = moment.random.seconds(3, 20);
        let pod = moment.server.get(Kind::Pod, NAMESPACE, self.name);
        let terminates = pod.is_some_and(|pod| pod.pointer("/metadata/deletionTimestamp").is_some());
        let finished = pod.is_some_and(|pod| pod["status"]["phase"] != "Running");
        let there = pod.is_some();
        let action = moment.random.below(100);
        match action {
            _ if !there && (faithful || !moment.over && action < 70) => self.create(moment),
            _ if !there || faithful => {}
            _ if terminates => self.ask(moment, "patch", json!({"metadata": {"finalizers": null}})),
            0..30 => self.ask(moment, "delete", json!({})),
            30..50 => {
                self.ask(moment, "delete", json!({}));
                self.create(moment);
            }
            50..70 => {
                let phase = if action < 60 { "Succeeded" } else { "Failed" };
                self.ask(moment, "patch", json!({"status": {"phase": phase}}));
            }
            _ if moment.over && !finished => self.ask(moment, "delete", json!({})),
            70..80 => {
                self.ask(moment, "patch", json!({"metadata": {"labels": {"seen": action.to_string()}}}))
            }
            _ => {}
        }
        again
    }

    fn create(&self, moment: &mut Moment<'_>) {
        let mut metadata = json!({"name": self.name});
        if moment.random.percent(30) {
            // It takes its time to terminate.
            metadata["finalizers"] = json!(["example.com/grace"]);
        }
        let target = Target::object(Kind::Pod, NAMESPACE, "");
        let body = json!({"metadata": metadata, "status": {"phase": "Running"}});
        moment.ask("kubelet", "create", target, body);
    }

    fn ask(&self, moment: &mut Moment<'_>, verb: &'static str, body: Value) {
        moment.ask("kubelet", verb, Target::object(Kind::Pod, NAMESPACE, self.name), body);
    }
}

/// The user who makes a lease that follows something.
#[derive(Debug)]
pub(crate) struct Follower {
    name: String,
    /// What it follows if its lease must be there in the end.
    keeps: Option<Value>,
    there: bool,
    renewals: u64,
}

impl Follower {
    /// Those of the leases with these numbers; the first two follow what never fails.
    pub(crate) fn all(first: usize, count: usize, random: &mut Random) -> Vec<Self> {
        let sources = [
            *random.pick(&["coordinationLease heart-0", "node node-0"]),
            // The one before, or the holder that never fails.
            *random.pick(&["pod pod-0", "lease before", "lease held"]),
        ];
        let source = |number: usize| {
            let (kind, name) = sources.get(number)?.split_once(' ')?;
            let name = match name {
                "before" => lease_name(first),
                "held" => lease_name(0),
                name => name.to_owned(),
            };
            Some(json!({kind: {"name": name}}))
        };
        let follower = |number: usize| Self {
            name: lease_name(first + number),
            keeps: source(number),
            there: false,
            renewals: 0,
        };
        (0..count).map(follower).collect()
    }

    /// The store went back to an earlier state, and this lease perhaps with it.
    pub(crate) fn forget(&mut self) {
        self.there = false;
    }

    fn relies_on(&self, source: &str) -> bool {
        let mut sources = self.keeps.iter().filter_map(Value::as_object).flat_map(|from| from.values());
        sources.any(|named| named["name"] == source)
    }

    /// Whether this is what must be there in the end.
    pub(crate) fn keeps(&self, lease: &Value) -> bool {
        self.keeps.is_some() && lease["metadata"]["name"] == *self.name
    }

    /// Does what is next. `leases` may be followed: all that may end.
    pub(crate) fn visit(&mut self, moment: &mut Moment<'_>, leases: &[usize]) -> Visit {
        let again = moment.random.seconds(2, 12);
        let Some(lease) = moment.server.get(Kind::Lease, NAMESPACE, &self.name) else {
            return self.come(moment, leases, again);
        };
        let deleting = lease.pointer("/metadata/deletionTimestamp").is_some();
        let ended = lease.pointer("/status/endTime").is_some();
        let suspended = lease["spec"]["suspend"] == true;
        let released = lease["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if self.keeps.is_some() {
            let what = || format!("lease {} ended though what it follows lives", self.name);
            return Visit { again, problem: ended.then(what) };
        }
        self.renewals += 1;
        let action = moment.random.below(100);
        match action {
            0..30 if ended && !deleting && released => self.ask(moment, "delete", json!({})),
            _ if ended || deleting => {}
            0..50 if suspended => self.change(moment, json!({"suspend": false})),
            _ if suspended && moment.over => self.change(moment, json!({"suspend": false})),
            _ if moment.over => {}
            0..8 => self.change(moment, json!({"renewTime": renew_time(self.renewals)})),
            8..16 => {
                let mut from = json!({"coordinationLease": null, "node": null, "lease": null, "pod": null});
                for (kind, source) in renew_from(moment, leases).as_object().into_iter().flatten() {
                    from[kind] = source.clone();
                }
                self.change(moment, json!({"renewFrom": from}));
            }
            16..18 => self.change(moment, json!({"renewFrom": null})),
            18..20 => self.ask(moment, "delete", json!({})),
            20..23 => self.change(moment, json!({"suspend": true})),
            _ => {}
        }
        Visit::after(again)
    }

    fn come(&mut self, moment: &mut Moment<'_>, leases: &[usize], again: Duration) -> Visit {
        if self.keeps.is_some() && self.there {
            let problem = format!("lease {} went though what it follows lives", self.name);
            return Visit { again, problem: Some(problem) };
        }
        if self.keeps.is_none() && (moment.over || moment.random.percent(40)) {
            return Visit::after(again);
        }
        // A lease that isn't granted yet keeps nothing alive, and its grant may take long.
        if self.keeps.as_ref().is_some_and(|from| !is_granted(moment.server, &from["lease"]["name"])) {
            return Visit::after(again);
        }
        let (ttl, from) = match &self.keeps {
            // A holder renews at a third of its TTL, whatever that becomes.
            Some(from) if from["lease"]["name"] == lease_name(0) => (36, from.clone()),
            Some(from) => (3 * BEAT.as_secs(), from.clone()),
            None => (ttl(moment.random), renew_from(moment, leases)),
        };
        let mut spec = json!({"ttlSeconds": ttl, "renewFrom": from});
        if self.keeps.is_none() && moment.random.percent(10) {
            spec["maxLifetimeSeconds"] = json!(10 + moment.random.below(60));
        }
        if moment.random.percent(20) {
            spec["warnBeforeSeconds"] = json!(3);
        }
        let body = json!({"metadata": {"name": self.name}, "spec": spec});
        moment.ask("holder", "create", Target::object(Kind::Lease, NAMESPACE, ""), body);
        self.there = true;
        Visit::after(again)
    }

    fn change(&self, moment: &mut Moment<'_>, spec: Value) {
        self.ask(moment, "patch", json!({"spec": spec}));
    }

    fn ask(&self, moment: &mut Moment<'_>, verb: &'static str, body: Value) {
        moment.ask("holder", verb, Target::object(Kind::Lease, NAMESPACE, &self.name), body);
    }
}

/// Whether the lease of this name is granted; `true` where no lease is named.
fn is_granted(server: &ApiServer, name: &Value) -> bool {
    let Some(name) = name.as_str() else { return true };
    let lease = server.get(Kind::Lease, NAMESPACE, name);
    lease.is_some_and(|lease| lease.pointer("/status/specGeneration").is_some())
}

/// Something to follow that may fail, or that has never existed.
fn renew_from(moment: &mut Moment<'_>, leases: &[usize]) -> Value {
    let random = &mut *moment.random;
    match random.below(10) {
        0..2 => json!({"coordinationLease": {"name": "heart-1"}}),
        2..4 => json!({"node": {"name": "node-1"}}),
        4..8 => {
            let name = *random.pick(&PODS);
            let on_loss = *random.pick(&["End", "RunOut", "RunOut"]);
            let named = random.percent(30);
            let pod = moment.server.get(Kind::Pod, NAMESPACE, name).filter(|_| named);
            let uid = pod.map(|pod| pod["metadata"]["uid"].clone());
            json!({"pod": {"name": name, "onLoss": on_loss, "uid": uid}})
        }
        _ => json!({"lease": {"name": lease_name(*random.pick(leases))}}),
    }
}
