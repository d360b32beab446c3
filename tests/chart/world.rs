//! The world of the end-to-end tests, with operators that have no other rights than the chart gives them.

#[allow(dead_code, reason = "what `World` below does in another way")]
#[path = "../e2e/world.rs"]
pub(crate) mod kit;

use std::ops::Deref;

use lessor_cluster::{Cluster, Process, proxy::Proxy};
use tokio::sync::OnceCell;

use crate::account::{Account, Template};

// `World` below comes before the one in there.
pub(crate) use self::kit::*;

/// What a release of the chart serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// All namespaces. What differs is the rights: operators that share a cluster are told their namespaces all the same.
    All,
    /// The world's namespace, and another one.
    Two,
}

tokio::task_local! {
    /// What the test that runs is about.
    pub(crate) static SERVES: Serves;
}

impl Serves {
    /// The chart's objects, rendered once.
    async fn template(self) -> &'static Template {
        static ALL: OnceCell<Template> = OnceCell::const_new();
        static TWO: OnceCell<Template> = OnceCell::const_new();
        let two = ["--set", "watchNamespaces={placeholder,kube-public}"];
        match self {
            Self::All => ALL.get_or_init(async || Template::new(&[]).await).await,
            Self::Two => TWO.get_or_init(async || Template::new(&two).await).await,
        }
    }
}

/// A test's world.
pub(crate) struct World {
    kit: kit::World,
    account: Account,
    serves: Serves,
}

impl Deref for World {
    type Target = kit::World;

    fn deref(&self) -> &kit::World {
        &self.kit
    }
}

impl World {
    /// A new world, with an account of its own, on the cluster that all worlds share.
    pub(crate) async fn new(name: &str) -> Self {
        Self::on(kit::cluster().await, name).await
    }

    /// A new world on a cluster.
    pub(crate) async fn on(cluster: &'static Cluster, name: &str) -> Self {
        let serves = SERVES.get();
        let kit = kit::World::on(cluster, name).await;
        let account = Account::new(&kit, &serves.template().await.objects(&kit)).await;
        Self { kit, account, serves }
    }

    /// Starts a replica with the chart's rights.
    pub(crate) fn operator(&self, args: &[&str]) -> Process {
        self.kit.operator_with(&self.account.kubeconfig, &self.arguments(args))
    }

    /// Starts a replica with the chart's rights and waits until it is primary.
    pub(crate) async fn primary(&self, args: &[&str]) -> Process {
        let operator = self.operator(args);
        self.kit.wait_for_primary(&operator).await;
        operator
    }

    /// Starts a replica with the chart's rights behind a proxy and waits until it is primary.
    pub(crate) async fn proxied(&self, args: &[&str]) -> (Proxy, Process) {
        let proxy = self.kit.cluster.proxy().await.expect("a proxy");
        let port = proxy.url().rsplit(':').next().unwrap_or_default().trim_end_matches('/').to_owned();
        let name = format!("{}-by-{port}", self.kit.namespace);
        let kubeconfig = proxy.kubeconfig_with_token(&name, &self.account.token).expect("a kubeconfig");
        let operator = self.kit.operator_with(&kubeconfig, &self.arguments(args));
        self.kit.wait_for_primary(&operator).await;
        (proxy, operator)
    }

    fn arguments<'a>(&self, args: &[&'a str]) -> Vec<&'a str> {
        let mut all = args.to_vec();
        if self.serves == Serves::Two {
            all.extend(["--namespace", "kube-public"]);
        }
        all
    }
}
