//! The transcripts in the documents, as they come out of a real run.

use std::{process::Command, time::Duration};

use lessor_cluster::Tool;
use trycmd::{TestCases, schema::Bin};

use crate::{plugin::kubectl_with_plugins, world::World};

#[test]
fn the_documents_show_what_really_happens() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (world, _operator, kubectl, tool) = runtime.block_on(async {
        let world = World::new("transcripts").await;
        // As it's installed, but for a shorter wait after an end.
        let operator = world.primary(&["--min-ttl", "5s"]).await;
        let kubectl = kubectl_with_plugins(&world).await(&[]);
        (world, operator, kubectl, Tool::Kubectl.path().await.expect("kubectl"))
    });
    // Commands in documents name no namespace: the context of the kubeconfig has it.
    let kubeconfig = world.cluster.directory().join(format!("{}.kubeconfig", world.namespace));
    std::fs::copy(world.cluster.kubeconfig_path(), &kubeconfig).expect("a kubeconfig");
    let set = ["config", "set-context", "--current", "--namespace", &world.namespace];
    let status = Command::new(&tool).env("KUBECONFIG", &kubeconfig).args(set).status().expect("kubectl");
    assert!(status.success());

    let cases = TestCases::new();
    cases.env("KUBECONFIG", kubeconfig.to_str().expect("a path"));
    for (name, value) in kubectl.get_envs().filter(|(name, _)| *name == "PATH") {
        cases.env(name.to_string_lossy(), value.expect("a path").to_string_lossy());
    }
    cases.register_bin("kubectl", Bin::Path(tool));
    cases.register_bin("sleep", Bin::Path("/bin/sleep".into()));
    cases.timeout(Duration::from_secs(60));
    cases.case("docs/kubectl-lease.md");
    cases.run();
}
