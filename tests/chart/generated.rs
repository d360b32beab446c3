//! Files that follow from others: with `LESSOR_GENERATE=1` in the environment these tests write them, otherwise they
//! compare.

use std::{fs, path::Path};

use k8s_openapi::ByteString;

use crate::release::{CHART, render};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Compares a file with what it should be, or writes it.
fn check(path: &str, expected: &str) {
    let path = Path::new(ROOT).join(path);
    if std::env::var_os("LESSOR_GENERATE").is_some() {
        fs::write(&path, expected).expect("a file");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} is out of date: run `just generate`", path.display());
}

pub(crate) async fn the_definitions_in_the_chart_are_those_of_the_code() {
    for name in ["leases.lessor.dev.yaml", "lessors.lessor.dev.yaml"] {
        let definition = fs::read_to_string(format!("{ROOT}/crds/{name}")).expect("a definition");
        check(&format!("charts/lessor/files/crds/{name}"), &definition);
    }
}

pub(crate) async fn what_the_chart_takes_from_deploy_is_the_same_there() {
    for name in ["admission.yaml", "roles.yaml"] {
        let plain = fs::read_to_string(format!("{ROOT}/deploy/{name}")).expect("a file");
        check(&format!("charts/lessor/files/{name}"), &plain);
    }
}

pub(crate) async fn the_icon_is_part_of_the_chart() {
    let icon = fs::read(format!("{CHART}/icon.svg")).expect("an icon");
    let icon = serde_json::to_string(&ByteString(icon)).expect("base64");
    let icon = format!("icon: data:image/svg+xml;base64,{}", icon.trim_matches('"'));
    let chart = fs::read_to_string(format!("{CHART}/Chart.yaml")).expect("the chart");
    let lines = chart.lines().map(|line| if line.starts_with("icon:") { icon.as_str() } else { line });
    check("charts/lessor/Chart.yaml", &format!("{}\n", lines.collect::<Vec<_>>().join("\n")));
}

pub(crate) async fn the_plain_yaml_is_the_rendered_chart() {
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

pub(crate) async fn the_table_in_the_readme_lists_all_values() {
    let values = fs::read_to_string(format!("{CHART}/values.yaml")).expect("values");
    let readme = fs::read_to_string(format!("{CHART}/README.md")).unwrap_or_default();
    let begin = "<!-- generated from values.yaml -->\n";
    let start = readme.find(begin).expect("the place of the table") + begin.len();
    let end = readme.find("<!-- end -->").expect("the end of the table");
    let expected = format!("{}\n{}\n{}", &readme[..start], table(&values), &readme[end..]);
    check("charts/lessor/README.md", &expected);
}

pub(crate) async fn each_value_has_a_line_that_explains_it() {
    let values = fs::read_to_string(format!("{CHART}/values.yaml")).expect("values");
    let table = table(&values);
    for path in ["settings.minTtl", "metrics.rules.lateSeconds", "crds.keep", "resources", "watchNamespaces"]
    {
        assert!(table.contains(&format!("| `{path}` |")), "{path} in\n{table}");
    }
}
