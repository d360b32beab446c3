//! Ends are complete (P4), whenever the operator dies and for however long it is away.

use std::time::Duration;

use futures::future::join_all;
use lessor_kit::{
    requests::{Step, reached},
    trial,
    world::{MOMENT, World, attached},
};
use serde_json::json;
use tokio::time::sleep;

/// What becomes of the request that was under way when the operator died.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// It never arrives.
    Lost,
    /// It was done, and its response was lost.
    Done,
    /// It arrives when another has long done the work, and names are used again.
    Late,
}

/// Kills the operator at one step of expire → release → delete, and starts another.
async fn die_at(step: Step, fate: Fate) {
    const FAST: [&str; 2] = ["--lease-duration", "2s"];
    let world = World::new(&format!("{step:?}-{fate:?}").to_lowercase()).await;
    let (proxy, operator) = world.proxied(&FAST).await;
    let bystander = world.bystander().await;
    let make = async || {
        world.config_map("whole", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
        world.config_map("keys", json!({"key.lessor.dev/a": "lease"}), &["a", "b"]).await;
    };
    make().await;
    let name = match step {
        Step::DeleteObject => "whole",
        Step::RemoveKeys => "keys",
        Step::Commit | Step::Release | Step::DeleteLease => "lease",
    };
    let hold = match fate {
        Fate::Done => proxy.hold_answer(step.of(name)),
        Fate::Lost | Fate::Late => proxy.hold_request(step.of(name)),
    };
    world.lease("lease", json!({"ttlSeconds": 1})).await;
    reached(&hold).await;
    // Longer than it lingers: it must not go on without this step.
    sleep(MOMENT).await;
    operator.kill().await.expect("it dies");
    let late = match fate {
        Fate::Late => Some(hold),
        Fate::Lost | Fate::Done => {
            hold.discard();
            None
        }
    };

    let _successor = world.operator(&FAST);
    world.wait_map_gone("whole").await;
    world.wait_keys("keys", &["b"]).await;
    world.wait_gone("lease").await;
    let lives = world.lives();
    lives[0].lateness();

    if let Some(late) = late {
        world.delete_map("keys").await;
        make().await;
        world.lease("lease", json!({"ttlSeconds": 600})).await;
        let anew = world.wait_lease("lease", "counts what is attached", attached(1, 1)).await;
        late.release();
        sleep(MOMENT).await;
        assert_eq!(world.leases().get("lease").await.expect("it lives"), anew);
        assert_eq!(world.keys("whole").await, ["a"]);
        assert_eq!(world.keys("keys").await, ["a", "b"]);
    }
    bystander.assert_untouched().await;
}

#[trial]
async fn an_end_completes_even_if_the_operator_dies_before_any_of_its_steps() {
    join_all(Step::ALL.map(|step| die_at(step, Fate::Lost))).await;
}

#[trial]
async fn an_end_completes_even_if_the_operator_dies_after_any_of_its_steps() {
    join_all(Step::ALL.map(|step| die_at(step, Fate::Done))).await;
}

#[trial]
async fn requests_of_a_dead_operator_do_no_harm_when_they_arrive_late() {
    join_all(Step::ALL.map(|step| die_at(step, Fate::Late))).await;
}

#[trial]
async fn leases_due_while_no_operator_ran_end_afterwards() {
    let world = World::new("away").await;
    let operator = world.primary(&[]).await;
    for (name, ttl) in [("over", 1), ("deleted", 600), ("renewed", 5)] {
        world.config_map(name, json!({"lessor.dev/lease": name}), &["a"]).await;
        world.granted(name, json!({"ttlSeconds": ttl})).await;
    }
    operator.stop().await.expect("it stops");
    world.revoke("deleted").await;
    sleep(Duration::from_secs(3)).await;
    world.renew("renewed").await.expect("it has not ended");
    sleep(Duration::from_secs(3)).await;
    // More than its TTL after its grant, and less than that after its renewal.
    let _operator = world.primary(&["--max-clock-skew", "0s"]).await;
    for name in ["over", "deleted"] {
        world.wait_gone(name).await;
        world.wait_map_gone(name).await;
    }
    world.wait_gone("renewed").await;
    world.wait_map_gone("renewed").await;
    // Times of the API are whole seconds.
    let late = world.lateness([&world.life("renewed")], Duration::from_secs(1));
    world.print(format_args!("renewed while no operator ran, it ended {late} after its deadline"));
    world.life("over").lateness();
}

#[trial(not_by_chart)]
async fn restarts_move_no_deadline_by_more_than_a_few_seconds_however_often() {
    const ARGS: [&str; 4] = ["--lease-duration", "2s", "--max-clock-skew", "0s"];
    let world = World::new("restarts").await;
    let mut operator = world.primary(&ARGS).await;
    world.granted("granted", json!({"ttlSeconds": 18})).await;
    world.granted("renewed", json!({"ttlSeconds": 15})).await;
    sleep(Duration::from_secs(3)).await;
    world.renew("renewed").await.expect("a renewal");
    for restart in 0..5 {
        operator.kill().await.expect("it dies");
        operator = world.operator(&ARGS);
        // With something to do it becomes primary; without, it stays a follower.
        if restart % 2 == 0 {
            world.granted(&format!("other-{restart}"), json!({"ttlSeconds": 600})).await;
        }
        sleep(Duration::from_millis(1500)).await;
    }
    for name in ["granted", "renewed"] {
        world.wait_gone(name).await;
        // The times that the API server records are whole seconds.
        let late = world.lateness([&world.life(name)], Duration::from_secs(1));
        world.print(format_args!("{name} ended {late} after its deadline, after 5 restarts"));
    }
}
