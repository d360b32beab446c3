//! Mutex and Election of lessor-client, on a real server.

use std::{pin::pin, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use lessor_client::{
    BootInstant, LeaseClient,
    concurrency::{Election, Leader, LockError, Mutex, Session, SessionOptions},
};
use lessor_kit::world::{PATIENCE, World, until};
use parking_lot::Mutex as Register;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::holders::leases;

const SECOND: Duration = Duration::from_secs(1);
/// Longer than the outages here, on a machine that is busy with other tests.
const LONG: Duration = Duration::from_secs(60);

async fn session(world: &World, holder: &str, ttl: Duration) -> Session {
    session_of(&leases(world), holder, ttl).await
}

async fn session_of(leases: &LeaseClient, holder: &str, ttl: Duration) -> Session {
    let options = SessionOptions::default().with_ttl(ttl).with_holder(holder);
    Session::new(leases, options).await.expect("a session")
}

#[tokio::test]
async fn a_lock_is_refused_while_it_is_held_and_handed_over_within_a_second_of_its_release() {
    let world = World::new("mutex").await;
    let _operator = world.primary(&[]).await;
    let (one, two) = (session(&world, "one", LONG).await, session(&world, "two", LONG).await);
    let (first, second) = (Mutex::new(&one, "/jobs/reports/"), Mutex::new(&two, "/jobs/reports/"));

    let lock = first.lock().await.expect("a lock");
    assert!(lock.is_held());
    let refused = second.try_lock().await.expect_err("it's locked");
    assert!(matches!(&refused, LockError::Locked { holder, .. } if holder == "one"), "{refused:?}");
    assert!(timeout(SECOND, second.lock()).await.is_err(), "it's locked");

    let token = lock.token();
    let waiting = tokio::spawn(async move { second.lock().await });
    sleep(SECOND).await;
    lock.unlock().await.expect("a release");
    let released = BootInstant::now();
    let lock = timeout(PATIENCE, waiting).await.expect("in time").expect("no panic").expect("a lock");
    eprintln!("handed over after {:?}", released.elapsed());
    assert!(lock.token() > token);
    assert!(released.elapsed() < 5 * SECOND);
    // A lock that is dropped is released, too.
    drop(lock);
    until("it's free", async || first.try_lock().await.ok()).await.unlock().await.expect("a release");

    two.close().await.expect("an end");
    let expired = Mutex::new(&two, "other").lock().await;
    assert!(matches!(expired, Err(LockError::SessionExpired)), "{expired:?}");
}

#[tokio::test]
async fn the_lock_of_a_holder_that_is_cut_off_is_free_after_its_ttl_and_not_held_by_two() {
    let world = World::new("cutoff-lock").await;
    let _operator = world.primary(&[]).await;
    let proxy = world.cluster.proxy().await.expect("a proxy");
    let behind = LeaseClient::new(proxy.client().expect("a client"), &world.namespace);
    let (one, two) = (session_of(&behind, "one", 8 * SECOND).await, session(&world, "two", LONG).await);
    let lock = Mutex::new(&one, "reports").lock().await.expect("a lock");
    proxy.isolate();
    let other = Mutex::new(&two, "reports");
    let other = timeout(PATIENCE, other.lock()).await.expect("in time").expect("a lock");
    assert!(!lock.is_held(), "two hold it");
    assert!(other.token() > lock.token());
    let late = lock.unlock().await;
    assert!(matches!(late, Err(LockError::SessionExpired)), "{late:?}");
    proxy.heal();
    sleep(SECOND).await;
    assert!(other.is_held());
    assert!(world.map(other.key()).await.metadata.deletion_timestamp.is_none());
}

#[tokio::test]
async fn a_create_whose_caller_has_given_up_leaves_no_lock_behind() {
    let world = World::new("late-create").await;
    let _operator = world.primary(&[]).await;
    let proxy = world.cluster.proxy().await.expect("a proxy");
    let behind = LeaseClient::new(proxy.client().expect("a client"), &world.namespace);
    let (one, two) = (session_of(&behind, "one", LONG).await, session(&world, "two", LONG).await);
    let hold = proxy.hold_answer(|request| request.is("POST", "/configmaps"));
    let mutex = Mutex::new(&one, "reports");
    {
        let mut locking = pin!(mutex.lock());
        tokio::select! {
            lock = &mut locking => panic!("{lock:?}"),
            _ = hold.reached() => {}
        }
        world.map("lock.reports").await;
    }
    hold.release();
    let other = Mutex::new(&two, "reports");
    let lock = timeout(PATIENCE, other.lock()).await.expect("in time").expect("a lock");
    assert!(lock.is_held());
}

#[tokio::test]
async fn a_config_map_that_is_no_lock_is_left_alone() {
    let world = World::new("no-lock").await;
    let _operator = world.primary(&[]).await;
    world.config_map("lock.reports", json!({}), &["key"]).await;
    let one = session(&world, "one", LONG).await;
    let refused = Mutex::new(&one, "reports").lock().await;
    assert!(matches!(refused, Err(LockError::NotALock(_))), "{refused:?}");
    world.map("lock.reports").await;
}

#[tokio::test]
async fn a_leader_publishes_values_under_one_token_until_it_resigns() {
    let world = World::new("election").await;
    let _operator = world.primary(&[]).await;
    let (one, two) = (session(&world, "one", LONG).await, session(&world, "two", LONG).await);
    let (first, second) = (Election::new(&one, "scheduler"), Election::new(&two, "scheduler"));
    assert_eq!(second.leader().await.expect("an answer"), None);
    let mut seen = second.observe();

    let leadership = first.campaign("10.0.0.1").await.expect("a leadership");
    let leader =
        |value: &str| Leader { value: value.to_owned(), token: leadership.token(), holder: "one".to_owned() };
    let next = async |seen: &mut (dyn futures::Stream<Item = Result<Leader, LockError>> + Send + Unpin)| {
        timeout(PATIENCE, seen.next()).await.expect("in time").expect("a leader").expect("no error")
    };
    assert_eq!(next(&mut seen).await, leader("10.0.0.1"));
    leadership.proclaim("10.0.0.2").await.expect("a proclamation");
    assert_eq!(next(&mut seen).await, leader("10.0.0.2"));
    assert_eq!(second.leader().await.expect("an answer"), Some(leader("10.0.0.2")));

    let token = leadership.token();
    let campaign = tokio::spawn(async move { second.campaign("10.0.0.3").await });
    sleep(SECOND).await;
    leadership.resign().await.expect("a resignation");
    let other = timeout(PATIENCE, campaign).await.expect("in time").expect("no panic").expect("a leadership");
    assert!(other.token() > token);
    assert_eq!(next(&mut seen).await.value, "10.0.0.3");
    // A user deletes the object: the leader notices by its next proclamation.
    world.delete_map(other.key()).await;
    let refused = other.proclaim("10.0.0.4").await;
    assert!(matches!(refused, Err(LockError::NotLeader)), "{refused:?}");
}

#[tokio::test]
async fn a_lock_in_a_loop_does_not_starve_another_session_and_tokens_grow() {
    let world = World::new("contended").await;
    let _operator = world.primary(&[]).await;
    let last = Register::new(0);
    let work = async |name: String| {
        let session = session(&world, &name, LONG).await;
        let mutex = Mutex::new(&session, "reports");
        for _ in 0..5 {
            let lock = mutex.lock().await.expect("a lock");
            {
                // What the lock protects: it would refuse a smaller token.
                let mut last = last.lock();
                assert!(lock.token() > *last, "{} after {last}", lock.token());
                *last = lock.token();
            }
            sleep(Duration::from_millis(300)).await;
            assert!(lock.is_held());
            lock.unlock().await.expect("a release");
        }
        session.close().await.expect("an end");
    };
    let workers = futures::future::join_all((0..4).map(|number| work(format!("worker-{number}"))));
    timeout(2 * PATIENCE, workers).await.expect("in time");
    let gone = async || {
        let found: Option<ConfigMap> = world.config_maps().get_opt("lock.reports").await.expect("an answer");
        found.is_none().then_some(())
    };
    until("no lock is left", gone).await;
}
