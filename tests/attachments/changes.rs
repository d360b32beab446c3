//! Changes of mind: a user who detaches, moves or re-creates an object wins over a removal that is on its way already.

use futures::future::join_all;
use lessor_kit::world::World;
use serde_json::{Value, json};

use crate::things::{Things, annotations_of};

/// What happens to an object while its removal is on the way.
enum Change {
    Patch(Value),
    MadeAnew(Value),
}

/// One change of mind. The lease `NAME-ends` ends, the lease `lives` lives.
struct Case {
    name: &'static str,
    before: Value,
    change: Change,
    /// The parts that are left, of `a` and `b`; `None`: the object goes all the same.
    left: Option<&'static [&'static str]>,
}

fn cases(things: &Things) -> Vec<Case> {
    let whole = |lease: &str| json!({"lessor.dev/lease": lease});
    let keys = |parts: &[(&str, &str)]| json!({"lessor.dev/keys": things.keys(parts)});
    let both = |lease: &str, parts: &[(&str, &str)]| json!({"lessor.dev/lease": lease, "lessor.dev/keys": things.keys(parts)});
    let patch = |annotations: Value| Change::Patch(json!({"metadata": {"annotations": annotations}}));
    let all: Option<&'static [&'static str]> = Some(&["a", "b"]);
    vec![
        Case {
            name: "detached",
            before: whole("detached-ends"),
            change: patch(json!({"lessor.dev/lease": null})),
            left: all,
        },
        Case { name: "moved", before: whole("moved-ends"), change: patch(whole("lives")), left: all },
        Case {
            name: "whole-to-key",
            before: whole("whole-to-key-ends"),
            change: patch(json!({
                "lessor.dev/lease": null, "lessor.dev/keys": things.keys(&[("a", "whole-to-key-ends")]),
            })),
            left: Some(&["b"]),
        },
        Case {
            name: "key-to-whole",
            before: keys(&[("a", "key-to-whole-ends")]),
            change: patch(json!({"lessor.dev/lease": "key-to-whole-ends", "lessor.dev/keys": null})),
            left: None,
        },
        Case {
            name: "key-to-whole-of-another",
            before: keys(&[("a", "key-to-whole-of-another-ends")]),
            change: patch(json!({"lessor.dev/lease": "lives", "lessor.dev/keys": null})),
            left: all,
        },
        Case {
            name: "key-moved",
            before: keys(&[("a", "key-moved-ends"), ("b", "key-moved-ends")]),
            change: patch(keys(&[("a", "lives"), ("b", "key-moved-ends")])),
            left: Some(&["a"]),
        },
        Case {
            name: "key-detached",
            before: keys(&[("a", "key-detached-ends"), ("b", "lives")]),
            change: patch(keys(&[("b", "lives")])),
            left: all,
        },
        // Losing one annotation must not turn the removal of a key into the deletion of the object.
        Case {
            name: "keys-lost",
            before: both("lives", &[("a", "keys-lost-ends")]),
            change: patch(json!({"lessor.dev/keys": null})),
            left: all,
        },
        Case {
            name: "whole-lost",
            before: both("lives", &[("a", "whole-lost-ends")]),
            change: patch(json!({"lessor.dev/lease": null})),
            left: Some(&["b"]),
        },
        Case {
            name: "made-anew",
            before: whole("made-anew-ends"),
            change: Change::MadeAnew(json!({})),
            left: all,
        },
        Case {
            name: "made-anew-elsewhere",
            before: keys(&[("a", "made-anew-elsewhere-ends")]),
            change: Change::MadeAnew(keys(&[("a", "lives")])),
            left: all,
        },
        Case {
            name: "edited",
            before: keys(&[("a", "edited-ends")]),
            change: patch(json!({"example.com/edited": "kept"})),
            left: Some(&["b"]),
        },
        Case {
            name: "edited-whole",
            before: whole("edited-whole-ends"),
            change: patch(json!({"example.com/edited": "lost"})),
            left: None,
        },
    ]
}

async fn play(world: &World, proxy: &lessor_cluster::proxy::Proxy, things: &Things, case: Case) {
    let Case { name, before, change, left } = case;
    things.make(name, before, &["a", "b"]).await;
    let path = format!("/{}/{name}", things.resource.plural);
    let hold = proxy.hold_request(move |seen| {
        matches!(seen.method.as_str(), "DELETE" | "PATCH") && seen.path.ends_with(&path)
    });
    let lease = format!("{name}-ends");
    world.granted(&lease, json!({"ttlSeconds": 1})).await;
    hold.reached().await;
    let changed = match change {
        Change::Patch(patch) => things.patch(name, patch).await,
        Change::MadeAnew(annotations) => {
            things.delete(name).await;
            things.make(name, annotations, &["a", "b"]).await
        }
    };
    hold.release();
    world.wait_gone(&lease).await;
    let found = things.get(name).await;
    match left {
        None => assert!(found.is_none(), "{name}: it is attached to a lease that has ended"),
        Some(left) => {
            let found = found.unwrap_or_else(|| panic!("{name}: the object is gone"));
            assert_eq!(found.metadata.uid, changed.metadata.uid, "{name}");
            assert_eq!(things.parts(&found), left, "{name}");
            if left.len() == 2 {
                assert_eq!(annotations_of(&found), annotations_of(&changed), "{name}");
            }
        }
    }
}

async fn all_changes_win(world: World, things: Things) {
    let proxy = world.cluster.proxy().await.expect("a proxy");
    let args = ["--attachable", &things.with_keys(), "--lease-duration", "30s"];
    let operator = world.operator_with(proxy.kubeconfig_path(), &args);
    world.wait_for_primary(&operator).await;
    world.granted("lives", json!({"ttlSeconds": 600})).await;
    join_all(cases(&things).into_iter().map(|case| play(&world, &proxy, &things, case))).await;
}

#[tokio::test]
async fn changes_to_config_maps_win_over_a_removal_on_its_way() {
    let world = World::new("maps-changed").await;
    let things = Things::config_maps(&world);
    all_changes_win(world, things).await;
}

#[tokio::test]
async fn changes_to_secrets_win_over_a_removal_on_its_way() {
    let world = World::new("secrets-changed").await;
    let things = Things::secrets(&world);
    all_changes_win(world, things).await;
}

#[tokio::test]
async fn changes_to_other_kinds_win_over_a_removal_on_its_way() {
    let world = World::new("widgets-changed").await;
    let things = Things::widgets(&world).await;
    all_changes_win(world, things).await;
}

#[tokio::test]
async fn a_member_that_is_edited_between_read_and_removal_is_looked_at_anew() {
    let world = World::new("between").await;
    let things = Things::widgets(&world).await;
    let proxy = world.cluster.proxy().await.expect("a proxy");
    let operator = world.operator_with(proxy.kubeconfig_path(), &["--attachable", &things.with_keys()]);
    world.wait_for_primary(&operator).await;
    things
        .create(json!({
            "metadata": {"name": "shared", "annotations": {"lessor.dev/keys": things.keys(&[("a/0", "lease")])}},
            "spec": {"a": {"0": "a member"}},
        }))
        .await;
    let hold = proxy.hold_request(|seen| seen.is("PATCH", "/widgets/shared"));
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    hold.reached().await;
    // Now the same pointer leads into an array.
    things.patch("shared", json!({"spec": {"a": ["an element", "another"]}})).await;
    hold.release();
    lessor_kit::world::until("the release is hindered", async || {
        let status = world.leases().get("lease").await.ok()?.status?;
        status
            .conditions
            .iter()
            .any(|c| c.type_ == "Released" && c.message.contains("/spec/a/0"))
            .then_some(())
    })
    .await;
    let found = things.get("shared").await.expect("it stays");
    assert_eq!(found.data["spec"], json!({"a": ["an element", "another"]}));
}

#[tokio::test]
async fn a_lease_made_anew_under_the_same_name_takes_over_what_names_it() {
    let world = World::new("again").await;
    let _operator = world.primary(&[]).await;
    world.granted("lease", json!({"ttlSeconds": 1})).await;
    world.wait_gone("lease").await;
    // It names the lease that is gone, so it waits.
    world.config_map("pending", json!({"lessor.dev/lease": "lease"}), &["a"]).await;
    let again = world.granted("lease", json!({"ttlSeconds": 5})).await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert!(world.config_maps().get_opt("pending").await.expect("an answer").is_some());
    let lease = world.leases().get("lease").await.expect("it lives");
    assert_eq!(lease.metadata.uid, again.metadata.uid);
    world.wait_map_gone("pending").await;
    world.wait_gone("lease").await;
}
