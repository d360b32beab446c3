//! Users with few rights.

use std::path::PathBuf;

use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use lessor_kit::world::World;

/// Resources, with or without group, and verbs. No group: leases are meant.
pub(crate) type Rules<'a> = &'a [(&'a str, &'a [&'a str])];

/// A client of a service account that has these rights and no others.
pub(crate) async fn client(world: &World, name: &str, rules: Rules<'_>) -> Client {
    allow(world, name, rules).await;
    let client = world.cluster.service_account_client(&world.namespace, name).await.expect("a client");
    wait(world, name, rules).await;
    client
}

/// A kubeconfig of a service account that has these rights and no others.
pub(crate) async fn kubeconfig(world: &World, name: &str, rules: Rules<'_>) -> PathBuf {
    allow(world, name, rules).await;
    let kubeconfig = world.cluster.service_account_kubeconfig(&world.namespace, name).await;
    wait(world, name, rules).await;
    kubeconfig.expect("a kubeconfig")
}

async fn allow(world: &World, name: &str, rules: Rules<'_>) {
    let strings = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let rule = |(resource, verbs): &(&str, &[&str])| PolicyRule {
        api_groups: Some(strings(&[if *resource == "leases" { "lessor.dev" } else { "" }])),
        resources: Some(strings(&[resource])),
        verbs: strings(verbs),
        ..PolicyRule::default()
    };
    let role = Role { metadata: named(name), rules: Some(rules.iter().map(rule).collect()) };
    let roles = Api::namespaced(world.client.clone(), &world.namespace);
    roles.create(&PostParams::default(), &role).await.expect("a role");
    bind(world, name, "Role", name).await;
}

async fn bind(world: &World, account: &str, kind: &str, role: &str) {
    let binding = RoleBinding {
        metadata: named(account),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: kind.to_owned(),
            name: role.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: account.to_owned(),
            namespace: Some(world.namespace.clone()),
            ..Subject::default()
        }]),
    };
    let bindings = Api::namespaced(world.client.clone(), &world.namespace);
    bindings.create(&PostParams::default(), &binding).await.expect("a binding");
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

/// A kubeconfig of a service account that has this role in the world's namespace.
pub(crate) async fn kubeconfig_of_role(world: &World, role: &str) -> PathBuf {
    bind(world, role, "ClusterRole", role).await;
    world.cluster.service_account_kubeconfig(&world.namespace, role).await.expect("a kubeconfig")
}

async fn wait(world: &World, name: &str, rules: Rules<'_>) {
    let user = format!("system:serviceaccount:{}:{name}", world.namespace);
    for (resource, verbs) in rules {
        let group = if *resource == "leases" { "lessor.dev" } else { "" };
        world.wait_for_rights(&user, group, resource, verbs).await;
    }
}
