//! One request on its way through a proxy.

use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response, StatusCode, header, uri::Parts};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{Config, client::ConfigExt, config::AuthInfo};
use serde_json::json;
use tokio::{
    sync::oneshot,
    time::{Sleep, sleep},
};

use super::{
    Seen, State,
    faults::{End, Fate},
    hold::{HeldAt, Verdict},
};
use crate::error::{Doing, Error};

/// How long a dropped request hangs; real networks take longer, and tests don't wait for them.
const HANG: Duration = Duration::from_secs(60);

type Answer = Response<UnsyncBoxBody<Bytes, Lost>>;

/// Why there is no answer: the client finds its connection closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("cut by the proxy")]
    Cut,
    #[error("discarded by a hold")]
    Discarded,
    #[error(transparent)]
    Broken(Box<dyn StdError + Send + Sync>),
}

/// The way to the API server.
#[derive(Debug)]
pub(super) struct Upstream {
    client: Client<hyper_rustls::HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: http::Uri,
}

impl Upstream {
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        // Who the client is, its own header says.
        let mut config = config.clone();
        config.auth_info = AuthInfo::default();
        let connector = config.rustls_https_connector().doing(|| "preparing TLS for a proxy")?;
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, url: config.cluster_url })
    }

    async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Lost> {
        let mut parts = Parts::default();
        parts.scheme = self.url.scheme().cloned();
        parts.authority = self.url.authority().cloned();
        parts.path_and_query = request.uri().path_and_query().cloned();
        *request.uri_mut() = parts.try_into().map_err(broken)?;
        request.headers_mut().remove(header::HOST);
        self.client.request(request).await.map_err(broken)
    }
}

/// Takes a request from the client, and answers it, or doesn't.
pub(super) async fn forward(state: Arc<State>, request: Request<Incoming>) -> Result<Answer, Lost> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(broken)?.to_bytes();
    let value = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let seen = Seen {
        method: parts.method.clone(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        user_agent: value(header::USER_AGENT).to_owned(),
        token: value(header::AUTHORIZATION).trim_start_matches("Bearer ").to_owned(),
        body: body.clone(),
    };
    if let Some(observe) = state.observer.get() {
        observe(&seen);
    }
    let fate = {
        let mut faults = state.faults.lock();
        faults
            .iter_mut()
            .find(|faults| faults.means(&seen))
            .map(|faults| faults.next(&seen))
            .unwrap_or_default()
    };
    state.counts.lock().add(fate.end);
    // In a task of its own: what the client has sent arrives, whether or not the client still waits.
    let (sender, answer) = oneshot::channel();
    tokio::spawn(async move {
        let answer = deliver(&state, &seen, Request::from_parts(parts, Full::new(body)), fate).await;
        // No client waits any longer.
        let _ = sender.send(answer);
    });
    answer.await.map_err(broken)?
}

async fn deliver(
    state: &State,
    seen: &Seen,
    request: Request<Full<Bytes>>,
    fate: Fate,
) -> Result<Answer, Lost> {
    sleep(fate.before).await;
    match fate.end {
        End::Cut { arrives: false } => return Err(Lost::Cut),
        End::Dropped { arrives: false } => return hang().await,
        End::Refused { status, retry_after } => {
            sleep(fate.after).await;
            return refusal(status, retry_after);
        }
        End::Answered | End::CutLater(_) | End::Cut { .. } | End::Dropped { .. } => {}
    }
    pass(state, HeldAt::Request, seen).await?;
    let answer = state.upstream.send(request).await?;
    pass(state, HeldAt::Answer, seen).await?;
    sleep(fate.after).await;
    match fate.end {
        End::Cut { .. } => Err(Lost::Cut),
        End::Dropped { .. } => hang().await,
        End::CutLater(life) => Ok(answer.map(|body| Cut { body, end: Box::pin(sleep(life)) }.boxed_unsync())),
        End::Answered | End::Refused { .. } => Ok(answer.map(|body| body.map_err(broken).boxed_unsync())),
    }
}

async fn pass(state: &State, at: HeldAt, seen: &Seen) -> Result<(), Lost> {
    let pass = state.holds.lock().pass(at, seen);
    match pass.await {
        Verdict::Release => Ok(()),
        Verdict::Discard => Err(Lost::Discarded),
    }
}

async fn hang() -> Result<Answer, Lost> {
    sleep(HANG).await;
    Err(Lost::Cut)
}

/// An error as the API server would answer it.
fn refusal(status: StatusCode, retry_after: u32) -> Result<Answer, Lost> {
    let reason = match status.as_u16() {
        401 => "Unauthorized",
        409 => "Conflict",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        _ => "",
    };
    let body = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "fault of the tests' proxy",
        "reason": reason,
        "code": status.as_u16(),
    });
    let mut answer = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    if status == StatusCode::TOO_MANY_REQUESTS {
        answer = answer.header(header::RETRY_AFTER, retry_after);
    }
    let body = Full::new(Bytes::from(body.to_string()));
    answer.body(body.map_err(|never| match never {}).boxed_unsync()).map_err(broken)
}

fn broken(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Lost {
    Lost::Broken(error.into())
}

/// A body that ends with an error after a while, which closes the connection.
struct Cut {
    body: Incoming,
    end: Pin<Box<Sleep>>,
}

impl fmt::Debug for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cut").finish_non_exhaustive()
    }
}

impl Body for Cut {
    type Data = Bytes;
    type Error = Lost;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Lost>>> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(Lost::Cut)));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
