//! The admission policy on the ways to an object's annotations that aren't the object's own: subresources, and what the API
//! server writes for a user. Each is tried by an administrator first, who shows what it does.

use kube::{
    Api,
    api::{DynamicObject, Patch, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use lessor_kit::world::{World, holder, until};
use serde_json::{Value, json};

use crate::{
    admission::{assert_refused, enforce},
    rights::apply,
    things::{Things, annotations_of},
};

/// A connection to a Pod or node, which changes no object.
const CONNECTIONS: [&str; 5] = ["attach", "exec", "portforward", "proxy", "log"];

/// A name for everything that one attempt needs.
fn name_of(who: &str, way: &str) -> String {
    format!("{who}-{}", way.replace(['/', '.'], "-"))
}

/// The things as a user sees them who has these rights to one path and no others.
async fn with_only(world: &World, things: &Things, path: &str, verbs: &[&str]) -> Things {
    let user = name_of(&world.namespace, &format!("{path}.{}", things.resource.group));
    let of = json!("rbac.authorization.k8s.io");
    let objects = [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": user, "namespace": world.namespace},
            "rules": [{"apiGroups": [things.resource.group], "resources": [path], "verbs": verbs}],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": user, "namespace": world.namespace},
            "roleRef": {"apiGroup": of, "kind": "Role", "name": user},
            "subjects": [{"apiGroup": of, "kind": "User", "name": user}],
        }),
    ];
    let objects = objects.map(|object| serde_json::from_value(object).expect("an object"));
    apply(world, &objects).await;
    let client = world.cluster.user_client(&user, &[]).expect("a client");
    things.clone().by(client, &world.namespace)
}

/// What the API server answers once it has learned of the user's rights.
async fn answer(attempt: impl AsyncFn() -> kube::Result<DynamicObject>) -> kube::Result<DynamicObject> {
    until("the rights are known", async || match attempt().await {
        Err(kube::Error::Api(status)) if status.message.contains(" cannot ") => None,
        answer => Some(answer),
    })
    .await
}

async fn is_attached(things: &Things, name: &str) -> bool {
    let object = things.get(name).await.expect("an object");
    annotations_of(&object).as_object().is_some_and(|all| all.keys().any(|key| key.contains("lessor.dev")))
}

/// The subresources of a kind that the API server lets a user write by this verb.
async fn written(world: &World, things: &Things, verb: &str) -> Vec<String> {
    let ApiResource { group, version, plural, .. } = &things.resource;
    let listed = match group.as_str() {
        "" => world.client.list_core_api_resources(version).await,
        group => world.client.list_api_group_resources(&format!("{group}/{version}")).await,
    };
    let resources = listed.expect("what is served").resources;
    let of_kind = resources.into_iter().filter(|resource| resource.verbs.iter().any(|has| has == verb));
    let names = of_kind.filter_map(|resource| {
        let name = resource.name.strip_prefix(&format!("{plural}/"))?;
        (!CONNECTIONS.contains(&name)).then(|| name.to_owned())
    });
    names.collect()
}

/// Kinds of all sorts, and an object of each.
async fn all_sorts(world: &World) -> Vec<(Things, Value)> {
    world.cluster.service_account_token(&world.namespace, "nobody").await.expect("an account");
    let kind = |group: &str, kind: &str| Things::of(world, GroupVersionKind::gvk(group, "v1", kind), "spec");
    let pod = json!({
        "containers": [{"name": "c", "image": "i"}], "serviceAccountName": "nobody",
        "automountServiceAccountToken": false, "restartPolicy": "Never",
    });
    let always = {
        let mut pod = pod.clone();
        pod["restartPolicy"] = json!("Always");
        json!({
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": pod},
        })
    };
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    vec![
        (Things::config_maps(world), Value::Null),
        (Things::secrets(world), Value::Null),
        (Things::pods(world), pod.clone()),
        (kind("", "Service"), json!({"type": "ExternalName", "externalName": "example.com"})),
        (kind("", "PersistentVolumeClaim"), claim),
        (kind("apps", "Deployment"), always.clone()),
        (kind("apps", "StatefulSet"), always),
        (kind("batch", "Job"), json!({"template": {"spec": pod}})),
        (Things::widgets(world).await, json!({"replicas": 1})),
    ]
}

#[tokio::test]
async fn no_subresource_lets_a_user_attach_an_object_they_may_not_delete() {
    let world = World::new("policy-around").await;
    let sorts = all_sorts(&world).await;
    let names: Vec<String> = sorts.iter().map(|(things, _)| things.name()).collect();
    enforce(&world, &["--attachable", &names.join(",")]).await;
    let mut ways = Vec::new();
    for (things, spec) in &sorts {
        for subresource in written(&world, things, "patch").await {
            let path = format!("{}/{subresource}", things.resource.plural);
            let way = format!("{}/{subresource}", things.name());
            let (administrators, users) = (name_of("admin", &path), name_of("user", &path));
            for name in [&administrators, &users] {
                things.create(json!({"metadata": {"name": name}, "spec": spec})).await;
            }
            let whole = json!({"lessor.dev/lease": "lease"});
            let key = json!({"lessor.dev/keys": things.keys(&[("a", "lease")])});
            let attach = async |things: &Things, name: &str, annotations: &Value| {
                let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
                things.api.patch_subresource(&subresource, name, &holder(), &patch).await
            };
            let _ = attach(things, &administrators, &whole).await;
            let attaches = is_attached(things, &administrators).await;

            let user = with_only(&world, things, &path, &["get", "patch", "update"]).await;
            let patched = answer(async || attach(&user, &users, &whole).await).await;
            let keyed = attach(&user, &users, &key).await;
            // A conflict says nothing of the policy: read the object again then.
            let replaced = until("no conflict", async || {
                // Some can be written only.
                let Ok(mut object) = user.api.get_subresource(&subresource, &users).await else {
                    return Some(None);
                };
                object.metadata.annotations = serde_json::from_value(whole.clone()).expect("annotations");
                let params = Default::default();
                match user.api.replace_subresource(&subresource, &users, &params, &object).await {
                    Err(kube::Error::Api(status)) if status.is_conflict() => None,
                    replaced => Some(Some(replaced)),
                }
            })
            .await;
            println!("{way}: attaches: {attaches}; {:?}", patched.as_ref().err());
            assert!(!is_attached(things, &users).await, "{way} attaches for a user who may not delete");
            if attaches {
                assert_refused(patched, "needs the right to delete it");
                assert_refused(keyed, "needs the right to update it");
                assert_refused(replaced.expect("an object"), "needs the right to delete it");
                let harmless = attach(&user, &users, &json!({"example.com/note": "x"})).await;
                harmless.expect("what is no attachment is theirs");
                ways.push(way);
            }
        }
    }
    // So that the test shows something. Of a Scale, and of a custom resource's status, annotations are dropped.
    for expected in ["pods/status", "services/status", "deployments.apps/status", "jobs.batch/status"] {
        assert!(ways.iter().any(|way| way == expected), "{expected} attaches nothing: {ways:?}");
    }
}

#[tokio::test]
async fn a_pod_is_not_attached_by_the_binding_that_gives_it_a_node() {
    let world = World::new("policy-binding").await;
    let pods = Things::pods(&world);
    enforce(&world, &["--attachable", "pods"]).await;
    let (_, spec) =
        all_sorts(&world).await.into_iter().find(|(things, _)| things.name() == "pods").expect("Pods");
    // The API server takes a Binding in two places.
    let bind = async |pods: &Things, path: &str, pod: &str, annotations: Value| {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "somewhere"},
        });
        let params = PostParams::default();
        if path == "pods/binding" {
            return pods.api.create_subresource::<_, DynamicObject>("binding", pod, &params, &binding).await;
        }
        let bindings = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Binding"));
        let client = pods.api.clone().into_client();
        let bindings: Api<DynamicObject> = Api::namespaced_with(client, &world.namespace, &bindings);
        bindings.create(&params, &serde_json::from_value(binding).expect("a binding")).await
    };
    for path in ["pods/binding", "bindings"] {
        let (administrators, users) = (name_of("admin", path), name_of("user", path));
        for name in [&administrators, &users] {
            pods.create(json!({"metadata": {"name": name}, "spec": spec})).await;
        }
        let whole = || json!({"lessor.dev/lease": "lease"});
        bind(&pods, path, &administrators, whole()).await.expect("an administrator may");
        assert!(is_attached(&pods, &administrators).await, "a Pod takes over no annotations by {path}");

        let user = with_only(&world, &pods, path, &["create"]).await;
        let refused = answer(async || bind(&user, path, &users, whole()).await).await;
        assert_refused(refused, &format!("attaching pods {users} to a lease"));
        bind(&user, path, &users, json!({})).await.expect("without attachments they may");
        assert!(!is_attached(&pods, &users).await);
    }
}

#[tokio::test]
async fn an_object_that_two_groups_serve_is_checked_in_both() {
    let world = World::new("policy-groups").await;
    enforce(&world, &["--attachable", "events.events.k8s.io"]).await;
    let events = Things::of(&world, GroupVersionKind::gvk("", "v1", "Event"), "related");
    let about = json!({"kind": "Pod", "name": "pod", "namespace": world.namespace});
    events.create(json!({"metadata": {"name": "event"}, "involvedObject": about, "reason": "Tested"})).await;
    let user = with_only(&world, &events, "events", &["patch"]).await;
    let attach = Patch::Merge(json!({"metadata": {"annotations": {"lessor.dev/lease": "lease"}}}));
    let refused = answer(async || user.api.patch("event", &holder(), &attach).await).await;
    assert_refused(refused, "attaching events event to a lease");
}
