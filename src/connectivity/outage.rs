//! Why the API server can't be used at present: for `/readyz` and `/healthz`, and for the log, once in a while.
//!
//! At rest a replica sends nothing, so the last success may be long ago. What counts is that requests fail since then.

use std::{error::Error, io, time::Duration};

use http::StatusCode;

/// At most one log line about an outage in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// In which way requests to the API server fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No connection, or no response.
    Unreachable,
    /// The TLS handshake fails, on a certificate for example.
    Tls,
    /// The API server refuses the credentials (401), or there are none.
    Unauthorized,
    /// The API server responds by 429 or 5xx.
    Failing,
}

impl Cause {
    /// Why a request got no response.
    pub fn of_error(error: &(dyn Error + 'static)) -> Self {
        let mut sources = std::iter::successors(Some(error), |error| source(*error));
        sources
            .find_map(|error| {
                if error.is::<rustls::Error>() {
                    return Some(Self::Tls);
                }
                matches!(error.downcast_ref(), Some(kube::Error::Auth(_))).then_some(Self::Unauthorized)
            })
            .unwrap_or(Self::Unreachable)
    }

    /// Why a request got this status. `None`: the API server works.
    pub fn of_status(status: StatusCode) -> Option<Self> {
        match status {
            StatusCode::UNAUTHORIZED => Some(Self::Unauthorized),
            StatusCode::TOO_MANY_REQUESTS => Some(Self::Failing),
            status if status.is_server_error() => Some(Self::Failing),
            _ => None,
        }
    }

    fn headline(self) -> &'static str {
        match self {
            Self::Unreachable => "API server unreachable",
            Self::Tls => "TLS connection to the API server fails",
            Self::Unauthorized => "API server refuses the credentials",
            Self::Failing => "API server can't serve requests",
        }
    }

    /// Whether a restart of the replica may help, which reads credentials and certificates again.
    fn is_refusal(self) -> bool {
        matches!(self, Self::Tls | Self::Unauthorized)
    }
}

/// An error with all its sources, outermost first. Many errors repeat their source, which is left out then.
pub fn describe(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for error in std::iter::successors(source(error), |error| source(*error)) {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The source of an [`io::Error`] is the error that it wraps. Its `source` method skips that.
fn source<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// How requests fail since the last success, if they do.
#[derive(Debug, Default)]
pub(super) struct Outage {
    failing: Option<FailingRequests>,
    logged_at: Option<Duration>,
    unlogged: u64,
}

#[derive(Debug)]
struct FailingRequests {
    since: Duration,
    /// Since when each failure is one that a restart may end.
    refused_since: Option<Duration>,
    cause: Cause,
    message: String,
    logged: bool,
}

/// A log line that is due.
#[derive(Debug, PartialEq)]
pub(super) enum LogLine {
    /// So many requests have failed since the last line, the last one like this.
    Failing { headline: &'static str, failures: u64, cause: String },
    /// Requests succeed again, after this long.
    Recovered { after: Duration },
}

impl Outage {
    /// Notes that a request failed.
    pub(super) fn failed(&mut self, cause: Cause, message: String, mono: Duration) -> Option<LogLine> {
        let before = self.failing.take();
        let refused_since = before.as_ref().and_then(|before| before.refused_since).unwrap_or(mono);
        self.unlogged += 1;
        let due = self.logged_at.is_none_or(|logged_at| logged_at + LOG_INTERVAL <= mono);
        let line = due.then(|| LogLine::Failing {
            headline: cause.headline(),
            failures: std::mem::take(&mut self.unlogged),
            cause: message.clone(),
        });
        if due {
            self.logged_at = Some(mono);
        }
        self.failing = Some(FailingRequests {
            since: before.as_ref().map_or(mono, |before| before.since),
            refused_since: cause.is_refusal().then_some(refused_since),
            cause,
            message,
            logged: due || before.is_some_and(|before| before.logged),
        });
        line
    }

    /// Notes a response. One by an aggregated API server proves only that there is a connection.
    pub(super) fn responded(&mut self, for_own_kind: bool, mono: Duration) -> Option<LogLine> {
        let is_proof = |failing: &FailingRequests| {
            for_own_kind || matches!(failing.cause, Cause::Unreachable | Cause::Tls)
        };
        if !self.failing.as_ref().is_some_and(is_proof) {
            return None;
        }
        let failing = self.failing.take()?;
        failing.logged.then(|| LogLine::Recovered { after: mono.saturating_sub(failing.since) })
    }

    /// Why requests fail at present.
    pub(super) fn reason(&self) -> Option<String> {
        self.failing.as_ref().map(|failing| format!("{}: {}", failing.cause.headline(), failing.message))
    }

    /// For how long the API server or its certificate have been refusing this replica.
    pub(super) fn refused_for(&self, mono: Duration) -> Option<Duration> {
        Some(mono.saturating_sub(self.failing.as_ref()?.refused_since?))
    }
}

impl LogLine {
    pub(super) fn log(&self) {
        match self {
            Self::Failing { headline, failures, cause } => tracing::warn!(failures, cause, "{headline}"),
            Self::Recovered { after } => {
                tracing::info!(after_s = after.as_secs(), "API server responds again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_error_is_described_with_all_its_sources_and_no_repetition() {
        let tls = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let io = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls));
        let error = kube::Error::Service(Box::new(io));
        assert_eq!(describe(&error), "ServiceError: invalid peer certificate: UnknownIssuer");
        assert_eq!(Cause::of_error(&error), Cause::Tls);
    }

    #[test]
    fn an_outage_is_logged_once_a_minute_and_its_end_once() {
        let mut outage = Outage::default();
        let mut lines = Vec::new();
        for second in 0..90 {
            lines.extend(outage.failed(Cause::Unreachable, "refused".to_owned(), seconds(second)));
        }
        let headline = "API server unreachable";
        let line = |failures| LogLine::Failing { headline, failures, cause: "refused".to_owned() };
        assert_eq!(lines, [line(1), line(60)]);
        assert_eq!(outage.reason().as_deref(), Some("API server unreachable: refused"));
        assert_eq!(outage.responded(true, seconds(90)), Some(LogLine::Recovered { after: seconds(90) }));
        assert_eq!((outage.responded(true, seconds(91)), outage.reason()), (None, None));
        // One that comes and goes is not logged each time.
        assert_eq!(outage.failed(Cause::Unreachable, "refused".to_owned(), seconds(92)), None);
        assert_eq!(outage.responded(true, seconds(93)), None);
    }

    #[test]
    fn only_refused_credentials_and_certificates_call_for_a_restart() {
        let mut outage = Outage::default();
        outage.failed(Cause::Unreachable, "refused".to_owned(), seconds(0));
        assert_eq!(outage.refused_for(seconds(600)), None);
        outage.failed(Cause::Unauthorized, "401".to_owned(), seconds(600));
        outage.failed(Cause::Tls, "certificate".to_owned(), seconds(700));
        assert_eq!(outage.refused_for(seconds(700)), Some(seconds(100)));
        outage.failed(Cause::Unreachable, "refused".to_owned(), seconds(800));
        assert_eq!(outage.refused_for(seconds(800)), None);
    }

    #[test]
    fn a_response_by_another_api_server_does_not_prove_that_the_credentials_are_accepted() {
        let mut outage = Outage::default();
        outage.failed(Cause::Unauthorized, "401".to_owned(), seconds(0));
        outage.responded(false, seconds(1));
        assert!(outage.reason().is_some());
        outage.responded(true, seconds(2));
        assert_eq!(outage.reason(), None);
    }
}
