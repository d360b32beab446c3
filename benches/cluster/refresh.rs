//! What renewals make the operator write, and how old the published `expiryTime` gets for it.

use std::time::Duration;

use kube::api::ListParams;
use tokio::time::{Instant, sleep};

use crate::{holder::Holders, table::Table, three};
use lessor_kit::bed::{Bed, granted};

const LEASES: usize = 600;
const TTL: Duration = Duration::from_secs(12);
const EVERY: Duration = Duration::from_secs(4);
const LASTS: Duration = Duration::from_secs(60);

pub(crate) async fn measure(bed: &Bed, table: &mut Table) {
    // Half of the leases of TTL 12 s would want a write every 6 s: 100 a second, five times the default budget.
    for rate in ["20", "1000"] {
        let replicas = three(bed, &["--status-rate", rate]).await;
        let prefix = format!("rate-{rate}");
        bed.leases_with_objects(&prefix, 0..LEASES, |_| TTL.as_secs() as i64).await;
        let names: Vec<String> = (0..LEASES).map(|number| format!("{prefix}-{number}")).collect();
        let holders = Holders::of(&bed.leases(), names, EVERY);
        granted(&replicas, LEASES).await;
        sleep(TTL).await;
        let audit = bed.cluster.audit().expect("an audit log");
        let (mark, before, begun) = (audit.mark().expect("a mark"), holders.tally(), Instant::now());
        let mut stale = Vec::new();
        while begun.elapsed() < LASTS {
            sleep(Duration::from_secs(5)).await;
            stale.extend(staleness(bed).await);
        }
        let renewals = holders.tally().accepted - before.accepted;
        let entries = audit.since(mark).expect("entries").by(&bed.user()).resource("lessor.dev", "leases");
        let writes = entries.writes().requests();
        let tally = holders.stop().await;
        stale.sort_by(f64::total_cmp);
        let of = format!(
            "{LEASES} leases of {} s, renewed every {} s, --status-rate {rate}",
            TTL.as_secs(),
            EVERY.as_secs()
        );
        table.add_count(&of, "renewals refused: leases lost", tally.refused as f64, "", 0.0);
        table.add(&of, "renewals", renewals as f64 / begun.elapsed().as_secs_f64(), "/s");
        table.add(&of, "writes of status", writes as f64 / begun.elapsed().as_secs_f64(), "/s");
        for (what, share) in [("median", 0.5), ("99 %", 0.99), ("most", 1.0)] {
            let index = (stale.len().saturating_sub(1) as f64 * share).round() as usize;
            table.add(&of, format!("expiryTime is behind, {what}"), stale[index], "s");
        }
        for replica in &replicas {
            replica.process.stop().await.expect("it stops");
        }
        bed.leases().delete_collection(&Default::default(), &ListParams::default()).await.expect("deletions");
        let sweepers = three(bed, &[]).await;
        crate::costs::left(bed, 0).await;
        // In order: no replica takes over from one that was killed as long as there is nothing to do.
        for replica in &sweepers {
            replica.process.stop().await.expect("it stops");
        }
    }
}

/// By how many seconds each lease's `expiryTime` is before its real deadline.
async fn staleness(bed: &Bed) -> Vec<f64> {
    let leases = bed.leases().list(&ListParams::default()).await.expect("leases");
    let behind = leases.iter().filter_map(|lease| {
        let renewed: k8s_openapi::jiff::Timestamp = lease.spec.renew_time.as_deref()?.parse().ok()?;
        let published = lease.status.as_ref()?.expiry_time.as_ref()?.0;
        let real = renewed.checked_add(k8s_openapi::jiff::SignedDuration::try_from(TTL).ok()?).ok()?;
        Some(real.duration_since(published).as_secs_f64())
    });
    behind.collect()
}
