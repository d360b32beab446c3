//! Playing scenarios side by side.

use std::{io::Write as _, panic::AssertUnwindSafe, time::Duration};

use anyhow::anyhow;
use futures::{FutureExt, StreamExt, stream};
use tokio::time::timeout;

use crate::{
    bench::{Bench, Stage},
    clients::Client,
    scenarios::{Scenario, Verdict, When},
    table::Cell,
};

/// How long a scenario may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// Plays these scenarios with these clients; the results in the same order.
pub async fn play(bench: &Bench, plays: Vec<(&Scenario, &Client)>, at_once: usize) -> Vec<Cell> {
    let plays = plays.into_iter().enumerate().map(|(index, (scenario, client))| (index, scenario, client));
    let (mut beside, mut heavy, mut together) = (Vec::new(), Vec::new(), Vec::new());
    for play in plays {
        match play.1.when {
            When::Beside => beside.push(play),
            When::Alone => heavy.push(play),
            When::Together => together.push(play),
        }
    }
    let (all, mut cells) = (together.len().max(1), Vec::new());
    for (plays, at_once) in [(beside, at_once), (heavy, 1), (together, all)] {
        let played =
            stream::iter(plays).map(async |(index, scenario, client): (usize, &Scenario, &Client)| {
                let cell = play_one(bench, scenario, client).await;
                let what = match &cell {
                    Cell::Passed => "pass".to_owned(),
                    Cell::Failed(why) => format!("FAIL: {why}"),
                    Cell::NotApplicable(why) => format!("n/a: {why}"),
                };
                // Progress, which the table repeats.
                let _ = writeln!(std::io::stderr().lock(), "{} {}: {what}", client.name, scenario.name);
                (index, cell)
            });
        cells.extend(played.buffer_unordered(at_once).collect::<Vec<_>>().await);
    }
    cells.sort_by_key(|(index, _)| *index);
    cells.into_iter().map(|(_, cell)| cell).collect()
}

async fn play_one(bench: &Bench, scenario: &Scenario, client: &Client) -> Cell {
    let play = async {
        let stage = Stage::new(bench, client, scenario.name).await?;
        let played = scenario.run(&stage).await;
        match (played, stage.judge()) {
            (Err(first), Err(second)) => Err(anyhow!("{second:#}; {first:#}")),
            (Ok(_), Err(error)) => Err(error),
            (played, Ok(())) => played,
        }
    };
    // What waits in vain in the kit panics.
    match timeout(PATIENCE, AssertUnwindSafe(play).catch_unwind()).await {
        Ok(Ok(Ok(Verdict::Passed))) => Cell::Passed,
        Ok(Ok(Ok(Verdict::NotApplicable(why)))) => Cell::NotApplicable(why),
        Ok(Ok(Err(error))) => Cell::Failed(format!("{error:#}")),
        Ok(Err(panic)) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Cell::Failed(text.unwrap_or_else(|| "a panic".to_owned()))
        }
        Err(_) => Cell::Failed(format!("it took more than {PATIENCE:?}")),
    }
}
