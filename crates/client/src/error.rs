//! Errors of requests, with the API server's message where there is one.

use std::time::Duration;

use kube::{core::Status, runtime::watcher};
use lessor_api::{AttachmentProblem, lease::ENDED_MESSAGE};

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The object doesn't exist (404).
    #[error("{0}")]
    NotFound(String),
    /// The API server doesn't serve Leases of lessor.dev (404 without the name of an object).
    #[error("Lessor is not installed in this cluster: install its Helm chart, or apply deploy/lessor.yaml")]
    NotInstalled,
    /// A lease of this name exists (409). Renew it, [wait](super::LeaseClient::wait_gone) until it is gone, or use another
    /// name.
    #[error("{0}")]
    Exists(String),
    /// The lease has ended, and can't be renewed.
    #[error("{ENDED_MESSAGE}")]
    Ended,
    /// The lease is gone, and another of its name exists.
    #[error(
        "the lease is gone, and another lease of this name exists: grant a lease with another name, or renew the other \
         lease by its name"
    )]
    Replaced,
    /// The primary didn't grant the lease in time.
    #[error(
        "lease {lease:?} was created, but not granted within {waited:.1?}: check with `kubectl lease status` that the operator \
         is running and serves this namespace"
    )]
    NotGranted {
        /// The name of the lease.
        lease: String,
        /// How long the client waited.
        waited: Duration,
    },
    /// The user is not authenticated (401).
    #[error("{0}")]
    Unauthorized(String),
    /// The user lacks a right (403). [`Error::hint`] names a role that has it.
    #[error("{0}")]
    Forbidden(String),
    /// The request is invalid (400, 422).
    #[error("{0}")]
    Invalid(String),
    /// Other writers changed the object at the same time, repeatedly (409).
    #[error("{0}")]
    Conflict(String),
    /// The API server limits the rate of requests (429), with its `Retry-After`.
    #[error("the API server is overloaded (429 Too Many Requests)")]
    Throttled(Option<Duration>),
    /// The API server failed (5xx).
    #[error("API server error: {0}")]
    ServerError(String),
    /// No response arrived. The request may have had its effect.
    #[error("no response from the API server: {0}")]
    NoResponse(String),
    /// The annotations of an object are invalid, or would become so.
    #[error("{0}")]
    Annotation(#[from] AttachmentProblem),
}

impl Error {
    /// Whether another attempt may succeed without anything else being changed.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::Throttled(_) | Self::ServerError(_) | Self::NoResponse(_))
    }

    /// What the user can do about the error, if that isn't part of its message.
    pub fn hint(&self) -> Option<String> {
        let Self::Forbidden(message) = self else { return None };
        if !message.contains(".lessor.dev") {
            return Some("ask an administrator for this right in this namespace".to_owned());
        }
        let reads = ["get", "list", "watch"].iter().any(|verb| message.contains(&format!("cannot {verb} ")));
        let role = if reads { "view" } else { "edit" };
        Some(format!(
            "the role {role} includes this right through lessor-{role}: kubectl create rolebinding NAME \
             --clusterrole={role} --user=USER --namespace=NAMESPACE"
        ))
    }

    /// The error in a response.
    pub(super) fn of_status(status: Status, retry_after: Option<Duration>) -> Self {
        let details = status.details.as_ref();
        let names_an_object = details.is_some_and(|details| !details.name.is_empty());
        let concerns_uid = || {
            details.is_some_and(|details| details.causes.iter().any(|cause| cause.field == "metadata.uid"))
        };
        match status.code {
            401 => Self::Unauthorized(status.message),
            403 => Self::Forbidden(status.message),
            404 if names_an_object => Self::NotFound(status.message),
            404 => Self::NotInstalled,
            409 if status.is_already_exists() => Self::Exists(status.message),
            409 => Self::Conflict(status.message),
            422 if concerns_uid() => Self::Replaced,
            422 if status.message.contains(ENDED_MESSAGE) => Self::Ended,
            429 => Self::Throttled(retry_after),
            400..500 => Self::Invalid(status.message),
            _ => Self::ServerError(status.message),
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
            other => Self::NoResponse(root_cause(&other)),
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
            watcher::Error::NoResourceVersion => Self::NoResponse(error.to_string()),
        }
    }
}

/// The innermost source of an error; the layers above it add no information.
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
    fn the_message_is_that_of_the_api_server() {
        let message = "leases.lessor.dev \"x\" not found";
        let error = of(json!({"code": 404, "message": message, "details": {"name": "x"}}));
        assert!(matches!(error, Error::NotFound(_)));
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn a_late_renewal_is_distinguished_from_an_invalid_one() {
        let ended = "Lease.lessor.dev \"x\" is invalid: spec: Forbidden: lease has ended: grant a new one";
        assert!(matches!(of(json!({"code": 422, "message": ended})), Error::Ended));
        let replaced =
            json!({"code": 422, "message": "…", "details": {"causes": [{"field": "metadata.uid"}]}});
        assert!(matches!(of(replaced), Error::Replaced));
        assert!(matches!(of(json!({"code": 422, "message": "something else"})), Error::Invalid(_)));
    }

    #[test]
    fn the_hint_for_a_missing_right_names_a_role_that_has_it() {
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
    fn overload_and_server_errors_are_temporary() {
        assert!(of(json!({"code": 503, "message": ""})).is_temporary());
        assert!(of(json!({"code": 429, "message": ""})).is_temporary());
        assert!(!of(json!({"code": 403, "message": ""})).is_temporary());
        assert!(!Error::Ended.is_temporary());
    }
}
