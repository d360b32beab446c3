//! Sessions that contend for one lock of a simulated server, in simulated time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future;
use http::{Request, Response};
use kube::{Client, client::Body};
use parking_lot::Mutex as Shared;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tower::service_fn;

use super::{object::object_name, *};
use crate::{client::LeaseClient, error::Error, keep_alive::KeepAliveOptions};

const SECOND: Duration = Duration::from_secs(1);
const LEASES: &str = "/apis/lessor.dev/v1alpha1/namespaces/default/leases";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[test]
fn the_name_of_the_object_follows_from_the_name_of_the_lock() {
    assert_eq!(object_name("reports"), "lock.reports");
    assert_eq!(object_name("a.b-c.9"), "lock.a.b-c.9");
    assert_eq!(object_name(&"x".repeat(248)).len(), 253);
    for name in ["", "Reports", "a..b", "-a", "a-", "/jobs/reports/", "a\n", &"x".repeat(249)] {
        let object = object_name(name);
        let digits = object.strip_prefix("lock-sha256.").unwrap();
        assert!(digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{object}");
    }
    // The SHA-256 of no bytes at all.
    assert!(object_name("").ends_with("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
}

/// A server with leases and ConfigMaps. What is attached to a lease goes when its time is over.
#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    deadlines: BTreeMap<String, Instant>,
    deleted: Vec<(u64, Value)>,
    version: u64,
    /// What happens to the next requests of a method.
    fates: Vec<(&'static str, Fate)>,
    /// Whether anything may happen to a request.
    is_rough: bool,
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Completed,
    ResponseLost,
    Late(Duration),
    Refused(u16),
}

impl Server {
    fn fate(&mut self, method: &str) -> Fate {
        if let Some(found) = self.fates.iter().position(|(of, _)| *of == method) {
            return self.fates.remove(found).1;
        }
        match (self.is_rough, fastrand::u8(0..20)) {
            (true, 0) => Fate::ResponseLost,
            (true, 1) => Fate::Refused(503),
            (true, 2) => Fate::Refused(429),
            (true, 3..6) => Fate::Late(Duration::from_millis(fastrand::u64(0..20_000))),
            _ => Fate::Completed,
        }
    }

    fn tick(&mut self) {
        let over: Vec<String> = self
            .deadlines
            .iter()
            .filter(|(_, end)| Instant::now() >= **end)
            .map(|(name, _)| name.clone())
            .collect();
        for name in over {
            self.end(&name);
        }
    }

    fn end(&mut self, lease: &str) {
        self.deadlines.remove(lease);
        let attached = |object: &Value| object["metadata"]["annotations"]["lessor.dev/lease"] == lease;
        let gone: Vec<String> = self
            .objects
            .iter()
            .filter(|(path, object)| **path == format!("{LEASES}/{lease}") || attached(object))
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            self.remove(&path);
        }
    }

    fn remove(&mut self, path: &str) {
        self.version += 1;
        if let Some(mut object) = self.objects.remove(path) {
            object["metadata"]["resourceVersion"] = self.version.to_string().into();
            self.deleted.push((self.version, object));
        }
    }

    fn store(&mut self, path: String, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path, object.clone());
        object
    }

    fn answer(&mut self, method: &str, path: &str, query: &str, body: Value) -> (u16, Value) {
        self.tick();
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let status = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "code": code, "reason": reason, "message": reason, "details": {"name": name}}),
            )
        };
        match method {
            "POST" => self.create(path, body).unwrap_or_else(|| status(409, "AlreadyExists")),
            "GET" if path == LEASES => {
                // By `fieldSelector=metadata.name%3DNAME`.
                let selected = |path: &str| {
                    path.strip_prefix(LEASES)
                        .is_some_and(|name| query.contains(&format!("%3D{}", &name[1..])))
                };
                let items: Vec<_> =
                    self.objects.iter().filter(|(path, _)| selected(path)).map(|(_, lease)| lease).collect();
                let version = self.version.to_string();
                let kind = ("lessor.dev/v1alpha1", "LeaseList");
                (
                    200,
                    json!({"apiVersion": kind.0, "kind": kind.1, "metadata": {"resourceVersion": version}, "items": items}),
                )
            }
            _ => {
                let Some(found) = self.objects.get(path).cloned() else { return status(404, "NotFound") };
                match method {
                    "GET" => (200, found),
                    "DELETE" => {
                        let differs = ["uid", "resourceVersion"].iter().any(|field| {
                            let wanted = &body["preconditions"][field];
                            !wanted.is_null() && *wanted != found["metadata"][field]
                        });
                        if differs {
                            return status(409, "Conflict");
                        }
                        if path.starts_with(LEASES) {
                            self.end(&name)
                        } else {
                            self.remove(path)
                        }
                        (200, json!({}))
                    }
                    _ => {
                        let mut patched = found;
                        for part in ["spec", "data"] {
                            for (key, value) in body[part].as_object().into_iter().flatten() {
                                patched[part][key] = value.clone();
                            }
                        }
                        if let Some(ttl) = patched["spec"]["ttlSeconds"].as_u64() {
                            self.deadlines.insert(name, Instant::now() + Duration::from_secs(ttl));
                        }
                        (200, self.store(path.to_owned(), patched))
                    }
                }
            }
        }
    }

    fn create(&mut self, root: &str, mut object: Value) -> Option<(u16, Value)> {
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let path = format!("{root}/{name}");
        if self.objects.contains_key(&path) {
            return None;
        }
        object["metadata"]["uid"] = format!("uid-{}", self.version + 1).into();
        object["metadata"]["generation"] = 1.into();
        if let Some(ttl) = object["spec"]["ttlSeconds"].as_u64() {
            self.deadlines.insert(name, Instant::now() + Duration::from_secs(ttl));
            let time = "2026-01-31T12:00:00Z";
            object["status"] = json!({
                "grantedTTLSeconds": ttl, "specGeneration": 1, "fencingToken": 1,
                "conditions": [{"type": "Active", "status": "True", "reason": "Granted", "message": "",
                                "lastTransitionTime": time}],
            });
        }
        Some((201, self.store(path, object)))
    }

    /// The events of a watch of ConfigMaps after a version.
    fn events(&mut self, after: u64) -> Option<String> {
        self.tick();
        let gone = self.deleted.iter().filter(|(version, _)| *version > after);
        let lines: String =
            gone.map(|(_, object)| json!({"type": "DELETED", "object": object}).to_string() + "\n").collect();
        (!lines.is_empty()).then_some(lines)
    }
}

async fn serve(
    server: Arc<Shared<Server>>,
    request: Request<Body>,
) -> Result<Response<Body>, tower::BoxError> {
    let (parts, body) = request.into_parts();
    let (method, path) = (parts.method.to_string(), parts.uri.path().to_owned());
    let query = parts.uri.query().unwrap_or_default().to_owned();
    if query.contains("watch=true") {
        let field = |name: &str| {
            let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.parse::<u64>().ok()).unwrap_or_default()
        };
        let events = async {
            loop {
                if let Some(lines) = server.lock().events(field("resourceVersion")) {
                    return lines;
                }
                sleep(SECOND / 4).await;
            }
        };
        let lines = timeout(Duration::from_secs(field("timeoutSeconds")), events).await.unwrap_or_default();
        return Ok(Response::new(Body::from(lines.into_bytes())));
    }
    let bytes = body.collect_bytes().await?;
    let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? };
    let fate = server.lock().fate(&method);
    sleep(SECOND / 100).await;
    if let Fate::Late(delay) = fate {
        sleep(delay).await;
    }
    let (code, answer) = match fate {
        Fate::Refused(code) => (code, json!({"code": code, "message": "out of order"})),
        _ => server.lock().answer(&method, &path, &query, body),
    };
    if fate == Fate::ResponseLost {
        future::pending::<()>().await;
    }
    Ok(Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))?)
}

fn client(server: &Arc<Shared<Server>>) -> LeaseClient {
    let server = Arc::clone(server);
    // A request arrives even if its sender has gone away.
    let service = service_fn(move |request| {
        let served = tokio::spawn(serve(Arc::clone(&server), request));
        async move { served.await.map_err(tower::BoxError::from)? }
    });
    LeaseClient::new(Client::new(service, "default"), "default")
}

fn start() -> (Arc<Shared<Server>>, LeaseClient) {
    let server = Arc::<Shared<Server>>::default();
    let client = client(&server);
    (server, client)
}

async fn session(client: &LeaseClient, holder: &str, ttl: Duration) -> Session {
    let options = SessionOptions::default()
        .with_ttl(ttl)
        .with_holder(holder)
        .with_keep_alive(KeepAliveOptions::default().without_watch());
    loop {
        // On a bad network, the grant may fail in any way.
        if let Ok(session) = Session::new(client, options.clone()).await {
            return session;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_second_waits_until_the_first_releases_and_gets_a_greater_token() {
    let (_server, client) = start();
    let (one, two) = (session(&client, "one", 60 * SECOND).await, session(&client, "two", 60 * SECOND).await);
    let lock = Mutex::new(&one, "reports").lock().await.unwrap();
    let other = Mutex::new(&two, "reports");
    assert!(matches!(other.try_lock().await, Err(LockError::Locked { holder, .. }) if holder == "one"));
    assert!(timeout(20 * SECOND, other.lock()).await.is_err());
    let token = lock.token();
    lock.unlock().await.unwrap();
    assert!(timeout(SECOND, other.lock()).await.unwrap().unwrap().token() > token);
}

#[tokio::test(start_paused = true)]
async fn a_create_without_an_answer_is_found_again_and_its_lock_released_in_the_end() {
    let (server, client) = start();
    let one = session(&client, "one", 60 * SECOND).await;
    server.lock().fates = vec![("POST", Fate::ResponseLost)];
    let lock = timeout(15 * SECOND, Mutex::new(&one, "reports").lock()).await.unwrap().unwrap();
    assert!(lock.is_held());
    lock.unlock().await.unwrap();
    assert!(!server.lock().objects.contains_key(&format!("{MAPS}/lock.reports")));
}

#[tokio::test(start_paused = true)]
async fn a_create_that_is_done_after_its_caller_gave_up_is_cleaned_up() {
    let (server, client) = start();
    let one = session(&client, "one", 60 * SECOND).await;
    let exists = || server.lock().objects.contains_key(&format!("{MAPS}/lock.reports"));
    server.lock().fates = vec![("POST", Fate::Late(20 * SECOND))];
    assert!(timeout(SECOND, Mutex::new(&one, "reports").lock()).await.is_err());
    sleep(Duration::from_millis(19_050)).await;
    assert!(exists(), "the server has done it by now");
    sleep(SECOND * 3 / 2).await;
    assert!(!exists());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_dropped_is_released() {
    let (server, client) = start();
    let one = session(&client, "one", 60 * SECOND).await;
    drop(Mutex::new(&one, "reports").lock().await.unwrap());
    sleep(SECOND / 2).await;
    assert!(!server.lock().objects.contains_key(&format!("{MAPS}/lock.reports")));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_acquired_after_the_session_has_expired_is_not_held() {
    let (server, client) = start();
    let one = session(&client, "one", 10 * SECOND).await;
    server.lock().fates =
        (0..40).map(|_| ("PATCH", Fate::Refused(503))).chain([("POST", Fate::Late(30 * SECOND))]).collect();
    let late = Mutex::new(&one, "reports").lock().await;
    assert!(matches!(late, Err(LockError::SessionExpired)), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_lease_is_gone_is_removed() {
    let (server, client) = start();
    let (one, two) = (session(&client, "one", 60 * SECOND).await, session(&client, "two", 60 * SECOND).await);
    let lock = Mutex::new(&one, "reports").lock().await.unwrap();
    {
        // As if its create had been done after the end of the lease: the operator doesn't delete it.
        let mut server = server.lock();
        server.objects.get_mut(&format!("{MAPS}/lock.reports")).unwrap()["metadata"]["annotations"] =
            json!({});
        server.end(one.lease().name());
    }
    let other = timeout(10 * SECOND, Mutex::new(&two, "reports").lock()).await.unwrap().unwrap();
    assert!(other.token() > lock.token());
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_an_error_and_a_missing_release_is_repeated() {
    let (server, client) = start();
    let one = session(&client, "one", 60 * SECOND).await;
    server.lock().fates = vec![("POST", Fate::Refused(403))];
    let refused = Mutex::new(&one, "reports").lock().await;
    assert!(matches!(refused, Err(LockError::Request(Error::Forbidden(_)))), "{refused:?}");
    let lock = Mutex::new(&one, "reports").lock().await.unwrap();
    server.lock().fates =
        vec![("DELETE", Fate::Refused(503)), ("DELETE", Fate::Refused(429)), ("DELETE", Fate::ResponseLost)];
    lock.unlock().await.unwrap();
    assert!(!server.lock().objects.contains_key(&format!("{MAPS}/lock.reports")));
}

/// The holders that believe in their lock, and the greatest token so far.
#[derive(Default)]
struct Register {
    tokens: Vec<i64>,
    believers: Vec<(i64, Session)>,
}

impl Register {
    fn enter(&mut self, token: i64, session: &Session) {
        self.believers.retain(|(_, session)| session.is_valid());
        assert!(self.believers.is_empty(), "two hold the lock: {:?} and {token}", self.believers);
        assert!(self.tokens.last().is_none_or(|last| token > *last), "{token} after {:?}", self.tokens);
        self.tokens.push(token);
        self.believers.push((token, session.clone()));
    }

    fn leave(&mut self, token: i64) {
        self.believers.retain(|(other, _)| *other != token);
    }
}

#[tokio::test(start_paused = true)]
async fn one_holds_the_lock_at_a_time_and_the_tokens_grow_on_a_bad_network() {
    for seed in 0..6 {
        fastrand::seed(seed);
        let (server, client) = start();
        let register = Arc::<Shared<Register>>::default();
        server.lock().is_rough = true;
        let work = async |number: u64, register: &Shared<Register>| loop {
            let session =
                session(&client, &format!("worker-{number}"), (10 + 10 * number) as u32 * SECOND).await;
            let mutex = Mutex::new(&session, "reports");
            while session.is_valid() {
                let Ok(Ok(lock)) = timeout(20 * SECOND, mutex.lock()).await else { continue };
                if lock.is_held() {
                    register.lock().enter(lock.token(), &session);
                    sleep(Duration::from_millis(fastrand::u64(0..4_000))).await;
                    register.lock().leave(lock.token());
                }
                // Some vanish with their lock, and some forget to release it.
                match fastrand::u8(0..10) {
                    0 => session.orphan(),
                    1 => drop(lock),
                    _ => drop(lock.unlock().await),
                }
            }
        };
        let workers = future::join_all((0..5).map(|number| work(number, &register)));
        assert!(timeout(300 * SECOND, workers).await.is_err());
        let before = register.lock().tokens.len();
        assert!(before > 10, "seed {seed}: {before} locks");
    }
}
