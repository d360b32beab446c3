//! Processes that contend for one mutex and one election.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{PATIENCE, Verdict};
use crate::{
    adapter::Adapter,
    bench::{Setup, Stage},
    protocol::{Acquired, Command, Group, Subject},
};

/// How much later than promised a lock may be handed over, beside other scenarios on the same machine. The contest has the
/// promise itself as its bound.
const BESIDE_OTHERS: Duration = Duration::from_secs(2);

pub(super) async fn mutex(stage: &Stage<'_>) -> Result<Verdict> {
    let (one, two) = (stage.adapter(&Setup::default()).await?, stage.adapter(&Setup::default()).await?);
    if !one.can(Group::Mutex) {
        return Ok(Verdict::NotApplicable("without locks".to_owned()));
    }
    let (name, ttl) = (format!("{}-lock", stage.lease), stage.ttl.as_secs());
    let subject = Subject::Mutex(name.clone());
    let lock = |wait| Command::Lock { mutex: name.clone(), ttl, wait };
    let unlock = || Command::Unlock { mutex: name.clone() };
    let acquired = async |adapter: &Adapter| adapter.done::<Acquired>(lock(Some(60))).await;

    let first = acquired(&one).await?;
    ensure!(one.belief(&subject).await?.held, "it doesn't hold what it has locked");
    stage.refused(&two, Command::TryLock { mutex: name.clone(), ttl }, &["locked"]).await?;
    stage.refused(&two, lock(Some(1)), &["timeout"]).await?;

    let (second, gap) = handed_over(acquired(&two), one.done::<Value>(unlock())).await?;
    ensure!(gap < BESIDE_OTHERS, "it was handed over {gap:.1?} after its release");
    ensure!(second.token > first.token, "the token {:?} follows {:?}", second.token, first.token);

    let ends = async {
        two.terminate()?;
        let code = two.exit_code().await?;
        ensure!(code == 0, "exit code {code} after SIGTERM, not 0: {}", two.errors());
        Ok(())
    };
    let (third, gap) = handed_over(acquired(&one), ends).await?;
    ensure!(gap < stage.ttl / 2, "SIGTERM left it locked for {gap:.1?}");
    ensure!(third.token > second.token, "the token {:?} follows {:?}", third.token, second.token);

    let three = stage.adapter(&Setup::default()).await?;
    handed_over(acquired(&three), one.done::<Value>(unlock())).await?;
    let (_, gap) = handed_over(acquired(&one), async { three.kill() }).await?;
    ensure!(gap < stage.ttl + BESIDE_OTHERS, "it was handed over {gap:.1?} after a crash of its holder");

    stage.isolate();
    let lost = one.lost(&subject, PATIENCE).await?;
    ensure!(lost.reason == "not-renewed", "the reason is {:?}, not not-renewed", lost.reason);
    ensure!(!one.belief(&subject).await?.held, "it believes in a lock whose loss it has reported");
    stage.exits(&one, 4).await?;
    Ok(Verdict::Passed)
}

/// Lets one process wait for what another ends; how long after that end the first had it.
async fn handed_over(
    acquires: impl Future<Output = Result<Acquired>>,
    ends: impl Future<Output = Result<impl Sized>>,
) -> Result<(Acquired, Duration)> {
    let acquires = async { acquires.await.map(|acquired| (acquired, Instant::now())) };
    let ends = async {
        sleep(Duration::from_millis(500)).await;
        let begins = Instant::now();
        ends.await.map(|_| begins)
    };
    let ((acquired, at), begins) = tokio::try_join!(acquires, ends)?;
    ensure!(at >= begins, "two processes hold it at once");
    Ok((acquired, at - begins))
}

pub(super) async fn election(stage: &Stage<'_>) -> Result<Verdict> {
    let (one, two) = (stage.adapter(&Setup::default()).await?, stage.adapter(&Setup::default()).await?);
    if !one.can(Group::Election) {
        return Ok(Verdict::NotApplicable("without locks".to_owned()));
    }
    let (name, ttl) = (format!("{}-election", stage.lease), stage.ttl.as_secs());
    let leader = || Command::Leader { election: name.clone() };
    let resign = || Command::Resign { election: name.clone() };
    let campaign = async |adapter: &Adapter, value: &str| {
        let command =
            Command::Campaign { election: name.clone(), ttl, value: value.to_owned(), wait: Some(60) };
        adapter.done::<Acquired>(command).await
    };

    let first = campaign(&one, "one").await?;
    let leads: Value = two.done(leader()).await?;
    ensure!(leads["value"] == "one" && leads["token"] == Value::from(first.token), "{leads} leads, not one");
    let (second, gap) = handed_over(campaign(&two, "two"), one.done::<Value>(resign())).await?;
    ensure!(gap < BESIDE_OTHERS, "another led {gap:.1?} after it had resigned");
    ensure!(second.token > first.token, "the token {:?} follows {:?}", second.token, first.token);
    ensure!(two.belief(&Subject::Election(name.clone())).await?.held, "it doesn't lead what it has won");
    let leads: Value = one.done(leader()).await?;
    ensure!(leads["value"] == "two" && leads["token"] == Value::from(second.token), "{leads} leads, not two");
    two.done::<Value>(resign()).await?;
    stage.refused(&one, leader(), &["gone"]).await?;
    stage.exits(&one, 0).await?;
    stage.exits(&two, 0).await?;
    Ok(Verdict::Passed)
}
