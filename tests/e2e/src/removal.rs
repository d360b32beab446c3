//! Nothing unattached is touched (P3), however late a removal arrives and however busy an object is.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use futures::future::{join, join_all};
use kube::api::Patch;
use lessor_cluster::audit::Entries;
use lessor_kit::{
    requests::{Step, reached},
    trial,
    world::{MOMENT, World, heavy, holder, until},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// The operator's writes of this ConfigMap.
fn removals(world: &World, name: &str) -> Entries {
    world.all_asked().resource("", "configmaps").writes().filter(|entry| entry.name == name)
}

/// One after the other, since each has its own hold: the removal is on its way, `change` happens, the removal arrives.
async fn overtake(world: &World, step: Step, annotations: Value, change: impl AsyncFnOnce(&str)) {
    let (proxy, _operator) = world.proxied(&[]).await;
    world.config_map("map", annotations, &["a", "b"]).await;
    world.lease("other", json!({"ttlSeconds": 600})).await;
    let removal = proxy.hold_request(step.of("map"));
    world.lease("lease", json!({"ttlSeconds": 1})).await;
    reached(&removal).await;
    assert!(world.leases().get("lease").await.expect("it is not released").is_ended(), "the end comes first");
    change("map").await;
    removal.release();
    world.wait_gone("lease").await;
    sleep(MOMENT).await;
    let codes: Vec<u16> = removals(world, "map").iter().map(|entry| entry.code).collect();
    assert_eq!(codes.first(), Some(&409), "the API server refuses what was decided earlier: {codes:?}");
}

#[trial]
async fn an_object_made_anew_on_the_way_of_its_removal_survives() {
    let world = World::new("anew").await;
    overtake(&world, Step::DeleteObject, json!({"lessor.dev/lease": "lease"}), async |name| {
        world.delete_map(name).await;
        world.config_map(name, json!({"lessor.dev/lease": "other"}), &["new"]).await;
    })
    .await;
    assert_eq!(world.keys("map").await, ["new"]);
}

#[trial]
async fn an_object_made_anew_without_annotations_on_the_way_of_its_removal_survives() {
    let world = World::new("anew-free").await;
    overtake(&world, Step::DeleteObject, json!({"lessor.dev/lease": "lease"}), async |name| {
        world.delete_map(name).await;
        world.config_map(name, json!({}), &["new"]).await;
    })
    .await;
    assert_eq!(world.keys("map").await, ["new"]);
}

#[trial]
async fn an_object_attached_to_another_lease_on_the_way_of_its_removal_survives() {
    let world = World::new("moved").await;
    overtake(&world, Step::DeleteObject, json!({"lessor.dev/lease": "lease"}), async |name| {
        world.patch_map(name, json!({"metadata": {"annotations": {"lessor.dev/lease": "other"}}})).await;
    })
    .await;
    assert_eq!(world.keys("map").await, ["a", "b"]);
}

#[trial]
async fn an_object_detached_on_the_way_of_its_removal_survives() {
    let world = World::new("freed").await;
    overtake(&world, Step::DeleteObject, json!({"lessor.dev/lease": "lease"}), async |name| {
        world.patch_map(name, json!({"metadata": {"annotations": {"lessor.dev/lease": null}}})).await;
    })
    .await;
    assert_eq!(world.keys("map").await, ["a", "b"]);
}

#[trial]
async fn a_key_attached_to_another_lease_on_the_way_of_its_removal_survives() {
    let world = World::new("moved-key").await;
    overtake(&world, Step::RemoveKeys, json!({"key.lessor.dev/a": "lease"}), async |name| {
        world.patch_map(name, json!({"metadata": {"annotations": {"key.lessor.dev/a": "other"}}})).await;
    })
    .await;
    let map = world.map("map").await;
    assert_eq!(world.keys("map").await, ["a", "b"]);
    assert_eq!(json!(map.metadata.annotations), json!({"key.lessor.dev/a": "other"}));
}

#[trial]
async fn keys_of_an_object_made_anew_on_the_way_of_their_removal_survive() {
    let world = World::new("anew-keys").await;
    overtake(&world, Step::RemoveKeys, json!({"key.lessor.dev/a": "lease"}), async |name| {
        world.delete_map(name).await;
        world.config_map(name, json!({"key.lessor.dev/b": "other"}), &["a", "b"]).await;
    })
    .await;
    assert_eq!(world.keys("map").await, ["a", "b"]);
}

#[trial]
async fn an_edit_on_the_way_of_a_removal_is_kept_and_the_key_goes_all_the_same() {
    let world = World::new("edited").await;
    overtake(&world, Step::RemoveKeys, json!({"key.lessor.dev/a": "lease"}), async |name| {
        world.patch_map(name, json!({"data": {"a": "edited", "b": "edited", "c": "new"}})).await;
    })
    .await;
    let map = world.map("map").await;
    assert_eq!(json!(map.data), json!({"b": "edited", "c": "new"}));
    assert_eq!(map.metadata.annotations.unwrap_or_default().len(), 0);
}

/// Three writers write to one ConfigMap as fast as the API server lets them, while five keys of it are to go.
#[trial(not_by_chart)]
async fn keys_go_and_no_edit_is_lost_in_an_object_that_others_update_all_the_time() {
    let _heavy = heavy().await;
    let world = World::new("busy").await;
    let _operator = world.primary(&[]).await;
    let keys = ["k0", "k1", "k2", "k3", "k4"];
    let annotations: BTreeMap<String, &str> =
        keys.iter().map(|key| (format!("key.lessor.dev/{key}"), *key)).collect();
    world.config_map("busy", json!(annotations), &keys).await;
    join_all(keys.iter().map(|key| world.granted(key, json!({"ttlSeconds": 2})))).await;

    let (done, updates) = (AtomicBool::new(false), AtomicU64::new(0));
    let write = async |writer: u64| {
        let (mut last, maps) = (0_u64, world.config_maps());
        while !done.load(Ordering::Relaxed) {
            last += 1;
            let patch = json!({"data": {format!("writer-{writer}"): last.to_string()}});
            maps.patch_metadata("busy", &holder(), &Patch::Merge(patch)).await.expect("an update");
            updates.fetch_add(1, Ordering::Relaxed);
        }
        last
    };
    let watch = async {
        let start = Instant::now();
        world.wait_all_gone().await;
        let rate = updates.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        // The keys must not come back with a later update either.
        sleep(Duration::from_millis(200)).await;
        done.store(true, Ordering::Relaxed);
        rate
    };
    let (rate, last) = join(watch, join_all((0..3).map(write))).await;

    let map = world.map("busy").await;
    assert_eq!(map.metadata.annotations.unwrap_or_default().len(), 0);
    let expected: BTreeMap<String, String> = last
        .iter()
        .enumerate()
        .map(|(writer, last)| (format!("writer-{writer}"), last.to_string()))
        .collect();
    assert_eq!(map.data, Some(expected), "no key is left, and no edit is lost");
    world.print(format_args!("{rate:.0} updates a second by others"));
    let removals = removals(&world, "busy");
    // What the watch has shown is too old here: only what was read just now has a chance.
    let asked = world.all_asked().resource("", "configmaps").filter(|entry| entry.name == "busy");
    let patched_blindly =
        asked.windows(2).filter(|pair| pair[0].code == 409 && pair[1].verb != "get").count();
    assert_eq!(patched_blindly, 0, "after each conflict it reads again: {asked}");
    for key in keys {
        let tries: Vec<_> = removals
            .iter()
            .filter(|entry| {
                entry.request_object.as_ref().is_some_and(|patch| patch["data"].get(key).is_some())
            })
            .collect();
        let gone = tries.iter().find(|entry| entry.is_accepted()).expect("it was removed").at;
        let took = gone.duration_since(world.life(key).end.expect("an end").answered);
        world.print(format_args!("{key}: {} tries, gone {took:?} after the end", tries.len()));
    }
}

#[trial(not_by_chart)]
async fn a_hundred_keys_of_one_object_on_a_hundred_leases_that_end_together_leave_in_few_patches() {
    let _heavy = heavy().await;
    let world = World::new("hundred").await;
    let operator = world.primary(&[]).await;
    let names: Vec<String> = (0..100).map(|number| format!("k{number}")).collect();
    let mut annotations: BTreeMap<String, &str> =
        names.iter().map(|name| (format!("key.lessor.dev/{name}"), name.as_str())).collect();
    annotations.insert("key.lessor.dev/other".to_owned(), "other");
    let mut keys: Vec<&str> = names.iter().map(String::as_str).collect();
    keys.push("other");
    world.config_map("shared", json!(annotations), &keys).await;
    world.granted("other", json!({"ttlSeconds": 600})).await;
    join_all(names.iter().map(|name| world.granted(name, json!({"ttlSeconds": 600})))).await;
    // All of them fall due while no operator runs, and end together when one starts.
    operator.stop().await.expect("it stops");
    // The times by which the next operator knows that no operator has answered these renewals are whole seconds.
    sleep(Duration::from_millis(1100)).await;
    for name in &names {
        world.change(name, json!({"ttlSeconds": 1})).await.expect("a renewal");
    }
    sleep(Duration::from_secs(2)).await;
    let _operator = world.primary(&["--max-clock-skew", "0s"]).await;
    world.wait_keys("shared", &["other"]).await;
    until("the leases are gone", async || {
        let left = world.leases().list_metadata(&Default::default()).await.expect("leases").items.len();
        (left == 1).then_some(())
    })
    .await;
    let ends: Vec<_> = world.lives().iter().filter_map(|life| Some(life.end?.answered)).collect();
    let removals = removals(&world, "shared");
    let refused = removals.iter().filter(|entry| !entry.is_accepted()).count();
    let spread = ends.iter().max().zip(ends.iter().min()).map(|(last, first)| last.duration_since(*first));
    world.print(format_args!(
        "{} patches ({refused} refused) for {} ends within {:?}",
        removals.len(),
        ends.len(),
        spread.expect("ends"),
    ));
    assert_eq!(ends.len(), 100);
    assert!(removals.len() <= 30, "{removals}");
}
