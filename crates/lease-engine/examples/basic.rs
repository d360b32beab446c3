//! The engine alone, with a clock that the example moves: `cargo run -p lease-engine --example basic`.

#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::time::Duration;

use lease_engine::{Config, Error, LeaseEngine, LeaseTime, Ttl};

fn main() -> Result<(), Error> {
    let mut engine = LeaseEngine::new(Config::default());
    engine.promote(Duration::ZERO);

    let start = LeaseTime::ZERO;
    engine.grant("session", Ttl::from_secs(10), start)?;
    engine.grant("job", Ttl::from_secs(60), start)?;
    engine.attach("session", "lock/a")?;
    engine.attach("session", "lock/b")?;
    println!("granted: {:?}", engine.counts());

    // A renewal moves the deadline to a TTL from now.
    let renewed = engine.renew("session", start + Duration::from_secs(8))?;
    println!("renewed: session ends {:?} after the start", renewed.deadline.map(LeaseTime::since_start));

    // A loop on a real clock sleeps until each wake-up. It commits each end, and reports the result.
    while let Some(now) = engine.next_wakeup() {
        for lease in engine.poll(now, 100) {
            let refused = engine.renew(lease, now);
            let items = engine.ended(lease)?;
            println!(
                "{:?}: {lease} ended, with {items:?}; a renewal returned {refused:?}",
                now.since_start()
            );
        }
    }
    println!("left: {:?}", engine.counts());
    Ok(())
}
