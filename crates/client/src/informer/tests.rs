//! Many leases of a simulated server and one watch, in simulated time.

use std::collections::BTreeMap;

use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tower::service_fn;

use super::*;
use crate::{
    client::LeaseClient,
    grant::Grant,
    keep_alive::{KeepAlive, LossReason},
};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);
const LEASES: &str = "/apis/lessor.dev/v1alpha1/namespaces/default/leases";

/// A server that grants each lease a moment after its creation.
#[derive(Default)]
struct Server {
    leases: BTreeMap<String, Value>,
    /// Each change: its version, the type of its event, and the lease.
    log: Vec<(u64, &'static str, Value)>,
    /// Requests by what they do.
    requests: BTreeMap<&'static str, usize>,
    /// Watches that are open, and the most that were at once.
    watches: (usize, usize),
    refuses_lists: bool,
}

impl Server {
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Value)) -> Option<Value> {
        let lease = self.leases.get_mut(name)?;
        change(lease);
        let version = self.log.len() as u64 + 1;
        lease["metadata"]["resourceVersion"] = version.to_string().into();
        let lease = lease.clone();
        self.log.push((version, "MODIFIED", lease.clone()));
        Some(lease)
    }

    /// Begins the deletion, as of an object with a finalizer.
    fn revoke(&mut self, name: &str) {
        self.change(name, |lease| lease["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z".into());
    }

    fn remove(&mut self, name: &str) {
        self.vanish(name);
        self.leases.remove(name);
    }

    /// Reports a lease as deleted, as to a watch that doesn't select it any more.
    fn vanish(&mut self, name: &str) {
        self.change(name, |lease| lease["metadata"]["labels"] = json!({}));
        if let Some((_, event, _)) = self.log.last_mut() {
            *event = "DELETED";
        }
    }

    fn counts(&self, what: &str) -> usize {
        self.requests.get(what).copied().unwrap_or_default()
    }
}

fn selects(query: &str, lease: &Value) -> bool {
    let metadata = &lease["metadata"];
    let label = metadata["labels"][CLIENT_LABEL].as_str();
    query.contains(&format!("metadata.name%3D{}&", metadata["name"].as_str().unwrap_or_default()))
        || label.is_some_and(|label| query.contains(label))
}

async fn serve(
    server: Arc<Mutex<Server>>,
    request: Request<Body>,
) -> Result<Response<Body>, tower::BoxError> {
    let (parts, body) = request.into_parts();
    let (method, path) = (parts.method.as_str().to_owned(), parts.uri.path().to_owned());
    let query = format!("{}&", parts.uri.query().unwrap_or_default());
    let bytes = body.collect_bytes().await?;
    let body: Value = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? };
    let name = path.strip_prefix(LEASES).unwrap_or_default().trim_start_matches('/').to_owned();
    let is_watch = query.contains("watch=true");
    let what = match (&*method, is_watch, &*name) {
        ("GET", true, _) => "watch",
        ("GET", false, "") => "list",
        ("GET", ..) => "read",
        ("PATCH", ..) => "renewal",
        _ => "other",
    };
    *server.lock().requests.entry(what).or_default() += 1;
    if is_watch {
        return Ok(Response::new(Body::from(watched(&server, &query).await.into_bytes())));
    }
    sleep(SECOND / 100).await;
    let failure = |code: u16| (code, json!({"code": code, "message": "no", "details": {"name": name}}));
    let (code, answer) = match what {
        "list" if server.lock().refuses_lists => failure(403),
        "list" => {
            let server = server.lock();
            let items: Vec<_> = server.leases.values().filter(|lease| selects(&query, lease)).collect();
            let metadata = json!({"resourceVersion": server.log.len().to_string()});
            let kind = ("lessor.dev/v1alpha1", "LeaseList");
            (200, json!({"apiVersion": kind.0, "kind": kind.1, "metadata": metadata, "items": items}))
        }
        "read" => server.lock().leases.get(&name).map_or_else(|| failure(404), |lease| (200, lease.clone())),
        "renewal" => {
            let renewed = server.lock().change(&name, |lease| {
                lease["spec"]["renewTime"] = body["spec"]["renewTime"].clone();
            });
            renewed.map_or_else(|| failure(404), |lease| (200, lease))
        }
        _ => (201, create(&server, body)),
    };
    Ok(Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))?)
}

fn create(server: &Arc<Mutex<Server>>, mut lease: Value) -> Value {
    let name = lease["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    lease["metadata"]["uid"] = format!("uid-{}", server.lock().log.len()).into();
    server.lock().leases.insert(name.clone(), lease);
    let created = server.lock().change(&name, |_| ()).unwrap_or_default();
    let server = Arc::clone(server);
    tokio::spawn(async move {
        sleep(SECOND / 20).await;
        server.lock().change(&name, |lease| {
            let condition = json!({"type": "Active", "status": "True", "reason": "Granted", "message": "",
                                   "lastTransitionTime": "2026-01-31T12:00:00Z"});
            let ttl = lease["spec"]["ttlSeconds"].clone();
            lease["status"] =
                json!({"grantedTTLSeconds": ttl, "specGeneration": 1, "conditions": [condition]});
        });
    });
    created
}

/// The events of a watch, once there are some. The watch ends with them, and is resumed by the client.
async fn watched(server: &Arc<Mutex<Server>>, query: &str) -> String {
    struct Open<'s>(&'s Mutex<Server>);
    impl Drop for Open<'_> {
        fn drop(&mut self) {
            self.0.lock().watches.0 -= 1;
        }
    }
    {
        let mut server = server.lock();
        server.watches.0 += 1;
        server.watches.1 = server.watches.1.max(server.watches.0);
    }
    let _open = Open(server);
    let after = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
    let after: u64 = after.and_then(|version| version.parse().ok()).unwrap_or_default();
    loop {
        let lines: String = {
            let server = server.lock();
            let new = server.log.iter().filter(|(version, ..)| *version > after);
            let selected = new.filter(|(_, event, lease)| *event == "DELETED" || selects(query, lease));
            selected
                .map(|(_, event, lease)| json!({"type": event, "object": lease}).to_string() + "\n")
                .collect()
        };
        if !lines.is_empty() {
            return lines;
        }
        sleep(SECOND / 100).await;
    }
}

fn start() -> (Arc<Mutex<Server>>, LeaseClient) {
    let server = Arc::<Mutex<Server>>::default();
    let client = client(&server);
    (server, client)
}

fn client(server: &Arc<Mutex<Server>>) -> LeaseClient {
    let server = Arc::clone(server);
    let service = service_fn(move |request| serve(Arc::clone(&server), request));
    LeaseClient::new(Client::new(service, "default"), "default")
}

async fn kept(client: &LeaseClient, name: &str) -> KeepAlive {
    client.grant(&Grant::new(name, TTL)).await.expect("a grant").keep_alive()
}

#[tokio::test(start_paused = true)]
async fn all_leases_of_a_client_share_one_watch_and_each_is_reported_to_its_holder() {
    let (server, client) = start();
    let names: Vec<_> = (0..50).map(|number| format!("web-{number}")).collect();
    let mut alive: Vec<_> = futures::future::join_all(names.iter().map(|name| kept(&client, name))).await;
    sleep(TTL * 3).await;
    assert!(alive.iter().all(KeepAlive::is_alive));
    {
        let server = server.lock();
        assert_eq!((server.watches.1, server.counts("list"), server.counts("read")), (1, 1, 0));
        let renewals = server.counts("renewal");
        assert!((50 * 8..=50 * 11).contains(&renewals), "{renewals} renewals in 3 TTLs");
    }
    server.lock().revoke("web-7");
    let lost = timeout(SECOND, alive.remove(7).lost()).await.expect("a loss within a second");
    assert!(matches!(lost, LossReason::Revoked), "{lost:?}");
    assert!(alive.iter().all(KeepAlive::is_alive));
}

#[tokio::test(start_paused = true)]
async fn what_happens_to_a_lease_before_it_is_kept_alive_is_noticed() {
    let (server, client) = start();
    let other = kept(&client, "other").await;
    let revoked = client.grant(&Grant::new("revoked", TTL)).await.unwrap();
    let gone = client.grant(&Grant::new("gone", TTL)).await.unwrap();
    server.lock().revoke("revoked");
    server.lock().remove("gone");
    sleep(SECOND).await;
    let lost = timeout(SECOND, revoked.keep_alive().lost()).await.expect("a loss within a second");
    assert!(matches!(lost, LossReason::Revoked), "{lost:?}");
    let lost = timeout(SECOND, gone.keep_alive().lost()).await.expect("a loss within a second");
    assert!(matches!(lost, LossReason::Gone), "{lost:?}");
    assert!(other.is_alive());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_has_lost_its_label_is_kept_alive() {
    let (server, client) = start();
    let alive = kept(&client, "web-1").await;
    server.lock().vanish("web-1");
    sleep(TTL * 3).await;
    assert!(alive.is_alive());
    let renewals = server.lock().counts("renewal");
    assert!((8..=12).contains(&renewals), "{renewals} renewals in 3 TTLs");
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_another_client_is_watched_by_its_name() {
    let (server, one) = start();
    one.grant(&Grant::new("web-1", TTL)).await.unwrap();
    let alive = client(&server).renew("web-1").await.unwrap().keep_alive();
    sleep(TTL).await;
    assert!(alive.is_alive());
    server.lock().revoke("web-1");
    let lost = timeout(SECOND, alive.lost()).await.expect("a loss within a second");
    assert!(matches!(lost, LossReason::Revoked), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn the_watch_ends_without_leases_and_begins_anew_with_the_next() {
    let (server, client) = start();
    drop(kept(&client, "web-1").await);
    sleep(2 * IDLE_CHECK).await;
    assert_eq!(server.lock().watches.0, 0);
    let alive = kept(&client, "web-2").await;
    sleep(SECOND).await;
    assert_eq!(server.lock().watches, (1, 1));
    server.lock().revoke("web-2");
    timeout(SECOND, alive.lost()).await.expect("a loss within a second");
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_watch_a_lease_is_granted_and_kept_alive() {
    let (server, client) = start();
    server.lock().refuses_lists = true;
    let begin = Instant::now();
    let alive = kept(&client, "web-1").await;
    assert!(begin.elapsed() < 2 * SECOND, "granted after {:?}", begin.elapsed());
    sleep(TTL * 20).await;
    assert!(alive.is_alive());
    let lists = server.lock().counts("list");
    assert!(lists <= 30, "{lists} lists in ten minutes");
}
