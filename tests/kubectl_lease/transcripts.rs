//! The transcripts in the documents, as they come out of a real run.

use std::time::Duration;

use lessor_cluster::Tool;
use trycmd::{TestCases, schema::Bin};

use crate::{plugin::kubectl_with_plugins, programs::kubeconfig, world::World};

#[test]
fn the_documents_show_what_really_happens() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (_operator, kubectl, tool, kubeconfig) = runtime.block_on(async {
        let world = World::new("transcripts").await;
        // As it's installed, but for a shorter wait after an end.
        let operator = world.primary(&["--min-ttl", "5s"]).await;
        let kubectl = kubectl_with_plugins(&world).await(&[]);
        // Commands in documents name no namespace: the context has it.
        let kubeconfig = kubeconfig(&world).await;
        (operator, kubectl, Tool::Kubectl.path().await.expect("kubectl"), kubeconfig)
    });
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
