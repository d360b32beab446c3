//! The proxy does to a client what networks do.
#![allow(clippy::expect_used)] // a test may fail by panicking

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use lessor_cluster::{
    Cluster, Error,
    proxy::{Faults, Proxy},
};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

const MOMENT: Duration = Duration::from_millis(300);

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name } })).expect("a ConfigMap")
}

/// A proxy, and the same API through it and past it.
async fn proxied() -> Result<(Proxy, Api<ConfigMap>, Api<ConfigMap>), Error> {
    let cluster = Cluster::shared().await?;
    let proxy = cluster.proxy().await?;
    let mut config = proxy.client_config();
    config.default_retry = false;
    let through = Api::default_namespaced(Client::try_from(config).expect("a client"));
    Ok((proxy, through, Api::default_namespaced(cluster.client()?)))
}

#[tokio::test]
async fn a_request_is_held_until_it_is_released() -> Result<(), Error> {
    let (proxy, through, past) = proxied().await?;
    past.create(&PostParams::default(), &config_map("held")).await.expect("it can be made");
    let hold = proxy.hold_request(|request| request.is("DELETE", "/configmaps/held"));
    let deletion = tokio::spawn(async move { through.delete("held", &DeleteParams::background()).await });
    assert_eq!(hold.reached().await.json().expect("a body")["propagationPolicy"], "Background");
    sleep(MOMENT).await;
    past.get("held").await.expect("the API server doesn't know of the deletion yet");
    hold.release();
    deletion.await.expect("no panic").expect("it is deleted");
    assert!(past.get_opt("held").await.expect("an answer").is_none());
    Ok(())
}

#[tokio::test]
async fn a_response_is_held_after_its_request_was_executed() -> Result<(), Error> {
    let (proxy, through, past) = proxied().await?;
    let hold = proxy.hold_answer(|request| request.method == "POST");
    let creation =
        tokio::spawn(async move { through.create(&PostParams::default(), &config_map("done")).await });
    hold.reached().await;
    past.get("done").await.expect("the API server has done it");
    sleep(MOMENT).await;
    assert!(!creation.is_finished());
    drop(hold);
    creation.await.expect("no panic").expect("it is answered");
    Ok(())
}

#[tokio::test]
async fn a_held_request_arrives_even_if_its_client_is_gone() -> Result<(), Error> {
    let (proxy, through, past) = proxied().await?;
    let hold = proxy.hold_request(|request| request.method == "POST");
    let creation =
        tokio::spawn(async move { through.create(&PostParams::default(), &config_map("late")).await });
    hold.reached().await;
    creation.abort();
    creation.await.expect_err("it waits no longer");
    assert!(past.get_opt("late").await.expect("an answer").is_none());
    hold.release();
    timeout(Duration::from_secs(10), async { while past.get("late").await.is_err() {} })
        .await
        .expect("it arrives");
    Ok(())
}

#[tokio::test]
async fn a_discarded_request_never_arrives() -> Result<(), Error> {
    let (proxy, through, past) = proxied().await?;
    let hold = proxy.hold_request(|request| request.method == "POST");
    let creation =
        tokio::spawn(async move { through.create(&PostParams::default(), &config_map("lost")).await });
    hold.reached().await;
    hold.discard();
    creation.await.expect("no panic").expect_err("there is no answer");
    sleep(MOMENT).await;
    assert!(past.get_opt("lost").await.expect("an answer").is_none());
    Ok(())
}

#[tokio::test]
async fn watches_stream_through_and_stand_still_in_isolation() -> Result<(), Error> {
    let (proxy, through, past) = proxied().await?;
    let config = watcher::Config::default().fields("metadata.name=watched");
    let mut events = watcher(through, config).touched_objects().boxed();
    let mut next = async |patience| timeout(patience, events.next()).await;
    next(MOMENT).await.expect_err("there is no object yet");
    past.create(&PostParams::default(), &config_map("watched")).await.expect("it can be made");
    next(Duration::from_secs(10)).await.expect("the object").expect("an event").expect("no error");

    proxy.isolate();
    past.delete("watched", &DeleteParams::default()).await.expect("it can be deleted");
    next(MOMENT).await.expect_err("nothing gets through");
    proxy.heal();
    // The same connection goes on: a broken one would give an error first.
    next(Duration::from_secs(10)).await.expect("the deletion").expect("an event").expect("no error");

    proxy.disconnect();
    next(Duration::from_secs(10))
        .await
        .expect("the end")
        .expect("an event")
        .expect_err("the watch is broken");
    Ok(())
}

#[tokio::test]
async fn a_disconnected_client_is_refused_until_the_link_heals() -> Result<(), Error> {
    let (proxy, through, _) = proxied().await?;
    through.list(&Default::default()).await.expect("an answer");
    proxy.disconnect();
    through.list(&Default::default()).await.expect_err("there is no connection");
    proxy.heal();
    through.list(&Default::default()).await.expect("an answer");
    Ok(())
}

#[tokio::test]
async fn faults_hit_the_requests_that_are_meant() -> Result<(), Error> {
    let (proxy, through, _) = proxied().await?;
    proxy.set_faults([
        Faults::new(1).only(|request| request.is("GET", "/busy")).answer(429, 1.0),
        Faults::new(2).only(|request| request.is("GET", "/cut")).cut(1.0),
        Faults::new(3).only(|request| request.is("GET", "/slow")).latency(2 * MOMENT),
        Faults::new(4).only(|request| request.is("GET", "/dropped")).drop(1.0),
    ]);
    let busy = through.get("busy").await.expect_err("too many requests");
    assert!(matches!(&busy, kube::Error::Api(status) if status.code == 429), "{busy}");
    through.get("cut").await.expect_err("there is no answer");
    timeout(MOMENT, through.get("dropped")).await.expect_err("there is no answer");
    let started = Instant::now();
    for _ in 0..5 {
        assert!(through.get_opt("slow").await.expect("an answer").is_none());
    }
    assert!(started.elapsed() > 2 * MOMENT, "{:?}", started.elapsed());
    assert!(through.get_opt("spared").await.expect("an answer").is_none());
    let counts = proxy.counts();
    assert_eq!((counts.requests, counts.refused, counts.cut, counts.dropped), (9, 1, 1, 1));
    Ok(())
}
