//! The admission policy, for users with narrow rights: no user gains power by an attachment, and what can't be understood is
//! refused when it is written.

use std::process::Command;

use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicy,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::ApiResource,
};
use lessor_kit::world::{World, holder, until};
use serde_json::{Value, json};

use crate::things::Things;

/// Puts the policy for these kinds in force in the world's namespace.
pub(crate) async fn enforce(world: &World, args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_lessor"))
        .arg("admission")
        .args(args)
        .output()
        .expect("lessor admission");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let yaml = String::from_utf8(output.stdout).expect("text");
    let name = format!("{}.lessor.dev", world.namespace);
    let mut objects: Vec<DynamicObject> =
        yaml.split("---\n").skip(1).map(|yaml| serde_saphyr::from_str(yaml).expect("an object")).collect();
    for object in &mut objects {
        object.metadata.name = Some(name.clone());
        if object.data["spec"].get("policyName").is_some() {
            object.data["spec"]["policyName"] = json!(name);
            object.data["spec"]["matchResources"] = json!({"namespaceSelector": {
                "matchLabels": {"kubernetes.io/metadata.name": world.namespace},
            }});
        }
    }
    crate::rights::apply(world, &objects).await;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(world.client.clone());
    let policy = policies.get(&name).await.expect("the policy");
    let warnings =
        policy.status.and_then(|status| status.type_checking).and_then(|types| types.expression_warnings);
    assert_eq!(warnings, None);
    // It takes a moment until it counts.
    let probe = Things::config_maps(world);
    until("the policy is in force", async || {
        let wrong = json!({"metadata": {"name": "probe", "annotations": {"lessor.dev/lease": "Wrong"}}});
        match try_create(&probe, wrong).await {
            Ok(_) => {
                probe.delete("probe").await;
                None
            }
            Err(_) => Some(()),
        }
    })
    .await;
}

async fn try_create(things: &Things, mut object: Value) -> kube::Result<DynamicObject> {
    object["apiVersion"] = json!(things.resource.api_version);
    object["kind"] = json!(things.resource.kind);
    let object = serde_json::from_value(object).expect("an object");
    things.api.create(&PostParams::default(), &object).await
}

async fn try_patch(things: &Things, name: &str, annotations: Value) -> kube::Result<DynamicObject> {
    let patch = json!({"metadata": {"annotations": annotations}});
    things.api.patch(name, &holder(), &Patch::Merge(patch)).await
}

/// The things as a user sees them who has these rights and no others.
async fn as_user(world: &World, things: &Things, user: &str, verbs: &[&str]) -> Things {
    let user = format!("{user}-{}", things.resource.plural);
    let role = json!({
        "metadata": {"name": user},
        "rules": [{
            "apiGroups": [things.resource.group], "verbs": verbs,
            "resources": [things.resource.plural],
        }],
    });
    let binding = json!({
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    let role: Role = serde_json::from_value(role).expect("a role");
    let binding: RoleBinding = serde_json::from_value(binding).expect("a binding");
    let roles = Api::namespaced(world.client.clone(), &world.namespace);
    roles.create(&PostParams::default(), &role).await.expect("a role");
    let bindings = Api::namespaced(world.client.clone(), &world.namespace);
    bindings.create(&PostParams::default(), &binding).await.expect("a binding");
    let client = world.cluster.user_client(&user, &[]).expect("a client");
    let ApiResource { group, plural, .. } = &things.resource;
    world.wait_for_rights(&user, group, plural, verbs).await;
    things.clone().by(client, &world.namespace)
}

/// That the policy refuses, in words that contain a text.
#[track_caller]
pub(crate) fn assert_refused(result: kube::Result<DynamicObject>, text: &str) {
    match result {
        Ok(object) => panic!("accepted: {:?}, instead of {text:?}", object.metadata.annotations),
        Err(kube::Error::Api(status)) => {
            let by_policy = status.message.contains("ValidatingAdmissionPolicy");
            assert!(by_policy && status.message.contains(text), "{}", status.message);
        }
        Err(error) => panic!("{error}"),
    }
}

async fn rights_count(world: &World, things: Things) {
    let key = |part: &str| json!({"lessor.dev/keys": things.keys(&[(part, "lease")])});
    let whole = || json!({"lessor.dev/lease": "lease"});
    let data = if things.resource.group.is_empty() { "data" } else { "spec" };
    let with = |name: &str, annotations: Value| json!({"metadata": {"name": name, "annotations": annotations}, (data): {"a": "dmFsdWU="}});
    for name in ["plain", "attached", "orphaning", "keyed"] {
        things.make(name, json!({}), &["a", "b"]).await;
    }
    try_patch(&things, "attached", whole()).await.expect("an administrator may");
    let orphaning = json!({"lessor.dev/lease": "lease", "lessor.dev/propagation": "Orphan"});
    try_patch(&things, "orphaning", orphaning).await.expect("an administrator may");
    try_patch(&things, "keyed", key("a")).await.expect("an administrator may");

    // May change, and not delete: keys, and no objects.
    let editor = as_user(world, &things, "editor", &["get", "create", "update", "patch"]).await;
    assert_refused(try_patch(&editor, "plain", whole()).await, "needs the right to delete it");
    assert_refused(try_create(&editor, with("new", whole())).await, "needs the right to delete it");
    let moved = json!({"lessor.dev/lease": "another"});
    assert_refused(try_patch(&editor, "attached", moved).await, "needs the right to delete it");
    let how = json!({"lessor.dev/propagation": "Orphan"});
    assert_refused(try_patch(&editor, "attached", how).await, "needs the right to delete it");
    let as_usual = json!({"lessor.dev/propagation": null});
    assert_refused(try_patch(&editor, "orphaning", as_usual).await, "needs the right to delete it");
    let detached = json!({"lessor.dev/lease": null, "lessor.dev/propagation": null});
    try_patch(&editor, "orphaning", detached).await.expect("detaching saves");
    try_patch(&editor, "plain", key("a")).await.expect("keys are theirs");
    try_create(&editor, with("new-keyed", key("a"))).await.expect("keys are theirs");
    try_patch(&editor, "attached", json!({"example.com/note": "x"}))
        .await
        .expect("what was attached stays so");
    try_patch(&editor, "attached", json!({"lessor.dev/lease": null})).await.expect("detaching saves");

    // May create, and neither change nor delete: nothing at all.
    let creator = as_user(world, &things, "creator", &["create"]).await;
    assert_refused(try_create(&creator, with("created", whole())).await, "needs the right to delete it");
    assert_refused(try_create(&creator, with("created", key("a"))).await, "needs the right to update it");
    try_create(&creator, with("created", json!({}))).await.expect("without attachments they may");

    // May do both.
    let owner = as_user(world, &things, "owner", &["get", "create", "patch", "delete"]).await;
    try_patch(&owner, "plain", whole()).await.expect("they could delete it");
    try_create(&owner, with("owned", whole())).await.expect("they could delete it");
}

#[tokio::test]
async fn attaching_a_config_map_takes_the_right_to_delete_it_and_a_key_the_right_to_update_it() {
    let world = World::new("policy-maps").await;
    enforce(&world, &[]).await;
    let things = Things::config_maps(&world);
    rights_count(&world, things).await;
}

#[tokio::test]
async fn attaching_a_secret_takes_the_right_to_delete_it_and_a_key_the_right_to_update_it() {
    let world = World::new("policy-secrets").await;
    enforce(&world, &["--attachable", "secrets"]).await;
    let things = Things::secrets(&world);
    rights_count(&world, things).await;
}

#[tokio::test]
async fn attaching_another_kind_takes_the_right_to_delete_it_and_a_member_the_right_to_update_it() {
    let world = World::new("policy-widgets").await;
    let things = Things::widgets(&world).await;
    enforce(&world, &["--attachable", &things.with_keys()]).await;
    rights_count(&world, things).await;
}

#[tokio::test]
async fn a_right_to_delete_one_object_attaches_that_one_only() {
    let world = World::new("policy-one").await;
    enforce(&world, &[]).await;
    let maps = Things::config_maps(&world);
    for name in ["mine", "other"] {
        maps.make(name, json!({}), &["a"]).await;
    }
    let user = as_user(&world, &maps, "one", &["patch"]).await;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "one-configmaps"},
        "rules": [
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"], "resourceNames": ["mine"]},
        ],
    });
    let roles: Api<Role> = Api::namespaced(world.client.clone(), &world.namespace);
    let params = PatchParams::apply("administrator").force();
    roles.patch("one-configmaps", &params, &Patch::Apply(&role)).await.expect("a role");
    let whole = || json!({"lessor.dev/lease": "lease"});
    until("the right is known", async || try_patch(&user, "mine", whole()).await.ok()).await;
    assert_refused(try_patch(&user, "other", whole()).await, "configmaps other");
}

#[tokio::test]
async fn what_cannot_be_understood_is_refused_with_a_word_on_what_would_be_right() {
    let world = World::new("policy-words").await;
    let widgets = Things::widgets(&world).await;
    enforce(&world, &["--attachable", "secrets", "--attachable", &widgets.with_keys()]).await;
    let maps = Things::config_maps(&world);
    maps.make("map", json!({}), &["a"]).await;
    widgets.make("widget", json!({}), &["a"]).await;
    let long = "x".repeat(254);
    let keys = |json: &str| json!({"lessor.dev/keys": json});
    let of_maps = [
        (json!({"lessor.dev/lease": ""}), "session-42"),
        (json!({"lessor.dev/lease": "Upper"}), "session-42"),
        (json!({"lessor.dev/lease": "two words"}), "session-42"),
        (json!({"lessor.dev/lease": "-x"}), "session-42"),
        (json!({"lessor.dev/lease": "a..b"}), "session-42"),
        (json!({"lessor.dev/lease": "other/lease"}), "session-42"),
        (json!({"lessor.dev/lease": long}), "session-42"),
        (json!({"key.lessor.dev/a": "Upper"}), "session-42"),
        (json!({"lessor.dev/lease": "x", "lessor.dev/propagation": "orphan"}), "Foreground"),
        (keys(""), "JSON object"),
        (keys("a"), "JSON object"),
        (keys("{}"), "JSON object"),
        (keys(r#"{"a": 1}"#), "JSON object"),
        (keys(r#"{"a": "x",}"#), "JSON object"),
        (keys(r#"{"a": "x"} {"b": "x"}"#), "JSON object"),
        (keys(r#"{"a": "x"}"b": "x"}"#), "JSON object"),
        (keys(r#"["a"]"#), "JSON object"),
        (keys(r#"{"a b": "x"}"#), "JSON object"),
        (keys(r#"{"/data/a": "x"}"#), "JSON object"),
        (keys(r#"{"a": "x..y"}"#), "session-42"),
        (keys(r#"{"a": "-x"}"#), "session-42"),
        (keys(r#"{"..": "x"}"#), "begins with"),
        (keys(&format!(r#"{{"{long}": "x"}}"#)), "too long"),
        (keys(r#"{"a": "x", "a": "x"}"#), "twice"),
        (json!({"lessor.dev/keys": r#"{"a": "x"}"#, "key.lessor.dev/a": "y"}), "another"),
    ];
    for (annotations, text) in of_maps {
        eprintln!("{annotations}");
        assert_refused(try_patch(&maps, "map", annotations).await, text);
    }
    let of_widgets = [
        (json!({"key.lessor.dev/a": "x"}), "JSON Pointer"),
        (keys(r#"{"a": "x"}"#), "JSON Pointers"),
        (keys(r#"{"/spec/": "x"}"#), "JSON Pointers"),
        (keys(r#"{"/spec//a": "x"}"#), "JSON Pointers"),
        (keys(r#"{"/spec/~2": "x"}"#), "JSON Pointers"),
        (keys(r#"{"/spec/list/-": "x"}"#), "array"),
        (keys(r#"{"/metadata/name": "x"}"#), "/metadata/labels/session"),
        (keys(r#"{"/metadata": "x"}"#), "/metadata/labels/session"),
        (keys(r#"{"/metadata/annotations/lessor.dev~1lease": "x"}"#), "/metadata/labels/session"),
        (keys(r#"{"/metadata/annotations/key.lessor.dev~1a": "x"}"#), "/metadata/labels/session"),
        (keys(r#"{"/status/a": "x"}"#), "/metadata/labels/session"),
        (keys(r#"{"/kind": "x"}"#), "/metadata/labels/session"),
        (keys(r#"{"/spec/a": "x", "/spec/a/b": "x"}"#), "inside another"),
        (keys(&format!(r#"{{"/spec/{}": "x"}}"#, "x".repeat(1024))), "too long"),
    ];
    for (annotations, text) in of_widgets {
        eprintln!("{annotations}");
        assert_refused(try_patch(&widgets, "widget", annotations).await, text);
    }
    for right in [
        json!({"lessor.dev/lease": "session-42.a"}),
        json!({"key.lessor.dev/a": "x", "lessor.dev/keys": r#" { ".cfg" : "x" ,"a":"x"} "#}),
        json!({"lessor.dev/lease": "x", "lessor.dev/propagation": "Foreground"}),
    ] {
        try_patch(&maps, "map", right.clone()).await.unwrap_or_else(|error| panic!("{right}: {error}"));
    }
    for right in [
        r#"{"/spec/a": "x", "/spec/ab/c~1d~0": "y.z", "/spec/größe }": "x"}"#,
        r#"{"/metadata/labels/session": "x", "/metadata/annotations/example.com~1note": "x"}"#,
        r#"{"/metadatas": "x", "/spec/status": "x", "/spec/-a": "x"}"#,
    ] {
        try_patch(&widgets, "widget", keys(right)).await.unwrap_or_else(|error| panic!("{right}: {error}"));
    }
}

#[tokio::test]
async fn a_thousand_keys_cost_the_api_server_little_enough() {
    let world = World::new("policy-cost").await;
    let widgets = Things::widgets(&world).await;
    enforce(&world, &["--attachable", &widgets.with_keys()]).await;
    let names: Vec<String> = (0..1000).map(|number| format!("a-rather-long-key-{number:04}")).collect();
    let keys: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "session-4711")).collect();
    for things in [Things::config_maps(&world), widgets] {
        things.make("large", json!({"lessor.dev/keys": things.keys(&keys)}), &["a"]).await;
    }
}

#[tokio::test]
async fn the_operator_removes_keys_under_the_policy_with_the_rights_that_it_has() {
    let world = World::new("policy-operator").await;
    enforce(&world, &["--attachable", "secrets"]).await;
    let args = ["--attachable", "secrets"];
    crate::rights::operator_token(&world, &args).await;
    let kubeconfig = world.cluster.service_account_kubeconfig(&world.namespace, crate::rights::ACCOUNT).await;
    let operator = world.operator_with(&kubeconfig.expect("a kubeconfig"), &args);
    world.wait_for_primary(&operator).await;
    world.granted("lives", json!({"ttlSeconds": 600})).await;
    for things in [Things::config_maps(&world), Things::secrets(&world)] {
        let keys = things.keys(&[("a", "lease"), ("b", "lives")]);
        things.make("shared", json!({"lessor.dev/keys": keys}), &["a", "b"]).await;
    }
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    for things in [Things::config_maps(&world), Things::secrets(&world)] {
        things.wait_parts("shared", &["b"]).await;
    }
}
