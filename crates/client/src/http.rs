//! One request and its response, with two times: when it was sent, and the API server's clock.

use std::time::Duration;

use http::{
    Request, Response,
    header::{DATE, RETRY_AFTER},
};
use k8s_openapi::jiff::Timestamp;
use kube::{Client, client::Body, core::Status};
use lessor_api::time;
use serde::de::DeserializeOwned;

use super::{boot_instant::BootInstant, error::Error};

/// A successful response.
#[derive(Clone, Debug)]
pub(super) struct TimedResponse<T> {
    /// The object in the body.
    pub(super) object: T,
    /// The instant before the request was sent.
    pub(super) sent: BootInstant,
    /// The header `Date`: the API server's clock, rounded down to the second.
    pub(super) date: Option<Timestamp>,
}

/// Sends a request once, without retries, and waits for the response for at most `timeout`.
pub(super) async fn send<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
    timeout: Duration,
) -> Result<TimedResponse<T>, Error> {
    let sent = BootInstant::now();
    let response = async {
        let response = client.send(request.map(Body::from)).await.map_err(Error::from)?;
        let date = date_of(&response);
        let body = body_of(response).await?;
        let object = serde_json::from_slice(body.as_ref())
            .map_err(|error| Error::NoResponse(format!("malformed response: {error}")))?;
        Ok(TimedResponse { object, sent, date })
    };
    match tokio::time::timeout(timeout, response).await {
        Ok(response) => response,
        Err(_) => Err(Error::NoResponse(format!("timeout after {timeout:.1?}"))),
    }
}

fn date_of(response: &Response<Body>) -> Option<Timestamp> {
    time::from_http_date(response.headers().get(DATE)?.to_str().ok()?)
}

/// The body of a successful response, or the error in it.
async fn body_of(response: Response<Body>) -> Result<impl AsRef<[u8]>, Error> {
    let code = response.status();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|text| text.to_str().ok()?.parse().ok());
    let body = response.into_body().collect_bytes().await.map_err(Error::from)?;
    if code.is_success() {
        return Ok(body);
    }
    // A proxy in front of the API server may respond in a format of its own.
    let status = serde_json::from_slice::<Status>(&body).ok().filter(|status| !status.message.is_empty());
    let status = status.unwrap_or_else(|| Status::failure(&code.to_string(), ""));
    Err(Error::of_status(status.with_code(code.as_u16()), retry_after.map(Duration::from_secs)))
}
