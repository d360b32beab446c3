//! `lessor rbac`: exactly the rights that the operator needs for its settings.

use std::{collections::BTreeMap, io::Write};

use anyhow::Context;
use clap::Args;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use kube::core::ObjectMeta;
use lessor_api::GROUP;
use lessor_core::{
    attachable::Attachable,
    index::sources::{NODE_NAMESPACE, SourceKind},
};
use serde::Serialize;

use super::{attachable::AttachableArgs, name};

/// Give the same arguments as to `lessor run`.
#[derive(Args, Debug)]
pub(crate) struct RbacArgs {
    /// Name of the Lessor object.
    #[arg(long, env = "LESSOR_NAME", default_value = "default", value_parser = name::object)]
    lessor: String,

    /// Namespace to serve. Repeatable. Default: all namespaces, with cluster-wide rights.
    #[arg(long = "namespace", short, env = "LESSOR_NAMESPACES", value_delimiter = ',', value_parser = name::namespace)]
    namespaces: Vec<String>,

    #[command(flatten)]
    attachable: AttachableArgs,

    /// What leases can follow, besides other leases: coordination-leases, nodes or pods. Repeatable.
    #[arg(long, env = "LESSOR_FOLLOW", value_delimiter = ',', value_name = "KIND")]
    follow: Vec<SourceKind>,

    /// Name of the roles and bindings.
    #[arg(long, default_value = "lessor")]
    name: String,

    /// Also print bindings to this service account.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service_account: Option<String>,
}

/// The namespace of Events about cluster-scoped objects.
const EVENTS_OF_LESSORS: &str = "default";

/// Prints the roles, and bindings with --service-account.
pub(crate) fn run(args: RbacArgs, mut out: impl Write) -> anyhow::Result<()> {
    let subject = args.service_account.as_deref().map(subject).transpose()?;
    let attachable = args.attachable.read()?;
    let mut print = |yaml: String| write!(out, "---\n{yaml}");

    let mut everywhere = of_lessors(&args.lessor);
    let mut by_namespace: BTreeMap<&str, Vec<PolicyRule>> = BTreeMap::new();
    let served = || of_leases(&attachable).into_iter().chain(of_sources(&args.follow));
    if args.namespaces.is_empty() {
        everywhere.extend(served());
    } else {
        by_namespace.insert(EVENTS_OF_LESSORS, vec![of_events()]);
        for namespace in &args.namespaces {
            by_namespace.insert(namespace, served().collect());
        }
    }
    if args.follow.contains(&SourceKind::Node) {
        // The heartbeats of all nodes are in one namespace.
        by_namespace.entry(NODE_NAMESPACE).or_default().push(of_source(SourceKind::Node));
    }
    print(yaml(&ClusterRole {
        metadata: named(&args.name, None),
        rules: Some(everywhere),
        ..ClusterRole::default()
    })?)?;
    if let Some(subject) = &subject {
        print(yaml(&ClusterRoleBinding {
            metadata: named(&args.name, None),
            role_ref: role("ClusterRole", &args.name),
            subjects: Some(vec![subject.clone()]),
        })?)?;
    }
    for (namespace, rules) in by_namespace {
        print(yaml(&Role { metadata: named(&args.name, Some(namespace)), rules: Some(rules) })?)?;
        if let Some(subject) = &subject {
            print(yaml(&RoleBinding {
                metadata: named(&args.name, Some(namespace)),
                role_ref: role("Role", &args.name),
                subjects: Some(vec![subject.clone()]),
            })?)?;
        }
    }
    Ok(())
}

/// For the election. The right to write is bound to the name of the `Lessor`, except for `create`, where RBAC doesn't support
/// names.
fn of_lessors(lessor: &str) -> Vec<PolicyRule> {
    let of_name = |rule: PolicyRule| PolicyRule { resource_names: Some(vec![lessor.to_owned()]), ..rule };
    vec![
        // The others too: two installations must not serve the same namespace.
        rule(GROUP, "lessors", &["get", "watch", "create"]),
        of_name(rule(GROUP, "lessors/status", &["patch"])),
    ]
}

/// For leases, attached objects and Events.
fn of_leases(attachable: &[Attachable]) -> Vec<PolicyRule> {
    let mut rules = vec![
        // `patch` for the finalizer.
        rule(GROUP, "leases", &["get", "watch", "patch", "delete"]),
        rule(GROUP, "leases/status", &["patch"]),
        of_events(),
    ];
    rules.extend(attachable.iter().map(|kind| {
        let verbs: &[&str] = match kind.has_keys() {
            true => &["get", "watch", "delete", "patch"],
            false => &["get", "watch", "delete"],
        };
        rule(&kind.group, &kind.resource, verbs)
    }));
    rules
}

/// For sources in the namespaces of their leases.
fn of_sources(follow: &[SourceKind]) -> impl Iterator<Item = PolicyRule> {
    let own = [SourceKind::CoordinationLease, SourceKind::Pod];
    own.into_iter().filter(|kind| follow.contains(kind)).map(of_source)
}

fn of_source(kind: SourceKind) -> PolicyRule {
    let (group, resource) = kind.resource();
    rule(group, resource, &["get", "watch"])
}

fn of_events() -> PolicyRule {
    rule("events.k8s.io", "events", &["create", "patch"])
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
        ..PolicyRule::default()
    }
}

fn named(name: &str, namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        ..ObjectMeta::default()
    }
}

fn role(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

fn subject(account: &str) -> anyhow::Result<Subject> {
    let (namespace, name) = account
        .split_once('/')
        .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty() && !name.contains('/'))
        .with_context(|| format!("invalid --service-account {account:?}: expected NAMESPACE/NAME"))?;
    Ok(Subject {
        kind: "ServiceAccount".to_owned(),
        name: name.to_owned(),
        namespace: Some(namespace.to_owned()),
        ..Subject::default()
    })
}

fn yaml<K: Serialize>(object: &K) -> anyhow::Result<String> {
    let mut yaml = serde_saphyr::to_string(object).context("can't write YAML")?;
    if !yaml.ends_with('\n') {
        yaml.push('\n');
    }
    Ok(yaml)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: RbacArgs,
    }

    fn printed(arguments: &[&str]) -> String {
        let command = Command::try_parse_from([&["rbac"], arguments].concat()).unwrap();
        let mut out = Vec::new();
        run(command.args, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rights_cover_only_listed_kinds_and_patch_only_those_with_keys() {
        let plain = printed(&[]);
        assert!(plain.contains("configmaps") && !plain.contains("secrets"), "{plain}");
        let role: ClusterRole = {
            let listed = ["--attachable", "jobs.batch", "--attachable", "widgets.example.com:pointers"];
            serde_saphyr::from_str(printed(&listed).trim_start_matches("---\n")).unwrap()
        };
        let verbs = |resource: &str| {
            let rules = role.rules.iter().flatten();
            let mut of_resource = rules.filter(|rule| rule.resources == Some(vec![resource.to_owned()]));
            let found = of_resource.next().unwrap().verbs.clone();
            assert_eq!(of_resource.next(), None);
            found
        };
        assert_eq!(verbs("jobs"), ["get", "watch", "delete"]);
        assert!(verbs("widgets").contains(&"patch".to_owned()));
        assert!(verbs("configmaps").contains(&"patch".to_owned()));
    }

    #[test]
    fn sources_may_only_be_read_and_only_in_their_namespaces() {
        let plain = printed(&[]);
        assert!(!plain.contains("coordination.k8s.io") && !plain.contains("pods"), "{plain}");
        let printed = printed(&["--follow", "nodes,pods"]);
        let documents: Vec<&str> = printed.split("---\n").skip(1).collect();
        assert_eq!(documents.len(), 2, "{printed}");
        assert!(documents[0].contains("pods") && !documents[0].contains("coordination"), "{}", documents[0]);
        let role: Role = serde_saphyr::from_str(documents[1]).unwrap();
        assert_eq!(role.metadata.namespace.as_deref(), Some("kube-node-lease"));
        assert_eq!(role.rules, Some(vec![rule("coordination.k8s.io", "leases", &["get", "watch"])]));
    }

    #[test]
    fn with_namespaces_only_rights_on_the_lessor_are_cluster_wide() {
        let printed = printed(&["--namespace", "shop", "--service-account", "lessor-system/lessor"]);
        let documents: Vec<&str> = printed.split("---\n").skip(1).collect();
        let kinds: Vec<&str> = documents
            .iter()
            .map(|yaml| yaml.lines().find_map(|line| line.strip_prefix("kind: ")).unwrap())
            .collect();
        assert_eq!(
            kinds,
            ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Role", "RoleBinding"]
        );
        assert!(!documents[0].contains("leases") && !documents[0].contains("configmaps"), "{}", documents[0]);
        assert!(documents[4].contains("namespace: shop") && documents[4].contains("configmaps"));
    }
}
