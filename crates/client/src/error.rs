//! Why a request of a client was not done, in the API server's words as far as it gave any.

use std::time::Duration;

use kube::{core::Status, runtime::watcher};
use lessor_api::{attachment::Problem, lease::ENDED_MESSAGE};

/// Why something was not done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// There is no such object (404).
    #[error("{0}")]
    NotFound(String),
    /// The kind `Lease` isn't served here (404 that names no object).
    #[error("leases are not installed on this cluster: install the chart, or apply the YAML in crds/")]
    NotInstalled,
    /// A lease of this name exists (409). Renew it, wait until it's gone, or choose another name.
    #[error("{0}")]
    Exists(String),
    /// The lease is over: no renewal is accepted any more.
    #[error("{ENDED_MESSAGE}")]
    Ended,
    /// A lease of this name exists, but not the one that was meant: that one is gone.
    #[error(
        "the lease is gone, and another of this name has been made since: grant one of another name, or renew \
         that one by its name"
    )]
    Replaced,
    /// Nobody has granted the lease yet.
    #[error(
        "lease {lease:?} was made, but not granted within {waited:.1?}: is the operator running, and does it \
         serve this namespace? `kubectl lease status` tells"
    )]
    NotGranted {
        /// Its name.
        lease: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The server doesn't know who asks (401).
    #[error("{0}")]
    Unauthorized(String),
    /// Whoever asks lacks a right (403). [`Error::hint`] names a role that has it.
    #[error("{0}")]
    Forbidden(String),
    /// The server found it wrong (400, 422).
    #[error("{0}")]
    Invalid(String),
    /// The object has changed meanwhile, again and again (409).
    #[error("{0}")]
    Conflict(String),
    /// The server asks for patience (429).
    #[error("the API server asks for patience")]
    Throttled(Option<Duration>),
    /// The server can't do its work (5xx).
    #[error("the API server fails: {0}")]
    Failing(String),
    /// No answer came: nobody knows whether it was done.
    #[error("no answer from the API server: {0}")]
    NoAnswer(String),
    /// The annotations of an object are broken, or would be.
    #[error("{0}")]
    Annotation(#[from] Problem),
}

impl Error {
    /// Whether trying again, later or at once, may help. What isn't temporary stays as it is until somebody
    /// acts.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::Throttled(_) | Self::Failing(_) | Self::NoAnswer(_))
    }

    /// What to do about it, where the error alone doesn't say.
    pub fn hint(&self) -> Option<String> {
        let Self::Forbidden(message) = self else { return None };
        if !message.contains(".lessor.dev") {
            return Some("ask an administrator for this right in the namespace".to_owned());
        }
        let reads = ["get", "list", "watch"].iter().any(|verb| message.contains(&format!("cannot {verb} ")));
        let role = if reads { "view" } else { "edit" };
        Some(format!(
            "the role {role} has this right, through lessor-{role}: kubectl create rolebinding NAME \
             --clusterrole={role} --user=USER --namespace=NAMESPACE"
        ))
    }

    /// What an answer of the server means that is no success.
    pub(super) fn of_status(status: Status, retry_after: Option<Duration>) -> Self {
        let details = status.details.as_ref();
        let names_an_object = details.is_some_and(|details| !details.name.is_empty());
        let blames_uid = || {
            details.is_some_and(|details| details.causes.iter().any(|cause| cause.field == "metadata.uid"))
        };
        match status.code {
            401 => Self::Unauthorized(status.message),
            403 => Self::Forbidden(status.message),
            404 if names_an_object => Self::NotFound(status.message),
            404 => Self::NotInstalled,
            409 if status.is_already_exists() => Self::Exists(status.message),
            409 => Self::Conflict(status.message),
            422 if blames_uid() => Self::Replaced,
            422 if status.message.contains(ENDED_MESSAGE) => Self::Ended,
            429 => Self::Throttled(retry_after),
            400..500 => Self::Invalid(status.message),
            _ => Self::Failing(status.message),
        }
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                Self::of_status(*status, (seconds > 0).then(|| Duration::from_secs(seconds.into())))
            }
            other => Self::NoAnswer(root_cause(&other)),
        }
    }
}

impl From<watcher::Error> for Error {
    fn from(error: watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => kube::Error::Api(status).into(),
            watcher::Error::NoResourceVersion => Self::NoAnswer(error.to_string()),
        }
    }
}

/// What is at the bottom of an error: layers above it only say that something below them failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(status: serde_json::Value) -> Error {
        Error::of_status(serde_json::from_value(status).unwrap(), None)
    }

    #[test]
    fn the_server_is_quoted() {
        let message = "leases.lessor.dev \"x\" not found";
        let error = of(json!({"code": 404, "message": message, "details": {"name": "x"}}));
        assert!(matches!(error, Error::NotFound(_)));
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn a_renewal_that_comes_too_late_is_told_from_a_wrong_one() {
        let ended = "Lease.lessor.dev \"x\" is invalid: spec: Forbidden: lease has ended: grant a new one";
        assert!(matches!(of(json!({"code": 422, "message": ended})), Error::Ended));
        let replaced =
            json!({"code": 422, "message": "…", "details": {"causes": [{"field": "metadata.uid"}]}});
        assert!(matches!(of(replaced), Error::Replaced));
        assert!(matches!(of(json!({"code": 422, "message": "something else"})), Error::Invalid(_)));
    }

    #[test]
    fn a_missing_right_comes_with_the_role_that_has_it() {
        let hint = |verb: &str| {
            let message = format!(
                "leases.lessor.dev \"x\" is forbidden: User \"jane\" cannot {verb} resource \"leases\" in API group \
                 \"lessor.dev\" in the namespace \"shop\""
            );
            of(json!({"code": 403, "message": message})).hint().unwrap()
        };
        assert!(hint("watch").contains("lessor-view"));
        assert!(hint("patch").contains("lessor-edit"));
    }

    #[test]
    fn only_what_may_pass_is_temporary() {
        assert!(of(json!({"code": 503, "message": ""})).is_temporary());
        assert!(of(json!({"code": 429, "message": ""})).is_temporary());
        assert!(!of(json!({"code": 403, "message": ""})).is_temporary());
        assert!(!Error::Ended.is_temporary());
    }
}
