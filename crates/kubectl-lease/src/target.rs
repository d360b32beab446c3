//! What people write to name an object and keys of it: `configmap/sessions:alice,bob`.

use std::str::FromStr;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Client,
    core::{
        ApiResource,
        discovery::v2::{APIGroupDiscovery, APIGroupDiscoveryList, APIResourceDiscovery},
    },
};
use lessor_client::Target;

use crate::error::{Failure, NOT_FOUND, Outcome, UNREACHABLE};

/// An object as written, before anybody knows whether there is such a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    kind: String,
    name: String,
    pub(crate) keys: Vec<String>,
}

impl FromStr for Written {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            Err(format!(
                "{what}: write a kind, a slash and a name, like configmap/sessions, and keys of it behind a colon, \
                 like configmap/sessions:alice,bob"
            ))
        };
        let Some((kind, rest)) = text.split_once('/') else { return wrong("no slash") };
        let (name, keys) = match rest.split_once(':') {
            Some((name, keys)) => (name, keys.split(',').map(str::to_owned).collect()),
            None => (rest, Vec::new()),
        };
        if kind.is_empty() {
            return wrong("no kind");
        }
        if name.is_empty() || name.contains('/') {
            return wrong("no name of an object");
        }
        if keys.iter().any(String::is_empty) {
            return wrong("an empty key");
        }
        Ok(Self { kind: kind.to_owned(), name: name.to_owned(), keys })
    }
}

impl Written {
    /// Finds out which kind is meant.
    pub(crate) async fn resolve(&self, kinds: &mut Kinds<'_>) -> Outcome<Target> {
        Ok(Target { resource: kinds.find(&self.kind).await?, name: self.name.clone() })
    }

    /// The keys, as the library takes them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }
}

/// The kinds that a server has; asked for when they're needed.
pub(crate) struct Kinds<'a> {
    client: &'a Client,
    discovered: Option<Vec<Discovered>>,
}

#[derive(Clone, Debug)]
struct Discovered {
    resource: ApiResource,
    names: Vec<String>,
    listable: bool,
}

impl<'a> Kinds<'a> {
    /// Nothing is known yet.
    pub(crate) fn new(client: &'a Client) -> Self {
        Self { client, discovered: None }
    }

    /// Finds a kind by its singular, plural, short name or kind, with or without its version and group, like
    /// `cm`, `deployments.apps` and `deployments.v1.apps`. What everybody attaches costs no request.
    pub(crate) async fn find(&mut self, written: &str) -> Outcome<ApiResource> {
        match written.to_lowercase().as_str() {
            "cm" | "configmap" | "configmaps" => return Ok(ApiResource::erase::<ConfigMap>(&())),
            "secret" | "secrets" => return Ok(ApiResource::erase::<Secret>(&())),
            _ => {}
        }
        let found = self.discovered().await?.iter().find(|kind| kind.is_called(written));
        found.map(|kind| kind.resource.clone()).ok_or_else(|| {
            Failure::new(
                NOT_FOUND,
                format!("the server has no namespaced kind {written:?}: kubectl api-resources --namespaced lists them"),
            )
        })
    }

    /// All kinds that can be listed.
    pub(crate) async fn all(&mut self) -> Outcome<Vec<ApiResource>> {
        let discovered = self.discovered().await?;
        Ok(discovered.iter().filter(|kind| kind.listable).map(|kind| kind.resource.clone()).collect())
    }

    async fn discovered(&mut self) -> Outcome<&[Discovered]> {
        if self.discovered.is_none() {
            let failed = |error: kube::Error| {
                Failure::new(UNREACHABLE, format!("can't ask for the server's kinds: {error}"))
            };
            let core = self.client.list_core_api_versions_aggregated().await.map_err(failed)?;
            let groups = self.client.list_api_groups_aggregated().await.map_err(failed)?;
            self.discovered = Some([core, groups].iter().flat_map(kinds_of).collect());
        }
        Ok(self.discovered.as_deref().unwrap_or_default())
    }
}

impl Discovered {
    fn is_called(&self, written: &str) -> bool {
        let written = written.to_lowercase();
        let (name, rest) =
            written.split_once('.').map_or((&*written, None), |(name, rest)| (name, Some(rest)));
        let resource = &self.resource;
        let fits = match rest {
            None => true,
            Some(rest) => {
                rest == resource.group
                    || rest == resource.version
                    || rest.split_once('.') == Some((resource.version.as_str(), resource.group.as_str()))
            }
        };
        fits && self.names.iter().any(|known| known == name)
    }
}

/// The namespaced kinds of a discovery document, of each group its preferred version.
fn kinds_of(list: &APIGroupDiscoveryList) -> Vec<Discovered> {
    list.items.iter().flat_map(kinds_of_group).collect()
}

fn kinds_of_group(group: &APIGroupDiscovery) -> Vec<Discovered> {
    let name = group.metadata.as_ref().and_then(|meta| meta.name.clone()).unwrap_or_default();
    let mut found: Vec<Discovered> = Vec::new();
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

fn discovered(group: &str, version: &str, plural: String, found: &APIResourceDiscovery) -> Discovered {
    let kind = found.response_kind.as_ref().and_then(|kind| kind.kind.clone()).unwrap_or_default();
    let mut names = vec![plural.clone(), kind.to_lowercase()];
    names.extend(found.singular_resource.clone());
    names.extend(found.short_names.iter().cloned());
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let resource =
        ApiResource { group: group.to_owned(), version: version.to_owned(), api_version, kind, plural };
    Discovered { resource, names, listable: found.verbs.iter().any(|verb| verb == "list") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(text: &str) -> Result<(String, String, Vec<String>), String> {
        text.parse::<Written>().map(|written| (written.kind, written.name, written.keys))
    }

    #[test]
    fn an_object_is_written_as_kind_and_name_with_or_without_keys() {
        let expected = |kind: &str, name: &str, keys: &[&str]| {
            Ok((
                kind.to_owned(),
                name.to_owned(),
                keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>(),
            ))
        };
        assert_eq!(written("configmap/sessions"), expected("configmap", "sessions", &[]));
        assert_eq!(
            written("cm/sessions:alice,.bob.token"),
            expected("cm", "sessions", &["alice", ".bob.token"])
        );
        assert_eq!(
            written("deploy.v1.apps/web:/metadata/labels/team"),
            expected("deploy.v1.apps", "web", &["/metadata/labels/team"])
        );
    }

    #[test]
    fn what_names_no_object_is_refused_with_an_example() {
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
            assert!(written(wrong).expect_err(wrong).contains("like configmap/sessions"), "{wrong}");
        }
    }

    #[test]
    fn a_kind_has_many_names() {
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
            assert!(kind.is_called(name), "{name}");
        }
        for name in ["deployment.extensions", "deployments.v1beta1.apps", "pods"] {
            assert!(!kind.is_called(name), "{name}");
        }
        assert_eq!(kind.resource.api_version, "apps/v1");
    }
}
