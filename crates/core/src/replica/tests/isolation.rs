//! What is stuck delays nothing else, and is retried rarely.

use std::collections::BTreeMap;

use super::*;

/// How long the server takes.
const LATENCY: Duration = Duration::from_millis(5);

/// What the server does with a request.
enum Reply {
    Done,
    Refused(RequestError),
    /// Nothing, until the request's time is over.
    Hangs,
}

/// A replica and a server in virtual time.
struct World {
    replica: Replica,
    mono: Duration,
    heard: Duration,
    version: u64,
    lessor: Value,
    leases: BTreeMap<String, Value>,
    maps: BTreeMap<String, Value>,
    /// What is answered, when.
    answers: BTreeMap<(Duration, Ticket), Request>,
    /// All requests, with the times at which they were sent.
    sent: Vec<(Duration, Request)>,
    replies: Box<dyn FnMut(&Request) -> Reply>,
    /// A field of the status of leases that it doesn't keep.
    drops: Option<&'static str>,
    user_events: Vec<UserEvent>,
}

fn lease_id(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.as_object_mut().and_then(|target| target.remove(key))),
            value => merge(&mut target[key], value),
        }
    }
}

impl World {
    fn new(settings: Settings, primary: Option<&str>) -> Self {
        let mut world = Self {
            replica: Replica::new(settings),
            mono: Duration::ZERO,
            heard: Duration::ZERO,
            version: 10,
            lessor: json!({
                "apiVersion": "lessor.dev/v1alpha1", "kind": "Lessor",
                "metadata": {"name": "default", "uid": UID, "resourceVersion": "1"},
                "status": {"primary": primary, "term": 1},
            }),
            leases: BTreeMap::new(),
            maps: BTreeMap::new(),
            answers: BTreeMap::new(),
            sent: Vec::new(),
            replies: Box::new(|_| Reply::Done),
            drops: None,
            user_events: Vec::new(),
        };
        let lessor = serde_json::from_value(world.lessor.clone()).expect("a lessor");
        world.observe(Observation::Lessor(Event::Applied(Box::new(lessor))));
        world.observe(Observation::Lessor(Event::Synced([NamespacedName::new("", "default")].into())));
        world
    }

    fn settings() -> Settings {
        Settings { identity: ME.to_owned(), min_ttl: Duration::from_secs(1), ..Settings::default() }
    }

    /// All there is was listed.
    fn synced(&mut self) {
        let maps = self.maps.keys().map(|id| name_of(id)).collect();
        let leases = self.leases.keys().map(|id| name_of(id)).collect();
        self.observe(Observation::Object(Arc::new(Kind::config_map()), None, Event::Synced(maps)));
        self.observe(Observation::Lease(None, Event::Synced(leases)));
    }

    fn now(&self) -> Now {
        let wall = Timestamp::from_second(1_800_000_000).expect("a time") + self.mono;
        Now {
            mono: self.mono,
            lease: LeaseTime::from_duration(self.mono),
            wall,
            server: Some(wall),
            since_last_response: self.mono - self.heard,
            disconnected: false,
        }
    }

    fn observe(&mut self, observation: Observation) {
        self.heard = self.mono;
        self.replica.observe(observation, &self.now());
        self.poll();
    }

    fn poll(&mut self) {
        let output = self.replica.poll(&self.now());
        self.answers.retain(|(_, ticket), _| !output.cancelled.contains(ticket));
        self.user_events.extend(output.user_events);
        for (ticket, request, by) in output.requests {
            let hangs = matches!((self.replies)(&request), Reply::Hangs);
            let at = if hangs { by } else { (self.mono + LATENCY).min(by) };
            self.sent.push((self.mono, request.clone()));
            self.answers.insert((at, ticket), request);
        }
    }

    /// Lets time pass.
    fn pass(&mut self, millis: u64) {
        let until = self.mono + Duration::from_millis(millis);
        loop {
            let wakes = self.replica.wake_at(&self.now());
            let answers = self.answers.first_key_value().map(|((at, _), _)| *at);
            let Some(at) = wakes.into_iter().chain(answers).min().filter(|at| *at <= until) else { break };
            self.mono = self.mono.max(at);
            if answers.is_some_and(|at| at <= self.mono)
                && let Some(((_, ticket), request)) = self.answers.pop_first()
            {
                self.answer(ticket, &request);
            }
            self.poll();
        }
        self.mono = until;
        self.poll();
    }

    fn answer(&mut self, ticket: Ticket, request: &Request) {
        let response = match (self.replies)(request) {
            Reply::Hangs => Response::Refused(RequestError::NoAnswer("none".to_owned())),
            Reply::Refused(error) => Response::Refused(error),
            Reply::Done => self.carry_out(request),
        };
        if !matches!(response, Response::Refused(RequestError::NoAnswer(_))) {
            self.heard = self.mono;
        }
        self.replica.answer(ticket, response, &self.now());
    }

    fn carry_out(&mut self, request: &Request) -> Response {
        self.version += 1;
        let version = self.version.to_string();
        let lessor = |lessor: &Value| {
            Response::Lessor(Box::new(serde_json::from_value(lessor.clone()).expect("a lessor")))
        };
        match request {
            Request::ReadLessor | Request::CreateLessor => lessor(&self.lessor),
            Request::WriteLessor { status, .. } => {
                merge(&mut self.lessor["status"], status);
                self.lessor["metadata"]["resourceVersion"] = json!(version);
                lessor(&self.lessor)
            }
            Request::ReadLease { lease } => match self.leases.get(&lease_id(&lease.namespace, &lease.name)) {
                Some(lease) => Response::Lease(lease_of(lease)),
                None => Response::Gone,
            },
            Request::WriteStatus { lease, status, .. } => {
                let Some(lease) = self.leases.get_mut(&lease_id(&lease.namespace, &lease.name)) else {
                    return Response::Gone;
                };
                merge(&mut lease["status"], status);
                if let (Some(field), Some(status)) = (self.drops, lease["status"].as_object_mut()) {
                    status.remove(field);
                }
                lease["metadata"]["resourceVersion"] = json!(version);
                Response::Lease(lease_of(lease))
            }
            Request::SetFinalizers { lease, finalizers, .. } => {
                let Some(lease) = self.leases.get_mut(&lease_id(&lease.namespace, &lease.name)) else {
                    return Response::Gone;
                };
                lease["metadata"]["finalizers"] = json!(finalizers);
                lease["metadata"]["resourceVersion"] = json!(version);
                Response::Lease(lease_of(lease))
            }
            Request::DeleteLease { lease, .. } => {
                self.leases.remove(&lease_id(&lease.namespace, &lease.name));
                Response::Deleted
            }
            Request::ReadSource { .. } => panic!("nothing follows"),
            Request::ReadObject { object } => {
                match self.maps.get(&lease_id(&object.name.namespace, &object.name.name)) {
                    Some(map) => {
                        Response::Object(Box::new(serde_json::from_value(map.clone()).expect("metadata")))
                    }
                    None => Response::Gone,
                }
            }
            Request::Remove { object, .. } => {
                self.maps.remove(&lease_id(&object.name.namespace, &object.name.name));
                Response::Deleted
            }
        }
    }

    /// Shows the `index`th lease of a namespace, granted now for so many seconds.
    fn lease(&mut self, namespace: &str, index: u128, ttl: i64, change: impl FnOnce(&mut Value)) {
        self.version += 1;
        let mut lease = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {
                "namespace": namespace, "name": format!("lease-{index}"),
                "uid": Uuid::from_u128(hash_of(namespace) as u128 + (index << 64)).to_string(),
                "generation": 1, "resourceVersion": self.version.to_string(), "finalizers": ["lessor.dev/revoke"],
            },
            "spec": {"ttlSeconds": ttl},
        });
        let granted = self.now().wall;
        granted_for(&mut lease, ttl, granted);
        change(&mut lease);
        let id = lease_id(namespace, &format!("lease-{index}"));
        self.leases.insert(id, lease.clone());
        self.observe(Observation::Lease(None, Event::Applied(lease_of(&lease))));
    }

    fn map(&mut self, namespace: &str, name: &str, lease: &str) {
        self.version += 1;
        let map = json!({
            "namespace": namespace, "name": name, "uid": UID, "resourceVersion": self.version.to_string(),
            "annotations": {"lessor.dev/lease": lease},
        });
        self.maps.insert(lease_id(namespace, name), map.clone());
        let meta = serde_json::from_value(map).expect("metadata");
        self.observe(Observation::Object(Arc::new(Kind::config_map()), None, Event::Applied(Box::new(meta))));
    }

    /// When this lease ended, if it did.
    fn ended(&self, namespace: &str, index: u128) -> Option<Duration> {
        let name = format!("lease-{index}");
        let ends = |request: &Request| match request {
            Request::WriteStatus { lease, status, .. } => {
                *lease.namespace == *namespace && *lease.name == *name && status["endTime"].is_string()
            }
            _ => false,
        };
        self.sent.iter().find(|(_, request)| ends(request)).map(|(at, _)| *at)
    }

    /// How many requests were sent since then.
    fn requests_since(&self, since: Duration) -> usize {
        self.sent.iter().filter(|(at, _)| *at >= since).count()
    }
}

fn name_of(id: &str) -> NamespacedName {
    let (namespace, name) = id.split_once('/').expect("an id");
    NamespacedName::new(namespace, name)
}

fn lease_of(lease: &Value) -> Box<Lease> {
    Box::new(serde_json::from_value(lease.clone()).expect("a lease"))
}

fn granted_for(lease: &mut Value, ttl: i64, at: Timestamp) {
    let expiry = at + Duration::from_secs(ttl.unsigned_abs());
    lease["status"] = json!({
        "specGeneration": 1, "grantedTTLSeconds": ttl, "fencingToken": 5, "term": 1, "primary": ME,
        "grantTime": format!("{at:.6}"), "expiryTime": format!("{expiry:.6}"),
        "attached": {"objects": 0, "keys": 0},
        "conditions": [{"type": "Active", "status": "True", "reason": "Granted", "message": "",
            "lastTransitionTime": "2027-01-15T08:00:00Z"}],
    });
}

fn ended_by(primary: &'static str) -> impl Fn(&mut Value) {
    move |lease: &mut Value| {
        lease["status"]["primary"] = json!(primary);
        lease["status"]["endTime"] = json!("2027-01-15T08:00:10.000000Z");
        lease["status"]["conditions"][0]["reason"] = json!("Expired");
    }
}

/// Whether this request writes to a lease in this namespace.
fn writes_in(request: &Request, namespace: &str) -> bool {
    !matches!(request, Request::ReadLease { .. })
        && request.lease().is_some_and(|lease| *lease.namespace == *namespace)
}

fn primary() -> World {
    let mut world = World::new(World::settings(), None);
    world.synced();
    world.pass(1_000);
    assert!(world.replica.leads().is_some());
    world
}

/// A replica that follows another.
fn follower(settings: Settings) -> World {
    World::new(settings, Some("other_1"))
}

const MANY: u128 = 10_000;
/// What a lease gets that was granted already when it is first observed.
const FOUND: Duration = Duration::from_secs(3);
/// What a primary gets before others take over.
const HEAD_START: Duration = Duration::from_millis(2_500);

#[test]
fn writes_that_hang_in_one_namespace_delay_no_lease_in_another() {
    let mut world = primary();
    world.replies = Box::new(|request| if writes_in(request, "stuck") { Reply::Hangs } else { Reply::Done });
    for index in 0..MANY {
        world.lease("stuck", index, 10, |_| {});
    }
    for index in 0..50 {
        world.lease("shop", index, 11 + index as i64, |_| {});
    }
    let granted = world.mono;
    world.pass(65_000);
    for index in 0..50_u64 {
        let late = world.ended("shop", index.into()).expect("it has ended")
            - granted
            - FOUND
            - Duration::from_secs(11 + index);
        assert!(late <= Duration::from_secs(1), "lease {index} was {late:?} late");
    }
}

#[test]
fn what_hangs_when_a_replica_takes_over_delays_no_lease_in_another_namespace() {
    let mut world = follower(World::settings());
    world.synced();
    world.replies = Box::new(|request| if writes_in(request, "stuck") { Reply::Hangs } else { Reply::Done });
    for index in 0..MANY {
        world.lease("stuck", index, 10, |lease| lease["status"]["primary"] = json!("other_1"));
    }
    world.lease("shop", 0, 40, |lease| lease["status"]["primary"] = json!("other_1"));
    let granted = world.mono;
    // The primary lives, and can't end them.
    while world.mono < granted + Duration::from_secs(39) {
        world.version += 1;
        world.lessor["metadata"]["resourceVersion"] = json!(world.version.to_string());
        world.lessor["status"] = json!({
            "primary": "other_1", "term": 1, "provedTime": format!("{:.6}", world.now().wall), "overdue": MANY,
        });
        let lessor = serde_json::from_value(world.lessor.clone()).expect("a lessor");
        world.observe(Observation::Lessor(Event::Applied(Box::new(lessor))));
        world.pass(1_000);
    }
    assert_eq!(world.replica.leads(), None);
    world.pass(12_000);
    let late = world.ended("shop", 0).expect("it has ended") - granted - FOUND - Duration::from_secs(40);
    assert!(late <= Duration::from_secs(6), "{late:?} late");
}

/// Whether this writes the status of one of the first [`MANY`] leases.
fn writes_to_one_of_many(request: &Request) -> bool {
    let index = |name: &str| name.strip_prefix("lease-").and_then(|index| index.parse::<u128>().ok());
    matches!(request, Request::WriteStatus { lease, .. } if index(&lease.name).is_some_and(|index| index < MANY))
}

#[test]
fn what_the_primary_of_before_could_not_do_delays_no_lease_of_that_namespace_after_a_takeover() {
    for (granted, ttl) in [(true, 40), (false, 2)] {
        let mut world = follower(World::settings());
        world.synced();
        world.pass(60_000);
        world.replies = Box::new(|request| {
            let refused = RequestError::Forbidden("a policy denies it".to_owned());
            if writes_to_one_of_many(request) { Reply::Refused(refused) } else { Reply::Done }
        });
        for index in 0..MANY {
            world.lease("shop", index, 10, |lease| {
                lease["status"]["primary"] = json!("other_1");
                if !granted {
                    lease["status"].take();
                }
            });
        }
        let mut well = Vec::new();
        for index in MANY..MANY + 100 {
            world.lease("shop", index, ttl, |lease| lease["status"]["primary"] = json!("other_1"));
            well.push((index, world.mono + FOUND + Duration::from_secs(ttl.unsigned_abs())));
            world.pass(100);
        }
        // The primary lives, and fails to write to them.
        while granted && world.mono < Duration::from_secs(99) {
            world.version += 1;
            world.lessor["metadata"]["resourceVersion"] = json!(world.version.to_string());
            world.lessor["status"] = json!({
                "primary": "other_1", "term": 1, "provedTime": format!("{:.6}", world.now().wall), "overdue": MANY,
            });
            let lessor = serde_json::from_value(world.lessor.clone()).expect("a lessor");
            world.observe(Observation::Lessor(Event::Applied(Box::new(lessor))));
            world.pass(1_000);
        }
        world.pass(30_000);
        let led = world.sent.iter().find(|(_, request)| matches!(request, Request::WriteStatus { .. }));
        let (led, _) = led.expect("it leads");
        let late = well.into_iter().map(|(index, due)| {
            let ended = world.ended("shop", index).expect("it has ended");
            ended.saturating_sub(due.max(*led))
        });
        let latest = late.max().expect("a hundred");
        assert!(latest <= Duration::from_millis(100), "granted: {granted}, {latest:?} late");
    }
}

#[test]
fn leases_that_a_follower_can_not_read_keep_it_from_no_takeover() {
    for hangs in [false, true] {
        let mut world = follower(World::settings());
        world.synced();
        world.replies = Box::new(move |request| match request {
            Request::ReadLease { lease } if *lease.namespace == *"stuck" && hangs => Reply::Hangs,
            Request::ReadLease { lease } if *lease.namespace == *"stuck" => Reply::Refused(
                RequestError::Forbidden("leases is forbidden: User \"x\" cannot get".to_owned()),
            ),
            _ => Reply::Done,
        });
        for index in 0..if hangs { MANY / 10 } else { MANY } {
            world.lease("stuck", index, 10, |lease| lease["status"]["primary"] = json!("other_1"));
        }
        world.lease("shop", 0, 12, |lease| lease["status"]["primary"] = json!("other_1"));
        let granted = world.mono;
        world.pass(25_000);
        let late = world.ended("shop", 0).expect("it has ended") - granted - FOUND - Duration::from_secs(12);
        assert!(late <= HEAD_START + Duration::from_millis(1_500), "hangs: {hangs}, {late:?} late");
    }
}

#[test]
fn writes_that_are_refused_are_retried_twice_a_second_at_most_however_many_there_are() {
    let mut world = primary();
    world.replies = Box::new(|request| {
        if writes_in(request, "stuck") {
            Reply::Refused(RequestError::Forbidden("a policy denies it".to_owned()))
        } else {
            Reply::Done
        }
    });
    for index in 0..1_000 {
        world.lease("stuck", index, 10, |_| {});
    }
    world.pass(60_000);
    let since = world.mono;
    world.pass(60_000);
    let sent = world.requests_since(since);
    assert!((1..=120).contains(&sent), "{sent} requests in a minute");
    // One that is well isn't delayed by them, not even in their namespace.
    world.replies = Box::new(|request| match request {
        Request::WriteStatus { lease, .. }
            if &*lease.name != "lease-2000" && *lease.namespace == *"stuck" =>
        {
            Reply::Refused(RequestError::Forbidden("a policy denies it".to_owned()))
        }
        _ => Reply::Done,
    });
    world.lease("stuck", 2_000, 10, |_| {});
    let granted = world.mono;
    world.pass(15_000);
    let late = world.ended("stuck", 2_000).expect("it has ended") - granted - FOUND - Duration::from_secs(10);
    assert!(late <= Duration::from_secs(1), "{late:?} late");
}

#[test]
fn what_was_refused_is_done_soon_once_it_is_allowed() {
    let mut world = primary();
    world.replies = Box::new(|request| {
        if writes_in(request, "stuck") {
            Reply::Refused(RequestError::Forbidden("a policy denies it".to_owned()))
        } else {
            Reply::Done
        }
    });
    for index in 0..200 {
        world.lease("stuck", index, 10, |_| {});
    }
    world.pass(300_000);
    world.replies = Box::new(|_| Reply::Done);
    world.pass(65_000);
    assert!((0..200).all(|index| world.ended("stuck", index).is_some()));
}

#[test]
fn a_new_primary_writes_to_what_was_hindered_before_rarely_and_to_what_is_well_first() {
    let mut world = follower(World::settings());
    let hindered = |lease: &mut Value| {
        ended_by("other_1")(lease);
        lease["status"]["conditions"].as_array_mut().expect("conditions").push(json!({
            "type": "Released", "status": "False", "reason": "Retrying", "message": "denied",
            "lastTransitionTime": "2027-01-15T08:00:00Z",
        }));
    };
    for index in 0..5_000 {
        world.map("stuck", &format!("map-{index}"), &format!("lease-{index}"));
        world.lease("stuck", index, 10, hindered);
    }
    world.map("stuck", "well", "lease-6000");
    // It was there when that was granted.
    world.lease("stuck", 6_000, 20, |lease| lease["status"] = Value::Null);
    world.lease("stuck", 6_000, 20, |lease| lease["status"]["primary"] = json!("other_1"));
    let granted = world.mono;
    world.synced();
    world.replies = Box::new(|request| match request {
        Request::Remove { object, .. } if &*object.name.name != "well" => {
            Reply::Refused(RequestError::Forbidden("a policy denies it".to_owned()))
        }
        _ => Reply::Done,
    });
    world.pass(40_000);
    assert!(world.replica.leads().is_some());
    let late = world.ended("stuck", 6_000).expect("it has ended") - granted - Duration::from_secs(20);
    assert!(late <= HEAD_START + Duration::from_secs(1), "{late:?} late");
    assert!(!world.maps.contains_key("stuck/well"), "its object is still there");
    let since = world.mono;
    world.pass(60_000);
    let sent = world.requests_since(since);
    assert!(sent <= 120, "{sent} requests in a minute");
    // The policy goes.
    world.replies = Box::new(|_| Reply::Done);
    world.pass(120_000);
    assert!(world.maps.is_empty(), "{} are still there", world.maps.len());
}

#[test]
fn a_status_that_the_server_does_not_keep_is_written_rarely_and_reported_once() {
    let mut world = primary();
    // The installed definition is an older one.
    world.drops = Some("remainingSeconds");
    world.lease("shop", 0, 600, |lease| lease["spec"]["suspend"] = json!(true));
    world.pass(60_000);
    let writes = world.sent.iter().filter(|(_, request)| writes_in(request, "shop")).count();
    assert!((4..=15).contains(&writes), "{writes} writes in a minute");
    let reports = world.user_events.iter().filter(|event| event.reason == "StatusNotKept").count();
    assert_eq!(reports, 1);
}

/// A replica of two namespaces, in which what there is of ConfigMaps was listed.
fn replica_of_two_namespaces() -> World {
    let namespaces = vec!["lost".to_owned(), "shop".to_owned()];
    let mut world = World::new(Settings { namespaces, ..World::settings() }, None);
    for scope in ["lost", "shop"] {
        let synced = Event::Synced(Default::default());
        world.observe(Observation::Object(Arc::new(Kind::config_map()), Some(scope.into()), synced));
    }
    world
}

fn forbidden() -> Failure {
    Failure::Forbidden("leases is forbidden: User \"x\" cannot list".to_owned())
}

#[test]
fn a_namespace_that_can_not_be_read_keeps_no_other_from_being_served() {
    let mut world = replica_of_two_namespaces();
    world.observe(Observation::Lease(Some("lost".into()), Event::Failing(forbidden())));
    assert!(!world.replica.is_ready());
    world.observe(Observation::Lease(Some("shop".into()), Event::Synced(Default::default())));
    assert!(world.replica.is_ready(), "{:?}", world.replica.missing());
    let unserved: Vec<String> = world.replica.unserved().map(|(_, what)| what).collect();
    assert_eq!(
        unserved,
        ["leases.lessor.dev in lost can't be watched: leases is forbidden: User \"x\" cannot list"]
    );
    world.pass(1_000);
    world.lease("shop", 0, 10, |lease| lease["status"] = json!({}));
    world.pass(1_000);
    assert!(world.leases["shop/lease-0"]["status"]["grantTime"].is_string(), "not granted");
    // It can be read again.
    world.observe(Observation::Lease(Some("lost".into()), Event::Synced(Default::default())));
    assert_eq!(world.replica.unserved().count(), 0);
    world.lease("lost", 0, 10, |lease| lease["status"] = json!({}));
    world.pass(1_000);
    assert!(world.leases["lost/lease-0"]["status"]["grantTime"].is_string(), "not granted");
}

#[test]
fn a_replica_that_can_read_no_namespace_is_not_ready_and_says_why() {
    let mut world = replica_of_two_namespaces();
    for scope in ["lost", "shop"] {
        world.observe(Observation::Lease(Some(scope.into()), Event::Failing(forbidden())));
    }
    assert!(!world.replica.is_ready());
    let missing = world.replica.missing().join("; ");
    assert!(missing.contains("leases.lessor.dev in lost can't be watched: leases is forbidden"), "{missing}");
}

#[test]
fn too_many_requests_for_one_object_delay_no_other_and_not_for_longer_than_a_minute() {
    let mut world = primary();
    world.replies = Box::new(|request| match request {
        Request::Remove { .. } => Reply::Refused(RequestError::Throttled(Some(Duration::from_secs(600)))),
        _ => Reply::Done,
    });
    world.map("stuck", "map", "lease-0");
    world.lease("stuck", 0, 10, ended_by(ME));
    world.pass(100);
    let since = world.mono;
    world.lease("shop", 0, 10, |lease| lease["status"] = json!({}));
    world.pass(100);
    assert!(world.leases["shop/lease-0"]["status"]["grantTime"].is_string(), "not granted");
    world.replies = Box::new(|_| Reply::Done);
    world.pass(58_000);
    assert!(world.maps.contains_key("stuck/map"), "the wait is not obeyed");
    world.pass(5_000);
    assert!(!world.maps.contains_key("stuck/map"), "still there after {:?}", world.mono - since);
}

#[test]
fn too_many_requests_for_leases_delay_them_for_less_than_half_a_lease_duration() {
    let mut world = primary();
    world.replies = Box::new(|_| Reply::Refused(RequestError::Throttled(Some(Duration::from_secs(600)))));
    world.lease("shop", 0, 10, |lease| lease["status"] = json!({}));
    world.pass(100);
    world.replies = Box::new(|_| Reply::Done);
    world.pass(2_000);
    assert!(world.leases["shop/lease-0"]["status"]["grantTime"].is_string(), "not granted");
}

#[test]
fn a_webhook_that_throttles_one_lease_delays_no_other() {
    let mut world = primary();
    world.replies = Box::new(|request| {
        if writes_in(request, "stuck") {
            Reply::Refused(RequestError::Deferred(Some(Duration::from_secs(600))))
        } else {
            Reply::Done
        }
    });
    world.lease("stuck", 0, 10, |lease| lease["status"] = json!({}));
    world.pass(10);
    world.lease("shop", 0, 10, |lease| lease["status"] = json!({}));
    world.pass(100);
    assert!(world.leases["shop/lease-0"]["status"]["grantTime"].is_string(), "not granted");
    let since = world.mono;
    world.pass(59_000);
    let writes = world.sent.iter().filter(|(at, request)| *at > since && writes_in(request, "stuck")).count();
    assert_eq!(writes, 0, "the wait is not obeyed");
    world.replies = Box::new(|_| Reply::Done);
    world.pass(5_000);
    assert!(world.leases["stuck/lease-0"]["status"]["grantTime"].is_string(), "not granted");
}

#[test]
fn objects_that_a_policy_protects_are_retried_rarely_whatever_else_goes() {
    let mut world = primary();
    world.replies = Box::new(|request| match request {
        Request::Remove { object, .. } if object.name.name.starts_with("kept") => Reply::Refused(
            RequestError::Forbidden("ValidatingAdmissionPolicy 'keep' denied request: no".to_owned()),
        ),
        _ => Reply::Done,
    });
    for index in 0..200 {
        world.map("shop", &format!("kept-{index}"), "lease-0");
    }
    world.lease("shop", 0, 10, ended_by(ME));
    world.pass(10_000);
    let since = world.mono;
    for index in 1..=60 {
        world.map("shop", &format!("goes-{index}"), &format!("lease-{index}"));
        world.lease("shop", index, 10, ended_by(ME));
        world.pass(1_000);
        assert!(!world.maps.contains_key(&format!("shop/goes-{index}")), "{index} is still there");
    }
    let is_retry = |request: &Request| matches!(request, Request::Remove { object, .. } if object.name.name.starts_with("kept"));
    let retries = world.sent.iter().filter(|(at, request)| *at > since && is_retry(request)).count();
    assert!((1..=120).contains(&retries), "{retries} retries in a minute");
    // No right is missing.
    let conditions = |request: &Request| matches!(request, Request::WriteLessor { status, .. } if !status["conditions"].is_null());
    assert!(!world.sent.iter().any(|(_, request)| conditions(request)));
}

#[test]
fn a_right_that_is_given_again_is_used_soon_for_all_objects() {
    let mut world = primary();
    world.replies = Box::new(|request| match request {
        Request::Remove { .. } => Reply::Refused(RequestError::Forbidden(
            "configmaps \"x\" is forbidden: User \"lessor\" cannot delete resource".to_owned(),
        )),
        _ => Reply::Done,
    });
    for index in 0..200 {
        world.map("shop", &format!("map-{index}"), "lease-0");
    }
    world.lease("shop", 0, 10, ended_by(ME));
    world.pass(120_000);
    let conditions = |request: &&(Duration, Request)| matches!(&request.1, Request::WriteLessor { status, .. } if !status["conditions"].is_null());
    assert_eq!(world.sent.iter().filter(conditions).count(), 1, "the condition changes all the time");
    world.replies = Box::new(|_| Reply::Done);
    world.pass(10_000);
    assert!(world.maps.is_empty(), "{} are still there", world.maps.len());
}

#[test]
fn a_warning_that_begins_at_once_costs_no_writes_for_renewals() {
    let mut world = primary();
    world.lease("shop", 0, 30, |lease| lease["spec"]["warnBeforeSeconds"] = json!(29));
    world.pass(5_000);
    let since = world.mono;
    for renewal in 0..24 {
        let lease = world.leases.get_mut("shop/lease-0").expect("a lease");
        world.version += 1;
        lease["metadata"]["resourceVersion"] = json!(world.version.to_string());
        lease["spec"]["renewTime"] = json!(format!("2027-01-15T08:{:02}:{:02}Z", renewal / 60, renewal % 60));
        let lease = lease_of(lease);
        world.observe(Observation::Lease(None, Event::Applied(lease)));
        world.pass(10_000);
    }
    let writes = world.sent.iter().filter(|(at, request)| *at > since && writes_in(request, "shop")).count();
    // The expiry is published anew within half a TTL anyway.
    assert!(writes <= 240 / 15 + 2, "{writes} writes for 24 renewals");
}

/// Answers all that is asked for so many tenths of a second. The removal of keys of the map `shared` that are `kept` is refused; the
/// others go from what is `left` of its annotations; `watch_first`: the watch shows that before the response. Returns how many removals were tried, and how many of them refused.
fn remove_keys(
    play: &mut Play,
    left: &mut BTreeMap<String, &str>,
    kept: &[&str],
    tenths: u32,
    watch_first: bool,
) -> (usize, usize) {
    let (mut tried, mut refused) = (0, 0);
    for _ in 0..tenths {
        for (ticket, request) in play.asked.clone() {
            let answer = match request {
                Request::Remove { removal: Removal::Keys { keys, .. }, .. } => {
                    tried += 1;
                    if let Some(key) = keys.iter().find(|key| kept.contains(&key.as_str())) {
                        refused += 1;
                        let message = format!("data[{}]: Required value", key.as_str());
                        Response::Refused(RequestError::Invalid(message))
                    } else {
                        left.retain(|name, _| {
                            !keys.iter().any(|key| name.ends_with(&format!("/{}", key.as_str())))
                        });
                        let meta = Box::new(play.meta("shared", json!(left)));
                        if watch_first {
                            let kind = Arc::new(Kind::config_map());
                            play.observe(Observation::Object(kind, None, Event::Applied(meta.clone())));
                        }
                        Response::Object(meta)
                    }
                }
                Request::WriteStatus { status, .. } => {
                    let conditions = status["conditions"].clone();
                    Response::Lease(play.lease(|lease| {
                        ended(lease);
                        lease["status"]["conditions"] = conditions;
                    }))
                }
                Request::WriteLessor { .. } => {
                    Response::Lessor(Box::new(play.lessor(json!({"primary": ME, "term": 1}))))
                }
                _ if left.is_empty() => continue,
                request => panic!("{request:?}"),
            };
            play.answer(ticket, answer);
        }
        play.pass(100);
    }
    (tried, refused)
}

const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// A primary of an ended lease, and the annotations of a map that has eight keys attached to it.
fn eight_keys() -> (Play, BTreeMap<String, &'static str>) {
    let mut play = Play::primary();
    let left: BTreeMap<String, &str> =
        KEYS.iter().map(|key| (format!("key.lessor.dev/{key}"), "cart")).collect();
    play.see_map("shared", json!(left));
    play.see_lease(ended);
    (play, left)
}

#[test]
fn keys_that_can_be_removed_go_though_another_of_the_same_object_can_not() {
    let (mut play, mut left) = eight_keys();
    let (tried, refused) = remove_keys(&mut play, &mut left, &["c"], 300, false);
    assert_eq!(left.keys().collect::<Vec<_>>(), ["key.lessor.dev/c"]);
    assert!(refused <= 9 && tried <= 20, "{tried} tries, {refused} of them refused");
    let hindered = play.user_events.iter().find(|event| event.reason == "Hindered").expect("it is reported");
    assert!(hindered.note.contains("key c: the API server refuses: data[c]"), "{}", hindered.note);
}

#[test]
fn once_one_of_the_keys_that_were_refused_can_be_removed_the_others_of_its_object_are_tried() {
    for watch_first in [false, true] {
        let (mut play, mut left) = eight_keys();
        remove_keys(&mut play, &mut left, &KEYS, 3_000, watch_first);
        assert_eq!(left.len(), KEYS.len());
        let (tried, _) = remove_keys(&mut play, &mut left, &[], 650, watch_first);
        assert!(left.is_empty(), "left after a minute: {left:?}");
        assert!(tried <= KEYS.len(), "{tried} tries");
    }
}
