//! Events and log lines of a live operator.

use k8s_openapi::api::events::v1::Event;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use lessor_kit::trial;
use serde_json::json;

use crate::release::{Release, SECRET, until};

async fn wait_event(release: &Release<'_>, about: &str, reason: &str, warning: bool) {
    let events: Api<Event> = Api::namespaced(release.client.clone(), &release.leases_in);
    let event = until(&format!("an event {reason} about {about}"), async || {
        let events = events.list(&Default::default()).await.expect("events");
        events.items.into_iter().find(|event| {
            let regarding = event.regarding.as_ref().and_then(|object| object.name.as_deref());
            event.reason.as_deref() == Some(reason) && regarding == Some(about)
        })
    })
    .await;
    assert_eq!(event.type_.as_deref(), Some(if warning { "Warning" } else { "Normal" }), "{event:?}");
}

#[trial]
async fn each_change_of_a_lease_has_an_event_and_a_log_line_without_data() {
    let release = Release::in_namespaces("told").await;
    // Everything that could be logged, is.
    let pod = {
        let mut pod = release.pod().await;
        let variables = pod.containers[0].env.as_mut().expect("variables");
        variables[0].value = Some("trace".to_owned());
        pod
    };
    let operator = release.start(&pod, "talkative").await;
    release.map("whole", json!({"lessor.dev/lease": "cart"}), &["a"]).await;
    release.map("fixed", json!({"key.lessor.dev/a": "stuck"}), &["a"]).await;
    let immutable = Patch::Merge(json!({"immutable": true}));
    release.maps().patch("fixed", &PatchParams::default(), &immutable).await.expect("an immutable map");
    release.map("early", json!({"lessor.dev/lease": "nobody"}), &["a"]).await;
    release.map("wrong", json!({"lessor.dev/lease": "Not A Name"}), &["a"]).await;
    release.granted("cart", json!({"ttlSeconds": 2, "warnBeforeSeconds": 1})).await;
    release.granted("stuck", json!({"ttlSeconds": 1})).await;
    release.granted("revoked", json!({"ttlSeconds": 600})).await;
    release.leases().delete("revoked", &DeleteParams::default()).await.expect("a deletion");

    for (about, reason, warning) in [
        ("cart", "Granted", false),
        ("cart", "Expiring", false),
        ("cart", "Expired", false),
        ("cart", "Released", false),
        ("whole", "Removed", false),
        ("revoked", "Revoked", false),
        ("fixed", "Hindered", true),
        ("early", "AttachmentPending", true),
        ("wrong", "AttachmentInvalid", true),
    ] {
        wait_event(&release, about, reason, warning).await;
    }

    let log = operator.log();
    let name = format!("{}/cart", release.leases_in);
    for reason in ["Granted", "Expiring", "Expired", "Released"] {
        let line = log.lines().filter(|line| line.contains(&name)).find(|line| line.contains(reason));
        let line = line.unwrap_or_else(|| panic!("no line about {name} says {reason}"));
        let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
        assert_eq!(line["lease"], name);
        assert_eq!(line["reason"], reason);
    }
    let removed = log.lines().find(|line| line.contains("\"Removed\"")).expect("a line about the removal");
    assert!(removed.contains("cart") && removed.contains("whole"), "{removed}");
    assert!(!log.contains(SECRET), "data is told");
}
