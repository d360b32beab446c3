//! `lessor admission`: the admission policy for attachments, for the attachable kinds.

use std::io::Write;

use anyhow::Context;
use clap::Args;
use lessor_core::attachable::Attachable;
use serde_json::{Value, json};

use super::attachable::AttachableArgs;

/// The policy of `deploy/`, for ConfigMaps and Secrets.
const POLICY: &str = include_str!("../../deploy/admission.yaml");

/// The policy that sets the finalizer of leases.
const FINALIZER_POLICY: &str = include_str!("../../deploy/finalizer.yaml");

/// Give the same arguments as to `lessor run`.
#[derive(Args, Debug)]
pub(crate) struct AdmissionArgs {
    #[command(flatten)]
    attachable: AttachableArgs,

    /// Also print the policy by which the API server sets the finalizer of leases. It needs Kubernetes 1.36.
    #[arg(long)]
    finalizer: bool,
}

/// Prints the policies and their bindings.
pub(crate) fn run(args: AdmissionArgs, mut out: impl Write) -> anyhow::Result<()> {
    let kinds = args.attachable.read()?;
    for document in POLICY.split("---\n").skip(1) {
        let mut object: Value = serde_saphyr::from_str(document).context("can't read the shipped policy")?;
        if let Some(Value::Array(rules)) = object.pointer_mut("/spec/matchConstraints/resourceRules") {
            *rules = resource_rules(rules, &kinds);
        }
        let yaml = serde_saphyr::to_string(&object).context("can't write YAML")?;
        writeln!(out, "---\n{}", yaml.trim_end())?;
    }
    if args.finalizer {
        out.write_all(FINALIZER_POLICY.as_bytes())?;
    }
    Ok(())
}

/// One rule per kind: the first rule of the policy, with the group and resources of the kind.
fn resource_rules(shipped: &[Value], kinds: &[Attachable]) -> Vec<Value> {
    let rule = |kind: &Attachable| {
        let mut rule = shipped.first().cloned().unwrap_or_default();
        rule["apiGroups"] = json!([kind.group]);
        rule["resources"] = json!(resources(kind));
        rule
    };
    kinds.iter().map(rule).collect()
}

/// The resources by which annotations of this kind can be written: also subresources, such as `deployments/status`, and for Pods
/// both paths of Bindings, whose annotations the Pod takes over.
fn resources(kind: &Attachable) -> Vec<String> {
    let mut names = vec![kind.resource.clone(), format!("{}/*", kind.resource)];
    if kind.group.is_empty() && kind.resource == "pods" {
        names.push("bindings".to_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Vec<Value> {
        let policy: Value = serde_saphyr::from_str(POLICY.split("---\n").nth(1).unwrap()).unwrap();
        policy["spec"]["matchConstraints"]["resourceRules"].as_array().unwrap().clone()
    }

    #[test]
    fn the_policy_covers_each_kind_and_its_subresources() {
        let kinds = ["configmaps", "jobs.batch/v1:pointers", "pods"].map(|text| text.parse().unwrap());
        let rules = resource_rules(&shipped(), &kinds);
        let covered: Vec<_> = rules.iter().map(|rule| (&rule["apiGroups"], &rule["resources"])).collect();
        let expected = [
            (json!([""]), json!(["configmaps", "configmaps/*"])),
            (json!(["batch"]), json!(["jobs", "jobs/*"])),
            (json!([""]), json!(["pods", "pods/*", "bindings"])),
        ];
        assert_eq!(covered, expected.iter().map(|(groups, names)| (groups, names)).collect::<Vec<_>>());
        for rule in &rules {
            assert_eq!(rule["apiVersions"], json!(["*"]));
            assert_eq!(rule["operations"], json!(["CREATE", "UPDATE"]));
        }
    }

    #[test]
    fn the_policy_of_deploy_covers_config_maps_and_secrets() {
        let kinds = ["configmaps", "secrets"].map(|text| text.parse().unwrap());
        assert_eq!(shipped(), resource_rules(&shipped(), &kinds));
    }
}
