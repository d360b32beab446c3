//! A proxy between one client and the API server, which does what networks do to them.
//!
//! It adds latency, loses requests and answers, cuts connections and answers errors, at random from a seed
//! ([`Faults`]); it cuts its client off and heals ([`Proxy::isolate`], [`Proxy::disconnect`]); and it holds chosen
//! requests on their way ([`Proxy::hold_request`], [`Proxy::hold_answer`]).
//!
//! What a client has sent arrives, even if the client is gone or has stopped waiting meanwhile, as in a real network.

mod faults;
mod forward;
mod hold;
mod link;

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{self, Runtime},
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use self::{
    forward::Upstream,
    hold::{HeldAt, Holds},
    link::{Gated, Link},
};
use crate::{
    access::Access,
    certs::Identity,
    error::{Doing, Error},
};

pub use self::{
    faults::{Counts, Faults},
    hold::Hold,
};

/// A request as the proxy sees it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Seen {
    /// `GET`, `PATCH`, and so on.
    pub method: http::Method,
    /// The path, for example `/api/v1/namespaces/default/configmaps/one`.
    pub path: String,
    /// What follows the path, without `?`.
    pub query: String,
    /// What the client calls itself.
    pub user_agent: String,
    /// The token by which the client says who it is, if it has one.
    pub token: String,
    body: hyper::body::Bytes,
}

impl Seen {
    /// Whether the method is `method` and the path ends with `end`.
    pub fn is(&self, method: &str, end: &str) -> bool {
        self.method == method && self.path.ends_with(end)
    }

    /// The body, if it is JSON.
    pub fn json(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Whether it asks for a watch.
    pub fn is_watch(&self) -> bool {
        self.query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"))
    }
}

/// Which requests are meant.
type Matching = Box<dyn Fn(&Seen) -> bool + Send + Sync>;

/// Called with each request.
type Observer = Box<dyn Fn(&Seen) + Send + Sync>;

/// A proxy for one client, made by [`Cluster::proxy`](crate::Cluster::proxy). It ends when it's dropped.
///
/// It has a thread of its own: a test that waits for a program without `await` doesn't stop it.
#[derive(Debug)]
pub struct Proxy {
    access: Access,
    state: Arc<State>,
    /// `None` once dropped.
    runtime: Option<Runtime>,
}

/// What the connections of a proxy share.
struct State {
    upstream: Upstream,
    link: watch::Sender<Link>,
    faults: Mutex<Vec<Faults>>,
    counts: Mutex<Counts>,
    holds: Mutex<Holds>,
    observer: OnceLock<Observer>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, faults, counts, holds, .. } = self;
        let mut shown = f.debug_struct("State");
        shown.field("upstream", upstream).field("faults", faults).field("counts", counts);
        shown.field("holds", holds).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Listens on `listener` with the certificate `identity`, and forwards to the API server of `upstream`.
    pub(crate) fn start(
        listener: std::net::TcpListener,
        identity: &Identity,
        upstream: &Config,
        access: Access,
    ) -> Result<Self, Error> {
        let state = Arc::new(State {
            upstream: Upstream::new(upstream)?,
            link: watch::Sender::new(Link::Up),
            faults: Mutex::default(),
            counts: Mutex::default(),
            holds: Mutex::default(),
            observer: OnceLock::new(),
        });
        let doing = || "starting a proxy";
        let acceptor = acceptor(identity).map_err(io::Error::other).doing(doing)?;
        let mut runtime = runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("proxy").enable_all().build().doing(doing)?;
        let inside = runtime.enter();
        let listener = TcpListener::from_std(listener).doing(doing)?;
        drop(inside);
        runtime.spawn(accept(listener, acceptor, Arc::clone(&state)));
        Ok(Self { access, state, runtime: Some(runtime) })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        self.access.admin.cluster_url.to_string()
    }

    /// A kubeconfig that goes through the proxy, with the token of an administrator (the service account
    /// `kube-system/administrator`).
    pub fn kubeconfig_path(&self) -> &Path {
        &self.access.kubeconfig
    }

    /// Writes a kubeconfig that goes through the proxy with
    /// [`Cluster::service_account_token`](crate::Cluster::service_account_token); `name` distinguishes the file.
    pub fn kubeconfig_with_token(&self, name: &str, token: &str) -> Result<PathBuf, Error> {
        self.access.kubeconfig_with_token(name, token)
    }

    /// The configuration of an administrator's client that goes through the proxy.
    pub fn client_config(&self) -> Config {
        self.access.admin.clone()
    }

    /// An administrator's client that goes through the proxy.
    pub fn client(&self) -> Result<Client, Error> {
        Client::try_from(self.client_config()).doing(|| "making a client")
    }

    /// Cuts the client off like a network that loses everything: connections stay open, new ones open, and nothing
    /// gets through in either direction until [`Proxy::heal`]; then all that was sent arrives, late.
    pub fn isolate(&self) {
        self.state.link.send_replace(Link::Isolated);
    }

    /// Cuts the client off by closing its connections, and each new one, until [`Proxy::heal`].
    pub fn disconnect(&self) {
        self.state.link.send_replace(Link::Broken);
    }

    /// Ends [`Proxy::isolate`] and [`Proxy::disconnect`].
    pub fn heal(&self) {
        self.state.link.send_replace(Link::Up);
    }

    /// Faults from now on, instead of those before; of several, the first whose requests are meant counts.
    pub fn set_faults(&self, faults: impl IntoIterator<Item = Faults>) {
        *self.state.faults.lock() = faults.into_iter().collect();
    }

    /// Calls `observer` with each request from now on, when it has come and before any fault. The first observer stays.
    pub fn observe(&self, observer: impl Fn(&Seen) + Send + Sync + 'static) {
        self.state.observer.get_or_init(|| Box::new(observer));
    }

    /// How many requests came, and what was done to them.
    pub fn counts(&self) -> Counts {
        *self.state.counts.lock()
    }

    /// Holds each request that `matching` means before the API server gets it, until the hold ends.
    #[must_use = "the hold ends when it's dropped"]
    pub fn hold_request(&self, matching: impl Fn(&Seen) -> bool + Send + Sync + 'static) -> Hold {
        self.state.holds.lock().add(HeldAt::Request, Box::new(matching))
    }

    /// Holds the answer to each request that `matching` means, after the API server has done it.
    #[must_use = "the hold ends when it's dropped"]
    pub fn hold_answer(&self, matching: impl Fn(&Seen) -> bool + Send + Sync + 'static) -> Hold {
        self.state.holds.lock().add(HeldAt::Answer, Box::new(matching))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Without waiting, which isn't allowed in async tests.
            runtime.shutdown_background();
        }
    }
}

/// A listener for [`Proxy::start`], and its address.
pub(crate) fn listen() -> Result<(std::net::TcpListener, SocketAddr), Error> {
    let listen = || -> io::Result<_> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listen().doing(|| "listening on 127.0.0.1")
}

fn acceptor(identity: &Identity) -> Result<TlsAcceptor, Box<dyn std::error::Error + Send + Sync>> {
    let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, state: Arc<State>) {
    // Dropped with this task: the connections end with the proxy.
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(serve(stream, acceptor.clone(), Arc::clone(&state)));
            }
            Err(error) => tracing::warn!(%error, "proxy can't accept a connection"),
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection until it ends or is broken.
async fn serve(stream: TcpStream, acceptor: TlsAcceptor, state: Arc<State>) {
    let mut link = state.link.subscribe();
    let gated = Gated::new(stream, link.clone());
    let connection = async {
        let stream = TokioIo::new(acceptor.accept(gated).await?);
        let service = service_fn(|request| forward::forward(Arc::clone(&state), request));
        let served = http1::Builder::new()
            // A client that stops waiting after an isolation has still sent what it had sent.
            .half_close(true)
            .serve_connection(stream, service)
            .await;
        served.map_err(io::Error::other)
    };
    tokio::select! {
        // Cut connections and clients that go away end here with errors; both are what a proxy for faults is for.
        result = connection => if let Err(error) = result { tracing::debug!(%error, "proxy connection ended") },
        _ = link.wait_for(|link| *link == Link::Broken) => {}
    }
}
