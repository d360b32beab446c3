//! What helm makes of values: all that is sensible, and nothing that isn't.

use std::{collections::BTreeSet, fs, process::Command};

use lessor_cluster::Cluster;
use lessor_kit::{trial, world::cluster};
use serde_json::{Value, json};

use crate::release::{CHART, documents, failure, helm, kubectl, make_namespace, render, success};

/// The sets of values that each test goes through, by name: the defaults, and those in the chart's folder `ci`.
fn sets() -> Vec<(String, Vec<String>)> {
    let mut sets = vec![("defaults".to_owned(), Vec::new())];
    for entry in fs::read_dir(format!("{CHART}/ci")).expect("the folder ci") {
        let path = entry.expect("a file").path().display().to_string();
        sets.push((path.clone(), vec!["--values".to_owned(), path]));
    }
    assert!(sets.len() > 3, "{sets:?}");
    sets
}

#[trial]
async fn each_set_of_values_lints_renders_and_passes_the_servers_strict_dry_run() {
    let cluster = cluster().await;
    for namespace in ["lessor-system", "one", "two"] {
        make_namespace(cluster, namespace).await;
    }
    for (name, values) in sets() {
        let mut lint: Vec<String> = ["lint", "--strict", CHART].map(str::to_owned).to_vec();
        lint.extend(values.clone());
        success(helm(None, &lint).await);
        let policy = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy";
        let template =
            ["template", "lessor", CHART, "--namespace", "lessor-system", "--api-versions", policy];
        let mut template: Vec<String> = template.map(str::to_owned).to_vec();
        template.extend(values);
        // The Prometheus operator isn't here to say what it thinks of its kinds.
        let foreign = |object: &Value| object["apiVersion"] == "monitoring.coreos.com/v1";
        let rendered = documents(&success(helm(Some(cluster), &template).await));
        let known: Vec<Value> = rendered.into_iter().filter(|object| !foreign(object)).collect();
        // A Pod is refused without its account, in a dry run too.
        let accounts: Vec<Value> =
            known.iter().filter(|object| object["kind"] == "ServiceAccount").cloned().collect();
        apply(cluster, accounts, &["--server-side"]).await;
        // The definitions are here already, by another hand.
        let how = ["--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"];
        let said = apply(cluster, known, &how).await;
        assert!(said.contains("deployment.apps/"), "{name}: {said}");
    }
}

async fn apply(cluster: &Cluster, objects: Vec<Value>, how: &[&str]) -> String {
    if objects.is_empty() {
        return String::new();
    }
    let path = cluster.directory().join("rendered.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    fs::write(&path, list.to_string()).expect("a file");
    let mut args = vec!["apply", "--filename", path.to_str().expect("a path")];
    args.extend(how);
    success(kubectl(cluster, &args).await)
}

#[trial]
async fn a_wrong_value_is_refused_by_its_name() {
    for (set, named) in [
        ("replica=2", "replica"),
        ("settings.minTTL=5s", "minTTL"),
        ("settings.minTtl=5", "minTtl"),
        ("settings.minTtl=1h30m", "minTtl"),
        ("settings.statusRate=0", "statusRate"),
        ("settings.otlpEndpoint=https://collector", "otlpEndpoint"),
        ("settings.concurrency=70000", "concurrency"),
        ("image.digest=latest", "digest"),
        ("admission.finalizer=yes", "finalizer"),
        ("watchNamespaces={Not_A_Name}", "watchNamespaces"),
        ("metrics.podMonitor.interval=often", "interval"),
        ("crds.enable=true", "enable"),
    ] {
        let said = failure(helm(None, &["template", "lessor", CHART, "--set", set]).await);
        assert!(said.contains(named), "{set}: {said}");
    }
}

/// The chart as a dependency, under its own name and under another: `condition` and `global` reach its values, too.
#[trial]
async fn a_chart_that_includes_this_one_decides_by_a_condition_whether_it_is_rendered() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("umbrella");
    let _ = fs::remove_dir_all(&directory);
    for (alias, name) in [("", "lessor"), ("    alias: leases\n", "leases")] {
        let umbrella = directory.join(name);
        fs::create_dir_all(umbrella.join("charts")).expect("a directory");
        let chart = format!(
            "apiVersion: v2\nname: umbrella\nversion: 1.0.0\ndependencies:\n  - name: lessor\n    version: '*'\n{alias}    \
             repository: file://{CHART}\n    condition: {name}.enabled\n"
        );
        fs::write(umbrella.join("Chart.yaml"), chart).expect("a file");
        let umbrella = umbrella.to_str().expect("a path");
        success(helm(None, &["dependency", "update", umbrella]).await);
        for (enabled, rendered) in [("true", true), ("false", false)] {
            let set = format!("{name}.enabled={enabled},global.region=here");
            let found = documents(&success(helm(None, &["template", "up", umbrella, "--set", &set]).await));
            assert_eq!(
                found.iter().any(|object| object["kind"] == "Deployment"),
                rendered,
                "{name} {enabled}"
            );
        }
    }
}

/// The scheduler scores no node that lacks the label of any constraint, so that a constraint by zone takes the one by host
/// out of force where nodes have no zones.
#[trial]
async fn replicas_prefer_different_nodes_whether_or_not_nodes_have_zones() {
    let rendered = documents(&render(&[]).await);
    let deployment = rendered.iter().find(|object| object["kind"] == "Deployment").expect("a Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let spread = pod["topologySpreadConstraints"].as_array().expect("constraints");
    assert_eq!(spread.len(), 1, "{spread:?}");
    assert_eq!(spread[0]["topologyKey"], "kubernetes.io/hostname");
    assert_eq!(spread[0]["matchLabelKeys"], json!(["pod-template-hash"]));
    let terms = &pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    let weights = terms.as_array().expect("terms").iter().map(|term| {
        let key = term["podAffinityTerm"]["topologyKey"].as_str().expect("a key");
        assert_eq!(term["podAffinityTerm"]["matchLabelKeys"], json!(["pod-template-hash"]), "{key}");
        (key.to_owned(), term["weight"].as_i64().expect("a weight"))
    });
    let weights: std::collections::BTreeMap<String, i64> = weights.collect();
    assert!(weights["kubernetes.io/hostname"] > weights["topology.kubernetes.io/zone"], "{weights:?}");
}

/// Inside a cluster there is no kubeconfig, and the value `attachable` is a list already.
const WITHOUT_VALUE: [&str; 2] = ["--kubeconfig", "--attachable-file"];

/// The flags of `lessor run`, and the environment variable of each, as its help shows them.
fn flags() -> Vec<(String, Option<String>)> {
    let help = Command::new(env!("CARGO_BIN_EXE_lessor")).args(["run", "--help"]).output().expect("help");
    let help = String::from_utf8(help.stdout).expect("text");
    let mut flags: Vec<(String, Option<String>)> = Vec::new();
    for line in help.lines() {
        if let Some(at) = line.find("--").filter(|at| line[..*at].trim().trim_end_matches(',').len() <= 2) {
            let flag = line[at..].split([' ', '=', '[', '\n']).next().unwrap_or_default();
            flags.push((flag.to_owned(), None));
        }
        if let (Some(at), Some(flag)) = (line.find("[env: "), flags.last_mut()) {
            flag.1 = line[at + 6..].split(['=', ']']).next().map(str::to_owned);
        }
    }
    flags.retain(|(flag, _)| flag != "--help");
    assert!(flags.len() > 15, "{help}");
    flags
}

#[trial]
async fn each_flag_has_an_environment_variable_and_a_chart_value() {
    let rendered = documents(
        &render(&[
            "--set",
            "settings.dryRun=true,settings.identity=me,watchNamespaces={one},attachable={secrets},\
             settings.otlpEndpoint=http://collector:4318,follow.pods=true",
        ])
        .await,
    );
    let deployment = rendered.iter().find(|object| object["kind"] == "Deployment").expect("a deployment");
    let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
    let given: BTreeSet<&str> = args
        .as_array()
        .expect("arguments")
        .iter()
        .filter_map(|arg| arg.as_str()?.split('=').next().filter(|arg| arg.starts_with("--")))
        .collect();
    let flags = flags();
    for (flag, variable) in &flags {
        // What others have a name for keeps it.
        let is_ours =
            |name: &str| name.starts_with("LESSOR_") || ["OTEL_EXPORTER_OTLP_ENDPOINT"].contains(&name);
        assert!(variable.as_deref().is_some_and(is_ours), "{flag}: {variable:?}");
        assert!(
            given.contains(flag.as_str()) || WITHOUT_VALUE.contains(&flag.as_str()),
            "{flag} has no chart value"
        );
    }
    for flag in given {
        assert!(flags.iter().any(|(known, _)| known == flag), "{flag} is no flag");
    }
}

/// A wrong value for each flag that can have one. Any text is an identity, and `--dry-run` has no value.
const WRONG: [(&str, &str); 20] = [
    ("--lessor", "Not A Name"),
    ("--namespace", "not.a.namespace"),
    ("--attachable", "nodes"),
    ("--attachable-file", "/no/kinds"),
    ("--follow", "everything"),
    ("--min-ttl", "5"),
    ("--max-ttl", "1s"),
    ("--max-clock-skew", "1h30"),
    ("--start-grace", "-1s"),
    ("--max-start-grace", "-1s"),
    ("--linger", "long"),
    ("--lease-duration", "1ms"),
    ("--status-rate", "0"),
    ("--expiry-rate", "0"),
    ("--event-rate", "NaN"),
    ("--concurrency", "70000"),
    ("--pending-warning", "1.5s"),
    ("--admin-address", "8080"),
    ("--log-format", "yaml"),
    ("--otlp-endpoint", "https://collector"),
];

#[trial]
async fn a_flags_wrong_value_is_refused_by_its_name() {
    let refusal = |args: &[&str], logs: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lessor"));
        command.arg("run").args(args).args(["--kubeconfig", "/nonexistent"]).env("RUST_LOG", logs);
        failure(command.output().expect("a program that starts"))
    };
    for (flag, value) in WRONG {
        let said = refusal(&[&format!("{flag}={value}")], "info");
        // A file is named by its path.
        assert!(said.contains(flag) || said.contains("list of kinds /no/kinds"), "{flag}={value}: {said}");
    }
    let said = refusal(&[], "info,lessor=loud");
    assert!(said.contains("RUST_LOG"), "{said}");
    let without = ["--identity", "--dry-run", "--kubeconfig"];
    for (flag, _) in flags() {
        assert!(without.contains(&flag.as_str()) || WRONG.iter().any(|(tried, _)| *tried == flag), "{flag}");
    }
}

#[trial]
async fn the_defaults_of_the_chart_are_those_of_the_operator() {
    let help = Command::new(env!("CARGO_BIN_EXE_lessor")).args(["run", "--help"]).output().expect("help");
    let help = String::from_utf8(help.stdout).expect("text");
    let values: Value =
        serde_saphyr::from_str(&fs::read_to_string(format!("{CHART}/values.yaml")).expect("values"))
            .expect("yaml");
    for (name, value) in values["settings"].as_object().expect("settings") {
        let value = match value {
            // Lines for machines: the one default that differs, as Pods' logs are collected.
            _ if name == "logFormat" => continue,
            Value::String(text) => text.clone(),
            Value::Null | Value::Bool(false) => continue,
            other => other.to_string(),
        };
        let flag: String = name.chars().fold(String::from("--"), |mut flag, c| {
            if c.is_ascii_uppercase() {
                flag.push('-');
            }
            flag.push(c.to_ascii_lowercase());
            flag
        });
        let entry =
            help.split("\n      --").find(|entry| format!("--{entry}").starts_with(&format!("{flag} ")));
        let entry = entry.unwrap_or_else(|| panic!("{flag} isn't in\n{help}"));
        assert!(entry.contains(&format!("[default: {value}]")), "{flag}: {value}, but: {entry}");
    }
}

/// The names of Lessor's metrics that a text mentions, as they are in PromQL.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("lessor_") || word.starts_with("process_")).collect()
}

#[trial]
async fn the_dashboard_and_the_alerts_ask_only_for_metrics_that_there_are() {
    use lessor::runtime::metrics::Metrics;
    use lessor_core::{
        index::sources::SourceIndex,
        metric_event::MetricEvent,
        metrics_snapshot::MetricsSnapshot,
        observation::{Event, Observation},
        request::Response,
    };
    let shown = Metrics::new();
    shown.count(MetricEvent::Hindered("Immutable"));
    shown.request("write-status", &Response::Deleted, std::time::Duration::ZERO);
    shown.observe(&Observation::Lessor(Event::Synced(Default::default())));
    let followed = SourceIndex::new([], true).counts().to_vec();
    let figures = MetricsSnapshot { leases: vec![(None, 1)], followed, ..MetricsSnapshot::default() };
    let shown = shown.text(&figures).expect("text");
    let families: BTreeSet<&str> =
        shown.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let dashboard = fs::read_to_string(format!("{CHART}/files/dashboard.json")).expect("a dashboard");
    let rules = render(&["--set", "metrics.rules.enabled=true", "--show-only", "templates/rules.yaml"]).await;
    for text in [&dashboard, &rules] {
        assert!(metrics_in(text).len() > 5, "{text}");
        for name in metrics_in(text) {
            let suffixes = ["_total", "_bucket", "_count", "_sum", "_info"];
            let known = families.contains(name)
                || suffixes
                    .iter()
                    .any(|end| name.strip_suffix(end).is_some_and(|name| families.contains(name)));
            assert!(known, "there is no metric {name}");
        }
    }
}
