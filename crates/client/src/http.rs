//! One request and its answer, with the times that matter: when it was sent, and the server's clock.

use std::time::Duration;

use http::{
    Request, Response,
    header::{DATE, RETRY_AFTER},
};
use k8s_openapi::jiff::{Timestamp, fmt::rfc2822};
use kube::{Client, client::Body, core::Status};
use serde::de::DeserializeOwned;

use super::{clock::Moment, error::Error};

/// What the API server answered.
#[derive(Clone, Debug)]
pub(super) struct Answer<T> {
    /// The object.
    pub(super) object: T,
    /// The moment before the request was sent.
    pub(super) sent: Moment,
    /// The server's clock when it answered, cut to the second.
    pub(super) date: Option<Timestamp>,
}

/// Sends a request once, as far as it's up to us, and waits for the answer for `timeout` at most.
pub(super) async fn exchange<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
    timeout: Duration,
) -> Result<Answer<T>, Error> {
    let sent = Moment::now();
    let answer = async {
        let response = client.send(request.map(Body::from)).await.map_err(Error::from)?;
        let date = date_of(&response);
        let body = body_of(response).await?;
        let object = serde_json::from_slice(body.as_ref())
            .map_err(|error| Error::NoAnswer(format!("an answer that can't be read ({error})")))?;
        Ok(Answer { object, sent, date })
    };
    match tokio::time::timeout(timeout, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::NoAnswer(format!("none within {timeout:.1?}"))),
    }
}

fn date_of(response: &Response<Body>) -> Option<Timestamp> {
    let date = response.headers().get(DATE)?.to_str().ok()?;
    Some(rfc2822::parse(date).ok()?.timestamp())
}

/// The body of a success, or what went wrong.
async fn body_of(response: Response<Body>) -> Result<impl AsRef<[u8]>, Error> {
    let code = response.status();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|text| text.to_str().ok()?.parse().ok());
    let body = response.into_body().collect_bytes().await.map_err(Error::from)?;
    if code.is_success() {
        return Ok(body);
    }
    // Whatever stands in front of the server may answer in a form of its own.
    let status = serde_json::from_slice::<Status>(&body).ok().filter(|status| !status.message.is_empty());
    let status = status.unwrap_or_else(|| Status::failure(&code.to_string(), ""));
    Err(Error::of_status(status.with_code(code.as_u16()), retry_after.map(Duration::from_secs)))
}
