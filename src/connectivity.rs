//! Whether the API server is heard: the layer under kube's client that keeps lease time and the server's clock.
//!
//! Lease time stands still while a replica is deaf (design: P8). What makes it deaf or hearing again passes through
//! here: every answer, every piece of a watch, and every failure of a request for our own kinds. Other kinds may be
//! served by some other program behind the API server, whose troubles keep no holder from renewing, so they don't count.

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header::DATE};
use http_body::{Body as HttpBody, Frame, SizeHint};
use k8s_openapi::jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use kube::client::Body;
use lease_engine::clock::LeaseClock;
use lessor_api::GROUP;
use lessor_core::{clocks::Now, lease_object::ResourceVersion};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tower::{BoxError, Layer, Service};

/// How often it is logged at most that deadlines move: an API server that is slow for long moves them with each answer.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What is heard of the API server. Clones share it.
#[derive(Clone, Debug)]
pub struct Connectivity {
    start: Instant,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    reconnected: Notify,
    wall: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    clock: LeaseClock,
    /// The `Date` of the last answer, and when it came.
    date: Option<(Timestamp, Duration)>,
    requests: u64,
    moves: Moves,
    /// The newest version that a watch of ours has shown.
    newest: ResourceVersion,
}

/// By how much all deadlines have moved since that was last told, and when it was.
#[derive(Debug, Default)]
struct Moves {
    untold: Duration,
    told_at: Option<Duration>,
}

impl Moves {
    /// Takes in that they have moved; by how much, if that is to be told now.
    fn tell(&mut self, moved: Duration, mono: Duration) -> Option<Duration> {
        self.untold += moved;
        let too_soon = self.told_at.is_some_and(|told_at| mono < told_at + TELL_EVERY);
        if too_soon || self.untold < Duration::from_millis(1) {
            return None;
        }
        self.told_at = Some(mono);
        Some(mem::take(&mut self.untold))
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
        let state = State {
            clock: LeaseClock::new(Duration::ZERO),
            date: None,
            requests: 0,
            moves: Moves::default(),
            newest: 0,
        };
        let shared = Shared { state: Mutex::new(state), reconnected: Notify::new(), wall: Box::new(wall) };
        Self { start: Instant::now(), shared: Arc::new(shared) }
    }

    /// Reads all clocks.
    pub fn now(&self) -> Now {
        let mono = self.start.elapsed();
        let state = self.shared.state.lock();
        Now {
            mono,
            lease: state.clock.now(mono),
            wall: (self.shared.wall)(),
            server: state.date.map(|(date, at)| {
                let since = SignedDuration::try_from(mono.saturating_sub(at)).unwrap_or(SignedDuration::ZERO);
                date.checked_add(since).unwrap_or(date)
            }),
            since_last_response: mono.saturating_sub(state.clock.last_response()),
            disconnected: state.clock.is_paused(mono),
            paused_unwritable: state.clock.paused_unwritable(mono),
            doubted: state.clock.tentative_pause(mono),
        }
    }

    /// The moment at which [`Now::mono`] is `mono`, to sleep until it.
    pub fn instant(&self, mono: Duration) -> Instant {
        self.start + mono
    }

    /// Takes in that a watch shows one of our objects in this version. Where it is the newest yet, somebody has written it.
    pub fn shown(&self, version: ResourceVersion) {
        {
            let mut state = self.shared.state.lock();
            // Whoever is deaf learns nothing of the present.
            if version <= state.newest || state.clock.is_paused(self.start.elapsed()) {
                return;
            }
            state.newest = version;
        }
        self.with_clock(LeaseClock::write_observed);
    }

    /// Takes in that the API server could not write for so much longer than this replica has noticed.
    pub fn hold(&self, paused_unwritable: Duration) {
        self.with_clock(|clock, _| clock.hold(paused_unwritable));
    }

    /// Waits until the server is heard again after deafness.
    pub async fn reconnected(&self) {
        self.shared.reconnected.notified().await;
    }

    /// Takes in that this replica wakes up, and wanted to at `due`: was it paused meanwhile?
    pub fn woke(&self, due: Duration) {
        self.with_clock(|clock, mono| clock.resumed_after_pause(due, mono));
    }

    fn with_clock<T>(&self, change: impl FnOnce(&mut LeaseClock, Duration) -> T) -> T {
        let mono = self.start.elapsed();
        let mut state = self.shared.state.lock();
        let was_deaf = state.clock.is_paused(mono);
        let held_before = state.clock.paused_total();
        let result = change(&mut state.clock, mono);
        if was_deaf && !state.clock.is_paused(mono) {
            self.shared.reconnected.notify_one();
        }
        let moved = state.clock.paused_total().saturating_sub(held_before);
        let told = state.moves.tell(moved, mono);
        drop(state);
        if let Some(moved) = told {
            let moved_ms = moved.as_millis();
            tracing::warn!(
                moved_ms,
                "the API server was not heard meanwhile, or could not write: all deadlines move by that"
            );
        }
        result
    }

    fn sent(&self, writes: Option<Target>) -> Pending {
        let mut state = self.shared.state.lock();
        // Read while nobody else can send, so that ids follow time.
        let mono = self.start.elapsed();
        state.requests += 1;
        let id = state.requests;
        state.clock.sent(id, mono);
        drop(state);
        Pending { connectivity: self.clone(), id: Some(id), writes }
    }

    fn note_date<B>(&self, response: &Response<B>) {
        let date = response.headers().get(DATE).and_then(|date| date.to_str().ok());
        if let Some(Ok(date)) = date.map(rfc2822::parse) {
            self.shared.state.lock().date = Some((date.timestamp(), self.start.elapsed()));
        }
    }
}

/// A request that counts and hasn't been answered. Dropped unanswered, it was given up.
struct Pending {
    connectivity: Connectivity,
    id: Option<u64>,
    /// What it is to write, if anything.
    writes: Option<Target>,
}

impl Pending {
    fn answered(mut self, status: StatusCode) {
        let writes = self.writes;
        self.end(|clock, id, mono| match writes {
            // That may be its own fault: a webhook that fails for some leases must not keep the time of all others from
            // running. Before anything ends by time, another write has to be accepted.
            Some(Target::Lease) if status.is_server_error() => clock.inconclusive(id, mono),
            // A server that answers so can't do its work, as far as holders are concerned.
            _ if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                fail(clock, id, mono, writes);
            }
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

    fn end(&mut self, tell: impl FnOnce(&mut LeaseClock, u64, Duration)) {
        if let Some(id) = self.id.take() {
            self.connectivity.with_clock(|clock, mono| tell(clock, id, mono));
        }
    }
}

fn fail(clock: &mut LeaseClock, id: u64, mono: Duration, writes: Option<Target>) {
    if let Some(Target::Lessor) = writes {
        clock.write_failed(mono);
    }
    clock.failed(id);
}

impl Drop for Pending {
    fn drop(&mut self) {
        let writes = self.writes;
        self.end(|clock, id, mono| {
            if let Some(Target::Lessor) = writes {
                clock.write_failed(mono);
            }
            clock.withdrawn(id, mono);
        });
    }
}

impl<S> Layer<S> for Connectivity {
    type Service = ConnectivityService<S>;

    fn layer(&self, inner: S) -> ConnectivityService<S> {
        ConnectivityService { inner, connectivity: self.clone() }
    }
}

/// The service that listens.
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
        let writes = (*request.method() != Method::GET).then(|| Target::of(&request));
        let pending = counts.then(|| self.connectivity.sent(writes));
        let connectivity = self.connectivity.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = match (response.await, pending) {
                (Ok(response), pending) => {
                    connectivity.note_date(&response);
                    if let Some(pending) = pending {
                        pending.answered(response.status());
                    }
                    response
                }
                (Err(error), pending) => {
                    if let Some(pending) = pending {
                        pending.failed();
                    }
                    return Err(error);
                }
            };
            Ok(response.map(|inner| ObservedBody { inner, connectivity: counts.then_some(connectivity) }))
        })
    }
}

/// Which kind of ours a request is about.
#[derive(Clone, Copy, Debug)]
enum Target {
    Lessor,
    Lease,
}

impl Target {
    fn of<B>(request: &Request<B>) -> Self {
        if request.uri().path().contains("/namespaces/") { Self::Lease } else { Self::Lessor }
    }
}

/// A body whose every piece is a sign of life.
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
                // A watch that the server ends in good order was heard to its end.
                Some(Ok(_)) | None => connectivity.with_clock(|clock, mono| clock.watch_event(mono)),
                Some(Err(_)) => connectivity.with_clock(|clock, _| clock.broke()),
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

    /// An API server that answers writes of leases in `shop` with 500, or all writes.
    async fn fails(writes: &'static str, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let fails = request.method() != Method::GET && request.uri().path().contains(writes);
        let mut response = Response::new(Body::empty());
        *response.status_mut() = if fails { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
        Ok(response)
    }

    async fn ask(connectivity: &Connectivity, failing: &'static str, method: Method, path: &str) {
        let mut server = connectivity.layer(tower::service_fn(move |request| fails(failing, request)));
        let request = Request::builder().method(method).uri(format!("/apis/{GROUP}/v1alpha1/{path}"));
        server.call(request.body(Body::empty()).expect("a request")).await.expect("an answer");
    }

    #[tokio::test(start_paused = true)]
    async fn writes_that_fail_for_single_leases_keep_no_time_from_running() {
        let connectivity = Connectivity::new();
        for _ in 0..30 {
            ask(&connectivity, "/namespaces/shop/", Method::PATCH, "namespaces/shop/leases/cart/status")
                .await;
            assert!(!connectivity.now().disconnected);
            ask(&connectivity, "/namespaces/shop/", Method::PATCH, "lessors/default/status").await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(connectivity.now().lease.since_start(), Duration::from_secs(30));
        // What fails for one is no sign of life for others.
        ask(&connectivity, "/namespaces/shop/", Method::PATCH, "namespaces/shop/leases/cart/status").await;
        assert_eq!(connectivity.now().since_last_response, Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_server_answers_and_cannot_write_no_lease_time_passes() {
        const NOTHING: &str = "no path has this";
        let pass = async |seconds| tokio::time::sleep(Duration::from_secs(seconds)).await;
        let connectivity = Connectivity::new();
        ask(&connectivity, NOTHING, Method::PATCH, "lessors/default/status").await;
        pass(5).await;
        // A watch shows what another has written; what it shows again is no news.
        connectivity.shown(7);
        pass(5).await;
        connectivity.shown(7);
        for _ in 0..10 {
            ask(&connectivity, "", Method::PATCH, "lessors/default/status").await;
            assert!(connectivity.now().disconnected);
            ask(&connectivity, "", Method::GET, "lessors/default").await;
            pass(1).await;
            ask(&connectivity, "", Method::GET, "lessors/default").await;
        }
        connectivity.shown(6);
        assert_eq!(connectivity.now().lease.since_start(), Duration::from_secs(10), "it runs on meanwhile");
        ask(&connectivity, NOTHING, Method::PATCH, "namespaces/shop/leases/cart/status").await;
        assert_eq!(connectivity.now().lease.since_start(), Duration::from_secs(5));
        pass(1).await;
        assert_eq!(connectivity.now().lease.since_start(), Duration::from_secs(6));
    }

    #[test]
    fn small_moves_are_told_together_once_a_second_and_none_is_forgotten() {
        let mut moves = Moves::default();
        let millis = Duration::from_millis;
        assert_eq!(moves.tell(Duration::ZERO, millis(10_000)), None);
        assert_eq!(moves.tell(millis(2_500), millis(10_100)), Some(millis(2_500)));
        for step in 0..9 {
            assert_eq!(moves.tell(millis(50), millis(10_200 + 100 * step)), None);
        }
        assert_eq!(moves.tell(Duration::ZERO, millis(11_100)), Some(millis(450)));
        assert_eq!(moves.tell(Duration::ZERO, millis(20_000)), None);
    }
}
