//! Explores the model. `MODEL_STATES` says how many states at most, 0 all of them: `just model`.

#![allow(clippy::print_stdout)]

use lessor_model::{
    explore::{Begin, Scenario},
    server::Rules,
    world::{Budget, Form},
};

fn scenario(name: &'static str, replicas: usize, form: Form, begins: Begin, budget: Budget) -> Scenario {
    Scenario { name, replicas, form, rules: Rules::default(), begins, budget }
}

#[test]
fn no_run_breaks_a_promise() {
    let states: usize = std::env::var("MODEL_STATES").ok().and_then(|text| text.parse().ok()).unwrap_or(300_000);
    let budget = |faults, edits, ends| Budget { faults, edits, ends };
    let scenarios = [
        scenario("granted", 2, Form::Whole, Begin::Granted(1), budget(1, 1, 6)),
        scenario("keys", 2, Form::Keys, Begin::Granted(1), budget(1, 1, 6)),
        scenario("three", 3, Form::Whole, Begin::Granted(1), budget(1, 1, 6)),
        scenario("restart", 2, Form::Whole, Begin::Restarted(1), budget(1, 1, 7)),
        scenario("start", 2, Form::Whole, Begin::Start, budget(1, 1, 8)),
    ];
    let mut failed = Vec::new();
    let (mut unique, mut depth) = (0, 0);
    for scenario in scenarios {
        let found = scenario.explore(states);
        println!(
            "{}: {} states, {} generated, depth {}, {:?}; not shown: {:?}",
            scenario.name, found.unique, found.generated, found.depth, found.took, found.unshown
        );
        unique += found.unique;
        depth = depth.max(found.depth);
        if let Some(broken) = found.broken {
            println!("{broken}");
            failed.push(scenario.name);
        }
    }
    println!("{unique} states, depth {depth}");
    assert!(failed.is_empty(), "{failed:?}");
}
