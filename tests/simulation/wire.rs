//! The wire between a replica and the API server: a service that kube's client sends through, and whose other end the
//! simulation holds.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, header};
use http_body::{Body as HttpBody, Frame};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};
use tower::{BoxError, Service};

/// What a body is made of.
pub(crate) type Bytes = <Body as HttpBody>::Data;

/// A request on its way.
pub(crate) struct Outgoing {
    /// When it was sent, by the clock of the sender.
    pub(crate) sent: Instant,
    pub(crate) method: String,
    pub(crate) uri: String,
    pub(crate) metadata_only: bool,
    pub(crate) body: Vec<u8>,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// What comes back. If nothing does, and `reply` is dropped, the connection was cut.
pub(crate) enum Reply {
    Whole { code: u16, date: String, body: Vec<u8> },
    Stream { date: String, pieces: mpsc::UnboundedReceiver<Piece> },
}

/// A piece of a watch, or its break. That the sender is dropped is its end in good order.
pub(crate) type Piece = Result<Vec<u8>, BoxError>;

#[derive(Clone, Default)]
pub(crate) struct Wire {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    sent: Mutex<VecDeque<Outgoing>>,
    news: Notify,
}

impl Wire {
    /// Waits until something is sent.
    pub(crate) async fn sending(&self) {
        self.shared.news.notified().await;
    }

    pub(crate) fn take(&self) -> Option<Outgoing> {
        self.shared.sent.lock().pop_front()
    }
}

impl Service<Request<Body>> for Wire {
    type Response = Response<Pieces>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = self.shared.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await?.to_vec();
            let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
            let (reply, answer) = oneshot::channel();
            shared.sent.lock().push_back(Outgoing {
                sent: Instant::now(),
                method: parts.method.to_string(),
                uri: parts.uri.to_string(),
                metadata_only: accept.is_some_and(|accept| accept.contains("PartialObjectMetadata")),
                body,
                reply,
            });
            shared.news.notify_one();
            let (code, date, body) = match answer.await.map_err(|_| "the connection was cut")? {
                Reply::Whole { code, date, body } => (code, date, Pieces::Whole(Some(body.into()))),
                Reply::Stream { date, pieces } => (200, date, Pieces::Stream(pieces)),
            };
            let mut response = Response::new(body);
            *response.status_mut() = code.try_into()?;
            response.headers_mut().insert(header::DATE, HeaderValue::from_str(&date)?);
            Ok(response)
        })
    }
}

/// The body of an answer.
pub(crate) enum Pieces {
    Whole(Option<Bytes>),
    Stream(mpsc::UnboundedReceiver<Piece>),
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Stream(pieces) => pieces
                .poll_recv(cx)
                .map(|piece| piece.map(|piece| piece.map(|json| Frame::data(json.into())))),
        }
    }
}
