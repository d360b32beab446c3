//! However the test process ends, nothing of its cluster is left.
//!
//! A test here runs this file's own `holder` in a process of its own, lets it end badly, and looks for leftovers.
#![allow(clippy::expect_used, clippy::print_stdout)] // a test may fail by panicking, and prints its figures

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use lessor_cluster::{Cluster, Error};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::time::{Instant, sleep};

#[tokio::test]
async fn nothing_is_left_after_sigkill() {
    let (holder, directory) = start_holder();
    kill_process(Pid::from_child(&holder), Signal::KILL).expect("the holder can be killed");
    assert_nothing_is_left(holder, &directory).await;
}

#[tokio::test]
async fn nothing_is_left_after_ctrl_c() {
    let (holder, directory) = start_holder();
    kill_process_group(Pid::from_child(&holder), Signal::INT).expect("the holder can be interrupted");
    assert_nothing_is_left(holder, &directory).await;
}

#[tokio::test]
async fn nothing_is_left_after_a_panic() {
    let (mut holder, directory) = start_holder();
    drop(holder.stdin.take());
    assert_nothing_is_left(holder, &directory).await;
}

/// Holds a cluster in the state that is hardest to clean up, until it's ended.
#[tokio::test]
#[ignore = "run by the tests of this file"]
async fn holder() -> Result<(), Error> {
    // Shared: no destructor ever runs for it.
    let cluster = Cluster::shared().await?;
    let mut stubborn = Command::new("sh");
    let stubborn = stubborn.args(["-c", "trap '' TERM INT HUP; while :; do sleep 1; done", "stubborn"]);
    let _stubborn = cluster.spawn(stubborn.arg(cluster.directory()), "stubborn")?;
    cluster.api_server()?.pause()?;
    let mut out = io::stdout();
    writeln!(out, "holds {}", cluster.directory().display()).and_then(|()| out.flush()).expect("a reader");
    // Returns at the end of input too, so that the holder doesn't outlive its test.
    io::stdin().read_line(&mut String::new()).expect("standard input");
    panic!("as asked");
}

/// The holder, and the directory of its cluster.
fn start_holder() -> (Child, PathBuf) {
    let (output, writer) = io::pipe().expect("a pipe");
    let mut command = Command::new(env::current_exe().expect("this test's binary"));
    command
        .args(["--exact", "holder", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(writer.try_clone().expect("a pipe"))
        .stderr(writer)
        // As a shell starts what runs in the foreground, and gets Ctrl-C.
        .process_group(0);
    let holder = command.spawn().expect("this test's binary can be run");
    // It has the writing ends, and without it the pipe never ends.
    drop(command);
    let mut said = String::new();
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let directory = lines.by_ref().find_map(|line| {
        said += &(line.clone() + "\n");
        Some(PathBuf::from(line.split_once("holds ")?.1))
    });
    let directory = directory.unwrap_or_else(|| panic!("the holder should start a cluster: {said}"));
    // Whatever it prints later must not block or kill it.
    std::thread::spawn(move || lines.count());
    assert!(processes_of(&directory).len() >= 4, "etcd, API server, program and keeper run");
    (holder, directory)
}

async fn assert_nothing_is_left(mut holder: Child, directory: &Path) {
    holder.wait().expect("the holder ends");
    let mut left = Vec::new();
    let ended = Instant::now();
    for _ in 0..100 {
        left = processes_of(directory);
        if left.is_empty() && !directory.exists() {
            println!("gone {} ms after the holder", ended.elapsed().as_millis());
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    assert!(left.is_empty(), "left after 10 s: {left:#?}");
    assert!(!directory.exists(), "left after 10 s: {}", directory.display());
}

/// Every process that has the cluster's directory in its command line, zombies aside.
fn processes_of(directory: &Path) -> Vec<String> {
    let directory = directory.display().to_string();
    let ps = Command::new("ps").args(["-A", "-o", "stat=,pid=,args="]).output().expect("ps can be run");
    let mut processes: Vec<_> = String::from_utf8_lossy(&ps.stdout).lines().map(str::to_owned).collect();
    processes.retain(|process| process.contains(&directory) && !process.starts_with('Z'));
    processes
}
