//! What the story needs around it: a cluster, the custom resources, the operator, a namespace. And its end.

use std::{env, path::Path, process::Command, time::Duration};

use anyhow::{Context, bail};
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Namespace},
        events::v1::Event,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    runtime::{conditions, wait::await_condition},
};
use lessor_api::{Lease, Lessor, crd};
use lessor_cluster::{Cluster, Process, audit::Mark};
use tokio::time::{Instant, sleep, timeout};

use crate::{manifests, operator::USER_AGENT, timeline::Timeline};

/// How long anything may take here that isn't part of the story.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster with an operator.
pub(crate) struct Stage {
    cluster: Cluster,
    /// For everything that the quickstart asks and does itself.
    pub(crate) client: Client,
    /// Where the story takes place.
    pub(crate) namespace: String,
    /// The name of the `Lessor` of our operator.
    lessor: String,
    /// `None`: the cluster has one of its own.
    operator: Option<Process>,
    /// What has to go in the end from a cluster that isn't ours.
    installed: Vec<String>,
    mark: Option<Mark>,
}

impl Stage {
    /// Starts a cluster, or takes the one that there is.
    pub(crate) async fn start(kubeconfig: Option<&Path>, timeline: &Timeline) -> anyhow::Result<Self> {
        let started = Instant::now();
        let (about, cluster) = match kubeconfig {
            Some(path) => ("cluster", Cluster::with_kubeconfig(path).await?),
            None => {
                timeline.fact("cluster", "is being prepared");
                ("", Cluster::start().await?)
            }
        };
        let client = cluster.client()?;
        let (version, url) = (cluster.version().await?.git_version, cluster.server_url());
        let took = started.elapsed().as_secs_f64();
        let place = url.trim_end_matches('/');
        timeline.fact(about, &format!("Kubernetes {version} at {place}, ready after {took:.1} s"));
        let (namespace, lessor) = if cluster.is_ours() {
            (manifests::NAMESPACE.to_owned(), "default".to_owned())
        } else {
            let name = format!("lessor-quickstart-{:08x}", uuid::Uuid::new_v4().as_fields().0);
            (name.clone(), name)
        };
        Ok(Self { cluster, client, namespace, lessor, operator: None, installed: Vec::new(), mark: None })
    }

    /// Installs what is missing, and starts the operator if none is there.
    pub(crate) async fn prepare(&mut self, timeline: &Timeline) -> anyhow::Result<()> {
        self.install_crds(timeline).await?;
        match self.present_primary().await? {
            Some(primary) => timeline.fact("operator", &format!("{primary} is there already, and is used")),
            None => self.start_operator(timeline).await?,
        }
        self.mark = self.cluster.audit().ok().and_then(|log| log.mark().ok());
        Ok(())
    }

    async fn install_crds(&mut self, timeline: &Timeline) -> anyhow::Result<()> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for crd in crd::all() {
            let name = crd.name_any();
            if crds.get_opt(&name).await.context("looking for the custom resources")?.is_some() {
                timeline.fact("crd", &format!("{name} was there already"));
                continue;
            }
            crds.create(&PostParams::default(), &crd).await.with_context(|| format!("installing {name}"))?;
            self.installed.push(name.clone());
            let established = await_condition(crds.clone(), &name, conditions::is_crd_established());
            timeout(PATIENCE, established)
                .await
                .with_context(|| format!("{name} is installed, but not served after {PATIENCE:?}"))??;
            timeline.fact("crd", &format!("{name} installed"));
        }
        Ok(())
    }

    /// The primary of an operator that runs here already. A second one beside it would do the same work twice.
    async fn present_primary(&self) -> anyhow::Result<Option<String>> {
        let lessors = self.lessors().list(&ListParams::default()).await.context("looking for an operator")?;
        Ok(lessors.into_iter().find_map(primary_of))
    }

    async fn start_operator(&mut self, timeline: &Timeline) -> anyhow::Result<()> {
        let mut command = Command::new(env::current_exe().context("looking for this program")?);
        command.arg("operator").args(["--lessor", &self.lessor]);
        command.arg("--kubeconfig").arg(self.cluster.kubeconfig_path());
        if !self.cluster.is_ours() {
            command.args(["--namespace", &self.namespace]);
        }
        let started = Instant::now();
        let operator = self.operator.insert(self.cluster.spawn(&command, "operator")?);
        while started.elapsed() < PATIENCE {
            let lessors: Api<Lessor> = Api::all(self.client.clone());
            let lessor = lessors.get_opt(&self.lessor).await.context("looking for the operator's Lessor")?;
            if let Some(primary) = lessor.and_then(primary_of) {
                timeline.fact("operator", &format!("{primary} is primary"));
                return Ok(());
            }
            if let Some(status) = operator.exit_status() {
                bail!("the operator ended ({status}); its log:\n{}", operator.log());
            }
            sleep(Duration::from_millis(20)).await;
        }
        bail!("the operator is not primary after {PATIENCE:?}; its log:\n{}", operator.log())
    }

    /// Leases of the story.
    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// ConfigMaps of the story.
    pub(crate) fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Events of the story.
    pub(crate) fn events(&self) -> Api<Event> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn lessors(&self) -> Api<Lessor> {
        Api::all(self.client.clone())
    }

    /// How many requests our operator has sent since the story began, beside watches and Events. `None`: they are not counted
    /// them here.
    pub(crate) fn operator_requests(&self) -> Option<usize> {
        let entries = self.cluster.audit().ok()?.since(self.mark?).ok()?.agent(USER_AGENT);
        Some(entries.filter(|entry| entry.verb != "watch" && entry.resource != "events").requests())
    }

    /// The end of the operator's log, to find out what went wrong.
    pub(crate) fn show_operator_log(&self, timeline: &Timeline) {
        let Some(operator) = &self.operator else {
            let namespace = &self.namespace;
            timeline
                .say(&format!("\nThe operator isn't ours. Does it run, and serve namespace {namespace}?"));
            return;
        };
        let log = operator.log();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines.get(lines.len().saturating_sub(30)..).unwrap_or_default();
        timeline.say(&format!("\nThe operator's log ends like this:\n  {}", last.join("\n  ")));
    }

    /// Ends everything, and removes what was made on a cluster that isn't ours.
    pub(crate) async fn clear(self, timeline: &Timeline) -> anyhow::Result<()> {
        let ours = self.cluster.is_ours();
        if !ours {
            self.revoke_all().await?;
        }
        if let Some(operator) = &self.operator {
            operator.stop().await?;
        }
        if !ours {
            self.remove_all(timeline).await?;
        }
        Ok(())
    }

    /// The operator has to be there for this: it takes the finalizers away.
    async fn revoke_all(&self) -> anyhow::Result<()> {
        let leases = self.leases();
        let by = Instant::now() + PATIENCE;
        loop {
            let left = match leases.list(&ListParams::default()).await {
                // The kind isn't even installed.
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                list => list.context("looking for leases that are left")?.items,
            };
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > by {
                bail!("{} leases are left in namespace {} after {PATIENCE:?}", left.len(), self.namespace);
            }
            for lease in left.iter().filter(|lease| lease.metadata.deletion_timestamp.is_none()) {
                gone(leases.delete(&lease.name_any(), &DeleteParams::default()).await)?;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn remove_all(&self, timeline: &Timeline) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        gone(namespaces.delete(&self.namespace, &DeleteParams::default()).await)?;
        if self.operator.is_some() {
            gone(self.lessors().delete(&self.lessor, &DeleteParams::default()).await)?;
        }
        if self.installed.is_empty() {
            timeline.say(&format!("Removed namespace {} and what was in it.", self.namespace));
            return Ok(());
        }
        let all: Api<Lease> = Api::all(self.client.clone());
        if all.list(&ListParams::default().limit(1)).await.is_ok_and(|leases| !leases.items.is_empty()) {
            timeline.say("Other leases exist by now, so the custom resources stay.");
            return Ok(());
        }
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for name in &self.installed {
            gone(crds.delete(name, &DeleteParams::default()).await)?;
        }
        timeline.say(&format!("Removed namespace {} and the custom resources.", self.namespace));
        Ok(())
    }

    /// Leaves everything running, and says how to use and how to stop it.
    pub(crate) fn leave(self, timeline: &Timeline) {
        let ours = self.cluster.is_ours();
        let kubeconfig = self.cluster.kubeconfig_path().display().to_string();
        let namespace = self.namespace;
        let log = self.operator.as_ref().map(|operator| operator.log_path().display().to_string());
        let keeper = self.cluster.leave_running(self.operator);
        timeline.say("\nThe cluster and the operator go on. Use them:\n");
        timeline.say(&format!("  export KUBECONFIG={kubeconfig}"));
        if ours {
            timeline.say("  kubectl apply --server-side -f examples/service-registration.yaml");
        }
        timeline.say(&format!(
            "  kubectl -n {namespace} get tl,configmaps\n  \
             kubectl -n {namespace} patch tl web-1 --type merge \\\n    \
             -p \"{{\\\"spec\\\": {{\\\"renewTime\\\": \\\"$(date -u +%Y-%m-%dT%H:%M:%SZ)\\\"}}}}\"\n  \
             kubectl -n {namespace} get tl -o wide --watch\n  \
             kubectl -n {namespace} get events\n  \
             kubectl explain tl.spec"
        ));
        if let Some(log) = log {
            timeline.say(&format!("  tail -f {log}"));
        }
        if ours {
            timeline
                .say("\nNo controllers run beside the API server, so a deleted namespace would never go.");
        }
        timeline.say(&format!("Stop everything and remove its files:\n\n  kill {keeper}\n"));
    }
}

fn primary_of(lessor: Lessor) -> Option<String> {
    lessor.status?.primary.filter(|primary| !primary.is_empty())
}

/// Whether something was there to be deleted makes no difference.
fn gone<T>(deleted: kube::Result<T>) -> kube::Result<()> {
    match deleted {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        result => result.map(drop),
    }
}
