//! Objects of several kinds, made and changed alike.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, DynamicObject, Patch, PostParams},
    core::{ApiResource, GroupVersionKind},
    runtime::{conditions::is_crd_established, wait::await_condition},
};
use lessor_kit::world::{PATIENCE, World, holder, until};
use serde_json::{Map, Value, json};

/// A kind of objects that have the parts `a`, `b` and so on.
#[derive(Clone)]
pub(crate) struct Things {
    pub(crate) resource: ApiResource,
    pub(crate) api: Api<DynamicObject>,
    /// Where the parts are.
    field: &'static str,
}

impl Things {
    pub(crate) fn config_maps(world: &World) -> Self {
        Self::of(world, GroupVersionKind::gvk("", "v1", "ConfigMap"), "data")
    }

    pub(crate) fn secrets(world: &World) -> Self {
        Self::of(world, GroupVersionKind::gvk("", "v1", "Secret"), "data")
    }

    /// Pods, whose annotations can be changed through a subresource.
    pub(crate) fn pods(world: &World) -> Self {
        Self::of(world, GroupVersionKind::gvk("", "v1", "Pod"), "spec")
    }

    /// The same things, as another user sees them.
    pub(crate) fn by(mut self, client: Client, namespace: &str) -> Self {
        self.api = Api::namespaced_with(client, namespace, &self.resource);
        self
    }

    /// A kind of this world's own, which is installed now.
    pub(crate) async fn widgets(world: &World) -> Self {
        let things = Self::widgets_to_be(world);
        things.install(world.client.clone()).await;
        things
    }

    /// A kind of this world's own, which isn't installed.
    pub(crate) fn widgets_to_be(world: &World) -> Self {
        let group = format!("{}.example.com", world.namespace);
        Self::of(world, GroupVersionKind::gvk(&group, "v1", "Widget"), "spec")
    }

    /// Things of any kind, which have their parts in a field.
    pub(crate) fn of(world: &World, kind: GroupVersionKind, field: &'static str) -> Self {
        let resource = ApiResource::from_gvk(&kind);
        let api = Api::namespaced_with(world.client.clone(), &world.namespace, &resource);
        Self { resource, api, field }
    }

    fn crd_name(&self) -> String {
        format!("{}.{}", self.resource.plural, self.resource.group)
    }

    /// What an administrator calls the kind.
    pub(crate) fn name(&self) -> String {
        if self.resource.group.is_empty() { self.resource.plural.clone() } else { self.crd_name() }
    }

    /// The same, with keys allowed.
    pub(crate) fn with_keys(&self) -> String {
        if self.field == "data" { self.name() } else { format!("{}:pointers", self.name()) }
    }

    /// Installs the kind.
    pub(crate) async fn install(&self, client: Client) {
        let crd = json!({
            "metadata": {"name": self.crd_name()},
            "spec": {
                "group": self.resource.group,
                "scope": "Namespaced",
                "names": {"plural": self.resource.plural, "singular": "widget", "kind": self.resource.kind},
                "versions": [{
                    "name": self.resource.version, "served": true, "storage": true,
                    "subresources": {"status": {}, "scale": {
                        "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                    }},
                    "schema": {"openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                        },
                    }},
                }],
            },
        });
        let crd: CustomResourceDefinition = serde_json::from_value(crd).expect("a definition");
        let crds: Api<CustomResourceDefinition> = Api::all(client);
        crds.create(&PostParams::default(), &crd).await.expect("a kind");
        let name = self.crd_name();
        let established = await_condition(crds, &name, is_crd_established());
        tokio::time::timeout(PATIENCE, established).await.expect("a kind in time").expect("a kind");
    }

    /// Removes the kind, and with it every object.
    pub(crate) async fn uninstall(&self, client: Client) {
        let crds: Api<CustomResourceDefinition> = Api::all(client);
        let name = self.crd_name();
        crds.delete(&name, &DeleteParams::default()).await.expect("a deletion");
        until("the kind is gone", async || {
            crds.get_opt(&name).await.expect("an answer").is_none().then_some(())
        })
        .await;
    }

    /// What the part `a` is called as a key.
    pub(crate) fn key(&self, part: &str) -> String {
        if self.field == "data" { part.to_owned() } else { format!("/spec/{part}") }
    }

    /// The value of `lessor.dev/keys` that attaches these parts.
    pub(crate) fn keys(&self, parts: &[(&str, &str)]) -> String {
        let keys: Map<String, Value> =
            parts.iter().map(|(part, lease)| (self.key(part), json!(lease))).collect();
        Value::Object(keys).to_string()
    }

    /// Makes an object with these annotations and parts.
    pub(crate) async fn make(&self, name: &str, annotations: Value, parts: &[&str]) -> DynamicObject {
        // "dmFsdWU=" is "value", where bytes are meant.
        let parts: Map<String, Value> =
            parts.iter().map(|part| ((*part).to_owned(), json!("dmFsdWU="))).collect();
        self.create(json!({
            "metadata": {"name": name, "annotations": annotations}, (self.field): parts,
        }))
        .await
    }

    /// Makes an object.
    pub(crate) async fn create(&self, mut object: Value) -> DynamicObject {
        object["apiVersion"] = json!(self.resource.api_version);
        object["kind"] = json!(self.resource.kind);
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        self.api.create(&PostParams::default(), &object).await.expect("an object")
    }

    /// Changes an object by a merge patch.
    pub(crate) async fn patch(&self, name: &str, patch: Value) -> DynamicObject {
        self.api.patch(name, &holder(), &Patch::Merge(patch)).await.expect("a patched object")
    }

    /// Deletes an object.
    pub(crate) async fn delete(&self, name: &str) {
        self.api.delete(name, &DeleteParams::default()).await.expect("a deletion");
    }

    /// The object, if it's there.
    pub(crate) async fn get(&self, name: &str) -> Option<DynamicObject> {
        self.api.get_opt(name).await.expect("an answer")
    }

    /// The names of the parts that an object has.
    pub(crate) fn parts(&self, object: &DynamicObject) -> Vec<String> {
        let parts = object.data.get(self.field).and_then(Value::as_object);
        parts.map(|parts| parts.keys().cloned().collect()).unwrap_or_default()
    }

    /// Waits until an object has these parts and no others.
    pub(crate) async fn wait_parts(&self, name: &str, parts: &[&str]) -> DynamicObject {
        until(&format!("{name} has the parts {parts:?}"), async || {
            self.get(name).await.filter(|object| self.parts(object) == parts)
        })
        .await
    }

    /// Waits until an object is gone.
    pub(crate) async fn wait_gone(&self, name: &str) {
        until(&format!("{name} is gone"), async || self.get(name).await.is_none().then_some(())).await;
    }
}

/// The annotations of an object.
pub(crate) fn annotations_of(object: &DynamicObject) -> Value {
    json!(object.meta().annotations.clone().unwrap_or_default())
}
