//! Files that follow from others: with `LESSOR_GENERATE=1` in the environment these tests write them, otherwise they
//! compare.

use std::{fs, path::Path, process::Command};

use k8s_openapi::ByteString;
use lessor_kit::trial;
use serde_json::{Value, json};

use crate::release::{CHART, documents, failure, helm, render, success};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Kinds as an administrator lists them: those that tests attach, and each way to write one.
pub(crate) const KINDS: [&str; 18] = [
    "secrets",
    "pods/v1",
    "services",
    "persistentvolumeclaims",
    "deployments.apps:pointers",
    "statefulsets.apps",
    "jobs.batch/v1:pointers",
    "cronjobs.batch/v1",
    "events.events.k8s.io:force",
    "leases.coordination.k8s.io:force",
    "serviceaccounts:force",
    "roles.rbac.authorization.k8s.io/v1:pointers:force",
    "networkpolicies.networking.k8s.io:force:pointers",
    "widgets.world-1.example.com:pointers",
    "things.example.com/v1beta1",
    "pods.example.com/v1-a",
    "secrets.example.com",
    "configmaps/v1",
];

/// Compares a file with what it should be, or writes it.
fn check(path: &str, expected: &str) {
    let path = Path::new(ROOT).join(path);
    if std::env::var_os("LESSOR_GENERATE").is_some() {
        fs::write(&path, expected).expect("a file");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} is out of date: run `just generate`", path.display());
}

#[trial]
async fn the_definitions_in_the_chart_are_those_of_the_code() {
    for name in ["leases.lessor.dev.yaml", "lessors.lessor.dev.yaml"] {
        let definition = fs::read_to_string(format!("{ROOT}/crds/{name}")).expect("a definition");
        check(&format!("charts/lessor/files/crds/{name}"), &definition);
    }
}

#[trial]
async fn what_the_chart_takes_from_deploy_is_the_same_there() {
    for name in ["admission.yaml", "finalizer.yaml", "roles.yaml"] {
        let plain = fs::read_to_string(format!("{ROOT}/deploy/{name}")).expect("a file");
        check(&format!("charts/lessor/files/{name}"), &plain);
    }
}

/// What the command prints for these kinds.
fn printed(kinds: &str) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lessor"));
    command.arg("admission");
    if !kinds.is_empty() {
        command.args(["--attachable", kinds]);
    }
    documents(&success(command.output().expect("a program that starts")))
}

/// What a policy and its binding say, whatever they are called.
fn said(objects: &[Value]) -> Vec<Value> {
    let without_name = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("policyName");
        }
        json!([object["apiVersion"], object["kind"], spec])
    };
    objects.iter().map(without_name).collect()
}

#[trial]
async fn chart_command_and_file_have_the_same_policy_for_the_same_kinds() {
    let plain = fs::read_to_string(format!("{ROOT}/deploy/admission.yaml")).expect("a file");
    assert_eq!(said(&documents(&plain)), said(&printed("secrets")));
    let all = KINDS.join(",");
    for kinds in KINDS.iter().copied().chain(["", &all]) {
        let values = if kinds.is_empty() { String::new() } else { format!("attachable={{{kinds}}}") };
        let rendered = render(&["--set", &values, "--show-only", "templates/attachments.yaml"]).await;
        assert_eq!(said(&documents(&rendered)), said(&printed(kinds)), "{kinds}");
    }
}

#[trial]
async fn kinds_that_the_operator_cannot_read_are_refused_by_the_chart_too() {
    for kinds in [
        "Secret",
        "secrets/",
        "secrets.",
        ".apps",
        "-",
        "pods-",
        "*",
        "*.apps",
        "deployments..apps",
        "deployments.apps.",
        "deployments.-apps",
        "deployments.apps/",
        "deployments.apps/v1-",
        "deployments.apps:",
        "deployments.apps:pointer",
        "deployments.apps:pointers/v1",
        "deployments .apps",
        "pods/status/v1",
        "pods,pods:force",
        "jobs.batch,jobs.batch/v1:pointers",
    ] {
        let rights = ["rbac", "--attachable", kinds];
        let told = Command::new(env!("CARGO_BIN_EXE_lessor")).args(rights).output();
        failure(told.expect("a program that starts"));
        let values = format!("attachable={{{kinds}}}");
        let told = failure(helm(None, &["template", "lessor", CHART, "--set", &values]).await);
        assert!(told.contains("attachable"), "{kinds}: {told}");
    }
}

#[trial]
async fn the_icon_is_part_of_the_chart() {
    let icon = fs::read(format!("{CHART}/icon.svg")).expect("an icon");
    let icon = serde_json::to_string(&ByteString(icon)).expect("base64");
    let icon = format!("icon: data:image/svg+xml;base64,{}", icon.trim_matches('"'));
    let chart = fs::read_to_string(format!("{CHART}/Chart.yaml")).expect("the chart");
    let lines = chart.lines().map(|line| if line.starts_with("icon:") { icon.as_str() } else { line });
    check("charts/lessor/Chart.yaml", &format!("{}\n", lines.collect::<Vec<_>>().join("\n")));
}

#[trial]
async fn the_plain_yaml_is_the_rendered_chart() {
    // Without helm there is nobody to run hooks, nor anything that a label of helm's would help.
    let rendered = render(&["--no-hooks", "--skip-tests", "--set", "uninstall.detachFinalizers=false"]).await;
    let head = "# Lessor, for all namespaces: kubectl apply -f lessor.yaml\n\
                # Rendered from charts/lessor with its default values; `just generate` writes it anew.\n\
                ---\n\
                apiVersion: v1\n\
                kind: Namespace\n\
                metadata:\n  name: lessor-system\n  labels:\n    \
                pod-security.kubernetes.io/enforce: restricted\n";
    let ours = rendered.lines().filter(|line| {
        !line.contains("app.kubernetes.io/managed-by: Helm") && !line.contains("helm.sh/chart:")
    });
    let body: Vec<&str> = ours.map(str::trim_end).collect();
    check("deploy/lessor.yaml", &format!("{head}{}\n", body.join("\n")));
}

/// A row of the table of values.
fn row(path: &str, default: &str, text: &str) -> String {
    format!("| `{path}` | {text} | `{}` |\n", default.replace('|', "\\|"))
}

/// The table of all values: each that has a comment above it.
fn table(values: &str) -> String {
    let mut table = String::from("| value | says | default |\n|---|---|---|\n");
    let mut path: Vec<(usize, String)> = Vec::new();
    let mut comment = String::new();
    for line in values.lines() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if let Some(more) = text.strip_prefix('#') {
            comment = format!("{comment} {}", more.trim()).trim().to_owned();
            continue;
        }
        let Some((key, value)) = text.split_once(':').filter(|_| !text.starts_with('-')) else {
            comment.clear();
            continue;
        };
        path.retain(|(outer, _)| *outer < indent);
        path.push((indent, key.to_owned()));
        if !comment.is_empty() {
            let names: Vec<&str> = path.iter().map(|(_, name)| name.as_str()).collect();
            let value = value.trim();
            let default = if value.is_empty() { "see values.yaml" } else { value };
            table.push_str(&row(&names.join("."), default, &comment));
        }
        comment.clear();
    }
    table
}

#[trial]
async fn the_table_in_the_readme_lists_all_values() {
    let values = fs::read_to_string(format!("{CHART}/values.yaml")).expect("values");
    let readme = fs::read_to_string(format!("{CHART}/README.md")).unwrap_or_default();
    let begin = "<!-- generated from values.yaml -->\n";
    let start = readme.find(begin).expect("the place of the table") + begin.len();
    let end = readme.find("<!-- end -->").expect("the end of the table");
    let expected = format!("{}\n{}\n{}", &readme[..start], table(&values), &readme[end..]);
    check("charts/lessor/README.md", &expected);
}

#[trial]
async fn each_value_has_a_line_that_explains_it() {
    let values = fs::read_to_string(format!("{CHART}/values.yaml")).expect("values");
    let table = table(&values);
    for path in ["settings.minTtl", "metrics.rules.lateSeconds", "crds.keep", "resources", "watchNamespaces"]
    {
        assert!(table.contains(&format!("| `{path}` |")), "{path} in\n{table}");
    }
}
