//! `lessor admission`: the admission policy for attachments, for the kinds that can be attached.

use std::{collections::BTreeMap, io::Write};

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
        if let Some(rules) = object.pointer_mut("/spec/matchConstraints/resourceRules") {
            *rules = resource_rules(&kinds);
        }
        let yaml = serde_saphyr::to_string(&object).context("can't write YAML")?;
        writeln!(out, "---\n{}", yaml.trim_end())?;
    }
    Ok(())
}

/// One rule for each group. Annotations can be changed through subresources too.
fn resource_rules(kinds: &[Attachable]) -> Value {
    let mut by_group: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for kind in kinds {
        let resources = by_group.entry(&kind.group).or_default();
        resources.push(kind.resource.clone());
        if !kind.has_data() {
            resources.push(format!("{}/*", kind.resource));
        }
    }
    let rule = |(group, resources)| {
        json!({
            "apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
            "resources": resources, "scope": "Namespaced",
        })
    };
    by_group.into_iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_covers_each_kind_and_the_ways_around_it() {
        let kinds = ["configmaps", "secrets", "jobs.batch:pointers"].map(|text| text.parse().unwrap());
        let rules = resource_rules(&kinds);
        assert_eq!(rules[0]["resources"], json!(["configmaps", "secrets"]));
        assert_eq!(rules[1]["apiGroups"], json!(["batch"]));
        assert_eq!(rules[1]["resources"], json!(["jobs", "jobs/*"]));
    }

    #[test]
    fn the_shipped_policy_is_that_of_config_maps_and_secrets() {
        let shipped: Value = serde_saphyr::from_str(POLICY.split("---\n").nth(1).unwrap()).unwrap();
        let kinds = ["configmaps", "secrets"].map(|text| text.parse().unwrap());
        assert_eq!(shipped["spec"]["matchConstraints"]["resourceRules"], resource_rules(&kinds));
    }
}
