//! Memory over a long time, with leases that come and go.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{holder::Holders, table::Table, three};
use lessor_kit::bed::Bed;

/// How many are renewed all the time.
const HELD: usize = 500;
/// How many come each second, to live for [`TTL`].
const COME: usize = 10;
const TTL: i64 = 50;
/// How long it takes until nothing new is learned.
const WARM: Duration = Duration::from_secs(180);
const SAMPLE: Duration = Duration::from_secs(5);

pub(crate) async fn measure(bed: &Bed, lasts: Duration, table: &mut Table) {
    let replicas = three(bed, &[]).await;
    bed.leases_with_objects("held", 0..HELD, |_| TTL).await;
    let names = (0..HELD).map(|number| format!("held-{number}")).collect();
    let holders = Holders::of(&bed.leases(), names, Duration::from_secs(10));
    let (begun, mut made, mut shown) = (Instant::now(), 0, Instant::now());
    let mut samples: Vec<(f64, Vec<f64>)> = Vec::new();
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut next_sample = WARM.min(lasts / 4);
    while begun.elapsed() < lasts {
        seconds.tick().await;
        bed.leases_with_objects("comes", made..made + COME, |_| TTL).await;
        made += COME;
        if begun.elapsed() >= next_sample {
            next_sample += SAMPLE;
            let memory = replicas.iter().map(|replica| replica.memory()).collect();
            samples.push((begun.elapsed().as_secs_f64() / 3600.0, memory));
        }
        if shown.elapsed() > Duration::from_secs(60) {
            shown = Instant::now();
            let memory: Vec<String> =
                replicas.iter().map(|replica| format!("{:.1} MB", replica.memory())).collect();
            println!(
                "    {:.0} min: {made} leases made, {}",
                begun.elapsed().as_secs_f64() / 60.0,
                memory.join(", ")
            );
        }
    }
    let tally = holders.stop().await;
    let of =
        format!("{:.0} min with 1,000 leases, {COME} come and go each second", lasts.as_secs_f64() / 60.0);
    table.add(&of, "leases made", made as f64, "");
    table.add_count(&of, "renewals refused: leases lost", tally.refused as f64, "", 0.0);
    for index in 0..replicas.len() {
        let points: Vec<(f64, f64)> = samples.iter().map(|(hours, memory)| (*hours, memory[index])).collect();
        let (first, last) = (points.first().map_or(0.0, |p| p.1), points.last().map_or(0.0, |p| p.1));
        table.add(&of, format!("memory of replica {index}, first"), first, "MB");
        table.add(&of, format!("memory of replica {index}, last"), last, "MB");
        table.add(&of, format!("memory of replica {index}, slope"), slope(&points), "MB/h");
    }
}

/// The slope of the line that fits best (least squares).
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len().max(1) as f64;
    let (x, y) =
        points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0 / count, sum.1 + point.1 / count));
    let (above, below) = points.iter().fold((0.0, 0.0), |sum, point| {
        (sum.0 + (point.0 - x) * (point.1 - y), sum.1 + (point.0 - x).powi(2))
    });
    if below > 0.0 { above / below } else { 0.0 }
}
