//! Objects and keys as arguments: `configmap/sessions:alice,bob`.

use std::str::FromStr;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Client,
    core::{
        ApiResource,
        discovery::v2::{APIGroupDiscovery, APIGroupDiscoveryList, APIResourceDiscovery},
    },
};
use lessor_client::AttachTarget;

use crate::error::{CliError, CliResult, NOT_FOUND, UNREACHABLE};

/// An object as an argument, whose kind isn't resolved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetArg {
    kind: String,
    name: String,
    pub(crate) keys: Vec<String>,
}

impl FromStr for TargetArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            Err(format!(
                "{what}: expected a kind and a name, such as configmap/sessions, with or without keys, such as \
                 configmap/sessions:alice,bob"
            ))
        };
        let Some((kind, rest)) = text.split_once('/') else { return wrong("missing slash") };
        let (name, keys) = match rest.split_once(':') {
            Some((name, keys)) => (name, keys.split(',').map(str::to_owned).collect()),
            None => (rest, Vec::new()),
        };
        if kind.is_empty() {
            return wrong("missing kind");
        }
        if name.is_empty() || name.contains('/') {
            return wrong("invalid name");
        }
        if keys.iter().any(String::is_empty) {
            return wrong("empty key");
        }
        Ok(Self { kind: kind.to_owned(), name: name.to_owned(), keys })
    }
}

impl TargetArg {
    /// Resolves the kind.
    pub(crate) async fn resolve(&self, kinds: &mut KindResolver<'_>) -> CliResult<AttachTarget> {
        Ok(AttachTarget { resource: kinds.find(&self.kind).await?, name: self.name.clone() })
    }

    /// The keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }
}

/// Finds kinds by their names, with the API server's discovery information.
pub(crate) struct KindResolver<'a> {
    client: &'a Client,
    discovered: Option<Vec<DiscoveredKind>>,
}

#[derive(Clone, Debug)]
struct DiscoveredKind {
    resource: ApiResource,
    names: Vec<String>,
    listable: bool,
}

impl<'a> KindResolver<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self { client, discovered: None }
    }

    /// Finds a kind by its singular, plural, short name or kind, optionally with version and group, such as `cm`,
    /// `deployments.apps` or `deployments.v1.apps`. Sends no request for ConfigMaps and Secrets.
    pub(crate) async fn find(&mut self, name: &str) -> CliResult<ApiResource> {
        match name.to_lowercase().as_str() {
            "cm" | "configmap" | "configmaps" => return Ok(ApiResource::erase::<ConfigMap>(&())),
            "secret" | "secrets" => return Ok(ApiResource::erase::<Secret>(&())),
            _ => {}
        }
        let found = self.discovered().await?.iter().find(|kind| kind.has_name(name));
        found.map(|kind| kind.resource.clone()).ok_or_else(|| {
            CliError::new(
                NOT_FOUND,
                format!(
                    "unknown namespaced kind {name:?}: `kubectl api-resources --namespaced` lists the kinds"
                ),
            )
        })
    }

    /// All namespaced kinds that can be listed.
    pub(crate) async fn listable(&mut self) -> CliResult<Vec<ApiResource>> {
        let discovered = self.discovered().await?;
        Ok(discovered.iter().filter(|kind| kind.listable).map(|kind| kind.resource.clone()).collect())
    }

    async fn discovered(&mut self) -> CliResult<&[DiscoveredKind]> {
        if self.discovered.is_none() {
            let failed =
                |error: kube::Error| CliError::new(UNREACHABLE, format!("discovery failed: {error}"));
            let core = self.client.list_core_api_versions_aggregated().await.map_err(failed)?;
            let groups = self.client.list_api_groups_aggregated().await.map_err(failed)?;
            self.discovered = Some([core, groups].iter().flat_map(kinds_of).collect());
        }
        Ok(self.discovered.as_deref().unwrap_or_default())
    }
}

impl DiscoveredKind {
    fn has_name(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        let (name, rest) = name.split_once('.').map_or((&*name, None), |(name, rest)| (name, Some(rest)));
        let resource = &self.resource;
        let matches = match rest {
            None => true,
            Some(rest) => {
                rest == resource.group
                    || rest == resource.version
                    || rest.split_once('.') == Some((resource.version.as_str(), resource.group.as_str()))
            }
        };
        matches && self.names.iter().any(|known| known == name)
    }
}

/// The namespaced kinds of a discovery document, each in the preferred version of its group.
fn kinds_of(list: &APIGroupDiscoveryList) -> Vec<DiscoveredKind> {
    list.items.iter().flat_map(kinds_of_group).collect()
}

fn kinds_of_group(group: &APIGroupDiscovery) -> Vec<DiscoveredKind> {
    let name = group.metadata.as_ref().and_then(|meta| meta.name.clone()).unwrap_or_default();
    let mut found: Vec<DiscoveredKind> = Vec::new();
    for version in &group.versions {
        for resource in &version.resources {
            let plural = resource.resource.clone().unwrap_or_default();
            if resource.scope.as_deref() == Some("Namespaced")
                && found.iter().all(|known| known.resource.plural != plural)
            {
                found.push(discovered(
                    &name,
                    version.version.as_deref().unwrap_or_default(),
                    plural,
                    resource,
                ));
            }
        }
    }
    found
}

fn discovered(group: &str, version: &str, plural: String, found: &APIResourceDiscovery) -> DiscoveredKind {
    let kind = found.response_kind.as_ref().and_then(|kind| kind.kind.clone()).unwrap_or_default();
    let mut names = vec![plural.clone(), kind.to_lowercase()];
    names.extend(found.singular_resource.clone());
    names.extend(found.short_names.iter().cloned());
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let resource =
        ApiResource { group: group.to_owned(), version: version.to_owned(), api_version, kind, plural };
    DiscoveredKind { resource, names, listable: found.verbs.iter().any(|verb| verb == "list") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(text: &str) -> Result<(String, String, Vec<String>), String> {
        text.parse::<TargetArg>().map(|arg| (arg.kind, arg.name, arg.keys))
    }

    #[test]
    fn an_argument_is_a_kind_and_a_name_with_or_without_keys() {
        let expected = |kind: &str, name: &str, keys: &[&str]| {
            Ok((
                kind.to_owned(),
                name.to_owned(),
                keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>(),
            ))
        };
        assert_eq!(parsed("configmap/sessions"), expected("configmap", "sessions", &[]));
        assert_eq!(
            parsed("cm/sessions:alice,.bob.token"),
            expected("cm", "sessions", &["alice", ".bob.token"])
        );
        assert_eq!(
            parsed("deploy.v1.apps/web:/metadata/labels/team"),
            expected("deploy.v1.apps", "web", &["/metadata/labels/team"])
        );
    }

    #[test]
    fn an_invalid_argument_is_refused_with_an_example() {
        for wrong in [
            "",
            "sessions",
            "/sessions",
            "configmap/",
            "configmap/:a",
            "configmap/a:",
            "configmap/a:b,",
            "a/b/c",
        ] {
            assert!(parsed(wrong).expect_err(wrong).contains("such as configmap/sessions"), "{wrong}");
        }
    }

    #[test]
    fn a_kind_is_found_by_each_of_its_names() {
        let list = json!({"items": [{"metadata": {"name": "apps"}, "versions": [
            {"version": "v1", "resources": [
                {"resource": "deployments", "responseKind": {"kind": "Deployment"}, "scope": "Namespaced",
                 "singularResource": "deployment", "shortNames": ["deploy"], "verbs": ["get", "list"]},
                {"resource": "nodes", "scope": "Cluster", "verbs": ["list"]},
            ]},
            {"version": "v1beta1", "resources": [
                {"resource": "deployments", "responseKind": {"kind": "Deployment"}, "scope": "Namespaced", "verbs": ["list"]},
            ]},
        ]}]});
        let kinds = kinds_of(&serde_json::from_value(list).unwrap());
        let [kind] = &kinds[..] else { panic!("{kinds:?}") };
        for name in ["deploy", "deployment", "Deployments", "deployments.apps", "deploy.v1.apps", "deploy.v1"]
        {
            assert!(kind.has_name(name), "{name}");
        }
        for name in ["deployment.extensions", "deployments.v1beta1.apps", "pods"] {
            assert!(!kind.has_name(name), "{name}");
        }
        assert_eq!(kind.resource.api_version, "apps/v1");
    }
}
