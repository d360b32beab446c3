//! `kubectl lease`: each command, its output and its errors.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use lessor_cluster::{Process, Tool};
use lessor_kit::{
    program,
    world::{World, until},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::rights;

/// The exit code and the output of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The plugin for a world, with further arguments.
pub(crate) fn command(world: &World, args: &[&str]) -> Command {
    command_with(world.cluster.kubeconfig_path(), world, args)
}

fn command_with(kubeconfig: &Path, world: &World, args: &[&str]) -> Command {
    let mut command = Command::new(program::plugin());
    command.env("KUBECONFIG", kubeconfig).env("USER", "jane").args(["-n", &world.namespace]).args(args);
    command
}

pub(crate) async fn lease(world: &World, args: &[&str]) -> Ran {
    run(command(world, args)).await
}

pub(crate) async fn run(command: Command) -> Ran {
    let mut command = tokio::process::Command::from(command);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A command in the background.
pub(crate) fn background(world: &World, args: &[&str]) -> Process {
    world.cluster.spawn(&command(world, args), "kubectl-lease").expect("it starts")
}

pub(crate) fn interrupt(process: &Process) {
    let pid = Pid::from_raw(i32::try_from(process.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).expect("a signal");
}

pub(crate) async fn says(process: &Process, text: &str) {
    until(&format!("it says {text:?}"), async || {
        assert_eq!(process.exit_status(), None, "it ended: {}", process.log());
        process.log().contains(text).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lease_passes_through_every_command() {
    let world = World::new("every").await;
    let _operator = world.primary(&[]).await;
    world.config_map("shared", json!({}), &["a", "b"]).await;

    let granted = lease(&world, &["grant", "every", "--ttl", "1h", "--attach", "cm/shared:a"]).await;
    assert_eq!(granted.out, "lease.lessor.dev/every granted for 1h\nconfigmap/shared:a attached\n");
    assert_eq!(lease(&world, &["renew", "every"]).await.out, "lease.lessor.dev/every renewed, ttl 1h\n");
    assert_eq!(
        lease(&world, &["keep-alive", "every", "--once"]).await.out,
        "lease.lessor.dev/every renewed, ttl 1h\n"
    );

    let ttl = lease(&world, &["ttl", "every", "--attachments"]).await;
    // A second has passed, or not yet.
    let left = ["granted for 1h, 59m59s left, held by jane@", "granted for 1h, 1h left, held by jane@"];
    assert!(left.iter().any(|left| ttl.out.contains(left)), "{}", ttl.out);
    assert!(ttl.out.contains("configmap/shared (kept, without these keys)\n    └── a\n"), "{}", ttl.out);
    let json = lease(&world, &["ttl", "every", "--attachments", "-o", "json"]).await.out;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["grantedTTLSeconds"], 3600);
    assert!(json["remainingSeconds"].as_u64().is_some_and(|left| (3500..=3600).contains(&left)), "{json}");
    assert_eq!(json["attached"][0]["keys"], json!(["a"]));

    assert_eq!(lease(&world, &["attach", "every", "cm/shared:b"]).await.out, "configmap/shared:b attached\n");
    assert_eq!(
        lease(&world, &["attach", "every", "cm/shared:b"]).await.out,
        "configmap/shared:b attached already\n"
    );
    assert_eq!(lease(&world, &["detach", "every", "cm/shared:a"]).await.out, "configmap/shared:a detached\n");
    assert_eq!(
        lease(&world, &["detach", "every", "cm/shared:a"]).await.out,
        "configmap/shared:a was not attached\n"
    );

    let list = lease(&world, &["list", "-o", "name"]).await;
    assert_eq!(list.out, "lease.lessor.dev/every\n");
    let yaml = lease(&world, &["list", "-o", "yaml"]).await.out;
    assert!(yaml.contains("kind: Lease\n") && yaml.contains("ttlSeconds: 3600"), "{yaml}");

    let revoked = lease(&world, &["revoke", "every"]).await;
    assert_eq!((revoked.code, revoked.out.as_str()), (Some(0), "lease.lessor.dev/every revoked\n"));
    assert_eq!(world.keys("shared").await, ["a"]);
}

#[tokio::test]
async fn errors_have_the_api_servers_message_and_an_exit_code() {
    let world = World::new("errors").await;
    let _operator = world.primary(&[]).await;

    for command in [
        &["ttl", "nope"][..],
        &["renew", "nope"],
        &["keep-alive", "nope"],
        &["tree", "nope"],
        &["revoke", "nope"],
    ] {
        let ran = lease(&world, command).await;
        assert_eq!(
            (ran.code, ran.err.as_str()),
            (Some(3), "error: leases.lessor.dev \"nope\" not found\n"),
            "{command:?}"
        );
    }

    world.granted("taken", json!({"ttlSeconds": 600})).await;
    let taken = lease(&world, &["grant", "taken", "--ttl", "30s"]).await;
    assert_eq!(
        (taken.code, taken.err.as_str()),
        (Some(1), "error: leases.lessor.dev \"taken\" already exists\n")
    );

    world.granted("over", json!({"ttlSeconds": 1, "afterExpiry": "Retain"})).await;
    world.wait_ended("over").await;
    let over = lease(&world, &["renew", "over"]).await;
    assert_eq!((over.code, over.err.as_str()), (Some(4), "error: lease has ended: grant a new one\n"));
    let ttl = lease(&world, &["ttl", "over"]).await;
    assert!(ttl.code == Some(4) && ttl.out.contains("expired") && ttl.err.is_empty(), "{ttl:?}");
    world.config_map("map", json!({}), &["a"]).await;
    assert_eq!(lease(&world, &["attach", "over", "cm/map"]).await.code, Some(4));

    let long = lease(&world, &["grant", "long", "--ttl", "9000000001s"]).await;
    assert_eq!(long.code, Some(2));
    let half = lease(&world, &["grant", "half", "--ttl", "1h30"]).await;
    assert!(half.code == Some(2) && half.err.contains("such as 500ms, 10s or 5m"), "{half:?}");
    let name = lease(&world, &["grant", "No_Name", "--ttl", "30s"]).await;
    assert!(name.code == Some(1) && name.err.contains("RFC 1123"), "{name:?}");
}

#[tokio::test]
async fn an_error_for_a_missing_right_names_the_role_that_has_it() {
    let world = World::new("forbidden").await;
    let _operator = world.primary(&[]).await;
    world.granted("guarded", json!({"ttlSeconds": 600})).await;
    let kubeconfig = rights::kubeconfig(&world, "reader", &[("leases", &["get"])]).await;
    let lease = async |args: &[&str]| run(command_with(&kubeconfig, &world, args)).await;

    assert_eq!(lease(&["ttl", "guarded"]).await.code, Some(0));
    let renew = lease(&["renew", "guarded"]).await;
    assert_eq!(renew.code, Some(5));
    assert!(
        renew.err.contains("cannot patch resource \"leases\"") && renew.err.contains("lessor-edit"),
        "{}",
        renew.err
    );
    let list = lease(&["list"]).await;
    assert!(list.code == Some(5) && list.err.contains("lessor-view"), "{list:?}");
    // Kinds that can't be listed are reported, and the others shown.
    let tree = lease(&["tree", "guarded"]).await;
    assert!(tree.out.contains("configmaps can't be listed: ") && tree.out.contains("forbidden"), "{tree:?}");
}

#[tokio::test]
async fn the_standard_roles_view_and_edit_include_leases() {
    let world = World::new("roles").await;
    let _operator = world.primary(&[]).await;
    world.config_map("shared", json!({}), &["a"]).await;
    let roles = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/roles.yaml");
    let applied = run(kubectl_with_plugins(&world).await(&["apply", "-f", roles])).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    let viewer = rights::kubeconfig_of_role(&world, "view").await;
    let editor = rights::kubeconfig_of_role(&world, "edit").await;
    let lease = async |kubeconfig: &Path, args: &[&str]| run(command_with(kubeconfig, &world, args)).await;

    let grant = ["grant", "mine", "--ttl", "1h", "--attach", "cm/shared:a"];
    let once_known = async |kubeconfig: &Path, args: &[&str]| {
        until("the roles have joined the standard ones", async || {
            Some(lease(kubeconfig, args).await).filter(|ran| ran.code != Some(5))
        })
        .await
    };
    let granted = once_known(&editor, &grant).await;
    assert_eq!(granted.code, Some(0), "{granted:?}");
    for allowed in [&["list"][..], &["ttl", "mine", "--attachments"], &["status"]] {
        let ran = once_known(&viewer, allowed).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    for refused in [
        &["renew", "mine"][..],
        &["revoke", "mine"],
        &["grant", "other", "--ttl", "1h"],
        &["list", "-A"],
        &["status", "-A"],
    ] {
        let ran = lease(&viewer, refused).await;
        assert_eq!(ran.code, Some(5), "{ran:?}");
    }
    let revoked = lease(&editor, &["revoke", "mine"]).await;
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    assert!(world.keys("shared").await.is_empty());
}

#[tokio::test]
async fn an_unreachable_api_server_is_reported_and_retried_while_the_lease_is_alive() {
    let world = World::new("away").await;
    let _operator = world.primary(&[]).await;
    world.granted("away", json!({"ttlSeconds": 6})).await;
    let proxy = world.cluster.proxy().await.expect("a proxy");
    let kept = command_with(proxy.kubeconfig_path(), &world, &["keep-alive", "away"]);
    let kept = world.cluster.spawn(&kept, "keep-alive").expect("it starts");
    says(&kept, "renewed, ttl 6s").await;

    proxy.disconnect();
    let ran = run(command_with(proxy.kubeconfig_path(), &world, &["ttl", "away"])).await;
    assert!(ran.code == Some(6) && ran.err.contains("no response from the API server"), "{ran:?}");
    says(&kept, "can't be renewed: no response from the API server: ").await;
    says(&kept, " left, next attempt in ").await;
    proxy.heal();
    let renewals = kept.log().matches("renewed, ttl 6s").count();
    until("it's renewed again", async || {
        (kept.log().matches("renewed, ttl 6s").count() > renewals + 1).then_some(())
    })
    .await;

    proxy.isolate();
    let status = kept.wait().await.expect("an end");
    assert_eq!(status.code(), Some(4), "{}", kept.log());
    assert!(
        kept.log().contains("error: lease.lessor.dev/away: the lease could not be renewed in time"),
        "{}",
        kept.log()
    );
    assert!(!world.leases().get("away").await.expect("the lease").is_ended(), "reported after the end");
}

#[tokio::test]
async fn keep_alive_fails_when_the_lease_is_revoked() {
    let world = World::new("ends").await;
    let _operator = world.primary(&[]).await;
    world.granted("ends", json!({"ttlSeconds": 600})).await;
    let kept = background(&world, &["keep-alive", "ends"]);
    says(&kept, "renewed, ttl 10m").await;
    sleep(Duration::from_secs(1)).await;
    let begin = Instant::now();
    world.revoke("ends").await;
    let status = kept.wait().await.expect("an end");
    assert!(status.code() == Some(4) && begin.elapsed() < Duration::from_secs(10), "{}", kept.log());
}

#[tokio::test]
async fn after_ctrl_c_a_lease_expires_or_is_revoked_with_revoke() {
    let world = World::new("ctrlc").await;
    let _operator = world.primary(&[]).await;
    let kept = background(&world, &["grant", "left", "--ttl", "3s", "--keep-alive"]);
    says(&kept, "renewed, ttl 3s").await;
    interrupt(&kept);
    assert_eq!(kept.wait().await.expect("an end").code(), Some(0), "{}", kept.log());
    assert!(kept.log().contains(" or later"), "{}", kept.log());
    assert!(!world.leases().get("left").await.expect("the lease").is_ended());
    world.wait_gone("left").await;

    let kept = background(&world, &["grant", "revoked", "--ttl", "1h", "--keep-alive", "--revoke"]);
    says(&kept, "granted for 1h").await;
    sleep(Duration::from_millis(200)).await;
    interrupt(&kept);
    assert_eq!(kept.wait().await.expect("an end").code(), Some(0), "{}", kept.log());
    world.wait_gone("revoked").await;
}

#[tokio::test]
async fn nothing_is_granted_if_an_object_to_attach_is_missing() {
    let world = World::new("missing").await;
    let _operator = world.primary(&[]).await;
    for (target, code) in
        [("configmap/missing", 3), ("nonsense/x", 3), ("configmap", 2), ("configmap/x:/spec", 1)]
    {
        let ran = lease(&world, &["grant", "missing", "--ttl", "30s", "--attach", target]).await;
        assert_eq!(ran.code, Some(code), "{ran:?}");
    }
    assert!(world.leases().get_opt("missing").await.expect("an answer").is_none());
}

#[tokio::test]
async fn a_key_of_another_lease_is_moved_only_with_overwrite() {
    let world = World::new("elsewhere").await;
    let _operator = world.primary(&[]).await;
    for name in ["one", "other"] {
        world.granted(name, json!({"ttlSeconds": 600})).await;
    }
    world.config_map("shared", json!({"key.lessor.dev/a": "one"}), &["a"]).await;
    let refused = lease(&world, &["attach", "other", "cm/shared:a"]).await;
    assert!(refused.code == Some(1) && refused.err.contains("--overwrite"), "{refused:?}");
    assert!(refused.err.contains("is attached to lease.lessor.dev/one"), "{refused:?}");
    let taken = lease(&world, &["attach", "other", "cm/shared:a", "--overwrite"]).await;
    assert_eq!(taken.out, "configmap/shared:a attached, no longer to lease.lessor.dev/one\n");
}

#[tokio::test]
async fn a_missing_key_is_attached_with_a_note() {
    let world = World::new("typo").await;
    let _operator = world.primary(&[]).await;
    world.granted("typo", json!({"ttlSeconds": 600})).await;
    world.config_map("shared", json!({}), &["alice"]).await;
    let ran = lease(&world, &["attach", "typo", "cm/shared:alcie"]).await;
    assert!(ran.code == Some(0) && ran.err.contains("has no key \"alcie\" yet"), "{ran:?}");
}

#[tokio::test]
async fn the_tree_has_objects_keys_and_invalid_annotations() {
    let world = World::new("tree").await;
    let _operator = world.primary(&[]).await;
    world.granted("tree", json!({"ttlSeconds": 600})).await;
    world.config_map("one", json!({"lessor.dev/lease": "tree"}), &["a"]).await;
    world
        .config_map(
            "two",
            json!({"key.lessor.dev/b": "tree", "key.lessor.dev/c": "other", "lessor.dev/keys": "{"}),
            &["b"],
        )
        .await;
    world.config_map("three", json!({"lessor.dev/lease": "other"}), &["a"]).await;
    let tree = lease(&world, &["tree", "tree"]).await.out;
    assert!(tree.contains("├── configmap/one\n"), "{tree}");
    assert!(
        tree.contains("└── configmap/two (kept, without these keys)\n    ├── b\n    └── invalid: annotation"),
        "{tree}"
    );
    assert!(!tree.contains("three") && !tree.contains("─ c\n"), "{tree}");
    let all = lease(&world, &["tree", "tree", "--all-kinds"]).await;
    assert!(all.code == Some(0) && all.out.contains("configmap/one"), "{all:?}");
    let other_kinds = lease(&world, &["tree", "tree", "--kinds", "secrets,deploy,serviceaccounts"]).await;
    until("the operator has counted", async || {
        let lease = world.leases().get("tree").await.expect("the lease");
        lease.status?.attached.filter(|attached| attached.objects == 1).map(drop)
    })
    .await;
    assert_eq!(other_kinds.code, Some(0), "{other_kinds:?}");
    let other_kinds = lease(&world, &["tree", "tree", "--kinds", "secrets"]).await.out;
    assert!(other_kinds.contains("and 1 object and 1 key in other kinds: use --all-kinds"), "{other_kinds}");
}

#[tokio::test]
async fn lists_select_by_namespace_and_label_and_are_sorted() {
    let world = World::new("lists").await;
    let _operator = world.primary(&[]).await;
    for (name, ttl, label) in
        [("b-long", "1h", "team=web"), ("a-short", "20m", "team=web"), ("c-other", "2h", "team=db")]
    {
        let ran = lease(&world, &["grant", name, "--ttl", ttl, "--label", label, "--holder", "h"]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let names = |ran: Ran| -> Vec<String> {
        ran.out.lines().skip(1).filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
    };
    assert_eq!(names(lease(&world, &["list"]).await), ["a-short", "b-long", "c-other"]);
    assert_eq!(names(lease(&world, &["list", "--sort-by", "ttl"]).await), ["a-short", "b-long", "c-other"]);
    assert_eq!(
        names(lease(&world, &["list", "--sort-by", "remaining"]).await),
        ["a-short", "b-long", "c-other"]
    );
    assert_eq!(names(lease(&world, &["list", "-l", "team=db"]).await), ["c-other"]);
    world.change("a-short", json!({"suspend": true})).await.expect("a patch");
    world
        .wait_lease("a-short", "is suspended", |lease| {
            lease.status.as_ref().is_some_and(|status| status.remaining_seconds.is_some())
        })
        .await;
    let everywhere = lease(&world, &["list", "-A", "-o", "wide"]).await.out;
    let mine: Vec<&str> = everywhere.lines().filter(|line| line.starts_with(&world.namespace)).collect();
    assert_eq!(mine.len(), 3, "{everywhere}");
    assert!(mine[0].contains("a-short") && mine[0].contains("Suspended"), "{everywhere}");
    assert!(
        everywhere
            .lines()
            .next()
            .is_some_and(|header| header.starts_with("NAMESPACE") && header.contains("TOKEN"))
    );
    let nothing = lease(&world, &["list", "-l", "team=none"]).await;
    assert_eq!((nothing.code, nothing.out.as_str()), (Some(0), ""));
    assert!(nothing.err.contains("no leases in namespace"), "{nothing:?}");
}

#[tokio::test]
async fn a_watch_prints_each_change() {
    let world = World::new("watched").await;
    let _operator = world.primary(&[]).await;
    world.granted("before", json!({"ttlSeconds": 600})).await;
    let watch = background(&world, &["watch"]);
    let list = background(&world, &["list", "--watch"]);
    says(&watch, "before  granted for 10m").await;
    says(&list, "before").await;
    lease(&world, &["grant", "short", "--ttl", "2s"]).await;
    lease(&world, &["renew", "before"]).await;
    for said in ["short  granted for 2s", "before  renewed", "short  expired", "short  deleted"] {
        says(&watch, said).await;
    }
    says(&list, "Expired").await;
    lease(&world, &["revoke", "before", "--wait=false"]).await;
    says(&watch, "before  revoked").await;
}

#[tokio::test]
async fn several_leases_are_revoked_even_if_one_fails() {
    let world = World::new("several").await;
    let _operator = world.primary(&[]).await;
    for name in ["a", "b", "c", "d"] {
        lease(&world, &["grant", name, "--ttl", "1h", "--label", "team=web"]).await;
    }
    let ran = lease(&world, &["revoke", "a", "nope", "b", "--wait=false"]).await;
    assert_eq!(ran.code, Some(3));
    assert_eq!(ran.out, "lease.lessor.dev/a revoked\nlease.lessor.dev/b revoked\n");
    let ran = lease(&world, &["revoke", "-l", "team=web", "--yes"]).await;
    assert!(ran.code == Some(0) && ran.out.contains("c revoked"), "{ran:?}");
    world.wait_all_gone().await;
    assert_eq!(lease(&world, &["revoke"]).await.code, Some(2));
    assert_eq!(lease(&world, &["revoke", "-l", ""]).await.code, Some(2), "an empty selector would mean all");
}

#[tokio::test]
async fn a_hindered_release_is_reported_during_the_wait() {
    let world = World::new("hindered").await;
    let _operator = world.primary(&[]).await;
    world.granted("hindered", json!({"ttlSeconds": 600})).await;
    let map = json!({
        "metadata": {"name": "fixed", "annotations": {"key.lessor.dev/a": "hindered"}},
        "data": {"a": "1"},
        "immutable": true,
    });
    world.create_map(map).await;
    let revoking = background(&world, &["revoke", "hindered"]);
    says(&revoking, "the release of lease.lessor.dev/hindered is hindered: ").await;
    let status = lease(&world, &["status"]).await;
    assert!(
        status.code == Some(7) && status.out.contains("/hindered: its release is hindered: "),
        "{status:?}"
    );
    let timed_out = lease(&world, &["revoke", "hindered", "--timeout", "1s"]).await;
    assert!(
        timed_out.code == Some(1) && timed_out.err.contains("not everything attached is removed"),
        "{timed_out:?}"
    );
    world.delete_map("fixed").await;
    assert_eq!(revoking.wait().await.expect("an end").code(), Some(0), "{}", revoking.log());
}

#[tokio::test]
async fn the_status_shows_the_primary_and_overdue_grants() {
    let world = World::new("status").await;
    let operator = world.primary(&[]).await;
    let status = lease(&world, &["status"]).await.out;
    let line = status.lines().find(|line| line.starts_with(&world.lessor)).expect("a line");
    assert!(line.contains(&format!("{}_", world.namespace)), "{status}");
    assert!(status.contains("API server     v1."), "{status}");
    operator.stop().await.expect("a stop");
    lease(&world, &["status", "-o", "json"]).await;
    world.lease("late", json!({"ttlSeconds": 600})).await;
    until("the late grant is told", async || {
        let status = lease(&world, &["status"]).await;
        (status.code == Some(7) && status.out.contains("/late: not granted for ")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_granted_ttl_that_differs_from_the_requested_one_is_explained() {
    let world = World::new("minimum").await;
    let _operator = world.primary(&["--min-ttl", "5s", "--max-ttl", "1h"]).await;
    let short = lease(&world, &["grant", "short", "--ttl", "1s"]).await.out;
    assert!(short.contains("granted for 5s, the operator's minimum (1s was requested)"), "{short}");
    let long = lease(&world, &["grant", "long", "--ttl", "1d"]).await.out;
    assert!(long.contains("granted for 1h, the operator's maximum (1d was requested)"), "{long}");
}

#[tokio::test]
async fn kubectl_finds_the_plugin_and_completes_its_commands() {
    let world = World::new("kubectl").await;
    let _operator = world.primary(&[]).await;
    world.granted("web-1", json!({"ttlSeconds": 600, "holder": "web"})).await;
    let kubectl = kubectl_with_plugins(&world).await;
    let ask = async |args: &[&str]| run(kubectl(args)).await;

    let ran = ask(&["lease", "-n", &world.namespace, "list", "-o", "name"]).await;
    assert_eq!(ran.out, "lease.lessor.dev/web-1\n", "{ran:?}");
    let names = ask(&["__complete", "lease", "-n", &world.namespace, "ttl", ""]).await;
    assert!(names.out.starts_with("web-1\tweb\n:4"), "{names:?}");
    let commands = ask(&["__complete", "lease", "keep"]).await;
    assert!(commands.out.starts_with("keep-alive\t"), "{commands:?}");
    let kinds =
        ask(&["__complete", "lease", "-n", &world.namespace, "attach", "web-1", "configmap/kube"]).await;
    assert!(kinds.out.contains("configmap/kube-root-ca.crt"), "{kinds:?}");
    let script = "source <(\"$0\" completion bash) && complete -p kubectl-lease";
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).arg(program::plugin());
    let bash = run(bash).await;
    assert!(bash.code == Some(0) && bash.out.contains("kubectl-lease"), "{bash:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = lease(&world, &["completion", shell]).await;
        assert!(script.code == Some(0) && script.out.contains("keep-alive"), "{shell}");
    }
}

/// Makes commands of kubectl, which finds the plugin and its completion on the path.
pub(crate) async fn kubectl_with_plugins(world: &World) -> impl Fn(&[&str]) -> Command {
    let kubectl: PathBuf = Tool::Kubectl.path().await.expect("kubectl");
    let directory = world.cluster.directory().join(format!("plugins-{}", world.namespace));
    std::fs::create_dir_all(&directory).expect("a directory");
    let script = lease(world, &["completion", "kubectl"]).await.out;
    let completer = directory.join("kubectl_complete-lease");
    std::fs::write(&completer, script).expect("a script");
    let runnable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&completer, runnable).expect("permissions");
    let plugin = program::plugin();
    let _ = std::os::unix::fs::symlink(plugin, directory.join("kubectl-lease"));
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    let kubeconfig = world.cluster.kubeconfig_path().to_owned();
    move |args| {
        let mut command = Command::new(&kubectl);
        command.env("PATH", &path).env("KUBECONFIG", &kubeconfig).args(args);
        command
    }
}
