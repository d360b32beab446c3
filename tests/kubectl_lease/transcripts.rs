//! The transcripts in the documents, compared with a real run.

use std::{path::PathBuf, process::Command, time::Duration};

use lessor_cluster::{Process, Tool};
use lessor_kit::world::World;
use trycmd::{TestCases, schema::Bin};

use crate::{plugin::kubectl_with_plugins, programs::kubeconfig};

/// A cluster with the operator and the plugin installed.
struct Installed {
    _runtime: tokio::runtime::Runtime,
    _operator: Process,
    kubectl: PathBuf,
    path: String,
    kubeconfig: PathBuf,
}

impl Installed {
    fn new(name: &str) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let (operator, kubectl, path, kubeconfig) = runtime.block_on(async {
            let world = World::new(name).await;
            let operator = world.primary(&["--min-ttl", "5s"]).await;
            let kubectl = kubectl_with_plugins(&world).await(&[]);
            let path = kubectl.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, value)| value);
            let path = path.expect("a path").to_string_lossy().into_owned();
            // Commands in documents name no namespace: the context has it.
            (operator, Tool::Kubectl.path().await.expect("kubectl"), path, kubeconfig(&world).await)
        });
        Self { _runtime: runtime, _operator: operator, kubectl, path, kubeconfig }
    }
}

#[test]
fn the_transcripts_in_the_documents_match_a_real_run() {
    let installed = Installed::new("transcripts");
    let cases = TestCases::new();
    cases.env("KUBECONFIG", installed.kubeconfig.to_str().expect("a path"));
    cases.env("PATH", &installed.path);
    cases.register_bin("kubectl", Bin::Path(installed.kubectl.clone()));
    cases.timeout(Duration::from_secs(60));
    cases.case("docs/kubectl-lease.md");
    cases.run();
}

#[test]
#[ignore = "rewrites docs/recording.txt: just recording"]
fn the_recording_is_made() {
    let installed = Installed::new("recording");
    let directory = installed.kubectl.parent().expect("a directory").display();
    let root = env!("CARGO_MANIFEST_DIR");
    let mut command = Command::new(format!("{root}/docs/record.sh"));
    command.env("KUBECONFIG", &installed.kubeconfig).env("PATH", format!("{directory}:{}", installed.path));
    command.envs([("USER", "jane"), ("LOGNAME", "jane")]);
    let output = command.output().expect("a session");
    assert!(output.status.success(), "{output:?}");
    std::fs::write(format!("{root}/docs/recording.txt"), output.stdout).expect("a file");
}
