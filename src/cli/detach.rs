//! `lessor detach-finalizers`: removes the finalizer from leases, so that they can be deleted without an operator.
//!
//! A running operator adds the finalizer again, and a lease that is deleted in between leaves its attachments behind. So this
//! first checks that none runs: where the Lessor names a primary, it removes the finalizer from one lease, and waits whether
//! the primary adds it again.

use std::{io::Write, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, ObjectList, Patch, PatchParams},
    core::{ApiResource, ObjectMeta},
};
use lessor_api::{Lease, Lessor, duration, lease::FINALIZER};
use lessor_core::request::FIELD_MANAGER;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{access::AccessArgs, name};

/// How many leases one list request returns.
const PAGE: u32 = 500;
/// A running operator adds the finalizer again within this time, even if a follower has to take over first.
const ADDED_AGAIN_WITHIN: Duration = Duration::from_secs(10);
/// How often to check that.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How often all leases are gone through, at most.
const MAX_ROUNDS: usize = 10;

/// For use after the operator was uninstalled: a running operator adds the finalizer again. Attached objects stay.
#[derive(Args, Debug)]
pub(crate) struct DetachArgs {
    /// Name of the Lessor object of the operator.
    #[arg(long, env = "LESSOR_NAME", default_value = "default", value_parser = name::object)]
    lessor: String,

    /// Namespace of the leases. Repeatable. Default: all namespaces.
    #[arg(long = "namespace", short, env = "LESSOR_NAMESPACES", value_delimiter = ',', value_parser = name::namespace)]
    namespaces: Vec<String>,

    /// Wait so long for a replica that is stopping, and continue until no lease has had the finalizer for as long.
    #[arg(long, env = "LESSOR_SETTLE", default_value = "0s", value_parser = duration::parse)]
    settle: Duration,

    /// Don't check whether an operator runs. If one does, attached objects may outlive their leases.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    access: AccessArgs,
}

/// Removes the finalizer.
pub(crate) fn run(args: &DetachArgs, out: impl Write) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("can't start the runtime")?;
    runtime.block_on(async { detach(args.access.client().await?, args, out).await })
}

async fn detach(client: Client, args: &DetachArgs, mut out: impl Write) -> anyhow::Result<()> {
    let lease = ApiResource::erase::<Lease>(&());
    let apis: Vec<Api<DynamicObject>> = match args.namespaces.as_slice() {
        [] => vec![Api::all_with(client.clone(), &lease)],
        names => names.iter().map(|name| Api::namespaced_with(client.clone(), name, &lease)).collect(),
    };
    let mut detached =
        if args.force { 0 } else { wait_until_stopped(&client, args, &apis, &mut out).await? };
    let mut settled = args.settle.is_zero();
    for round in 1..=MAX_ROUNDS {
        let mut found = 0;
        for api in &apis {
            found += pass(&client, api).await?;
        }
        detached += found;
        match (found, settled) {
            (0, true) => {
                writeln!(out, "removed the finalizer {FINALIZER} from {detached} leases")?;
                return Ok(());
            }
            (0, false) => {
                settled = true;
                sleep(args.settle).await;
            }
            _ => {
                writeln!(out, "round {round}: removed the finalizer {FINALIZER} from {found} leases")?;
                settled = args.settle.is_zero();
            }
        }
    }
    bail!(
        "leases have the finalizer again after {MAX_ROUNDS} rounds: a replica of the operator runs, stop it first"
    )
}

/// Fails if a replica of the operator runs, and doesn't stop within `--settle`. Returns how many leases lost the finalizer.
async fn wait_until_stopped(
    client: &Client,
    args: &DetachArgs,
    apis: &[Api<DynamicObject>],
    out: &mut impl Write,
) -> anyhow::Result<usize> {
    let start = Instant::now();
    let mut announced = false;
    loop {
        let Some(named) = primary(client, &args.lessor).await? else { return Ok(0) };
        let primary = named.as_ref().map_or("an operator".to_owned(), |name| format!("the primary {name}"));
        if !std::mem::replace(&mut announced, true) {
            writeln!(out, "checking whether {primary} still runs")?;
        }
        match adds_finalizers(client, apis).await? {
            Canary::None => return Ok(0),
            Canary::OnlyEnding if named.is_none() => return Ok(0),
            Canary::OnlyEnding => {
                bail!(
                    "can't check whether {primary} runs, since all leases are ending: make sure, and give --force"
                )
            }
            Canary::Detached => return Ok(1),
            Canary::AddedAgain => {}
        }
        if start.elapsed() >= args.settle {
            bail!("{primary} runs: it added the finalizer again. Stop the operator first, or give --force");
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The primary that the Lessor names, if it does. `Some(None)`: it may not be read.
async fn primary(client: &Client, lessor: &str) -> anyhow::Result<Option<Option<String>>> {
    match Api::<Lessor>::all(client.clone()).get(lessor).await {
        Ok(lessor) => {
            let primary = lessor.status.and_then(|status| status.primary).filter(|name| !name.is_empty());
            Ok(primary.map(Some))
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        // The uninstall hook with `watchNamespaces` may not read it.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(None)),
        Err(error) => Err(error).context("can't read the Lessor"),
    }
}

/// The outcome of the check on one lease.
enum Canary {
    /// No lease has the finalizer.
    None,
    /// Only leases that are ending have it. Their release would be lost with it.
    OnlyEnding,
    /// It lost the finalizer, and nothing happened.
    Detached,
    /// It lost the finalizer, and has it again.
    AddedAgain,
}

/// Removes the finalizer from one lease, and waits whether it is added again.
async fn adds_finalizers(client: &Client, apis: &[Api<DynamicObject>]) -> anyhow::Result<Canary> {
    let mut only_ending = false;
    for api in apis {
        let mut page = Some(ListParams::default().limit(PAGE));
        while let Some(params) = page {
            let leases = list(api.list(&params).await)?;
            for lease in leases.items.iter().filter(|lease| has_finalizer(&lease.metadata)) {
                if lease.metadata.deletion_timestamp.is_some() || !lease.data["status"]["endTime"].is_null() {
                    only_ending = true;
                    continue;
                }
                if remove_finalizer(client, &lease.metadata).await? {
                    let added_again = is_added_again(client, &lease.metadata).await?;
                    return Ok(if added_again { Canary::AddedAgain } else { Canary::Detached });
                }
            }
            page = next_page(&params, &leases);
        }
    }
    Ok(if only_ending { Canary::OnlyEnding } else { Canary::None })
}

async fn is_added_again(client: &Client, lease: &ObjectMeta) -> anyhow::Result<bool> {
    let namespace = lease.namespace.as_deref().unwrap_or_default();
    let name = lease.name.as_deref().unwrap_or_default();
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let only_this = ListParams::default().fields(&format!("metadata.name={name}"));
    let start = Instant::now();
    while start.elapsed() < ADDED_AGAIN_WITHIN {
        sleep(POLL_INTERVAL).await;
        let found = leases.list_metadata(&only_this).await.context("can't list leases")?;
        if found.items.iter().any(|lease| has_finalizer(&lease.metadata)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Goes through all leases once. Returns how many had the finalizer.
async fn pass(client: &Client, api: &Api<DynamicObject>) -> anyhow::Result<usize> {
    let mut found = 0;
    let mut page = Some(ListParams::default().limit(PAGE));
    while let Some(params) = page {
        let leases = list(api.list_metadata(&params).await)?;
        for lease in leases.items.iter().filter(|lease| has_finalizer(&lease.metadata)) {
            found += 1;
            // Whatever was changed or deleted concurrently is left to the next pass.
            remove_finalizer(client, &lease.metadata).await?;
        }
        page = next_page(&params, &leases);
    }
    Ok(found)
}

/// Returns false if the lease was changed or deleted concurrently.
async fn remove_finalizer(client: &Client, lease: &ObjectMeta) -> anyhow::Result<bool> {
    let finalizers = lease.finalizers.iter().flatten();
    let others: Vec<&String> = finalizers.filter(|name| *name != FINALIZER).collect();
    // The patch replaces the whole list, so it is bound to the version that was read.
    let patch = json!({"metadata": {
        "uid": lease.uid, "resourceVersion": lease.resource_version, "finalizers": others,
    }});
    let namespace = lease.namespace.as_deref().unwrap_or_default();
    let name = lease.name.as_deref().unwrap_or_default();
    let write = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    match leases.patch_metadata(name, &write, &Patch::Merge(patch)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(false),
        Err(error) => {
            Err(error).with_context(|| format!("can't remove the finalizer from {namespace}/{name}"))
        }
    }
}

/// A page of leases. It is empty if the CRD isn't installed.
fn list<K: Clone>(listed: kube::Result<ObjectList<K>>) -> anyhow::Result<ObjectList<K>> {
    match listed {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            Ok(ObjectList { types: Default::default(), metadata: Default::default(), items: Vec::new() })
        }
        listed => listed.context("can't list leases"),
    }
}

fn next_page<K: Clone>(params: &ListParams, listed: &ObjectList<K>) -> Option<ListParams> {
    let token = listed.metadata.continue_.as_deref().filter(|token| !token.is_empty())?;
    Some(params.clone().continue_token(token))
}

fn has_finalizer(lease: &ObjectMeta) -> bool {
    lease.finalizers.iter().flatten().any(|name| name == FINALIZER)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::Parser;
    use http::{Method, Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: DetachArgs,
    }

    /// Leases, and an operator beside them.
    #[derive(Default)]
    struct World {
        leases: Vec<Value>,
        primary: &'static str,
        /// Whether an operator adds the finalizer again at once.
        runs: bool,
        patches: usize,
    }

    impl World {
        fn new(leases: usize, primary: &'static str, runs: bool) -> Arc<Mutex<Self>> {
            let lease = |n| {
                json!({
                    "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease", "spec": {"ttlSeconds": 5}, "status": {},
                    "metadata": {
                        "name": format!("lease-{n}"), "namespace": "shop", "resourceVersion": "1",
                        "finalizers": ["other", FINALIZER],
                    },
                })
            };
            let leases = (0..leases).map(lease).collect();
            Arc::new(Mutex::new(Self { leases, primary, runs, patches: 0 }))
        }

        fn respond(&mut self, method: &Method, uri: &str, body: &[u8]) -> Value {
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            let name = path.rsplit('/').next().unwrap_or_default();
            if path.contains("/lessors/") {
                return json!({"metadata": {"name": "default"}, "status": {"primary": self.primary}});
            }
            if *method == Method::PATCH {
                self.patches += 1;
                let patch: Value = serde_json::from_slice(body).unwrap();
                let lease = self.leases.iter_mut().find(|lease| lease["metadata"]["name"] == name).unwrap();
                if !self.runs {
                    lease["metadata"]["finalizers"] = patch["metadata"]["finalizers"].clone();
                }
                return lease.clone();
            }
            let wanted = query.rsplit("metadata.name%3D").next().filter(|_| query.contains("fieldSelector"));
            let wanted = wanted.map(|name| name.trim_end_matches('&').to_owned());
            let matches =
                |lease: &&Value| wanted.as_deref().is_none_or(|name| lease["metadata"]["name"] == name);
            let items: Vec<&Value> = self.leases.iter().filter(matches).collect();
            json!({"apiVersion": "lessor.dev/v1alpha1", "kind": "LeaseList", "metadata": {}, "items": items})
        }

        fn with_finalizer(&self) -> usize {
            let has = |lease: &&Value| lease["metadata"]["finalizers"].to_string().contains(FINALIZER);
            self.leases.iter().filter(has).count()
        }
    }

    /// Runs the command. Returns what it printed, or its error.
    async fn detach_in(world: &Arc<Mutex<World>>, arguments: &[&str]) -> Result<String, String> {
        let server = world.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (method, uri) = (request.method().clone(), request.uri().to_string());
                let body = request.into_body().collect_bytes().await?;
                let response = server.lock().respond(&method, &uri, &body).to_string();
                Response::builder().body(Body::from(response.into_bytes())).map_err(tower::BoxError::from)
            }
        });
        let command = Command::try_parse_from([&["detach-finalizers"], arguments].concat()).unwrap();
        let mut out = Vec::new();
        let result = detach(Client::new(service, "default"), &command.args, &mut out).await;
        result.map(|()| String::from_utf8(out).unwrap()).map_err(|error| error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_orderly_stop_all_leases_lose_the_finalizer_at_once() {
        let world = World::new(3, "", false);
        let printed = detach_in(&world, &[]).await.unwrap();
        assert!(printed.ends_with("removed the finalizer lessor.dev/revoke from 3 leases\n"), "{printed}");
        let world = world.lock();
        assert_eq!((world.with_finalizer(), world.patches), (0, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_primary_that_died_is_no_obstacle() {
        let world = World::new(3, "replica-1", false);
        let printed = detach_in(&world, &[]).await.unwrap();
        assert!(printed.starts_with("checking whether the primary replica-1 still runs\n"), "{printed}");
        assert!(printed.ends_with("removed the finalizer lessor.dev/revoke from 3 leases\n"), "{printed}");
        assert_eq!(world.lock().with_finalizer(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn beside_a_running_operator_it_touches_one_lease_and_refuses() {
        let world = World::new(100, "replica-1", true);
        let error = detach_in(&world, &[]).await.unwrap_err();
        assert!(error.contains("replica-1 runs") && error.contains("--force"), "{error}");
        assert_eq!(world.lock().patches, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn with_force_it_ends_after_a_bounded_number_of_rounds() {
        let world = World::new(100, "replica-1", true);
        let error = detach_in(&world, &["--force"]).await.unwrap_err();
        assert!(error.contains("a replica of the operator runs"), "{error}");
        assert_eq!(world.lock().patches, 100 * MAX_ROUNDS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_ending_is_not_used_to_check_for_an_operator() {
        let world = World::new(1, "replica-1", false);
        world.lock().leases[0]["status"]["endTime"] = json!("2026-01-31T12:00:00Z");
        let error = detach_in(&world, &[]).await.unwrap_err();
        assert!(error.contains("all leases are ending"), "{error}");
        assert_eq!(world.lock().patches, 0);
    }
}
