//! The suite finds what is wrong with a client: each mutation of a simple one is caught by the scenario that is named for it, and
//! without a mutation the same client passes.

#![expect(clippy::expect_used, reason = "a test may fail by panicking")]

use std::time::Duration;

use lessor_conformance::{
    bench::Bench,
    clients::{self, Client},
    play::play,
    scenarios::{self, Scenario},
    table::Cell,
};

/// Mutations, the scenario that catches each, and a part of the reason that it gives.
const CAUGHT: [(&str, &str, &str); 19] = [
    ("counts-from-the-answer", "delays", "longer than the server promises"),
    ("counts-what-it-asked-for", "granted", "granted"),
    ("uses-the-wall-clock", "wall-clock", "wall clock went ahead"),
    ("believes-until-told", "cut-off", "after the server may have ended"),
    ("waits-for-ever", "lost-answer", "could have kept"),
    ("gives-up-at-once", "unavailable", "could have kept"),
    ("hammers", "unavailable", "more than 20 times"),
    ("ignores-retry-after", "throttled", "Retry-After"),
    ("retries-after-the-end", "ended", "times more after 422"),
    ("renews-too-often", "steady", "renewals in"),
    ("repeats-the-renew-time", "steady", "longer than the server promises"),
    ("renews-by-name", "replaced", "by its name"),
    ("revokes-by-name", "replaced", "revokes by name"),
    ("never-revokes", "steady", "left the lease"),
    ("does-not-watch", "revoked", "after the lease was revoked"),
    ("leaves-leases-at-sigterm", "sigterm", "SIGTERM left"),
    ("exits-as-if-nothing-was-lost", "revoked", "exit code 0, not 4"),
    ("hides-errors", "errors", "doesn't name the lease"),
    ("keeps-what-is-stopped", "leak", "memory"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes and a cluster: just conformance-mutants"]
async fn each_broken_client_is_caught_and_the_right_one_passes() {
    let chosen = std::env::var("MUTATION_ONLY").unwrap_or_default();
    let caught: Vec<_> = CAUGHT.iter().filter(|(mutation, ..)| mutation.contains(&*chosen)).collect();
    let right = clients::simple(None).expect("the client");
    let broken: Vec<Client> =
        caught.iter().map(|(mutation, ..)| clients::simple(Some(mutation)).expect("the client")).collect();
    let mut plays: Vec<(&Scenario, &Client)> =
        caught.iter().zip(&broken).map(|((_, name, _), client)| (scenario(name), client)).collect();
    let mut names: Vec<&str> = caught.iter().map(|(_, scenario, _)| *scenario).collect();
    names.sort_unstable();
    names.dedup();
    plays.extend(names.iter().map(|name| (scenario(name), &right)));
    let bench = Bench::start(Duration::from_secs(8), 1).await.expect("a bench");
    let cells = play(&bench, plays, 12).await;

    let mut wrong = Vec::new();
    for ((mutation, scenario, reason), cell) in caught.iter().zip(&cells) {
        match cell {
            Cell::Failed(why) if why.contains(reason) => {
                println!("{mutation} is caught by {scenario}: {why}")
            }
            cell => wrong.push(format!("{mutation} in {scenario}: {cell:?}, which lacks {reason:?}")),
        }
    }
    for (scenario, cell) in names.iter().zip(&cells[caught.len()..]) {
        if *cell != Cell::Passed {
            wrong.push(format!("the client without a mutation in {scenario}: {cell:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn scenario(name: &str) -> &'static Scenario {
    scenarios::ALL.iter().find(|scenario| scenario.name == name).expect("a scenario")
}
