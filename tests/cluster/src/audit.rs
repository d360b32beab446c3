//! The audit log: what the API server was asked, by whom, and what it answered.

use std::path::Path;

use serde_json::{Value, json};

/// How much of a request the audit log keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    None,
    /// Who asked what, when, and the code of the answer.
    Metadata,
    /// Also the body of the request.
    Request,
    /// Also the body of the answer.
    RequestResponse,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// Which requests are kept at which level.
#[derive(Debug, Clone)]
pub(crate) struct Policy(Vec<Value>);

impl Policy {
    /// Puts a rule for `resource` (a plural, `*` for all) of an API group before all that were added earlier.
    pub(crate) fn add(&mut self, group: &str, resource: &str, level: Level) {
        // A status is written through a subresource, which is a resource of its own here.
        let resources = [resource.to_owned(), format!("{resource}/*")];
        let rule =
            json!({ "level": level.name(), "resources": [{ "group": group, "resources": resources }] });
        self.0.insert(0, rule);
    }

    /// The file that the API server reads, as JSON, which is YAML too.
    pub(crate) fn file(&self) -> String {
        // The API server's own caches list and watch everything; that is no request of anybody.
        let own = json!({
            "level": "None", "users": ["system:apiserver"], "verbs": ["get", "list", "watch"],
        });
        let rest = json!({ "level": "Metadata" });
        let rules: Vec<_> = std::iter::once(&own).chain(&self.0).chain([&rest]).collect();
        json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": rules,
        })
        .to_string()
    }
}

impl Default for Policy {
    fn default() -> Self {
        let mut policy = Self(Vec::new());
        policy.add("lessor.dev", "*", Level::RequestResponse);
        policy
    }
}

/// The API server's arguments for an audit log.
pub(crate) fn arguments(policy: &Path, log: &Path) -> Vec<String> {
    vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
        // An answer is not sent before its entry is written.
        "--audit-log-mode=blocking".to_owned(),
        // In MB: never rotated, so that readers need to follow one file only.
        "--audit-log-maxsize=1000000".to_owned(),
    ]
}
