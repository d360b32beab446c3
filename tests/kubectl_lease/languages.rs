//! The clients in other languages: what docs/clients.md shows, run against a real server. Each registers a
//! service by a key of a ConfigMap.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use k8s_openapi::ByteString;
use lessor_cluster::{Process, proxy::Proxy};
use lessor_kit::world::{World, until};
use serde_json::Value;
use tokio::time::sleep;

use crate::plugin::says;

const TTL: u64 = 6;
const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/clients");

#[test]
fn the_document_shows_the_programs_as_they_are() {
    let document =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/clients.md")).expect("a document");
    for program in ["curl/register.sh", "python/register.py", "go/main.go"] {
        let program = fs::read_to_string(format!("{CLIENTS}/{program}")).expect("a program");
        assert!(document.contains(&program), "it differs from docs/clients.md:\n{program}");
    }
}

#[tokio::test]
#[ignore = "needs curl and jq: just clients"]
async fn a_shell_script_holds_a_lease() {
    holds("curl", |proxy, directory| {
        let mut command = Command::new(format!("{CLIENTS}/curl/register.sh"));
        let kubeconfig = fs::read_to_string(proxy.kubeconfig_path()).expect("a kubeconfig");
        let kubeconfig: Value = serde_saphyr::from_str(&kubeconfig).expect("YAML");
        let authority = kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"].clone();
        let ByteString(authority) = serde_json::from_value(authority).expect("base64");
        let file = directory.join("curl-ca.crt");
        fs::write(&file, authority).expect("a file");
        command.env("APISERVER", proxy.url().trim_end_matches('/')).env("CACERT", file);
        command.env("TOKEN", kubeconfig["users"][0]["user"]["token"].as_str().expect("a token"));
        command
    })
    .await;
}

#[tokio::test]
#[ignore = "installs a package of Python's: just clients"]
async fn a_python_program_holds_a_lease() {
    let environment = cached("python");
    let python = environment.join("bin/python");
    if !python.exists() {
        done(Command::new("python3").args(["-m", "venv"]).arg(&environment));
    }
    let requirements = format!("{CLIENTS}/python/requirements.txt");
    done(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement", &requirements]));
    holds("python", |proxy, _| {
        let mut command = Command::new(&python);
        command.arg(format!("{CLIENTS}/python/register.py")).env("KUBECONFIG", proxy.kubeconfig_path());
        command
    })
    .await;
}

#[tokio::test]
#[ignore = "builds client-go: just clients"]
async fn a_go_program_holds_a_lease() {
    let program = cached("go").join("register");
    done(
        Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(format!("{CLIENTS}/go")),
    );
    holds("go", |proxy, _| {
        let mut command = Command::new(&program);
        command.env("KUBECONFIG", proxy.kubeconfig_path());
        command
    })
    .await;
}

#[tokio::test]
#[ignore = "builds client-go: just go-client-cluster"]
async fn the_go_client_passes_its_tests_on_a_real_server() {
    let world = World::new("go-client").await;
    let _operator = world.primary(&[]).await;
    let mut test = Command::new("go");
    test.args(["test", "-race", "-count=1", "./integration"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/clients/go"))
        .env("LESSOR_TEST_KUBECONFIG", world.cluster.kubeconfig_path())
        .env("LESSOR_TEST_NAMESPACE", &world.namespace);
    tokio::task::spawn_blocking(move || done(&mut test)).await.expect("the tests of the Go client");
}

/// Where what was built or installed once stays.
pub(crate) fn cached(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients").join(name);
    fs::create_dir_all(&directory).expect("a directory");
    directory
}

pub(crate) fn done(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

/// What each program has to do, however it's written.
pub(crate) async fn holds(language: &str, program: impl Fn(&Proxy, &Path) -> Command) {
    let world = World::new(language).await;
    let _operator = world.primary(&[]).await;
    let proxy = world.cluster.proxy().await.expect("a proxy");
    let start = |name: &str| -> Process {
        let mut command = program(&proxy, world.cluster.directory());
        command.args([name, "10.0.0.17:8080"]).env("NAMESPACE", &world.namespace).env("TTL", TTL.to_string());
        world.cluster.spawn(&command, &format!("{language}-{name}")).expect("it starts")
    };

    // Kept alive for longer than its TTL, through an outage within it, and revoked at the end.
    let service = start("web-1");
    says(&service, "registered").await;
    assert_eq!(world.keys("endpoints").await, ["web-1"]);
    says(&service, "renewed").await;
    proxy.disconnect();
    says(&service, "can't renew, tries again").await;
    proxy.heal();
    sleep(Duration::from_secs(TTL + 2)).await;
    let lease = world.leases().get("web-1").await.expect("the lease");
    assert!(!lease.is_ended(), "{}", service.log());
    assert!(service.stop().await.expect("a stop").success(), "{}", service.log());
    world.wait_keys("endpoints", &[]).await;
    world.wait_gone("web-1").await;

    // Revoked by another user.
    let service = start("web-2");
    says(&service, "renewed").await;
    world.revoke("web-2").await;
    assert_eq!(service.wait().await.expect("an end").code(), Some(4), "{}", service.log());
    world.wait_gone("web-2").await;

    // Cut off: it gives up before its lease ends.
    let service = start("web-3");
    says(&service, "renewed").await;
    proxy.isolate();
    assert_eq!(service.wait().await.expect("an end").code(), Some(4), "{}", service.log());
    let lease =
        world.leases().get("web-3").await.unwrap_or_else(|error| panic!("{error}: {}", service.log()));
    assert!(!lease.is_ended(), "it believed longer than the server: {}", service.log());
    proxy.heal();
    world.wait_keys("endpoints", &[]).await;

    // Killed: its key goes with its lease.
    let service = start("web-4");
    says(&service, "registered").await;
    service.kill().await.expect("a kill");
    world.wait_keys("endpoints", &["web-4"]).await;
    until("the key is gone", async || world.keys("endpoints").await.is_empty().then_some(())).await;
}
