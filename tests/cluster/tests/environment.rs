//! What environment variables say, and what is said when they say something wrong.
//!
//! The environment belongs to a whole process, so a test here runs one of the ignored ones in a process of its own.
#![allow(clippy::expect_used, clippy::print_stdout)] // a test may fail by panicking, and prints its figures

use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use lessor_cluster::{Cluster, Error, Tool};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{net::TcpStream, time::sleep};

/// Runs an ignored test of this file with these variables and none else that counts; returns what it printed.
fn rerun(test: &str, variables: &[(&str, OsString)]) -> String {
    let mut command = Command::new(env::current_exe().expect("this test's binary"));
    for variable in ["KUBEBUILDER_ASSETS", "TEST_ASSET_ETCD", "TEST_ASSET_KUBECTL", "USE_EXISTING_CLUSTER"] {
        command.env_remove(variable);
    }
    let output = command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(variables.iter().cloned())
        .stdin(Stdio::null())
        .output()
        .expect("this test's binary can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[tokio::test]
#[ignore = "run by the tests of this file"]
async fn find_kubectl() {
    match Tool::Kubectl.path().await {
        Ok(path) => println!("found {}", path.display()),
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn assets_come_first_then_the_directory_of_assets() {
    let directory = tempfile::tempdir().expect("a directory");
    let (asset, assets) = (directory.path().join("asset"), directory.path().join("assets"));
    fs::create_dir(&assets).and_then(|()| fs::write(&asset, "")).expect("files");
    fs::write(assets.join("kubectl"), "").expect("a file");
    let assets = ("KUBEBUILDER_ASSETS", assets.into_os_string());
    let said = rerun("find_kubectl", &[("TEST_ASSET_KUBECTL", asset.clone().into()), assets.clone()]);
    assert!(said.contains(&format!("found {}\n", asset.display())), "{said}");
    let said = rerun("find_kubectl", &[assets]);
    assert!(said.contains("/assets/kubectl\n"), "{said}");
    let said = rerun("find_kubectl", &[("TEST_ASSET_KUBECTL", "/nowhere/kubectl".into())]);
    assert!(said.contains("TEST_ASSET_KUBECTL names /nowhere/kubectl, which is no file"), "{said}");
}

#[test]
fn an_error_about_missing_go_explains_how_to_install_it() {
    let empty = tempfile::tempdir().expect("a directory");
    let path = path_with_sh_only(empty.path());
    let said = rerun("find_kubectl", &[("LESSOR_CLUSTER_CACHE", empty.path().into()), ("PATH", path)]);
    assert!(said.contains("no `go` in PATH"), "{said}");
    assert!(said.contains("install Go 1.26 or newer, or set TEST_ASSET_KUBECTL"), "{said}");
}

#[test]
fn a_failing_build_shows_its_last_lines_and_leaves_nothing() {
    let cache = tempfile::tempdir().expect("a directory");
    let path = path_with_sh_only(cache.path());
    let go = Path::new(&path).join("go");
    fs::write(&go, "#!/bin/sh\n[ $1 = version ] || { echo no such module; exit 3; }\n").expect("a file");
    fs::set_permissions(&go, fs::Permissions::from_mode(0o755)).expect("an executable file");
    let said = rerun("find_kubectl", &[("LESSOR_CLUSTER_CACHE", cache.path().into()), ("PATH", path)]);
    assert!(said.contains("building kubectl failed (exit status: 3)"), "{said}");
    assert!(said.contains("no such module"), "{said}");
    let left = fs::read_dir(cache.path().join(Tool::Kubectl.version())).expect("the cache");
    let left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(left, [".lock"]);
}

fn path_with_sh_only(directory: &Path) -> OsString {
    let bin = directory.join("bin");
    fs::create_dir(&bin).expect("a directory");
    for tool in ["sh", "rm", "sleep"] {
        let found = ["/bin", "/usr/bin"]
            .map(|place| Path::new(place).join(tool))
            .into_iter()
            .find(|path| path.exists());
        std::os::unix::fs::symlink(found.expect("it is everywhere"), bin.join(tool)).expect("a link");
    }
    bin.into_os_string()
}

#[tokio::test]
#[ignore = "run by the tests of this file"]
async fn use_existing() -> Result<(), Error> {
    let cluster = Cluster::start().await?;
    println!("existing {} {}", cluster.server_url(), cluster.version().await?.git_version);
    println!("refused: {}", cluster.api_server().map(|_| ()).expect_err("it isn't ours"));
    cluster.service_account_client("default", "guest").await?.apiserver_version().await.expect("an answer");
    // The proxy has a certificate authority of its own then.
    cluster.proxy().await?.client()?.apiserver_version().await.expect("an answer");
    println!("all done");
    Ok(())
}

#[tokio::test]
async fn an_existing_cluster_is_used_and_not_controlled() -> Result<(), Error> {
    let cluster = Cluster::shared().await?;
    let said = rerun(
        "use_existing",
        &[("USE_EXISTING_CLUSTER", "true".into()), ("KUBECONFIG", cluster.kubeconfig_path().into())],
    );
    assert!(said.contains(&format!("existing {} v1.36.3", cluster.server_url())), "{said}");
    assert!(said.contains("refused: can't control the API server of an existing cluster"), "{said}");
    assert!(said.contains("all done"), "{said}");
    Ok(())
}

#[tokio::test]
#[ignore = "run by the tests of this file"]
async fn leave() -> Result<(), Error> {
    let cluster = Cluster::start().await?;
    let program = cluster.spawn(Command::new("sleep").arg("600"), "sleeper")?;
    println!("left {} {}", cluster.server_url(), cluster.directory().display());
    println!("keeper {}", cluster.leave_running([program]));
    Ok(())
}

#[tokio::test]
async fn what_is_left_running_ends_with_its_keeper() -> io::Result<()> {
    let said = rerun("leave", &[]);
    let word = |line: &str, index| {
        said.lines().find_map(|l| l.split_once(line)?.1.split(' ').nth(index)).expect(&said)
    };
    let address = word("left ", 0).trim_start_matches("https://").trim_end_matches('/');
    let directory = Path::new(word("left ", 1));
    TcpStream::connect(address).await.expect("the API server outlives the test that left it");
    let keeper = word("keeper ", 0).parse().ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(keeper, Signal::TERM)?;
    for _ in 0..100 {
        if !directory.exists() {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    assert!(!directory.exists(), "{} should be removed", directory.display());
    TcpStream::connect(address).await.expect_err("no server is left to answer");
    Ok(())
}
