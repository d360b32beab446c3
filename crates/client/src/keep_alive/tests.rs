//! Keeping a lease of a simulated server alive, in simulated time.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use http::{Request, Response};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};
use tower::service_fn;

use super::{super::client::LeaseClient, *};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);

/// What happens to one request.
#[derive(Clone, Copy, Debug)]
struct Fate {
    before: Duration,
    after: Duration,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Completed,
    /// It never arrives.
    RequestLost,
    /// It arrives, and its response is lost.
    ResponseLost,
    /// The server refuses it with this code.
    Refused(u16),
}

const GOOD: Fate = Fate { before: Duration::ZERO, after: Duration::ZERO, end: End::Completed };

fn refused(code: u16) -> Fate {
    Fate { end: End::Refused(code), ..GOOD }
}

fn lost() -> Fate {
    Fate { end: End::RequestLost, ..GOOD }
}

/// A server with one lease, which expires at its deadline.
#[derive(Debug)]
struct Server {
    start: Instant,
    deadline: Instant,
    max_lifetime: Option<Duration>,
    gone: bool,
    version: u64,
    texts: Vec<String>,
    requests: usize,
    /// What happens to the next requests, and then to all others.
    fates: VecDeque<Fate>,
    then: Fate,
}

impl Server {
    fn start() -> Arc<Mutex<Self>> {
        let start = Instant::now();
        Arc::new(Mutex::new(Self {
            start,
            deadline: start + TTL,
            max_lifetime: None,
            gone: false,
            version: 1,
            texts: Vec::new(),
            requests: 0,
            fates: VecDeque::new(),
            then: GOOD,
        }))
    }

    /// When the lease ends unless it's renewed.
    fn end(&self) -> Instant {
        let cap = self.max_lifetime.map(|lifetime| self.start + lifetime);
        cap.map_or(self.deadline, |cap| cap.min(self.deadline))
    }

    /// What a request that arrives does.
    fn accept(&mut self, patch: &Value) -> (u16, Value) {
        let failure = |code: u16, message: &str| {
            (code, json!({"code": code, "message": message, "details": {"name": "a"}}))
        };
        if self.gone {
            return failure(404, "leases.lessor.dev \"a\" not found");
        }
        if Instant::now() >= self.end() {
            return failure(422, ENDED_MESSAGE);
        }
        let text = patch["spec"]["renewTime"].as_str().unwrap().to_owned();
        if self.texts.last() != Some(&text) {
            self.deadline = Instant::now() + TTL;
        }
        self.version += 1;
        let (spec, texts) = (
            json!({
                "ttlSeconds": 10,
                "renewTime": text,
                "maxLifetimeSeconds": self.max_lifetime.map(|time| time.as_secs()),
            }),
            &mut self.texts,
        );
        texts.push(text);
        (
            200,
            json!({
                "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
                "metadata": {
                    "name": "a", "uid": "1",
                    "resourceVersion": self.version.to_string(), "generation": self.version,
                },
                "spec": spec,
                "status": {
                    "grantedTTLSeconds": TTL.as_secs(), "specGeneration": 1,
                    "grantTime": "2026-01-31T12:00:00.000000Z",
                },
            }),
        )
    }

    /// The value of `Date`.
    fn date(&self) -> String {
        let seconds = self.start.elapsed().as_secs();
        format!("Sat, 31 Jan 2026 12:{:02}:{:02} GMT", seconds / 60 % 60, seconds % 60)
    }
}

fn client(server: &Arc<Mutex<Server>>) -> LeaseClient {
    let server = Arc::clone(server);
    let service = service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            assert_eq!(request.uri().path(), "/apis/lessor.dev/v1alpha1/namespaces/default/leases/a");
            let patch: Value = serde_json::from_slice(&request.into_body().collect_bytes().await?)?;
            let fate = {
                let mut server = server.lock();
                server.requests += 1;
                server.fates.pop_front().unwrap_or(server.then)
            };
            sleep(fate.before).await;
            let (code, body) = match fate.end {
                End::RequestLost => future::pending().await,
                End::Refused(code) => (code, json!({"code": code, "message": "out of order"})),
                End::Completed | End::ResponseLost => server.lock().accept(&patch),
            };
            if fate.end == End::ResponseLost {
                future::pending::<()>().await;
            }
            let date = server.lock().date();
            sleep(fate.after).await;
            let response = Response::builder().status(code).header("Date", date).header("Retry-After", "60");
            Ok::<_, tower::BoxError>(response.body(Body::from(body.to_string().into_bytes()))?)
        }
    });
    LeaseClient::new(Client::new(service, "default"), "default")
}

/// A lease that is kept alive from now on.
async fn kept(server: &Arc<Mutex<Server>>) -> KeepAlive {
    kept_with(server, KeepAliveOptions::default()).await
}

async fn kept_with(server: &Arc<Mutex<Server>>, options: KeepAliveOptions) -> KeepAlive {
    let held = client(server).renew("a").await.expect("a renewal");
    KeepAlive::start(held, options.without_watch())
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_at_a_third_of_its_ttl() {
    let server = Server::start();
    let alive = kept(&server).await;
    sleep(TTL * 20).await;
    assert!(alive.is_alive());
    let renewals = server.lock().texts.len();
    assert!((56..=67).contains(&renewals), "{renewals} renewals in 20 TTLs");
}

#[tokio::test(start_paused = true)]
async fn holders_that_begin_together_do_not_renew_together() {
    let mut times = BTreeSet::new();
    for _ in 0..8 {
        let server = Server::start();
        let alive = kept(&server).await;
        let begin = Instant::now();
        let mut progress = alive.progress.clone();
        progress
            .wait_for(|progress| matches!(progress.event, KeepAliveEvent::Renewed { renewals: 1, .. }))
            .await
            .unwrap();
        times.insert(begin.elapsed());
    }
    assert!(times.len() > 1, "{times:?}");
    assert!(times.first().unwrap() >= &(9 * SECOND) && times.last().unwrap() <= &(11 * SECOND), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_within_the_ttl_is_survived() {
    let server = Server::start();
    let mut alive = kept(&server).await;
    server.lock().then = refused(503);
    sleep(TTL * 8 / 10).await;
    assert!(alive.is_alive());
    let failing = loop {
        match alive.next().await {
            Some(KeepAliveEvent::Failing { error, failures, .. }) => break (error, failures),
            other => assert!(other.is_some()),
        }
    };
    assert!(failing.0.to_string().contains("out of order") && failing.1 > 2, "{failing:?}");
    server.lock().then = GOOD;
    sleep(TTL).await;
    assert!(alive.is_alive());
    assert!(matches!(alive.next().await, Some(KeepAliveEvent::Renewed { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_is_lost_before_its_deadline() {
    for fate in [refused(503), refused(403), refused(429), lost()] {
        let server = Server::start();
        let alive = kept(&server).await;
        server.lock().then = fate;
        let lost = alive.lost().await;
        let early = server.lock().end().duration_since(Instant::now());
        assert!(early >= SECOND && early < 2 * SECOND, "{early:?} with {fate:?}");
        assert!(matches!(lost, LossReason::NotRenewed(_)), "{lost:?}");
        assert!(!alive.is_alive());
        let requests = server.lock().requests;
        sleep(TTL).await;
        assert_eq!(server.lock().requests, requests, "it renews a lost lease");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_beyond_the_deadline_is_not_waited_for() {
    let server = Server::start();
    let alive = kept(&server).await;
    server.lock().fates = [refused(429)].into();
    sleep(TTL * 2).await;
    assert!(alive.is_alive());
}

#[tokio::test(start_paused = true)]
async fn one_request_that_hangs_does_not_lose_the_lease() {
    let server = Server::start();
    let alive = kept(&server).await;
    server.lock().fates = [lost()].into();
    sleep(TTL * 2).await;
    assert!(alive.is_alive());
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_does_not_lose_the_lease() {
    let server = Server::start();
    let alive = kept(&server).await;
    server.lock().then = Fate { before: TTL / 6, after: TTL / 8, ..GOOD };
    sleep(TTL * 5).await;
    assert!(alive.is_alive());
}

#[tokio::test(start_paused = true)]
async fn an_ended_or_deleted_lease_is_lost_at_the_next_renewal() {
    let server = Server::start();
    let alive = kept(&server).await;
    server.lock().gone = true;
    assert!(matches!(alive.lost().await, LossReason::Gone));

    let server = Server::start();
    let alive = kept(&server).await;
    let now = Instant::now();
    server.lock().deadline = now;
    let lost = alive.lost().await;
    assert!(matches!(lost, LossReason::Ended), "{lost:?}");
    assert_eq!(lost.to_string(), ENDED_MESSAGE);
    assert!(now.elapsed() < TTL / 2);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_before_the_end_of_its_maximum_lifetime() {
    let server = Server::start();
    server.lock().max_lifetime = Some(SECOND * 100);
    let alive = kept(&server).await;
    let lost = alive.lost().await;
    assert!(matches!(lost, LossReason::MaxLifetime), "{lost:?}");
    let early = server.lock().end().duration_since(Instant::now());
    assert!(early > Duration::ZERO && early < 4 * SECOND, "{early:?}");
}

#[tokio::test(start_paused = true)]
async fn a_longer_margin_reports_the_loss_earlier() {
    let server = Server::start();
    let alive = kept_with(&server, KeepAliveOptions::default().with_margin(8 * SECOND)).await;
    server.lock().then = refused(500);
    let (start, left) = (Instant::now(), alive.alive_until().remaining());
    alive.lost().await;
    let waited = start.elapsed();
    assert!(waited >= left && waited < left + SECOND / 10, "{waited:?}, not {left:?}");
    let early = server.lock().end().duration_since(Instant::now());
    assert!(early >= 8 * SECOND && early < 9 * SECOND, "{early:?}");
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_a_new_renew_time_even_after_a_lost_response() {
    let server = Server::start();
    let alive = kept(&server).await;
    server.lock().fates = vec![Fate { end: End::ResponseLost, ..GOOD }; 3].into();
    sleep(TTL * 2).await;
    assert!(alive.is_alive());
    let texts = server.lock().texts.clone();
    let different: BTreeSet<_> = texts.iter().collect();
    assert_eq!(different.len(), texts.len());
}

#[tokio::test(start_paused = true)]
async fn guarded_work_is_dropped_when_the_lease_is_lost() {
    let server = Server::start();
    let alive = kept(&server).await;
    assert_eq!(alive.guard(async { 7 }).await.ok(), Some(7));
    server.lock().gone = true;
    let finished = Mutex::new(false);
    let work = async {
        sleep(TTL).await;
        *finished.lock() = true;
    };
    assert!(alive.guard(work).await.is_err());
    assert!(!*finished.lock());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_keep_alive_renews_no_more() {
    let server = Server::start();
    let alive = kept(&server).await;
    sleep(TTL).await;
    let held = alive.stop();
    assert_eq!(held.name(), "a");
    let requests = server.lock().requests;
    sleep(TTL).await;
    assert_eq!(server.lock().requests, requests);
}

fn fate() -> impl Strategy<Value = Fate> {
    let end = prop_oneof![
        6 => Just(End::Completed),
        1 => Just(End::RequestLost),
        1 => Just(End::ResponseLost),
        1 => prop_oneof![Just(429), Just(500), Just(503), Just(409), Just(403)].prop_map(End::Refused),
    ];
    let delay = || prop_oneof![3 => 0..50_u64, 1 => 0..20_000_u64].prop_map(Duration::from_millis);
    (delay(), delay(), end).prop_map(|(before, after, end)| Fate { before, after, end })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The guarantee of this module under every network fault.
    #[test]
    fn a_loss_is_reported_before_the_lease_ends(
        fates in prop::collection::vec(fate(), 0..60),
        lifetime in prop::option::of(10..300_u64),
        then_lost in any::<bool>(),
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let server = Server::start();
            server.lock().max_lifetime = lifetime.map(Duration::from_secs);
            let alive = kept(&server).await;
            server.lock().fates = fates.into();
            server.lock().then = if then_lost { lost() } else { refused(503) };
            let mut reported = pin!(alive.lost());
            loop {
                // Directly before the deadline, and in regular intervals.
                let end = server.lock().end();
                let look = (Instant::now() + Duration::from_millis(487)).min(end);
                tokio::select! {
                    biased;
                    lost = &mut reported => {
                        assert!(!alive.is_alive());
                        let end = server.lock().end();
                        assert!(
                            Instant::now() < end || matches!(lost, LossReason::Ended | LossReason::Gone),
                            "reported {:?} after the end: {lost:?}", Instant::now().duration_since(end),
                        );
                        return;
                    }
                    () = sleep_until(look) => {}
                }
                let server = server.lock();
                if Instant::now() >= server.end() {
                    assert!(!alive.is_alive(), "alive after the deadline");
                    panic!("the loss wasn't reported before the deadline");
                }
            }
        });
    }
}
