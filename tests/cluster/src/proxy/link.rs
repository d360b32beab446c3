//! The cable between the client and the proxy, which can be cut.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::watch,
};

/// The state of the cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// Bytes flow.
    Up,
    /// Connections stay, bytes don't flow.
    Isolated,
    /// Connections are closed.
    Broken,
}

/// A stream whose bytes flow unless the link is isolated.
pub(super) struct Gated {
    stream: TcpStream,
    link: watch::Receiver<Link>,
    /// Ends when the link is no longer isolated. One is enough for both directions, since one task drives both.
    healed: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Gated {
    pub(super) fn new(stream: TcpStream, link: watch::Receiver<Link>) -> Self {
        Self { stream, link, healed: None }
    }

    fn poll_gate(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while *self.link.borrow() == Link::Isolated {
            let link = &self.link;
            let healed = self.healed.get_or_insert_with(|| {
                let mut link = link.clone();
                Box::pin(async move {
                    // The sender lives as long as the proxy; without it nothing is isolated.
                    let _ = link.wait_for(|link| *link != Link::Isolated).await;
                })
            });
            ready!(healed.as_mut().poll(cx));
            self.healed = None;
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Gated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_gate(cx));
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Gated {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_gate(cx));
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_gate(cx));
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_gate(cx));
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
