//! The connections to the API server: as kube's client makes them, and with TCP keepalive.
//!
//! A load balancer may forget a connection, and its packets may get lost, without a sign. A watch on it would look alive until the
//! next bookmark is late.

use std::time::Duration;

use http::{Request, Response};
use http_body::Body as HttpBody;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Config,
    client::{Body, ConfigExt},
};
use tower::{
    BoxError, Layer, Service,
    util::{MapErr, option_layer},
};

/// A connection is probed after so long without a packet,
const IDLE: Duration = Duration::from_secs(15);
/// then this often,
const INTERVAL: Duration = Duration::from_secs(5);
/// and is closed after so many probes without an answer.
const PROBES: u32 = 3;

/// Sends requests to the API server of this configuration, without a proxy.
///
/// # Errors
/// When the configuration can't be used: a certificate that can't be parsed, for example.
pub(super) fn direct(
    config: &Config,
) -> kube::Result<
    impl Service<
        Request<Body>,
        Response = Response<
            impl HttpBody<Data = <Body as HttpBody>::Data, Error: Into<BoxError>> + Send + Unpin + use<>,
        >,
        Error = BoxError,
        Future: Send,
    > + Send
    + use<>,
> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(config.connect_timeout);
    tcp.set_keepalive(Some(IDLE));
    tcp.set_keepalive_interval(Some(INTERVAL));
    tcp.set_keepalive_retries(Some(PROBES));
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let client = Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = config.extra_headers_layer()?.layer(MapErr::new(client, BoxError::from));
    let service = option_layer(config.auth_layer()?).layer(service);
    Ok(config.base_uri_layer().layer(service))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::{net::TcpListener, time::sleep};

    use super::*;

    /// Whether the kernel's table of connections has one to this port whose keepalive timer runs.
    fn is_probed(port: u16) -> bool {
        let remote = format!(":{port:04X}");
        let table = fs::read_to_string("/proc/net/tcp").expect("a table");
        table.lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(2).is_some_and(|field| field.ends_with(&remote))
                && fields.get(5).is_some_and(|timer| timer.starts_with("02:"))
        })
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn an_idle_connection_is_probed() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let url = format!("http://127.0.0.1:{port}").parse().expect("a URL");
        let mut service = direct(&Config::new(url)).expect("a service");
        let request = Request::get("/version").body(Body::empty()).expect("a request");
        let watching = service.call(request);
        let probed = async {
            let _connection = listener.accept().await.expect("a connection");
            while !is_probed(port) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            _ = watching => panic!("there is no response"),
            probed = tokio::time::timeout(Duration::from_secs(10), probed) => probed.expect("keepalive"),
        }
    }
}
