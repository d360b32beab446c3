//! A write and its response, as the checker reads them.

use std::fmt;

use k8s_openapi::jiff::Timestamp;
use lessor_cluster::audit::Entry;
use serde_json::Value;

/// A request for a change, and what came of it; from an audit log, or from a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// When the API server received it.
    pub received: Timestamp,
    /// When the API server's answer was ready.
    pub answered: Timestamp,
    /// Who asked.
    pub user: String,
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// API group; empty for core.
    pub group: String,
    /// Plural.
    pub resource: String,
    /// `status`, for example, or empty.
    pub subresource: String,
    /// Empty for what is cluster-scoped.
    pub namespace: String,
    /// Of the object; may be empty for creations.
    pub name: String,
    /// The HTTP status of the answer; 0 if there was none.
    pub code: u16,
    /// The body of the request.
    pub body: Option<Value>,
    /// The body of the answer.
    pub answer: Option<Value>,
}

impl Request {
    /// The write of an audit entry; `None` for reads, dry runs and what is no resource.
    pub fn from_audit(entry: Entry) -> Option<Self> {
        let dry_run = entry.uri.contains("dryRun=");
        if !entry.is_write() || dry_run || entry.resource.is_empty() || entry.stage != "ResponseComplete" {
            return None;
        }
        Some(Self {
            received: entry.received,
            answered: entry.at,
            user: entry.user,
            verb: entry.verb,
            group: entry.group,
            resource: entry.resource,
            subresource: entry.subresource,
            namespace: entry.namespace,
            name: entry.name,
            code: entry.code,
            body: entry.request_object,
            answer: entry.response_object,
        })
    }

    /// Whether it was done.
    pub fn is_accepted(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Whether it may have been done, though the answer doesn't say so: the API server gave up waiting for its store, or
    /// the client for the API server.
    pub(crate) fn is_unsure(&self) -> bool {
        self.code == 0 || self.code >= 499
    }

    /// Whether it is about this resource, or its status.
    pub(crate) fn is_of(&self, group: &str, resource: &str) -> bool {
        self.group == group && self.resource == resource && matches!(self.subresource.as_str(), "" | "status")
    }

    /// A member of the body, by JSON pointer.
    pub(crate) fn body_at(&self, pointer: &str) -> Option<&Value> {
        self.body.as_ref()?.pointer(pointer).filter(|value| !value.is_null())
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { received, user, verb, resource, subresource, namespace, name, code, .. } = self;
        let slash = if subresource.is_empty() { "" } else { "/" };
        write!(f, "{received} {user}: {verb} {resource}{slash}{subresource} {namespace}/{name}: {code}")?;
        if let Some(body) = &self.body {
            let text = body.to_string();
            let end = text.floor_char_boundary(400);
            write!(f, " {}{}", &text[..end], if end < text.len() { "…" } else { "" })?;
        }
        Ok(())
    }
}
