//! Which kinds the API server serves, and in which version.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResource};
use kube::Client;
use lessor_core::{
    attachable::{Attachable, NO_NAMESPACE},
    index::attachments::Kind,
    observation::Failure,
};

use super::watcher::failure_of;

/// How long one question to the API server about its kinds may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the API server for a kind.
///
/// # Errors
/// [`Failure`]: it isn't there (yet), can't be used, or the server couldn't say.
pub async fn discover(client: &Client, attachable: &Attachable) -> Result<Kind, Failure> {
    if let Some(kind) = attachable.known() {
        return Ok(kind);
    }
    match tokio::time::timeout(PATIENCE, ask(client, attachable)).await {
        Ok(found) => found,
        Err(_) => Err(Failure::Other(format!("no answer within {PATIENCE:?} to what is served"))),
    }
}

async fn ask(client: &Client, attachable: &Attachable) -> Result<Kind, Failure> {
    for version in versions(client, attachable).await? {
        let listed = match attachable.group.as_str() {
            "" => client.list_core_api_resources(&version).await,
            group => client.list_api_group_resources(&format!("{group}/{version}")).await,
        };
        let resources = match listed {
            Ok(list) => list.resources,
            Err(error) => match failure_of(&error) {
                Failure::NoSuchKind => continue,
                failure => return Err(failure),
            },
        };
        if let Some(found) = resources.iter().find(|found| found.name == attachable.resource) {
            return usable(found).map(|()| attachable.resolve(&version, &found.kind));
        }
    }
    Err(Failure::NoSuchKind)
}

/// The versions to look into, best first.
async fn versions(client: &Client, attachable: &Attachable) -> Result<Vec<String>, Failure> {
    if let Some(version) = &attachable.version {
        return Ok(vec![version.clone()]);
    }
    if attachable.group.is_empty() {
        return Ok(vec!["v1".to_owned()]);
    }
    let request = http::Request::get(format!("/apis/{}", attachable.group))
        .body(Vec::new())
        .map_err(|error| Failure::Other(error.to_string()))?;
    let group: APIGroup = client.request(request).await.map_err(|error| failure_of(&error))?;
    let preferred = group.preferred_version.map(|preferred| preferred.version);
    let others = group.versions.into_iter().map(|version| version.version);
    let others = others.filter(|version| Some(version) != preferred.as_ref()).collect::<Vec<_>>();
    Ok(preferred.iter().cloned().chain(others).collect())
}

fn usable(resource: &APIResource) -> Result<(), Failure> {
    if !resource.namespaced {
        return Err(Failure::Unusable(NO_NAMESPACE.to_owned()));
    }
    let missing: Vec<&str> = ["watch", "delete"]
        .into_iter()
        .filter(|verb| !resource.verbs.iter().any(|has| has == verb))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::Unusable(format!("the API server has no {} for it", missing.join(" and no "))))
}
