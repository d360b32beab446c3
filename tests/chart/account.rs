//! The chart's ServiceAccount and its rights for one world, without a release of its own: helm renders them once for all
//! worlds, under a placeholder's name.

use std::{collections::BTreeSet, path::PathBuf};

use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use lessor_kit::world::{World, until};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::release::{documents, make_namespace, render};

/// Where the operators of all worlds live, as far as RBAC knows.
const HOME: &str = "lessor-system";
const PLACEHOLDER: &str = "placeholder";

/// What the chart makes of some values, for any world.
pub(crate) struct Template(String);

impl Template {
    /// Lets helm render it. In the values, the placeholder stands for the world's namespace.
    pub(crate) async fn new(values: &[&str]) -> Self {
        let names =
            format!("fullnameOverride={PLACEHOLDER},settings.lessor={PLACEHOLDER},rbac.aggregate=false");
        let mut args = vec!["--set", &names, "--show-only", "templates/rbac.yaml"];
        args.extend(["--show-only", "templates/serviceaccount.yaml"]);
        if values.iter().any(|value| value.contains("watchNamespaces")) {
            args.extend(["--show-only", "templates/keeprights.yaml"]);
        }
        args.extend(values);
        Self(render(&args).await)
    }

    /// The objects for a world.
    pub(crate) fn objects(&self, world: &World) -> Vec<Value> {
        documents(&self.0.replace(PLACEHOLDER, &world.namespace))
    }
}

/// A ServiceAccount that an operator runs as.
pub(crate) struct Account {
    /// How the API server calls it.
    pub(crate) user: String,
    pub(crate) token: String,
    pub(crate) kubeconfig: PathBuf,
}

impl Account {
    /// Makes the account of a world, with the rights of these objects, which are in force then.
    pub(crate) async fn new(world: &World, objects: &[Value]) -> Self {
        static HOME_MADE: OnceCell<()> = OnceCell::const_new();
        HOME_MADE.get_or_init(async || make_namespace(world.cluster, HOME).await).await;
        join_all(objects.iter().map(|object| create(&world.client, object))).await;
        let name = &world.namespace;
        let user = format!("system:serviceaccount:{HOME}:{name}");
        let firsts = rights(objects).into_iter().map(|right| (right.place.clone(), right));
        // One right of each role: the API server learns of a role and its binding all at once.
        let firsts: std::collections::BTreeMap<_, _> = firsts.collect();
        for right in firsts.values() {
            until(&format!("{user} has its right {right}"), async || {
                right.is_given(&world.client, &user).await.then_some(())
            })
            .await;
        }
        let token = world.cluster.service_account_token(HOME, name).await.expect("a token");
        let kubeconfig = world.cluster.service_account_kubeconfig(HOME, name).await;
        Self { user, token, kubeconfig: kubeconfig.expect("a kubeconfig") }
    }
}

async fn create(client: &Client, object: &Value) {
    let object: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
    let types = object.types.clone().expect("a kind");
    let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).expect("a kind"));
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    api.create(&PostParams::default(), &object).await.expect("an object");
}

/// A right: a verb on a resource, in one namespace or in the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    /// The namespace; empty: everywhere.
    pub(crate) place: String,
    pub(crate) verb: String,
    pub(crate) group: String,
    /// With its subresource.
    pub(crate) resource: String,
    /// The only object of which it is a right; empty: all.
    pub(crate) name: String,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { place, verb, group, resource, .. } = self;
        write!(f, "to {verb} {resource} of {group:?} in {place:?}")
    }
}

impl Right {
    async fn is_given(&self, client: &Client, user: &str) -> bool {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((&self.resource, ""));
        let attributes = ResourceAttributes {
            namespace: Some(self.place.clone()),
            verb: Some(self.verb.clone()),
            group: Some(self.group.clone()),
            resource: Some(resource.to_owned()),
            subresource: Some(subresource.to_owned()),
            name: Some(self.name.clone()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer =
            Api::all(client.clone()).create(&PostParams::default(), &review).await.expect("an answer");
        answer.status.is_some_and(|SubjectAccessReviewStatus { allowed, .. }| allowed)
    }
}

/// Every right that the operator's roles among these objects hold.
pub(crate) fn rights(objects: &[Value]) -> BTreeSet<Right> {
    let roles = objects.iter().filter(|object| {
        let aggregated = object["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"]
            .is_string()
            || object["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"].is_string();
        let ours = object["metadata"]["annotations"]["helm.sh/hook"].is_null();
        !aggregated && ours && ["Role", "ClusterRole"].contains(&object["kind"].as_str().unwrap_or_default())
    });
    let mut rights = BTreeSet::new();
    for role in roles {
        let place = role["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in role["rules"].as_array().expect("rules") {
            let names = if rule["resourceNames"].is_null() {
                vec![String::new()]
            } else {
                texts(&rule["resourceNames"])
            };
            for (group, resource, verb, name) in product(rule, &names) {
                rights.insert(Right { place: place.to_owned(), verb, group, resource, name });
            }
        }
    }
    rights
}

fn product(rule: &Value, names: &[String]) -> Vec<(String, String, String, String)> {
    let mut all = Vec::new();
    for group in texts(&rule["apiGroups"]) {
        for resource in texts(&rule["resources"]) {
            for verb in texts(&rule["verbs"]) {
                all.extend(
                    names.iter().map(|name| (group.clone(), resource.clone(), verb.clone(), name.clone())),
                );
            }
        }
    }
    all
}

fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().expect("a list");
    items.iter().map(|item| item.as_str().expect("a text").to_owned()).collect()
}

/// The same objects without one right.
pub(crate) fn without(objects: &[Value], right: &Right) -> Vec<Value> {
    let mut objects = objects.to_vec();
    for role in &mut objects {
        if role["metadata"]["namespace"].as_str().unwrap_or_default() != right.place {
            continue;
        }
        let Some(rules) = role.get_mut("rules").and_then(Value::as_array_mut) else { continue };
        for rule in rules.iter_mut() {
            if rule["apiGroups"] == json!([right.group]) && rule["resources"] == json!([right.resource]) {
                let verbs = rule["verbs"].as_array_mut().expect("verbs");
                verbs.retain(|verb| *verb != json!(right.verb));
            }
        }
        // A rule must have a verb.
        rules.retain(|rule| rule["verbs"] != json!([]));
    }
    objects
}
