//! What krew installs.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_manifest_for_krew_lists_archives_that_hold_the_plugin() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("krew");
    let (binaries, out) = (directory.join("binaries"), directory.join("out"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&binaries).expect("a directory");
    for platform in ["linux-amd64", "darwin-arm64"] {
        fs::copy(crate::plugin::plugin(), binaries.join(format!("kubectl-lease-{platform}")))
            .expect("a copy");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/krew/package.sh");
    let version = env!("CARGO_PKG_VERSION");
    let mut pack = Command::new(script);
    done(
        pack.args([version, "https://example.com/lessor", "https://example.com/downloads/"])
            .arg(&binaries)
            .arg(&out),
    );

    let manifest = fs::read_to_string(out.join("lease.yaml")).expect("a manifest");
    assert!(!manifest.contains('@'), "{manifest}");
    let manifest: Value = serde_saphyr::from_str(&manifest).expect("YAML");
    assert_eq!(
        (manifest["kind"].as_str(), manifest["metadata"]["name"].as_str()),
        (Some("Plugin"), Some("lease"))
    );
    assert_eq!(manifest["spec"]["version"], format!("v{version}"));
    // krew's own limit.
    assert!(manifest["spec"]["shortDescription"].as_str().is_some_and(|text| text.len() <= 80));
    let platforms = manifest["spec"]["platforms"].as_array().expect("platforms");
    assert_eq!(platforms.len(), 2);
    for platform in platforms {
        let archive =
            platform["uri"].as_str().and_then(|uri| uri.strip_prefix("https://example.com/downloads/"));
        let archive = out.join(archive.expect("an address"));
        let sum = done(Command::new("sha256sum").arg(&archive));
        assert_eq!(sum.split_whitespace().next(), platform["sha256"].as_str());
        let unpacked = directory.join("unpacked");
        fs::create_dir_all(&unpacked).expect("a directory");
        done(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&unpacked));
        let plugin = unpacked.join(platform["bin"].as_str().expect("a name"));
        assert_eq!(done(Command::new(plugin).arg("--version")), format!("kubectl-lease {version}\n"));
    }
}
