//! The kinds that can be attached: what an administrator lists, what is refused, and what the API server serves.
//!
//! The operator deletes with its own rights, so the administrator lists each kind. The list gives the names of kinds; discovery finds out whether a
//! kind is served, and in which version.

use std::{collections::BTreeSet, fmt, str::FromStr};

use kube_core::ApiResource;
use lessor_api::{GROUP, KeyForm};
use serde::Deserialize;
use thiserror::Error;

use crate::kind::Kind;
pub use crate::kind::KindName;

/// A kind that an administrator lists.
///
/// As text: `RESOURCE[.GROUP][/VERSION][:pointers][:force]`, like `secrets`, `deployments.apps` or
/// `widgets.example.com/v1:pointers`. In a file, the same as members.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attachable {
    /// The plural, like `deployments`.
    pub resource: String,
    /// The group; empty for the core group.
    #[serde(default)]
    pub group: String,
    /// The version; `None`: the one that the server prefers.
    #[serde(default)]
    pub version: Option<String>,
    /// Whether members of its objects can be attached by JSON Pointers, and not only whole objects.
    #[serde(default)]
    pub pointers: bool,
    /// Whether it is meant though it is dangerous.
    #[serde(default)]
    pub force: bool,
}

/// What is wrong with a listed kind.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KindError {
    /// The text can't be understood.
    #[error(
        "{0:?} names no kind: write RESOURCE[.GROUP][/VERSION], and :pointers to allow keys, like \"secrets\" or \
         \"deployments.apps/v1:pointers\""
    )]
    Unreadable(String),
    /// ConfigMaps and Secrets have keys of their own.
    #[error("{0} have keys of data, which can be attached as they are: leave :pointers away")]
    NoPointers(String),
    /// It can't work, even with `force`.
    #[error("{kind} can't be attached: {why}")]
    Impossible {
        /// Which.
        kind: String,
        /// Why not.
        why: &'static str,
    },
    /// It can work, and do great harm.
    #[error("{kind} should not be attached: {why}; if that is what you want, write {kind}:force")]
    Dangerous {
        /// Which.
        kind: String,
        /// What can happen.
        why: &'static str,
    },
    /// It is listed twice.
    #[error("{0} is listed twice: leave one of them")]
    Twice(String),
    /// The file can't be understood.
    #[error("can't read the list of kinds: {0}")]
    File(String),
}

/// Kinds of the core that have no namespace, or hold up the cluster or its security.
const CLUSTER_SCOPED: &[(&str, &[&str])] = &[
    ("", &["namespaces", "nodes", "persistentvolumes", "componentstatuses"]),
    ("apiextensions.k8s.io", &["customresourcedefinitions"]),
    ("apiregistration.k8s.io", &["apiservices"]),
    ("rbac.authorization.k8s.io", &["clusterroles", "clusterrolebindings"]),
    (
        "admissionregistration.k8s.io",
        &[
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
        ],
    ),
    ("storage.k8s.io", &["storageclasses", "csidrivers", "csinodes", "volumeattachments"]),
    ("scheduling.k8s.io", &["priorityclasses"]),
    ("certificates.k8s.io", &["certificatesigningrequests"]),
];

/// Why a cluster-scoped kind can't be attached.
pub const NO_NAMESPACE: &str = "it is cluster-scoped, and a lease reaches only what is in its own namespace";

impl Attachable {
    /// ConfigMaps, which can be attached without being listed.
    pub fn config_maps() -> Self {
        Self::core("configmaps")
    }

    fn core(resource: &str) -> Self {
        Self {
            resource: resource.to_owned(),
            group: String::new(),
            version: None,
            pointers: false,
            force: false,
        }
    }

    /// Whether an object of this kind has keys that can be attached.
    pub fn has_keys(&self) -> bool {
        self.pointers || self.has_data()
    }

    /// Whether its keys are those of its data: ConfigMaps and Secrets.
    pub fn has_data(&self) -> bool {
        self.group.is_empty() && matches!(self.resource.as_str(), "configmaps" | "secrets")
    }

    /// Refuses what can't work, and what is dangerous unless it's meant.
    ///
    /// # Errors
    /// [`KindError`], for the author of the list.
    pub fn check(&self) -> Result<(), KindError> {
        let kind = self.to_string();
        let is_label = |text: &str| {
            let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            text.bytes().all(|byte| alphanumeric(byte) || byte == b'-')
                && text.bytes().next().is_some_and(alphanumeric)
                && text.bytes().last().is_some_and(alphanumeric)
        };
        let is_readable = is_label(&self.resource)
            && (self.group.is_empty() || self.group.split('.').all(is_label))
            && self.version.as_deref().is_none_or(is_label);
        if !is_readable {
            return Err(KindError::Unreadable(kind));
        }
        if self.pointers && self.has_data() {
            return Err(KindError::NoPointers(kind));
        }
        let (group, resource) = (self.group.as_str(), self.resource.as_str());
        if group == GROUP {
            let why =
                "leases end by their time or are deleted, and one that waits for another could wait for ever";
            return Err(KindError::Impossible { kind, why });
        }
        if CLUSTER_SCOPED.iter().any(|(of, resources)| *of == group && resources.contains(&resource)) {
            return Err(KindError::Impossible { kind, why: NO_NAMESPACE });
        }
        let why = match (group, resource) {
            ("rbac.authorization.k8s.io", _) => {
                "rights would vanish, or come back, by the end of a lease; and the operator would need power over roles"
            }
            ("", "serviceaccounts") => "whatever runs under it would lose its identity at once",
            ("coordination.k8s.io", "leases") => "controllers elect their leaders by these",
            ("policy", "poddisruptionbudgets") | ("networking.k8s.io", "networkpolicies") => {
                "its end takes a protection away, silently"
            }
            ("", "resourcequotas" | "limitranges") => "its end takes a limit away, silently",
            _ => return Ok(()),
        };
        if self.force { Ok(()) } else { Err(KindError::Dangerous { kind, why }) }
    }

    /// The kind, where it needs no discovery: ConfigMaps and Secrets are the same everywhere.
    pub fn known(&self) -> Option<Kind> {
        let kind = match self.resource.as_str() {
            "configmaps" => "ConfigMap",
            _ => "Secret",
        };
        let is_known = self.has_data() && self.version.as_deref().is_none_or(|version| version == "v1");
        is_known.then(|| self.resolve("v1", kind))
    }

    /// The kind as it is served, in this version.
    pub fn resolve(&self, version: &str, kind: &str) -> Kind {
        let api_version = match self.group.as_str() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        };
        Kind {
            form: KeyForm::of(&self.group, kind),
            pointers: self.pointers,
            resource: ApiResource {
                group: self.group.clone(),
                version: version.to_owned(),
                api_version,
                kind: kind.to_owned(),
                plural: self.resource.clone(),
            },
        }
    }
}

/// Without version and options: what names the kind in messages.
impl fmt::Display for Attachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

impl FromStr for Attachable {
    type Err = KindError;

    fn from_str(text: &str) -> Result<Self, KindError> {
        let unreadable = || KindError::Unreadable(text.to_owned());
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let (name, version) = match name.split_once('/') {
            Some((name, version)) => (name, Some(version.to_owned())),
            None => (name, None),
        };
        let (resource, group) = name.split_once('.').unwrap_or((name, ""));
        if name.ends_with('.') {
            return Err(unreadable());
        }
        let mut attachable = Self { group: group.to_owned(), version, ..Self::core(resource) };
        for option in parts {
            let set = match option {
                "pointers" => &mut attachable.pointers,
                "force" => &mut attachable.force,
                _ => return Err(unreadable()),
            };
            *set = true;
        }
        match attachable.check() {
            Err(KindError::Unreadable(_)) => Err(unreadable()),
            Err(error) => Err(error),
            Ok(()) => Ok(attachable),
        }
    }
}

/// What a file lists: `attachable`, a list of [`Attachable`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    attachable: Vec<Attachable>,
}

/// Reads a list of kinds from YAML (or JSON).
///
/// # Errors
/// [`KindError`], for its author.
pub fn from_yaml(text: &str) -> Result<Vec<Attachable>, KindError> {
    let File { attachable } =
        serde_saphyr::from_str(text).map_err(|error| KindError::File(error.to_string()))?;
    attachable.iter().try_for_each(Attachable::check)?;
    Ok(attachable)
}

/// ConfigMaps, and what was listed beside them.
///
/// # Errors
/// [`KindError::Twice`]
pub fn with_config_maps(listed: impl IntoIterator<Item = Attachable>) -> Result<Vec<Attachable>, KindError> {
    let mut kinds: Vec<Attachable> = listed.into_iter().collect();
    let mut names = BTreeSet::new();
    for kind in &kinds {
        if !names.insert(kind.to_string()) {
            return Err(KindError::Twice(kind.to_string()));
        }
    }
    let config_maps = Attachable::config_maps();
    if !names.contains(&config_maps.to_string()) {
        kinds.insert(0, config_maps);
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Attachable, KindError> {
        text.parse()
    }

    #[test]
    fn a_kind_is_read_wholly_or_not_at_all() {
        assert_eq!(read("secrets"), Ok(Attachable::core("secrets")));
        let widgets = Attachable {
            group: "example.com".to_owned(),
            version: Some("v1beta1".to_owned()),
            pointers: true,
            ..Attachable::core("widgets")
        };
        assert_eq!(read("widgets.example.com/v1beta1:pointers"), Ok(widgets));
        for wrong in [
            "",
            "Secret",
            "secrets/",
            "secrets.",
            ".apps",
            "deployments.apps/",
            "pods/status/v1",
            "deployments.apps:pointer",
            "deployments.apps:",
            "deployments .apps",
            "*",
            "*.apps",
        ] {
            assert!(matches!(read(wrong), Err(KindError::Unreadable(_))), "{wrong}");
        }
    }

    #[test]
    fn dangerous_kinds_have_to_be_meant() {
        for dangerous in ["roles.rbac.authorization.k8s.io", "serviceaccounts", "leases.coordination.k8s.io"]
        {
            assert!(matches!(read(dangerous), Err(KindError::Dangerous { .. })), "{dangerous}");
            assert!(read(&format!("{dangerous}:force")).is_ok(), "{dangerous}");
        }
    }

    #[test]
    fn kinds_that_no_lease_can_reach_are_refused_even_with_force() {
        for impossible in [
            "namespaces",
            "nodes",
            "persistentvolumes",
            "customresourcedefinitions.apiextensions.k8s.io",
            "clusterroles.rbac.authorization.k8s.io",
            "validatingwebhookconfigurations.admissionregistration.k8s.io",
            "leases.lessor.dev",
        ] {
            for text in [impossible.to_owned(), format!("{impossible}:force")] {
                assert!(matches!(read(&text), Err(KindError::Impossible { .. })), "{text}");
            }
        }
    }

    #[test]
    fn a_file_lists_kinds_like_arguments_do() {
        let yaml =
            "attachable:\n- resource: secrets\n- {resource: deployments, group: apps, pointers: true}\n";
        let listed = ["secrets", "deployments.apps:pointers"].map(|text| read(text).expect("a kind"));
        assert_eq!(from_yaml(yaml), Ok(listed.to_vec()));
        for wrong in [
            "",
            "attachable: secrets",
            "attachable: [{group: apps}]",
            "attachable: [{resource: secrets, pointer: true}]",
            "attachable: [{resource: Secret}]",
            "attachable: [{resource: nodes}]",
        ] {
            assert!(from_yaml(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_kind_is_listed_once() {
        let listed = |texts: &[&str]| with_config_maps(texts.iter().map(|text| read(text).expect("a kind")));
        assert_eq!(listed(&[]).map(|kinds| kinds.len()), Ok(1));
        assert_eq!(listed(&["secrets", "configmaps"]).map(|kinds| kinds.len()), Ok(2));
        assert_eq!(
            listed(&["jobs.batch", "jobs.batch/v1:pointers"]),
            Err(KindError::Twice("jobs.batch".to_owned()))
        );
    }
}
