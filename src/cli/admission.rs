//! `lessor admission`: the admission policy for attachments, for the kinds that can be attached.

use std::io::Write;

use anyhow::Context;
use clap::Args as ClapArgs;
use lessor_core::attachable::Attachable;
use serde_json::{Value, json};

use super::attachable;

/// The policy as it is shipped, for ConfigMaps and Secrets.
const POLICY: &str = include_str!("../../deploy/admission.yaml");

/// The settings that the policy depends on: the same as those of `lessor run`.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    attachable: attachable::Args,
}

/// Prints the policy and its binding.
pub(crate) fn run(args: Args, mut out: impl Write) -> anyhow::Result<()> {
    let kinds = args.attachable.read()?;
    for document in POLICY.split("---\n").skip(1) {
        let mut object: Value = serde_saphyr::from_str(document).context("can't read the shipped policy")?;
        if let Some(Value::Array(rules)) = object.pointer_mut("/spec/matchConstraints/resourceRules") {
            *rules = resource_rules(rules, &kinds);
        }
        let yaml = serde_saphyr::to_string(&object).context("can't write YAML")?;
        writeln!(out, "---\n{}", yaml.trim_end())?;
    }
    Ok(())
}

/// One rule for each kind, like the first of the shipped ones but for its group and resources.
fn resource_rules(shipped: &[Value], kinds: &[Attachable]) -> Vec<Value> {
    let rule = |kind: &Attachable| {
        let mut rule = shipped.first().cloned().unwrap_or_default();
        rule["apiGroups"] = json!([kind.group]);
        rule["resources"] = json!(resources(kind));
        rule
    };
    kinds.iter().map(rule).collect()
}

/// By what names an object of this kind can be written: many subresources change its annotations too, `deployments/status`
/// for example. A Pod takes over the annotations of the Binding that gives it a node, which has two paths.
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
    fn the_policy_covers_each_kind_and_the_ways_around_it() {
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
    fn the_shipped_policy_is_that_of_config_maps_and_secrets() {
        let kinds = ["configmaps", "secrets"].map(|text| text.parse().unwrap());
        assert_eq!(shipped(), resource_rules(&shipped(), &kinds));
    }
}
