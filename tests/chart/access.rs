//! The end-to-end tests once more, by operators that have the chart's rights and no others: each with those of a release
//! for all namespaces, and with those of one for two.
//!
//! Tests with `#[trial(not_by_chart)]` are left out: they need no right that others don't need too, and would only take
//! their time. Those are the costs, which are the same for all accounts; what happens before there are CRDs; and hundreds of
//! leases, renewals, keys and updates at once, or many restarts: the same requests, only more.

use std::pin::Pin;

use lessor_kit::{
    trials::{Trial, trial},
    world::{Access, GiveAccess, World, with_access},
};
use tokio::sync::OnceCell;

use crate::account::{Account, Template};

/// Each end-to-end test for each way to serve.
pub(crate) fn trials() -> Vec<Trial> {
    let ways: [(&str, GiveAccess); 2] = [("for_all", for_all), ("for_two", for_two)];
    let mut trials = Vec::new();
    for (way, give) in ways {
        for function in lessor_e2e::functions().filter(|function| function.is_by_chart()) {
            let name = format!("served::{way}::{}", function.name());
            trials.push(trial(name, move || with_access(give, function.start())));
        }
    }
    trials
}

/// The rights of a release for all namespaces. Operators that share a cluster get their namespaces as arguments all the same.
fn for_all(world: &World) -> Pin<Box<dyn Future<Output = Access> + '_>> {
    static TEMPLATE: OnceCell<Template> = OnceCell::const_new();
    Box::pin(async {
        let template = TEMPLATE.get_or_init(async || Template::new(&[]).await).await;
        access(world, template, &[]).await
    })
}

/// The rights of a release for the world's namespace and another one.
fn for_two(world: &World) -> Pin<Box<dyn Future<Output = Access> + '_>> {
    static TEMPLATE: OnceCell<Template> = OnceCell::const_new();
    let values = ["--set", "watchNamespaces={placeholder,kube-public}"];
    Box::pin(async move {
        let template = TEMPLATE.get_or_init(async || Template::new(&values).await).await;
        access(world, template, &["--namespace", "kube-public"]).await
    })
}

async fn access(world: &World, template: &Template, args: &'static [&'static str]) -> Access {
    let Account { token, kubeconfig, .. } = Account::new(world, &template.objects(world)).await;
    Access { token, kubeconfig, args }
}
