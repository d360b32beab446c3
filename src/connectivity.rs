//! Whether the API server responds: the layer under kube's client that keeps lease time and the API server's clock.
//!
//! Lease time stands still while a replica is disconnected (P8). Whatever disconnects or reconnects it passes through here:
//! every response, every chunk of a watch, and every failure of a request for the operator's own kinds. Other kinds may be
//! served by an aggregated API server, whose outages keep no holder from renewing, so they don't count.

pub mod outage;
pub mod retry_after;
mod transport;

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{DATE, USER_AGENT},
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
};
use lease_engine::clock::LeaseClock;
use lessor_api::GROUP;
use lessor_core::{clocks::Now, lease_object::ResourceVersion};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tower::{BoxError, Layer, Service};

use self::outage::{Cause, LogLine, Outage, describe};

/// The user agent of a replica.
pub const AGENT: &str = concat!("lessor/", env!("CARGO_PKG_VERSION"));
/// At most one log line about extended deadlines in this time: a slow API server extends them with each response.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A client with our user agent, without retries, whose requests pass through `connectivity`.
///
/// # Errors
/// When no client can be built from this configuration.
pub fn client(mut config: Config, connectivity: &Connectivity) -> kube::Result<Client> {
    // A decision may be obsolete by the time of a retry.
    config.default_retry = false;
    // kube sends no user agent, and audit logs should name the operator.
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    if config.proxy_url.is_some() {
        return Ok(ClientBuilder::try_from(config)?.with_layer(connectivity).build());
    }
    Ok(Client::new(connectivity.layer(transport::direct(&config)?), config.default_namespace))
}

/// The clocks of a replica, and how the API server responds. Clones share them.
#[derive(Clone, Debug)]
pub struct Connectivity {
    start: Instant,
    shared: Arc<Shared>,
}

struct Shared {
    clocks: Mutex<Clocks>,
    reconnected: Notify,
    wall: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("clocks", &self.clocks).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Clocks {
    lease: LeaseClock,
    /// The `Date` of the last response, and when it arrived.
    date: Option<(Timestamp, Duration)>,
    requests: u64,
    extensions: ExtensionLog,
    /// The newest version of our objects that a watch has brought.
    newest: ResourceVersion,
    outage: Outage,
}

/// By how much deadlines were extended since the last log line about it, and when that was.
#[derive(Debug, Default)]
struct ExtensionLog {
    unlogged: Duration,
    logged_at: Option<Duration>,
}

impl ExtensionLog {
    /// Adds an extension. Returns the sum to log, if a log line is due.
    fn add(&mut self, extension: Duration, mono: Duration) -> Option<Duration> {
        self.unlogged += extension;
        let too_soon = self.logged_at.is_some_and(|logged_at| mono < logged_at + LOG_INTERVAL);
        if too_soon || self.unlogged < Duration::from_millis(1) {
            return None;
        }
        self.logged_at = Some(mono);
        Some(mem::take(&mut self.unlogged))
    }
}

impl Default for Connectivity {
    fn default() -> Self {
        Self::new()
    }
}

impl Connectivity {
    /// Starts all clocks.
    pub fn new() -> Self {
        Self::with_wall_clock(Timestamp::now)
    }

    /// As [`new`](Self::new), with another wall clock than this machine's.
    pub fn with_wall_clock(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let clocks = Clocks {
            lease: LeaseClock::new(Duration::ZERO),
            date: None,
            requests: 0,
            extensions: ExtensionLog::default(),
            newest: 0,
            outage: Outage::default(),
        };
        let shared = Shared { clocks: Mutex::new(clocks), reconnected: Notify::new(), wall: Box::new(wall) };
        Self { start: Instant::now(), shared: Arc::new(shared) }
    }

    /// Reads all clocks.
    pub fn now(&self) -> Now {
        let mono = self.start.elapsed();
        let clocks = self.shared.clocks.lock();
        Now {
            mono,
            lease: clocks.lease.now(mono),
            wall: (self.shared.wall)(),
            server: clocks.date.map(|(date, at)| {
                let since = SignedDuration::try_from(mono.saturating_sub(at)).unwrap_or(SignedDuration::ZERO);
                date.checked_add(since).unwrap_or(date)
            }),
            since_last_response: mono.saturating_sub(clocks.lease.last_response()),
            disconnected: clocks.lease.is_paused(mono),
        }
    }

    /// The moment at which [`Now::mono`] is `mono`, to sleep until it.
    pub fn instant(&self, mono: Duration) -> Instant {
        self.start + mono
    }

    /// Notes that a watch brought one of our objects in this version. The newest so far proves a write.
    pub fn note_version(&self, version: ResourceVersion) {
        {
            let mut clocks = self.shared.clocks.lock();
            // What arrives while the replica is disconnected may be old.
            if version <= clocks.newest || clocks.lease.is_paused(self.start.elapsed()) {
                return;
            }
            clocks.newest = version;
        }
        self.with_lease_clock(LeaseClock::write_observed);
    }

    /// Waits until the API server responds again after an outage.
    pub async fn reconnected(&self) {
        self.shared.reconnected.notified().await;
    }

    /// Notes that this replica wakes up, which it meant to do at `due`. A long delay means that the process was paused.
    pub fn note_wakeup(&self, due: Duration) {
        self.with_lease_clock(|clock, mono| clock.resumed_after_pause(due, mono));
    }

    /// Why this replica is cut off, if it has been for longer than this.
    pub fn outage(&self, longer_than: Duration) -> Option<String> {
        let now = self.now();
        if !now.disconnected || now.since_last_response <= longer_than {
            return None;
        }
        let reason = self.shared.clocks.lock().outage.reason();
        let reason = reason.unwrap_or_else(|| "API server unreachable: no response".to_owned());
        Some(format!("{reason} (for {} s)", now.since_last_response.as_secs()))
    }

    /// For how long this replica is cut off by what a restart may end: credentials or certificates that are refused.
    pub fn refused_for(&self) -> Option<Duration> {
        let mono = self.start.elapsed();
        let clocks = self.shared.clocks.lock();
        if clocks.lease.is_paused(mono) { clocks.outage.refused_for(mono) } else { None }
    }

    fn with_outage(&self, change: impl FnOnce(&mut Outage, Duration) -> Option<LogLine>) {
        let line = change(&mut self.shared.clocks.lock().outage, self.start.elapsed());
        if let Some(line) = line {
            line.log();
        }
    }

    /// Notes whether a response proves that the API server works, or why it doesn't.
    fn note_response<B>(&self, response: &Response<B>, counts: bool, writes: Option<OwnKind>) {
        let status = response.status();
        match Cause::of_status(status).filter(|_| counts) {
            // A webhook may fail for some leases only.
            Some(Cause::Failing) if matches!(writes, Some(OwnKind::Lease)) => {}
            Some(cause) => {
                self.with_outage(|outage, mono| outage.failed(cause, format!("status {status}"), mono))
            }
            None => self.with_outage(|outage, mono| outage.responded(counts, mono)),
        }
    }

    fn with_lease_clock<T>(&self, change: impl FnOnce(&mut LeaseClock, Duration) -> T) -> T {
        let mono = self.start.elapsed();
        let mut clocks = self.shared.clocks.lock();
        let was_disconnected = clocks.lease.is_paused(mono);
        let paused_before = clocks.lease.paused_total();
        let result = change(&mut clocks.lease, mono);
        if was_disconnected && !clocks.lease.is_paused(mono) {
            self.shared.reconnected.notify_one();
        }
        let extension = clocks.lease.paused_total().saturating_sub(paused_before);
        let due = clocks.extensions.add(extension, mono);
        drop(clocks);
        if let Some(extension) = due {
            let moved_ms = extension.as_millis();
            tracing::warn!(moved_ms, "API server unreachable or read-only; extended all deadlines");
        }
        result
    }

    fn sent(&self, writes: Option<OwnKind>) -> PendingRequest {
        let mut clocks = self.shared.clocks.lock();
        // Read under the lock, so that ids follow time.
        let mono = self.start.elapsed();
        clocks.requests += 1;
        let id = clocks.requests;
        // A webhook may hang for some leases only, which must not stop the time of all others. A server that hangs for all is
        // noticed by the next read, or write of the `Lessor`: before a lease ends by time, there is one.
        if !matches!(writes, Some(OwnKind::Lease)) {
            clocks.lease.sent(id, mono);
        }
        drop(clocks);
        PendingRequest { connectivity: self.clone(), id: Some(id), sent_at: mono, writes }
    }

    fn note_date<B>(&self, response: &Response<B>) {
        let date = response.headers().get(DATE).and_then(|date| date.to_str().ok());
        if let Some(date) = date.and_then(lessor_api::time::from_http_date) {
            self.shared.clocks.lock().date = Some((date, self.start.elapsed()));
        }
    }
}

/// A request for one of our kinds that has no response yet. Dropped without one, it was given up.
struct PendingRequest {
    connectivity: Connectivity,
    id: Option<u64>,
    sent_at: Duration,
    /// The kind that it writes, if it is a write.
    writes: Option<OwnKind>,
}

impl PendingRequest {
    fn answered(mut self, status: StatusCode) {
        let writes = self.writes;
        let is_failure = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        self.end(|clock, id, mono| match writes {
            // A webhook may fail for some leases only, which must not stop the time of all others. Before a lease ends by
            // time, the API server has to accept another write.
            Some(OwnKind::Lease) if is_failure => clock.inconclusive(id, mono),
            // Holders may be able to renew. But this replica can't observe it, so it must not end leases.
            _ if status == StatusCode::UNAUTHORIZED => clock.failed(id),
            // Holders get the same response, so they can't renew.
            _ if is_failure => fail(clock, id, mono, writes),
            _ => {
                clock.answered(id, mono);
                if writes.is_some() && status.is_success() {
                    clock.write_observed(mono);
                }
            }
        });
    }

    fn failed(mut self) {
        let writes = self.writes;
        self.end(|clock, id, mono| fail(clock, id, mono, writes));
    }

    fn end(&mut self, note: impl FnOnce(&mut LeaseClock, u64, Duration)) {
        if let Some(id) = self.id.take() {
            self.connectivity.with_lease_clock(|clock, mono| note(clock, id, mono));
        }
    }
}

fn fail(clock: &mut LeaseClock, id: u64, mono: Duration, writes: Option<OwnKind>) {
    if let Some(OwnKind::Lessor) = writes {
        clock.write_failed(mono);
    }
    clock.failed(id);
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let Some(sent_at) = self.id.is_some().then_some(self.sent_at) else { return };
        let writes = self.writes;
        let connectivity = self.connectivity.clone();
        self.end(|clock, id, mono| {
            if let Some(OwnKind::Lessor) = writes {
                clock.write_failed(mono);
            }
            clock.withdrawn(id, mono);
        });
        if connectivity.now().disconnected {
            connectivity.with_outage(|outage, mono| {
                let message = format!("no response within {} s", mono.saturating_sub(sent_at).as_secs());
                outage.failed(Cause::Unreachable, message, mono)
            });
        }
    }
}

impl<S> Layer<S> for Connectivity {
    type Service = ConnectivityService<S>;

    fn layer(&self, inner: S) -> ConnectivityService<S> {
        ConnectivityService { inner, connectivity: self.clone() }
    }
}

/// Passes requests on, and notes what becomes of them.
#[derive(Clone, Debug)]
pub struct ConnectivityService<S> {
    inner: S,
    connectivity: Connectivity,
}

impl<S, B> Service<Request<Body>> for ConnectivityService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<ObservedBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let counts = request.uri().path().strip_prefix("/apis/").is_some_and(|path| path.starts_with(GROUP));
        let writes = (*request.method() != Method::GET).then(|| OwnKind::of(&request));
        let pending = counts.then(|| self.connectivity.sent(writes));
        let connectivity = self.connectivity.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = match (response.await, pending) {
                (Ok(response), pending) => {
                    connectivity.note_date(&response);
                    retry_after::note(&response);
                    connectivity.note_response(&response, counts, writes);
                    if let Some(pending) = pending {
                        pending.answered(response.status());
                    }
                    response
                }
                (Err(error), pending) => {
                    if let Some(pending) = pending {
                        pending.failed();
                    }
                    let (cause, message) = (Cause::of_error(&*error), describe(&*error));
                    connectivity.with_outage(|outage, mono| outage.failed(cause, message, mono));
                    return Err(error);
                }
            };
            Ok(response.map(|inner| ObservedBody { inner, connectivity: counts.then_some(connectivity) }))
        })
    }
}

/// The kind of ours that a request is for.
#[derive(Clone, Copy, Debug)]
enum OwnKind {
    Lessor,
    Lease,
}

impl OwnKind {
    fn of<B>(request: &Request<B>) -> Self {
        if request.uri().path().contains("/namespaces/") { Self::Lease } else { Self::Lessor }
    }
}

/// A response body each chunk of which proves that the API server is there.
#[derive(Debug)]
pub struct ObservedBody<B> {
    inner: B,
    connectivity: Option<Connectivity>,
}

impl<B> HttpBody for ObservedBody<B>
where
    B: HttpBody + Unpin,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let Some(connectivity) = &self.connectivity {
            match &frame {
                // The API server ends a watch in good order by its timeout.
                Some(Ok(_)) | None => connectivity.with_lease_clock(|clock, mono| clock.watch_event(mono)),
                Some(Err(_)) => connectivity.with_lease_clock(|clock, _| clock.broke()),
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a request to an API server that responds to writes of paths with `failing` in them by 500.
    async fn ask(connectivity: &Connectivity, failing: &'static str, method: Method, path: &str) {
        ask_failing(StatusCode::INTERNAL_SERVER_ERROR, connectivity, failing, method, path).await;
    }

    /// The same, where it responds by this status.
    async fn ask_failing(
        status: StatusCode,
        connectivity: &Connectivity,
        failing: &'static str,
        method: Method,
        path: &str,
    ) {
        let mut server = connectivity.layer(tower::service_fn(move |request: Request<Body>| async move {
            let fails = request.method() != Method::GET && request.uri().path().contains(failing);
            let mut response = Response::new(Body::empty());
            *response.status_mut() = if fails { status } else { StatusCode::OK };
            Ok::<_, BoxError>(response)
        }));
        let request = Request::builder().method(method).uri(format!("/apis/{GROUP}/v1alpha1/{path}"));
        server.call(request.body(Body::empty()).expect("a request")).await.expect("a response");
    }

    #[tokio::test(start_paused = true)]
    async fn failing_writes_of_single_leases_do_not_stop_lease_time() {
        let (shop, cart) = ("/namespaces/shop/", "namespaces/shop/leases/cart/status");
        for status in [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::TOO_MANY_REQUESTS] {
            let connectivity = Connectivity::new();
            for _ in 0..30 {
                ask_failing(status, &connectivity, shop, Method::PATCH, cart).await;
                assert!(!connectivity.now().disconnected, "{status}");
                ask(&connectivity, shop, Method::PATCH, "lessors/default/status").await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(connectivity.now().lease.since_start(), Duration::from_secs(30));
            // A failure of one lease proves nothing about the others.
            ask_failing(status, &connectivity, shop, Method::PATCH, cart).await;
            assert_eq!(connectivity.now().since_last_response, Duration::from_secs(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn writes_of_single_leases_that_hang_do_not_stop_lease_time() {
        let connectivity = Connectivity::new();
        for _ in 0..10 {
            let mut server = connectivity.layer(tower::service_fn(|_: Request<Body>| {
                std::future::pending::<Result<Response<Body>, BoxError>>()
            }));
            let path = format!("/apis/{GROUP}/v1alpha1/namespaces/shop/leases/cart/status");
            let write = server.call(Request::patch(path).body(Body::empty()).expect("a request"));
            assert!(tokio::time::timeout(Duration::from_secs(4), write).await.is_err());
            ask(&connectivity, "no path has this", Method::PATCH, "lessors/default/status").await;
        }
        assert_eq!(connectivity.now().lease.since_start(), Duration::from_secs(40));
    }

    #[tokio::test(start_paused = true)]
    async fn lease_time_goes_back_to_the_last_write_after_a_write_outage() {
        const NOTHING: &str = "no path has this";
        let pass = async |seconds| tokio::time::sleep(Duration::from_secs(seconds)).await;
        let connectivity = Connectivity::new();
        ask(&connectivity, NOTHING, Method::PATCH, "lessors/default/status").await;
        pass(5).await;
        // A watch brings another replica's write. The same version again proves nothing new.
        connectivity.note_version(7);
        pass(5).await;
        connectivity.note_version(7);
        for _ in 0..10 {
            ask(&connectivity, "", Method::PATCH, "lessors/default/status").await;
            assert!(connectivity.now().disconnected);
            ask(&connectivity, "", Method::GET, "lessors/default").await;
            pass(1).await;
            ask(&connectivity, "", Method::GET, "lessors/default").await;
        }
        connectivity.note_version(6);
        assert_eq!(
            connectivity.now().lease.since_start(),
            Duration::from_secs(10),
            "it runs on until the next write"
        );
        ask(&connectivity, NOTHING, Method::PATCH, "namespaces/shop/leases/cart/status").await;
        assert_eq!(connectivity.now().lease.since_start(), Duration::from_secs(5));
        pass(1).await;
        assert_eq!(connectivity.now().lease.since_start(), Duration::from_secs(6));
    }

    #[tokio::test(start_paused = true)]
    async fn refused_credentials_cut_a_replica_off_until_they_are_accepted() {
        let connectivity = Connectivity::new();
        let status = Arc::new(Mutex::new(StatusCode::UNAUTHORIZED));
        let current = status.clone();
        let mut server = connectivity.layer(tower::service_fn(move |_: Request<Body>| {
            let status = *current.lock();
            async move { Ok::<_, BoxError>(Response::builder().status(status).body(Body::empty())?) }
        }));
        let mut probe = async || {
            let request = Request::get(format!("/apis/{GROUP}/v1alpha1/lessors/default"));
            server.call(request.body(Body::empty()).expect("a request")).await.expect("a response");
        };
        for _ in 0..10 {
            probe().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(connectivity.now().disconnected);
        assert_eq!(connectivity.now().lease.since_start(), Duration::ZERO, "lease time stands still");
        let expected = "API server refuses the credentials: status 401 Unauthorized (for 10 s)";
        assert_eq!(connectivity.outage(Duration::from_secs(5)).as_deref(), Some(expected));
        assert_eq!(connectivity.outage(Duration::from_secs(10)), None);
        assert_eq!(connectivity.refused_for(), Some(Duration::from_secs(10)));
        *status.lock() = StatusCode::NOT_FOUND;
        probe().await;
        assert_eq!((connectivity.outage(Duration::ZERO), connectivity.refused_for()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_api_server_is_an_outage_that_no_restart_ends() {
        let connectivity = Connectivity::new();
        let mut server = connectivity.layer(tower::service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, BoxError>>()
        }));
        let request = Request::get(format!("/apis/{GROUP}/v1alpha1/lessors/default")).body(Body::empty());
        let probe = server.call(request.expect("a request"));
        assert!(tokio::time::timeout(Duration::from_secs(7), probe).await.is_err());
        let expected = "API server unreachable: no response within 7 s (for 7 s)";
        assert_eq!(connectivity.outage(Duration::from_secs(5)).as_deref(), Some(expected));
        assert_eq!(connectivity.refused_for(), None);
    }

    /// Sends a request by a real client to `port`. Returns why this replica is cut off then.
    async fn outage_by_real_client(scheme: &str, port: u16) -> Option<String> {
        let connectivity = Connectivity::new();
        let config = Config::new(format!("{scheme}://127.0.0.1:{port}").parse().expect("a URL"));
        let client = client(config, &connectivity).expect("a client");
        let lessors = kube::Api::<lessor_api::Lessor>::all(client);
        assert!(lessors.get("default").await.is_err());
        let outage = connectivity.outage(Duration::ZERO)?;
        Some(outage.split(" (for").next().unwrap_or_default().to_owned())
    }

    #[tokio::test]
    async fn the_cause_of_a_failed_connection_is_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let plain_http = tokio::spawn(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        });
        let outage = outage_by_real_client("https", port).await.expect("an outage");
        assert!(outage.starts_with("TLS connection to the API server fails: "), "{outage}");
        assert!(outage.contains("corrupt message"), "{outage}");
        plain_http.await.expect("a server");
        let outage = outage_by_real_client("http", port).await.expect("an outage");
        assert!(outage.starts_with("API server unreachable: "), "{outage}");
        assert!(outage.contains("Connection refused"), "{outage}");
    }

    #[test]
    fn small_extensions_are_logged_together_once_a_second() {
        let mut log = ExtensionLog::default();
        let millis = Duration::from_millis;
        assert_eq!(log.add(Duration::ZERO, millis(10_000)), None);
        assert_eq!(log.add(millis(2_500), millis(10_100)), Some(millis(2_500)));
        for step in 0..9 {
            assert_eq!(log.add(millis(50), millis(10_200 + 100 * step)), None);
        }
        assert_eq!(log.add(Duration::ZERO, millis(11_100)), Some(millis(450)));
        assert_eq!(log.add(Duration::ZERO, millis(20_000)), None);
    }
}
