//! Everybody else: holders that keep leases alive or let them go, and people and programs that edit what is attached.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    random::Random,
    server::{ApiServer, Call, Kind, Target},
};

/// Where most things happen.
pub(crate) const NAMESPACE: &str = "default";
/// Where less happens, and nothing that must be there in the end.
pub(crate) const TEAM: &str = "team";
const OBJECTS: usize = 8;
/// What delays the deletion of some objects, until a client removes it.
const SLOW: &str = "example.com/slow";
const KEYS: [&str; 3] = ["a", "b", "c"];

/// The holder of the lease of one name.
#[derive(Debug)]
pub(crate) struct Holder {
    namespace: &'static str,
    name: String,
    /// It keeps its lease to the end of the world.
    pub(crate) faithful: bool,
    renewals: u64,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    uid: String,
    ttl: u64,
    capped: bool,
    quits_at: Duration,
    quit: bool,
    suspended_until: Option<Duration>,
}

/// What a client did, and when it comes again.
pub(crate) struct Visit {
    pub(crate) again: Duration,
    /// What must not happen, and did.
    pub(crate) problem: Option<String>,
}

impl Visit {
    pub(crate) fn after(again: Duration) -> Self {
        Self { again, problem: None }
    }
}

impl Holder {
    pub(crate) fn new(number: usize, faithful: bool) -> Self {
        Self { namespace: NAMESPACE, name: lease_name(number), faithful, renewals: 0, held: None }
    }

    /// A holder in the second namespace.
    pub(crate) fn of_team(number: usize) -> Self {
        Self { namespace: TEAM, ..Self::new(number, false) }
    }

    /// Whether this is what must be there in the end.
    pub(crate) fn keeps(&self, lease: &Value) -> bool {
        self.faithful && lease["metadata"]["name"] == *self.name
    }

    /// Does what is next. `over`: only the faithful go on.
    pub(crate) fn visit(
        &mut self,
        server: &mut ApiServer,
        random: &mut Random,
        now: Duration,
        time: Timestamp,
        over: bool,
    ) -> Visit {
        let lease = server.get(Kind::Lease, self.namespace, &self.name).cloned();
        let Some(lease) = lease else { return self.come(server, random, now, time, over) };
        let mut call = |verb, body: Value| {
            let user = "holder".to_owned();
            let target = Target::object(Kind::Lease, self.namespace, &self.name);
            server.handle(&Call { user, verb, target, body: Some(body) }, time)
        };
        let Some(held) = &mut self.held else {
            // It came back with the store. Suspended, it would never end.
            if lease["spec"]["suspend"] == true {
                call("patch", json!({"spec": {"suspend": false}}));
            }
            return Visit::after(random.seconds(1, 3));
        };
        let deleting = lease.pointer("/metadata/deletionTimestamp").is_some();
        let ended = lease.pointer("/status/endTime").is_some();
        let released = lease["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if held.quit || deleting || ended {
            if ended && !deleting && released && random.percent(30) {
                // One that was retained: a user has looked at it.
                call("delete", json!({}));
            }
            let lost = ended && !deleting && !held.quit && !held.capped;
            held.quit = true;
            let mut visit = Visit::after(random.seconds(1, 5));
            visit.problem =
                lost.then(|| format!("lease {} ended though its holder never missed a renewal", self.name));
            return visit;
        }
        if let Some(until) = held.suspended_until {
            if now < until && !over {
                return Visit::after(random.seconds(1, 3));
            }
            held.suspended_until = None;
            self.renewals += 1;
            let renewed = json!({"spec": {"suspend": false, "renewTime": renew_time(self.renewals)}});
            call("patch", renewed);
            return Visit::after(Duration::from_secs(1));
        }
        if !self.faithful && (now >= held.quits_at || over) {
            held.quit = true;
            if random.percent(30) {
                call("delete", json!({}));
            }
            return Visit::after(random.seconds(1, 5));
        }
        if !self.faithful && random.percent(4) {
            held.suspended_until = Some(now + random.seconds(3, 40));
            call("patch", json!({"spec": {"suspend": true}}));
            return Visit::after(Duration::from_secs(1));
        }
        self.renewals += 1;
        let mut spec = json!({"renewTime": renew_time(self.renewals)});
        if random.percent(5) {
            held.ttl = ttl(random);
            spec["ttlSeconds"] = json!(held.ttl);
        }
        let (code, answer) = call("patch", json!({"spec": spec}));
        let mut visit = Visit::after(Duration::from_millis(held.ttl * 1000 / 3));
        if code != 200 {
            visit.problem = Some(format!("the renewal of lease {} was answered {code}: {answer}", self.name));
        }
        visit
    }

    fn come(
        &mut self,
        server: &mut ApiServer,
        random: &mut Random,
        now: Duration,
        time: Timestamp,
        over: bool,
    ) -> Visit {
        if let Some(held) = self.held.take()
            && !held.quit
            && !held.capped
        {
            let problem = format!("lease {} went though its holder never missed a renewal", self.name);
            return Visit { again: random.seconds(1, 5), problem: Some(problem) };
        }
        if !self.faithful && (over || random.percent(40)) {
            return Visit::after(random.seconds(1, 10));
        }
        let ttl = if self.faithful { 12 } else { ttl(random) };
        let mut spec = json!({"ttlSeconds": ttl, "holder": self.name});
        let capped = !self.faithful && random.percent(15);
        if capped {
            spec["maxLifetimeSeconds"] = json!(5 + random.below(60));
        }
        if random.percent(20) {
            spec["warnBeforeSeconds"] = json!(3);
        }
        if !self.faithful && random.percent(15) {
            spec["afterExpiry"] = json!("Retain");
        }
        let body = json!({"apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {"name": self.name}, "spec": spec});
        let target = Target::object(Kind::Lease, self.namespace, "");
        let call = Call { user: "holder".to_owned(), verb: "create", target, body: Some(body) };
        let (_, lease) = server.handle(&call, time);
        self.held = Some(Held {
            uid: lease["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            ttl,
            capped,
            quits_at: now + random.seconds(5, 90),
            quit: false,
            suspended_until: None,
        });
        tracing::trace!(lease = self.name, uid = self.held.as_ref().map(|held| &*held.uid), "created");
        Visit::after(Duration::from_millis(ttl * 1000 / 3))
    }

    /// The store went back to an earlier state, and this holder's lease perhaps with it: it begins anew.
    pub(crate) fn forget(&mut self) {
        self.held = None;
    }
}

/// Edits an object of this namespace: it comes, goes, is attached, detached, re-attached, or just changed.
pub(crate) fn edit(
    server: &mut ApiServer,
    random: &mut Random,
    time: Timestamp,
    namespace: &str,
    leases: usize,
) {
    let name = format!("object-{}", random.below(OBJECTS));
    let kind = if random.percent(25) { Kind::Secret } else { Kind::ConfigMap };
    let mut call = |verb, name: &str, body: Value| {
        let user = "other".to_owned();
        let target = Target::object(kind, namespace, name);
        server.handle(&Call { user, verb, target, body: Some(body) }, time)
    };
    let create = |random: &mut Random| {
        let finalizers: &[&str] = if random.percent(15) { &[SLOW] } else { &[] };
        json!({"metadata": {"name": name, "annotations": attachments(random, leases), "finalizers": finalizers},
            "data": {"a": "1", "b": "2", "c": "3"}})
    };
    let action = random.below(10);
    let (code, _) = match action {
        0 => call("delete", &name, json!({})),
        1 => {
            call("delete", &name, json!({}));
            call("create", "", create(random))
        }
        2 | 3 => call("patch", &name, json!({"data": {"b": random.below(1000).to_string()}})),
        4 => call("patch", &name, json!({"metadata": {"annotations": null}})),
        5 => call("patch", &name, json!({"data": {*random.pick(&KEYS): null}})),
        _ => call("patch", &name, json!({"metadata": {"annotations": attachments(random, leases)}})),
    };
    if code == 404 {
        call("create", "", create(random));
    }
}

/// Removes the finalizers of some objects that are being deleted.
pub(crate) fn let_go(server: &mut ApiServer, random: &mut Random, time: Timestamp) {
    let objects = [Kind::ConfigMap, Kind::Secret]
        .map(|kind| server.list(kind, "", None).into_iter().map(move |object| (kind, object)));
    for (kind, object) in objects.into_iter().flatten() {
        let meta = &object["metadata"];
        let has_finalizer = meta["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        if has_finalizer && meta["deletionTimestamp"].is_string() && random.percent(40) {
            let text = |member: &str| meta[member].as_str().unwrap_or_default();
            let target = Target::object(kind, text("namespace"), text("name"));
            let body = Some(json!({"metadata": {"finalizers": null}}));
            server.handle(&Call { user: "other".to_owned(), verb: "patch", target, body }, time);
        }
    }
}

/// Grants so many leases in this namespace, which nothing renews, and attaches an object to each.
pub(crate) fn grant_many(
    server: &mut ApiServer,
    random: &mut Random,
    time: Timestamp,
    namespace: &str,
    count: usize,
) {
    for number in 0..count {
        let name = format!("crowd-{number}");
        let ttl = if namespace == TEAM { 6 + random.below(10) } else { 20 + random.below(20) };
        let lease = json!({"metadata": {"name": name}, "spec": {"ttlSeconds": ttl}});
        let annotation = if random.percent(70) { "lessor.dev/lease" } else { "key.lessor.dev/a" };
        let object =
            json!({"metadata": {"name": name, "annotations": {annotation: name}}, "data": {"a": "1"}});
        for (kind, body) in [(Kind::Lease, lease), (Kind::ConfigMap, object)] {
            let target = Target::object(kind, namespace, "");
            server
                .handle(&Call { user: "holder".to_owned(), verb: "create", target, body: Some(body) }, time);
        }
    }
}

fn attachments(random: &mut Random, leases: usize) -> Value {
    let mut annotations = json!({"example.com/other": "stays"});
    let lease = |random: &mut Random| json!(lease_name(random.below(leases)));
    match random.below(6) {
        0 | 1 => annotations["lessor.dev/lease"] = lease(random),
        2 | 3 => {
            for key in KEYS.iter().take(1 + random.below(KEYS.len())) {
                annotations[format!("key.lessor.dev/{key}")] = lease(random);
            }
        }
        4 => annotations["lessor.dev/keys"] = json!(json!({*random.pick(&KEYS): lease(random)}).to_string()),
        _ => {
            annotations["lessor.dev/lease"] = lease(random);
            annotations["key.lessor.dev/a"] = lease(random);
        }
    }
    annotations
}

pub(crate) fn lease_name(number: usize) -> String {
    format!("lease-{number}")
}

pub(crate) fn ttl(random: &mut Random) -> u64 {
    6 + random.below(25) as u64
}

pub(crate) fn renew_time(number: u64) -> String {
    format!("2026-01-31T12:{:02}:{:02}.{:06}Z", number / 60 % 60, number % 60, number)
}
