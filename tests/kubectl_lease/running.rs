//! `kubectl lease run`: no command outlives its lease.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use lessor_kit::world::{World, until};
use serde_json::json;
use tokio::time::Instant;

use crate::plugin::{background, command, lease, run, says};

/// Whether a process is there that isn't dead.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

/// A file for a command to write to.
fn file(world: &World, name: &str) -> PathBuf {
    world.cluster.directory().join(format!("{}-{name}", world.namespace))
}

async fn written(path: &Path) -> String {
    until("the command has written", async || {
        fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))
    })
    .await
}

#[tokio::test]
async fn a_command_runs_under_a_lease_that_is_revoked_when_it_ends() {
    let world = World::new("runs").await;
    let _operator = world.primary(&[]).await;
    let script =
        "echo $LEASE_NAME $LEASE_NAMESPACE; test $LEASE_FENCING_TOKEN -gt 0 || exit 9; sleep 9; exit 3";
    let ran = lease(&world, &["run", "runs", "--ttl", "8s", "--", "sh", "-c", script]).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert_eq!(ran.out, format!("runs {}\n", world.namespace));
    world.wait_gone("runs").await;
    let life = world.life("runs");
    assert!(life.renewals.len() >= 3, "{life:?}");
    let (last, end) = (life.last_renewal(), life.end.expect("an end"));
    assert!(end.asked.duration_since(last.answered).as_millis() < 7_900, "it expired: {life:?}");
}

#[tokio::test]
async fn a_command_whose_lease_is_revoked_is_stopped_with_all_that_it_started() {
    let world = World::new("stopped").await;
    let _operator = world.primary(&[]).await;
    let pids = file(&world, "pids");
    let script = format!("sleep 300 & echo $$ $! > {}; wait", pids.display());
    let running =
        background(&world, &["run", "stopped", "--ttl", "1h", "--grace", "5s", "--", "sh", "-c", &script]);
    let pids = written(&pids).await;
    world.revoke("stopped").await;
    assert_eq!(running.wait().await.expect("an end").code(), Some(124), "{}", running.log());
    assert!(running.log().contains("stopping the command"), "{}", running.log());
    for pid in pids.split_whitespace() {
        until(&format!("{pid} has ended"), async || (!lives(pid)).then_some(())).await;
    }
}

#[tokio::test]
async fn a_command_that_will_not_stop_is_killed_before_its_lease_ends() {
    let world = World::new("stubborn").await;
    let _operator = world.primary(&[]).await;
    let proxy = world.cluster.proxy().await.expect("a proxy");
    let pids = file(&world, "pids");
    let script = format!("trap '' TERM; echo $$ > {}; while :; do sleep 1; done", pids.display());
    let mut command: Command =
        command(&world, &["run", "stubborn", "--ttl", "6s", "--", "sh", "-c", &script]);
    command.env("KUBECONFIG", proxy.kubeconfig_path());
    let running = world.cluster.spawn(&command, "run").expect("it starts");
    let pid = written(&pids).await;
    proxy.isolate();
    assert_eq!(running.wait().await.expect("an end").code(), Some(124), "{}", running.log());
    assert!(!lives(&pid));
    assert!(running.log().contains("killing it"), "{}", running.log());
    let lease = world.leases().get("stubborn").await.expect("the lease, which lives on");
    assert!(!lease.is_ended(), "the command outlived its lease");
    world.wait_ended("stubborn").await;
}

#[tokio::test]
async fn a_signal_is_forwarded_to_the_command_and_the_lease_ends() {
    let world = World::new("signals").await;
    let _operator = world.primary(&[]).await;
    let running = background(
        &world,
        &[
            "run",
            "signals",
            "--ttl",
            "1h",
            "--",
            "sh",
            "-c",
            "trap 'echo stopping; exit 7' TERM; echo ready; while :; do sleep 0.1; done",
        ],
    );
    says(&running, "ready").await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(running.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    assert_eq!(running.wait().await.expect("an end").code(), Some(7), "{}", running.log());
    world.wait_gone("signals").await;

    let running =
        background(&world, &["run", "killed", "--ttl", "1h", "--", "sh", "-c", "echo ready; kill -9 $$"]);
    assert_eq!(running.wait().await.expect("an end").code(), Some(128 + 9), "{}", running.log());
}

#[tokio::test]
async fn each_reason_why_a_command_cannot_start_has_its_exit_code() {
    let world = World::new("codes").await;
    let _operator = world.primary(&[]).await;
    world.granted("taken", json!({"ttlSeconds": 600})).await;
    let code = async |args: &[&str]| lease(&world, args).await.code;
    assert_eq!(code(&["run", "taken", "--ttl", "30s", "--", "true"]).await, Some(125));
    assert_eq!(code(&["run", "a", "--ttl", "30s", "--", "/no/such/command"]).await, Some(127));
    assert_eq!(code(&["run", "b", "--ttl", "30s", "--", "/"]).await, Some(126));
    assert_eq!(code(&["run", "c", "--ttl", "30s", "--grace", "30s", "--", "true"]).await, Some(125));
    assert_eq!(code(&["run", "d", "--ttl", "30s"]).await, Some(2));
    for name in ["a", "b", "c"] {
        world.wait_gone(name).await;
    }
}

#[tokio::test]
async fn commands_of_one_lease_run_one_after_another() {
    let world = World::new("queue").await;
    let _operator = world.primary(&[]).await;
    let log = file(&world, "log");
    let script = format!("echo begin >> {0}; sleep 1; echo end >> {0}", log.display());
    let args = ["run", "queue", "--ttl", "5s", "--wait", "1m", "--", "sh", "-c", &script];
    let begin = Instant::now();
    let (a, b, c) =
        tokio::join!(run(command(&world, &args)), run(command(&world, &args)), run(command(&world, &args)));
    for ran in [a, b, c] {
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    assert_eq!(fs::read_to_string(&log).expect("a log"), "begin\nend\n".repeat(3));
    assert!(begin.elapsed() > Duration::from_secs(3));
}
